"""Hosts in the ledger: entered once from what agents send, and shared among what ran, to the last microjoule."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import DatabaseError, transaction
from django.db.models import Sum

from pools import wire
from pools.models import Instance, Node, Service
from telemetry.ingest.agent_batches import SampleWriter
from telemetry.ledger import host_posting, settlement
from telemetry.models import HostEntry, HostMark, HostSample, Settlement, StatementHour, StatementLine
from telemetry.reports import tenant_use
from telemetry.reports.tenant_use import HourSpan
from telemetry.storage import time_partitions
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import END, LATER, START
from tests.oracles import settled_lines

pytestmark = pytest.mark.django_db
PACKAGE, FANS = "package-0", "fans and NICs"


@pytest.fixture
def instance(demo_rows: None) -> Instance:
    service = Service.objects.get()
    return start_instance(service.pools.first(), Node.objects.get(name="loc1-a100"), tp=2)


def sample(
    node: Node,
    domain: str,
    energy_j: Callable[[float], float | None],
    since_s: float = START,
    until_s: float = END + 12,
    step_s: float = 1.0,
    method: str = "rapl-powercap",
) -> None:
    time_partitions.ensure({moment(since_s).date(), moment(until_s).date()})
    count = int((until_s - since_s) / step_s) + 1
    HostSample.objects.bulk_create(
        HostSample(
            at=moment(since_s + step_s * n),
            node=node,
            domain=domain,
            method=method,
            energy_j=energy_j(since_s + step_s * n),
        )
        for n in range(count)
    )


def post(until_s: float = END + 12) -> int:
    """Posts as the task does, each minute from START on."""
    done, at_s = 0, START + 60
    while at_s < until_s:
        done += host_posting.post(moment(at_s))
        at_s += 60
    return done + host_posting.post(moment(until_s))


def host_uj(**values: object) -> int:
    return HostEntry.objects.filter(start_at__lt=moment(END), **values).aggregate(sum=Sum("energy_uj"))["sum"] or 0


def whole(by: tuple[str, ...] = ()) -> dict[tuple[object, ...], dict[str, int]]:
    return settled_lines.totals(moment(START), moment(END), by)


def assert_balanced() -> None:
    for mark in HostMark.objects.all():
        entered = HostEntry.objects.filter(node=mark.node, domain=mark.domain).aggregate(s=Sum("energy_uj"))["s"] or 0
        assert entered == mark.energy_uj - mark.opened_energy_uj


def test_samples_are_stored_under_the_agents_node_when_its_batch_comes(demo_rows: None) -> None:
    now = time.time()
    time_partitions.ensure({moment(now).date()})
    rows = [
        wire.HostSampleRow(now, PACKAGE, "zeusd", 12.5, None),
        wire.HostSampleRow(now, "x" * 60, "declared", None, 120.0),
        wire.HostSampleRow(now, PACKAGE, "of-a-later-release", 1.0, None),
    ]
    writer = SampleWriter(lambda *_: None)
    batches = [
        wire.AgentBatch("loc1-a100", "boot", 1, now, hosts=rows),
        wire.AgentBatch("nobody", "boot", 1, now, hosts=rows[:1]),
    ]
    assert writer.write(batches) == 2
    assert writer.write(batches) == 0
    found = HostSample.objects.order_by("domain").values_list("node__name", "domain", "method", "energy_j", "power_w")
    assert list(found) == [
        ("loc1-a100", PACKAGE, "zeusd", 12.5, None),
        ("loc1-a100", "x" * 40, "declared", None, 120.0),
    ]
    assert writer.unknown == {"node": 1, "host meter": 1}


def test_entries_are_the_counters_and_are_entered_once_when_posted_twice(instance: Instance) -> None:
    sample(instance.node, PACKAGE, lambda at_s: 7.0 + (at_s - START) * 90.000001)
    sample(instance.node, FANS, lambda at_s: (at_s - START) * 120.0, step_s=5.0, method="declared")
    assert post() == 2 * 90
    assert host_posting.post(moment(END + 12)) == 0
    assert_balanced()
    assert host_uj(domain=PACKAGE) == 900 * 90_000_001
    assert host_uj(domain=FANS, method="declared") == 900 * 120_000_000
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        HostEntry.objects.update(energy_uj=0)


def test_entries_are_entered_once_when_two_processes_post_the_same(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 90.0)
    enter, entered = host_posting._enter, []

    def both(postings: list[object]) -> int:
        entered.extend([enter(postings), enter(postings)])  # type: ignore[arg-type]
        return entered[-2]

    monkeypatch.setattr(host_posting, "_enter", both)
    assert post() == 90
    assert sum(entered) == 90
    assert_balanced()


def test_nothing_is_known_of_a_gap_when_the_count_starts_again(instance: Instance) -> None:
    """The agent was away from 300 to 400 s, and its counts start from 0."""
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 50.0, until_s=START + 300)
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START - 400) * 50.0, since_s=START + 400)
    post()
    assert_balanced()
    starts = [int(at.timestamp() - START) for at in HostEntry.objects.values_list("start_at", flat=True)]
    assert not [at for at in starts if 310 <= at < 400]
    assert host_uj() == (300 + 500) * 50_000_000


def test_gap_is_entered_when_the_count_went_on(instance: Instance) -> None:
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 50.0, until_s=START + 300)
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 50.0, since_s=START + 400)
    post()
    assert_balanced()
    assert host_uj() == 900 * 50_000_000


def test_ledger_catches_up_when_it_was_not_posted_for_hours(instance: Instance) -> None:
    until_s = START + 3 * 3_600
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 50.0, until_s=until_s, step_s=5.0)
    host_posting.post(moment(START + 30))
    for _ in range(4):
        host_posting.post(moment(until_s))
    assert_balanced()
    assert HostMark.objects.get().at == moment(until_s - 10)


def test_hosts_joules_are_shared_to_the_last_one_when_a_window_is_settled(instance: Instance) -> None:
    metering.quarter_hour(instance)
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 90.000001)
    sample(instance.node, FANS, lambda at_s: (at_s - START) * 33.3, method="declared")
    post()
    assert settlement.settle(moment(LATER)) == 3
    (total,) = whole().values()
    assert total["host_uj"] == host_uj() > 0
    assert total["host_known_uj"] == total["energy_uj"]
    by_kind = whole(("kind",))
    for kind in by_kind:  # one instance has all of the node's metered GPUs: the host follows their energy in time
        assert by_kind[kind]["host_uj"] == pytest.approx(by_kind[kind]["energy_uj"] * 123.300001 / 600.0, rel=1e-6)
    hours = StatementHour.objects.filter(lines__gt=0).aggregate(host=Sum("host_uj"), known=Sum("host_known_uj"))
    assert (hours["host"], hours["known"]) == (total["host_uj"], total["host_known_uj"])


def test_host_is_missing_and_not_nothing_when_no_meter_has_it(instance: Instance) -> None:
    metering.quarter_hour(instance)
    settlement.settle(moment(LATER))
    (total,) = whole().values()
    assert (total["host_uj"], total["host_known_uj"]) == (0, 0)
    assert total["energy_uj"] > 0
    assert all("host" not in row.sources for row in Settlement.objects.all())
    assert settlement.restate(moment(LATER)) == 0


def test_part_of_the_host_is_known_when_its_meter_stops(instance: Instance) -> None:
    metering.quarter_hour(instance)
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 10.0, until_s=START + 450)
    sample(instance.node, FANS, lambda at_s: None)
    post()
    settlement.settle(moment(LATER))
    (total,) = whole().values()
    assert total["host_uj"] == host_uj() > 0
    assert 0 < total["host_known_uj"] < total["energy_uj"]


def test_hosts_joules_are_nobodys_when_no_gpu_of_the_node_was_metered(instance: Instance) -> None:
    metering.quarter_hour(instance)
    silent = Node.objects.filter(cluster=instance.node.cluster).exclude(pk=instance.node_id).first()
    if silent is None:
        silent = Node.objects.create(cluster=instance.node.cluster, name="loc1-silent")
    sample(silent, PACKAGE, lambda at_s: (at_s - START) * 77.0)
    post()
    settlement.settle(moment(LATER))
    by_kind = whole(("kind", "pool_id", "tenant_id"))
    assert by_kind["unattributed", None, None]["host_uj"] == host_uj() == 900 * 77_000_000
    assert sum(amounts["host_uj"] for amounts in by_kind.values()) == host_uj()
    assert sum(amounts["host_known_uj"] for amounts in by_kind.values()) == 0


def test_window_is_restated_when_its_host_comes_late(instance: Instance) -> None:
    metering.quarter_hour(instance)
    settlement.settle(moment(LATER))
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 90.0)
    post()
    assert settlement.restate(moment(LATER), since=moment(START) - timedelta(hours=1)) == 3
    assert set(Settlement.objects.filter(revision=1).values_list("cause", flat=True)) == {"host"}
    (total,) = whole().values()
    assert total["host_uj"] == host_uj() == 900 * 90_000_000
    energy = StatementLine.objects.values("settlement__start_at").annotate(sum=Sum("energy_uj"))
    assert sum(row["sum"] for row in energy) == total["energy_uj"]  # reversals took nothing with them
    assert settlement.restate(moment(LATER), since=moment(START) - timedelta(hours=1)) == 0


def test_tenants_use_has_the_host_of_its_serving_energy_when_it_is_settled(instance: Instance) -> None:
    tenants = metering.quarter_hour(instance)
    sample(instance.node, PACKAGE, lambda at_s: (at_s - START) * 90.000001)
    post()
    settlement.settle(moment(LATER))
    span = HourSpan(moment(START), moment(START + 3_600), (instance.node.cluster.site_id,))
    rows = {use.key[0]: use.totals for use in tenant_use.use(span, ("tenant",))}
    by_tenant = whole(("kind", "tenant_id"))
    for tenant in tenants:
        assert rows[tenant.pk].host_uj == by_tenant["serving", tenant.pk]["host_uj"] > 0
        assert rows[tenant.pk].host_missing_uj == 0
