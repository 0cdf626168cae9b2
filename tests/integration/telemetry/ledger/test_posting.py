"""The ledger against the meter: not a joule lost, none entered twice."""

import math

import pytest
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools.models import Gpu, Node, Service
from telemetry.ledger import posting
from telemetry.models import CarbonFeed, CarbonPoint, EnergyEntry, GpuEnergy, GpuSample, MeterMark
from tests.fakes.house import moment, sample, start_instance
from tests.oracles.meter_balance import balance

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0  # 2026-01-01, a border of intervals


@pytest.fixture
def service(demo_rows):
    return Service.objects.get()


@pytest.fixture
def gpu(service):
    return Gpu.objects.get(uuid="SIM-loc1-a100-0")


def intensity(gpu, at_s, value, length_s=10.0):
    feed = CarbonFeed.objects.get(site=gpu.node.cluster.site)
    CarbonPoint.objects.create(
        feed=feed,
        start_at=moment(at_s),
        end_at=moment(at_s + length_s),
        value_g_per_kwh=value,
        raw_unit="gCO2e/kWh",
        forecast=False,
        issued_at=moment(at_s),
    )


def totals(gpu):
    return dict(EnergyEntry.objects.filter(gpu=gpu).values_list("kind").annotate(j=Sum("energy_j")))


def balanced(gpu):
    """The meter, its entries, and what the database adds up of them by hour and by day."""
    found = balance(gpu)
    sums = GpuEnergy.objects.filter(gpu=gpu).values_list("step_s").annotate(uj=Sum("energy_uj"))
    return found.difference_uj == 0 and {found.entries_uj} >= {uj for _, uj in sums}


def post(at_s):
    return posting.post(moment(at_s))


def test_whole_intervals_are_entered_and_the_rest_waits_when_a_interval_is_open(gpu):
    for second in range(26):
        sample(gpu, START + second, 100.0 * second)
    post(START + 26)
    assert totals(gpu) == {"idle": pytest.approx(2000.0)}
    watermark = MeterMark.objects.get(gpu=gpu)
    assert (watermark.at, watermark.energy_j) == (moment(START + 20), pytest.approx(2000.0))
    assert post(START + 27) == 0
    for second in range(26, 31):
        sample(gpu, START + second, 100.0 * second)
    assert post(START + 33) == 1
    assert totals(gpu) == {"idle": pytest.approx(3000.0)}
    assert balanced(gpu)


def test_joules_go_to_what_the_gpu_did_when_it_did_several_things(service, gpu):
    instance = start_instance(service.pools.first(), Node.objects.get(name="loc1-a100"), tp=2)
    states = [("starting", None)] * 5 + [("ready", 0)] * 3 + [("ready", 4)] * 10 + [("draining", 1)] * 3
    for second, (state, running) in enumerate(states):
        sample(gpu, START + second, 10.0 * second, instance, running=running)
        GpuSample.objects.filter(at=moment(START + second)).update(instance_state=state)
    post(START + 23)
    assert totals(gpu) == {
        "transition": pytest.approx(40.0),
        "idle": pytest.approx(30.0),
        "serving": pytest.approx(130.0),
    }
    assert set(EnergyEntry.objects.values_list("pool_id", "instance_id")) == {(instance.pool_id, instance.pk)}
    assert balanced(gpu)


def test_energy_is_unattributed_when_samples_are_missing(gpu):
    for second in (0, 1, 2, 17, 18, 19, 20, 21):
        sample(gpu, START + second, 50.0 * second)
    post(START + 24)
    assert totals(gpu) == {"idle": pytest.approx(250.0), "unattributed": pytest.approx(750.0)}
    assert balanced(gpu)


def test_gap_is_seen_whole_when_a_posting_falls_into_it(gpu):
    """Of a gap from 8 to 14 s the part after the border is short by itself; it is a gap all the same."""
    for second in (0, 4, 8, 14):
        sample(gpu, START + second, 10.0 * second)
    post(START + 15)
    for second in (18, 22):
        sample(gpu, START + second, 10.0 * second)
    post(START + 24)
    assert totals(gpu) == {"idle": pytest.approx(140.0), "unattributed": pytest.approx(60.0)}
    assert balanced(gpu)


def test_ledger_balances_when_the_counter_starts_again(gpu):
    """The driver is reloaded at 12 s: the counter had 1,200 J and starts from nothing."""
    for second in range(32):
        sample(gpu, START + second, 5000.0 + 100.0 * second if second < 12 else 100.0 * (second - 11))
        if second % 10 == 3:
            post(START + second)
    post(START + 34)
    entered = EnergyEntry.objects.filter(gpu=gpu).aggregate(total=Sum("energy_j"))["total"]
    assert entered == pytest.approx(1100.0 + 100.0 * 19)
    assert balanced(gpu)


