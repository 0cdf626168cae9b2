"""The ledger when the wall clock is set: not a joule lost, none entered twice, and nothing waits for the clock."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models import Sum

from pools.models import AuditEntry, Gpu, Instance, Node, Service
from telemetry.ledger import host_posting, posting, settlement
from telemetry.models import (
    EnergyEntry,
    GpuSample,
    HostEntry,
    HostMark,
    HostSample,
    MeterMark,
    Settlement,
    StatementLine,
)
from telemetry.storage import time_partitions
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import END, LATER, START
from tests.oracles.meter_balance import balance

pytestmark = pytest.mark.django_db
TWO_HOURS_S = 7_200.0
POWER_W = 300.0


class Meter:
    """A GPU whose counter goes on whatever the clock says."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.counter_j = gpu, 1e6

    def run(self, start_s: float, seconds: int, step_s: int = 1) -> None:
        """Stores samples, and posts each five seconds as beat does."""
        time_partitions.ensure({moment(start_s).date(), moment(start_s + seconds).date()})
        for second in range(0, seconds, step_s):
            at = moment(start_s + second)
            GpuSample.objects.create(at=at, gpu=self.gpu, energy_j=self.counter_j, power_w=POWER_W)
            self.counter_j += POWER_W * step_s
            if second % 5 == 0:
                posting.post(at + timedelta(seconds=1))

    def entered_j(self) -> float:
        found = balance(self.gpu)
        assert found.difference_uj == 0
        return found.entries_uj / 1e6


@pytest.fixture
def meter(demo_rows: None) -> Meter:
    return Meter(Gpu.objects.get(uuid="SIM-loc1-a100-0"))


@pytest.mark.parametrize("step_s", [-TWO_HOURS_S, TWO_HOURS_S], ids=["back", "forth"])
def test_posting_goes_on_within_half_a_minute_when_the_clock_is_set(meter: Meter, step_s: float) -> None:
    meter.run(START, 60)
    meter.run(START + 60 + step_s, 60)
    missing_j = meter.counter_j - 1e6 - meter.entered_j()
    assert 0.0 <= missing_j <= 20 * POWER_W
    notes = AuditEntry.objects.filter(kind="clock", object_key="watermarks of GPUs")
    assert notes.count() == (1 if step_s < 0.0 else 0)


def test_posting_goes_on_when_a_clock_that_was_two_hours_ahead_is_put_right(meter: Meter) -> None:
    meter.run(START, 40)
    meter.run(START + 40 + TWO_HOURS_S, 40)
    meter.run(START + 80, 60)
    assert meter.counter_j - 1e6 - meter.entered_j() <= 20 * POWER_W
    assert MeterMark.objects.get(gpu=meter.gpu).at <= moment(START + 140)


def test_all_is_entered_once_when_the_clock_comes_by_the_same_minutes_again(meter: Meter) -> None:
    """Samples of both passings stand in the same minutes, and the second goes on beyond the first."""
    meter.run(START, 150)
    meter.run(START + 50, 160)
    assert meter.counter_j - 1e6 - meter.entered_j() <= 20 * POWER_W
    mark = MeterMark.objects.get(gpu=meter.gpu)
    assert (mark.passing, mark.at) == (1, moment(START + 200))
    twice = EnergyEntry.objects.filter(gpu=meter.gpu, start_at=moment(START + 100))
    assert sorted(twice.values_list("passing", flat=True)) == [0, 1]


def test_marks_of_hosts_are_set_back_too(demo_rows: None) -> None:
    node, joules = Node.objects.get(name="loc1-a100"), [0.0]

    def run(start_s: float, seconds: int) -> None:
        time_partitions.ensure({moment(start_s).date()})
        for second in range(seconds):
            at = moment(start_s + second)
            HostSample.objects.create(at=at, node=node, domain="package-0", method="zeusd", energy_j=joules[0])
            joules[0] += 90.0
        host_posting.post(moment(start_s + seconds))

    run(START, 60)
    for n in range(4):
        run(START - TWO_HOURS_S + 60 + 20 * n, 20)
    mark = HostMark.objects.get()
    entered = HostEntry.objects.aggregate(uj=Sum("energy_uj"))["uj"]
    assert entered == mark.energy_uj - mark.opened_energy_uj
    assert joules[0] - entered / 1e6 <= 30 * 90.0
    assert mark.passing == 1


@pytest.fixture
def instance(demo_rows: None) -> Instance:
    return start_instance(Service.objects.get().pools.first(), Node.objects.get(name="loc1-a100"), tp=2)


def lines_uj() -> int:
    return int(StatementLine.objects.aggregate(uj=Sum("energy_uj"))["uj"])


def entries_uj() -> int:
    return int(
        EnergyEntry.objects.filter(start_at__gte=moment(START), start_at__lt=moment(END)).aggregate(
            uj=Sum("energy_uj")
        )["uj"]
    )


def test_settlement_goes_on_when_windows_ahead_of_the_clock_are_settled(
    instance: Instance, settings: Callable[..., None]
) -> None:
    settings.GREENSERVE_SETTLE_AFTER_S = 120.0
    metering.quarter_hour(instance)
    settlement.settle(moment(LATER))
    assert lines_uj() == entries_uj()
    meter = Meter(Gpu.objects.get(pk=MeterMark.objects.order_by("gpu").first().gpu_id))
    meter.counter_j = 1e6 + (END + 3 - START) * POWER_W
    GpuSample.objects.filter(gpu=meter.gpu).delete()
    meter.run(START + 10, 200)
    assert MeterMark.objects.get(gpu=meter.gpu).passing == 1
    assert settlement.settle(moment(START + 300 + 130)) == 1
    assert lines_uj() == entries_uj()
    assert Settlement.objects.get(start_at=moment(START), revision=1).cause.startswith("energy")
    assert settlement.settle(moment(START + 300 + 130)) == 0
