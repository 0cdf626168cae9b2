"""Roll-ups: late batches change the right minutes, duplicates change nothing, gaps are counted and never filled."""

import random
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools import wire
from pools.models import Gpu, Node, Service
from telemetry import selectors
from telemetry.ingest import sample_rollups
from telemetry.ingest.agent_batches import SampleWriter
from telemetry.models import GpuDay, GpuHour, GpuMinute, GpuSample, IngestedBatches, MeterMark, RollupDue
from telemetry.selectors import single_entities
from telemetry.selectors.frames import TimeRange
from telemetry.storage import time_partitions
from tests.fakes.house import gpu_row, moment, start_instance

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0
UUID = "SIM-loc1-a100-0"


@pytest.fixture
def gpu(demo_rows, db):
    time_partitions.ensure({moment(START).date(), moment(START - 60).date(), moment(START + 86_400).date()})
    return Gpu.objects.get(uuid=UUID)


@pytest.fixture
def writer():
    return SampleWriter(lambda *_: None)


def batches(times_s, each=10):
    """Batches of samples with 100 W in the first minute, 101 W in the second, and so on."""
    rows = [gpu_row(UUID, at_s, at_s - START, power_w=100.0 + (at_s - START) // 60) for at_s in times_s]
    return [
        wire.AgentBatch("n", "boot", seq, START, wire.GpuSamples.pack(rows[at : at + each]))
        for seq, at in enumerate(range(0, len(rows), each))
    ]


def roll_up(at_s=START + 86_000):
    return sample_rollups.roll_up(moment(at_s))


def table(model):
    return list(model.objects.order_by("start_at").values())


def test_minutes_hours_and_days_are_made_when_samples_come(gpu, writer):
    writer.write(batches(START + second for second in range(7_200)))
    assert roll_up() == 122  # and the minutes on both sides, whose gaps the samples might have closed
    assert GpuMinute.objects.count() == 120
    minute = GpuMinute.objects.get(start_at=moment(START + 60))
    assert (minute.samples, minute.heard_s, minute.gaps, minute.power_w, minute.power_max_w) == (60, 60.0, 0, 101, 101)
    first, _ = GpuHour.objects.order_by("start_at")
    assert (first.samples, first.heard_s, first.gaps) == (3_600, 3_600.0, 0)
    assert first.power_w == pytest.approx(100 + 59 / 2)
    day = GpuDay.objects.get()
    assert (day.samples, day.gaps, day.power_max_w) == (7_200, 1, 219)
    assert day.heard_s == pytest.approx(7_199.0)
    assert roll_up() == 0


def test_minutes_wait_until_they_are_over_when_samples_are_fresh(gpu, writer):
    writer.write(batches(START + second for second in range(90)))
    assert roll_up(START + 66) == 1  # the minute before, whose gap the first samples might have closed
    assert not GpuMinute.objects.exists()
    assert roll_up(START + 68) == 1
    assert GpuMinute.objects.get().samples == 60
    assert RollupDue.objects.filter(start_at=moment(START + 60)).exists()


def test_gap_is_counted_where_it_began_and_its_time_is_missing_when_a_meter_is_silent(gpu, writer):
    silent = range(50, 140)
    writer.write(batches(START + second for second in range(300) if second not in silent))
    roll_up()
    heard = dict(GpuMinute.objects.values_list("start_at", "heard_s"))
    assert heard[moment(START)] == pytest.approx(49.0)
    assert moment(START + 60) not in heard
    assert heard[moment(START + 120)] == pytest.approx(40.0)
    assert dict(GpuMinute.objects.filter(gaps__gt=0).values_list("start_at", "gaps")) == {
        moment(START): 1,
        moment(START + 240): 1,  # nothing has come since
    }
    MeterMark.objects.create(gpu=gpu, at=moment(START), energy_uj=0, opened_at=moment(START), opened_energy_uj=0)
    (found,) = selectors.meter_gaps(START, START + 300)
    assert (found.gpu, found.gaps) == (UUID, 2)
    assert found.missing_s == pytest.approx(300 - 208)
    frame = selectors.gpu_series(gpu.pk, UUID, TimeRange(START, START + 300, 60.0))
    assert frame.power_w == (100.0, None, 102.0, 103.0, 104.0)
    assert frame.missing_s == pytest.approx((11.0, 60.0, 20.0, 0.0, 1.0))


def test_meter_gaps_add_up_from_days_hours_and_minutes_when_the_span_is_long(gpu, writer):
    times = [START - 3_600 + 5 * n for n in range(2 * 86_400 // 5)]
    time_partitions.ensure({moment(at_s).date() for at_s in (times[0], times[-1])})
    writer.write(batches(times, each=5_000))
    while roll_up(START + 3 * 86_400):
        pass
    opened = moment(START - 7_200)
    MeterMark.objects.create(gpu=gpu, at=opened, energy_uj=0, opened_at=opened, opened_energy_uj=0)
    (found,) = selectors.meter_gaps(START - 1_830, START + 90_030)
    assert found.heard_s == pytest.approx(91_800.0)
    assert (found.missing_s, found.gaps) == (pytest.approx(0.0), 0)


def test_series_are_refused_when_buckets_are_not_of_whole_minutes(gpu):
    with pytest.raises(ValueError, match="whole minutes"):
        selectors.gpu_series(gpu.pk, UUID, TimeRange(START, START + 300, 10.0))


def test_old_minutes_are_dropped_and_hours_kept_when_retention_is_over(gpu, writer):
    writer.write(batches(START + second for second in range(120)))
    roll_up()
    assert sample_rollups.drop_old(2, moment(START + 3 * 86_400)) == [
        f"{table}_{day}" for table in time_partitions.MINUTES for day in ("20251231", "20260101")
    ]
    assert (GpuMinute.objects.count(), GpuHour.objects.count()) == (0, 1)


@given(
    gaps=st.lists(st.floats(0.2, 20.0), min_size=5, max_size=120),
    order=st.randoms(use_true_random=False),
    cuts=st.sets(st.integers(0, 30), max_size=4),
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_rollups_are_the_same_when_batches_come_late_twice_and_in_any_order(gpu, gaps, order: random.Random, cuts):
    times, at_s = [], START + 30.0
    for gap in gaps:
        at_s = round(at_s + gap, 3)
        times.append(at_s)
    made = batches(times, each=4)
    outcomes = []
    for shuffled in (made, order.sample(made + made[::2], len(made) + len(made[::2]))):
        for model in (GpuSample, GpuMinute, GpuHour, GpuDay, RollupDue, IngestedBatches):
            model.objects.all().delete()
        writer = SampleWriter(lambda *_: None)
        for n, batch in enumerate(shuffled):
            writer.write([batch])
            if n in cuts:
                roll_up()
        roll_up()
        outcomes.append(
            [
                [{**row, "power_w": round(row["power_w"], 6), "heard_s": round(row["heard_s"], 6)} for row in table(m)]
                for m in (GpuMinute, GpuHour)
            ]
        )
    assert outcomes[0] == outcomes[1]
    silence_s = sum(gap for gap in gaps[1:] if round(gap, 3) > 5.0)
    heard_s = sum(row["heard_s"] for row in outcomes[0][1])
    assert heard_s == pytest.approx(times[-1] - times[0] - silence_s, abs=0.1)
    assert sum(row["samples"] for row in outcomes[0][1]) == len(times)


def test_a_minute_is_not_lost_when_samples_are_written_while_it_is_rolled_up(gpu, writer):
    writer.write(batches(START + second for second in range(60)))
    roll_up()
    late = [gpu_row(UUID, START + 30.5, 30.5, power_w=400.0)]
    writer.write([wire.AgentBatch("n", "boot", 99, START, wire.GpuSamples.pack(late))])
    assert roll_up() == 1
    assert GpuMinute.objects.get().samples == 61


def test_minutes_of_engines_say_what_the_samples_say_when_some_come_late(demo_rows, db):
    time_partitions.ensure({moment(START).date(), moment(START - 60).date()})
    node = Node.objects.get(name="loc1-a100")
    service = Service.objects.get()
    instances = [start_instance(service.pools.first(), node, tp=2), start_instance(service.pools.first(), node, tp=2)]
    rng, at_s = random.Random(1), [START + second for second in range(240)]
    rows = [
        wire.InstanceSampleRow(
            at_s=s,
            instance_uid=str(one.uid),
            state="ready",
            running=rng.randint(0, 9),
            waiting=rng.randint(0, 3),
            kv_usage=rng.random(),
            prompt_tokens_total=None,
            generation_tokens_total=None,
            ttft_s=None,
            tpot_s=None,
            sm_clock_mhz=rng.choice([None, 1_110.0, 1_200.0]),
        )
        for one in instances
        for s in at_s
    ]
    rng.shuffle(rows)
    writer = SampleWriter(lambda *_: None)
    window, ids = TimeRange(START, START + 240, 60.0), [one.pk for one in instances]
    for seq, part in enumerate((rows[:300], rows[300:])):
        writer.write([wire.AgentBatch("n", "boot", seq, START, instances=part)])
        roll_up()
    minutes = single_entities.pool_series(instances[0].pool_id, ids, window)
    with patch.object(single_entities, "rollup_step_s", return_value=0):
        samples = single_entities.pool_series(instances[0].pool_id, ids, window)
    assert minutes.running == pytest.approx(samples.running)
    assert minutes.waiting == pytest.approx(samples.waiting)
    assert minutes.kv_usage == samples.kv_usage
    assert None not in minutes.sm_clock_mhz