def test_sample_without_a_reading_is_passed_over_when_the_meter_failed(gpu):
    for second in range(22):
        sample(gpu, START + second, None if second in (9, 10, 11) else 10.0 * second)
    post(START + 24)
    assert totals(gpu) == {"idle": pytest.approx(200.0)}
    assert balanced(gpu)


def test_nothing_is_entered_twice_when_a_sample_comes_in_late(gpu):
    for second in (0, 3, 6, 9, 12, 15):
        sample(gpu, START + second, 10.0 * second)
    post(START + 17)
    sample(gpu, START + 10.5, 92.0)  # bends the line on which the watermark of 10 s lies
    for second in (18, 21):
        sample(gpu, START + second, 10.0 * second)
    post(START + 24)
    assert totals(gpu)["idle"] == pytest.approx(200.0)
    assert balanced(gpu)


def test_silent_gpu_is_caught_up_when_it_speaks_again(gpu):
    """Two hours without a sample: caught up an hour at a time, all of it unattributed."""
    for second in range(13):
        sample(gpu, START + second, 10.0 * second)
    post(START + 14)
    assert post(START + 3600) == 0
    back = START + 7200
    for second in range(13):
        sample(gpu, back + second, 72_000.0 + 10.0 * second)
    for _ in range(3):
        post(back + 14)
        assert balanced(gpu)
    assert MeterMark.objects.get(gpu=gpu).at == moment(back + 10)
    assert sum(totals(gpu).values()) == pytest.approx(72_100.0)
    assert EnergyEntry.objects.filter(kind="unattributed").count() == 719


def test_carbon_is_energy_times_pue_times_intensity_when_the_feed_has_it(gpu):
    intensity(gpu, START, 300.0)
    intensity(gpu, START + 10, None)
    for second in range(34):
        sample(gpu, START + second, 360.0 * second)
    post(START + 36)
    rows = list(EnergyEntry.objects.order_by("start_at").values_list("intensity_g_per_kwh", "carbon_gco2e"))
    assert rows[0] == (300.0, pytest.approx(3600.0 / 3.6e6 * 1.54 * 300.0))
    assert rows[1:] == [(None, None), (None, None)]


def test_entry_is_unknown_when_a_part_of_its_time_is(gpu):
    intensity(gpu, START, 300.0, length_s=5.0)
    for second in range(12):
        sample(gpu, START + second, 10.0 * second)
    post(START + 14)
    assert EnergyEntry.objects.get().carbon_gco2e is None


def test_gpus_are_posted_together_when_all_report(service):
    for second in range(24):
        for offset, each in enumerate(Gpu.objects.all()):
            sample(each, START + second, offset + 10.0 * second)
    assert post(START + 26) == 2 * Gpu.objects.count()
    assert all(balanced(each) for each in Gpu.objects.all())


def test_balance_is_zero_when_nothing_was_measured(gpu):
    assert balance(gpu).difference_uj == 0
    assert post(START) == 0


@given(
    steps=st.lists(st.tuples(st.floats(0.2, 12.0), st.floats(0.0, 400.0), st.booleans()), min_size=1, max_size=40),
    postings=st.sets(st.integers(0, 40), max_size=6),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_entries_add_up_to_the_counter_when_anything_happens(gpu, steps, postings):
    """Gaps, resets and postings at any moment: per GPU the entries are the counter's deltas, and nothing else."""
    for model in (EnergyEntry, MeterMark, GpuSample):
        model.objects.filter(gpu=gpu).delete()
    at_s, counter_j, metered_j = START + 3.25, 777.0, []
    sample(gpu, at_s, counter_j)
    for number, (length_s, mean_w, reset) in enumerate(steps):
        at_s = round(at_s + length_s, 3)
        delta_j = round(mean_w * length_s, 3)
        counter_j = delta_j if reset and delta_j < counter_j else counter_j + delta_j
        sample(gpu, at_s, counter_j)
        metered_j.append(delta_j)
        if number in postings:
            post(at_s + 1)
            assert balanced(gpu)
    last_s = at_s + 4.0
    while at_s < last_s + 12:
        at_s += 4.0
        sample(gpu, at_s, counter_j)
    post(at_s)
    assert balanced(gpu)
    entered = EnergyEntry.objects.filter(gpu=gpu).aggregate(total=Sum("energy_j"))["total"] or 0.0
    assert entered == pytest.approx(math.fsum(metered_j), rel=1e-9, abs=1e-6)
