"""What the read side makes of known rows."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from core.fairness import jain
from pools.models import Gpu, Pool, PowerCycle, Service
from scheduler import selectors as scheduler_selectors
from scheduler.models import ControllerState, Decision, DecisionKind
from telemetry import selectors
from telemetry.models import CarbonFeed, CarbonPoint, EnergyEntry, GpuSample, MeterMark, RequestRecord
from telemetry.selectors.frames import PoolRow, TimeRange
from telemetry.storage import time_partitions
from tests.fakes import energy_sums, seed
from tests.oracles.timely_jain import freesh_timely_jain

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
WINDOW = TimeRange.last(900.0, NOW.timestamp())
SERVICE = "llama3-70b"


@pytest.fixture(scope="module")
def fleet_rows(shared_rows) -> seed.Seeded:
    time_partitions.ensure([NOW.date(), (NOW - timedelta(days=1)).date()])
    return seed.fleet(NOW)


@pytest.fixture
def fleet(fleet_rows) -> seed.Seeded:
    return deepcopy(fleet_rows)


def entry(gpu: Gpu, at: datetime, energy_j: float, kind: str = "serving", **more: object) -> EnergyEntry:
    values = {
        "gpu": gpu,
        "site": gpu.node.cluster.site,
        "start_at": at,
        "end_at": at + timedelta(seconds=10),
        "kind": kind,
        "energy_uj": round(energy_j * 1e6),
        "gpu_us": 0 if kind == "idle" else 10_000_000,
        "carbon_gco2e": energy_j / 1_000.0,
    }
    return EnergyEntry.objects.create(**(values | more))


def meter(gpus: list[Gpu]) -> None:
    for gpu in gpus:
        MeterMark.objects.create(
            gpu=gpu, at=NOW, energy_uj=1_000_000, opened_at=NOW - timedelta(hours=1), opened_energy_uj=0
        )


def record(seeded: seed.Seeded, n: int, ended: datetime, **more: object) -> RequestRecord:
    e2e_s = more.get("e2e_s") or 0.0
    values = {
        "started_at": ended - timedelta(seconds=float(e2e_s)),  # type: ignore[arg-type]
        "request_id": f"r{n}",
        "service": seeded.service.name,
        "tenant": seeded.tenants[0],
        "endpoint": "chat",
        "stream": True,
        "status": "ok",
        "http_status": 200,
        "attempts": 1,
        "route_reason": "",
        "error": "",
        "slo_met": True,
        "slo_failed": "",
    }
    return RequestRecord.objects.create(**(values | more))


def test_power_is_energy_by_seconds_and_splits_idle_when_all_meters_report(fleet):
    gpus = [g for g in fleet.gpus if g.node.name == "n5"]
    meter(gpus)
    at = NOW - timedelta(seconds=100)
    for gpu in gpus:
        entry(gpu, at, 2_000.0)
        entry(gpu, at, 500.0, "idle")
    power, carbon = selectors.energy(WINDOW)
    i = WINDOW.starts_s.index(at.timestamp())
    site = power.sites[2]
    assert (site.in_use_w[i], site.idle_w[i]) == (8 * 200.0, 8 * 50.0)
    assert carbon.sites[2].rate_g_per_h[i] == pytest.approx(8 * 2.5 / 10 * 3_600)
    assert site.in_use_w[i + 1] is None
    assert power.metered_until_s == at.timestamp() + 10
    assert not any(site.silent[i + 1 :]), "what the ledger has not reached yet is not silent"


def test_power_is_unknown_and_silent_when_a_meter_is_missing(fleet):
    gpus = [g for g in fleet.gpus if g.node.name == "n5"]
    meter(gpus)
    first, second = NOW - timedelta(seconds=100), NOW - timedelta(seconds=90)
    for gpu in gpus[1:]:
        entry(gpu, first, 2_000.0)
    for gpu in gpus:
        entry(gpu, second, 2_000.0)
    power, _ = selectors.energy(WINDOW)
    i = WINDOW.starts_s.index(first.timestamp())
    assert power.sites[2].in_use_w[i : i + 2] == (None, 1_600.0)
    assert power.sites[2].silent[i : i + 2] == (True, False)


def test_bucket_is_marked_silent_when_its_energy_is_a_jump_across_a_gap(fleet):
    gpus = [g for g in fleet.gpus if g.node.name == "n2"]
    meter(gpus)
    at = NOW - timedelta(seconds=100)
    for gpu in gpus:
        entry(gpu, at, 1_000.0, "unattributed")
    power, _ = selectors.energy(WINDOW)
    i = WINDOW.starts_s.index(at.timestamp())
    assert power.sites[0].in_use_w[i] == 400.0
    assert power.sites[0].silent[i] is True


def test_carbon_rate_is_unknown_when_an_entry_has_no_intensity(fleet):
    gpus = [g for g in fleet.gpus if g.node.name == "n2"]
    meter(gpus)
    at = NOW - timedelta(seconds=100)
    for gpu in gpus[1:]:
        entry(gpu, at, 1_000.0)
    entry(gpus[0], at, 1_000.0, carbon_gco2e=None)
    _, carbon = selectors.energy(WINDOW)
    assert carbon.sites[0].rate_g_per_h[WINDOW.starts_s.index(at.timestamp())] is None
    energy_sums.roll_up()
    totals = selectors.totals((NOW - timedelta(hours=1)).timestamp())
    assert totals.energy_j == 4_000.0
    assert totals.carbon_gco2e == 3.0
    assert totals.share_without_intensity == 0.25


def test_newest_revision_of_an_intensity_wins_and_null_stays_null(fleet):
    feed = CarbonFeed.objects.create(site=fleet.sites[0], provider="static_csv", last_ok_at=NOW)

    def point(at: datetime, value: float | None, issued: datetime, forecast: bool = False) -> None:
        CarbonPoint.objects.create(
            feed=feed, start_at=at, end_at=at + timedelta(seconds=10), value_g_per_kwh=value, raw_value=value,
            raw_unit="gCO2e/kWh", forecast=forecast, issued_at=issued,
        )  # fmt: skip

    at = NOW - timedelta(seconds=60)
    point(at, 400.0, at)
    point(at, 444.0, at + timedelta(seconds=5))
    point(at + timedelta(seconds=10), None, at)
    point(NOW + timedelta(seconds=10), 500.0, NOW, forecast=True)
    point(NOW + timedelta(seconds=10), 510.0, NOW + timedelta(seconds=1), forecast=True)
    _, carbon = selectors.energy(WINDOW)
    site = carbon.sites[0]
    assert [step.g_per_kwh for step in site.actual] == [444.0, None]
    assert [(s.g_per_kwh, s.issued_at_s) for s in site.forecast] == [(510.0, NOW.timestamp() + 1)]
    assert site.known_until_s == at.timestamp() + 10
    assert selectors.feeds(NOW.timestamp())[0].known_until_s == at.timestamp() + 10
    CarbonFeed.objects.update(refresh_s=900.0)
    assert {feed.refresh_s for feed in selectors.feeds(NOW.timestamp())} == {900.0}


def test_attainment_judges_each_objective_and_counts_failures_as_missed(fleet):
    ended = NOW - timedelta(seconds=30)
    record(fleet, 1, ended, ttft_s=0.2, tpot_s=0.1, e2e_s=3.0)
    record(fleet, 2, ended, ttft_s=3.0, tpot_s=0.1, e2e_s=5.0, slo_met=False, slo_failed="ttft")
    record(fleet, 3, ended, ttft_s=0.1, tpot_s=None, e2e_s=0.1)  # one token: no TPOT to judge
    record(fleet, 4, ended, status="upstream_error", http_status=502, slo_met=False, slo_failed="e2e,tpot,ttft")
    record(fleet, 5, ended, status="client_error", http_status=400, slo_met=None)
    frame = selectors.slo(WINDOW)
    found = {s.kind: (s.total_within, s.total_judged) for s in frame.series}
    assert found == {"ttft": (2, 4), "tpot": (2, 3), "e2e": (3, 4)}
    assert (frame.met, frame.judged) == (2, 4)
    assert frame.worst is not None
    assert frame.worst.kind == "ttft"
    assert frame.series[0].attained[-1] is not None
    assert frame.series[0].attained[0] is None, "nobody asked anything then: unknown, not 0 and not 1"


def test_request_counts_when_it_ended_however_long_ago_it_began(fleet):
    record(fleet, 1, NOW - timedelta(seconds=5), ttft_s=1.0, tpot_s=0.1, e2e_s=400.0)
    frame = selectors.slo(WINDOW)
    ttft = next(s for s in frame.series if s.kind == "ttft")
    assert [n for n in ttft.judged if n] == [1]
    assert ttft.judged[-1] == 1
    assert frame.last_end_s == pytest.approx(NOW.timestamp() - 5)


def test_fairness_equals_the_core_functions_when_all_requests_lie_in_one_window(fleet):
    rng = np.random.default_rng(3)
    output = rng.permutation(np.arange(10, 50))
    timely = np.minimum(output, rng.integers(0, 50, size=40))
    for n in range(40):
        record(
            fleet, n, NOW - timedelta(seconds=20), tenant=fleet.tenants[n % 4], request_class="LL",
            output_tokens=int(output[n]), timely_tokens=int(timely[n]),
        )  # fmt: skip
    frame = selectors.fairness(WINDOW)
    shares = [timely[k::4].sum() / output[k::4].sum() for k in range(4)]
    assert frame.overall == pytest.approx(jain(shares))
    assert frame.tenants[-1] == pytest.approx(jain(shares))
    expected = freesh_timely_jain(output, timely)
    assert frame.classes[SERVICE, "LL"][-1] == pytest.approx(expected, abs=0.005), "but for lengths that count as one"
    assert selectors.tenant_fairness(WINDOW) == frame.overall


def test_class_has_no_index_when_it_has_fewer_requests_than_quartiles(fleet):
    for n in range(3):
        record(fleet, n, NOW - timedelta(seconds=20), request_class="SS", output_tokens=5, timely_tokens=5)
    assert set(selectors.fairness(WINDOW).classes[SERVICE, "SS"]) == {None}


def test_power_now_ignores_stale_samples_and_counts_silent_gpus(fleet):
    gpus = [g for g in fleet.gpus if g.node.name == "n5"]
    for gpu in gpus[:2]:
        for age_s, power_w in ((12, 999.0), (2, 300.0)):
            GpuSample.objects.create(at=NOW - timedelta(seconds=age_s), gpu=gpu, power_w=power_w)
    GpuSample.objects.create(at=NOW - timedelta(seconds=60), gpu=gpus[2], power_w=300.0)
    site = selectors.sites_now(NOW.timestamp())[2]
    assert (site.power_w, site.reporting, site.gpus) == (600.0, 2, 8)
    assert selectors.sites_now(NOW.timestamp())[0].power_w is None
    assert selectors.newest_sample_s(NOW.timestamp()) == NOW.timestamp() - 2


def test_pool_table_shows_those_in_use_and_all_when_asked(fleet):
    seed.history(fleet, minutes=8)
    table = selectors.pool_table(NOW.timestamp())
    assert len(table) == 6
    assert len(selectors.pool_table(NOW.timestamp(), every=True)) == Pool.objects.count() == 12
    row = next(r for r in table if r.state == "serving")
    assert row.instances == {"A100-80GB/TP4": 1}
    assert row.gpus == 4
    assert 210 < (row.clock_mhz or 0) < 1_410
    assert row.power_w
    assert row.ttft_p99_s
    assert row.ttft_objective_s == 2.0
    until = (NOW - timedelta(seconds=20)).replace(second=0, microsecond=0)  # whole minutes that the ledger has
    since = until - timedelta(minutes=5)
    tokens = sum(
        RequestRecord.objects.filter(pool_id=row.id, status="ok")
        .extra(where=["started_at + e2e_s * interval '1 second' BETWEEN %s AND %s"], params=[since, until])
        .values_list("output_tokens", flat=True)
    )
    entries = EnergyEntry.objects.filter(pool_id=row.id, start_at__gte=since, start_at__lt=until)
    energy = sum(entries.values_list("energy_j", flat=True))
    assert row.energy_per_token_j == pytest.approx(energy / tokens)


def differing(one: PoolRow, other: PoolRow) -> list[str]:
    """Fields that differ by more than the order in which floats were added up."""
    pairs = ((field.name, getattr(one, field.name), getattr(other, field.name)) for field in fields(PoolRow))
    return [
        f"{name}: {a!r} != {b!r}"
        for name, a, b in pairs
        if a != b and not (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b))
    ]


def test_first_pools_are_those_that_need_an_eye_when_there_are_more_than_are_shown(fleet):
    seed.history(fleet, minutes=8, rps=0.1)
    every = selectors.pool_table(NOW.timestamp(), every=True)
    shown, count = selectors.first_pools(NOW.timestamp(), 3, every=True)
    calm = {"serving", "off"}
    assert (len(shown), count) == (3, len(every))
    assert sum(row.state not in calm for row in shown) == min(3, sum(row.state not in calm for row in every))
    by_id = {row.id: row for row in every}
    assert all(differing(row, by_id[row.id]) == [] for row in shown), "with the figures that they have among all"
    whole, _ = selectors.first_pools(NOW.timestamp(), len(every), every=True)
    assert [row.id for row in whole] == [row.id for row in every], "in their usual order where all are shown"
    (one,) = selectors.pool_table(NOW.timestamp(), every=True, pool_ids=[every[2].id])
    assert differing(one, every[2]) == []


@pytest.mark.parametrize("range_s", [900.0, 3_600.0, 86_400.0])
def test_queries_are_counted_whatever_the_range(fleet, range_s, django_assert_num_queries):
    seed.history(fleet, minutes=8, rps=0.5)
    window = TimeRange.last(range_s, NOW.timestamp())
    for budget, work in (
        (6, lambda: selectors.energy(window)),
        (2, lambda: selectors.slo(window)),
        (2, lambda: selectors.fairness(window)),
        (1, lambda: selectors.tenant_fairness(window)),
        (3, lambda: selectors.sites_now(window.end_s)),
        (1, lambda: selectors.totals(window.start_s)),
        (7, lambda: selectors.pool_table(window.end_s)),
        (1, lambda: selectors.feeds(window.end_s)),
    ):
        with django_assert_num_queries(budget):
            work()


def test_decision_list_leaves_the_heavy_columns_in_the_database(fleet):
    seed.history(fleet, minutes=4, rps=0.1)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        found = scheduler_selectors.recent_decisions(2)
    assert len(queries) == len(DecisionKind.values)
    assert not any("alternatives" in q["sql"] for q in queries)
    assert [d.at for d in found] == sorted((d.at for d in found), reverse=True)
    assert {d.kind for d in found} == set(DecisionKind.values) - {DecisionKind.DEFERRAL}, "no batch has come"


def test_ticks_leave_out_holds_and_the_clock(fleet):
    seed.history(fleet, minutes=6, rps=0.1)
    found = scheduler_selectors.ticks(NOW - timedelta(minutes=15), NOW)
    assert found
    assert {d.kind for d in found} <= {"carbon", "scale", "shard"}
    assert "no_change" not in {d.reason for d in found}
    assert [d.at for d in found] == sorted(d.at for d in found)


def test_last_epochs_name_every_loop_also_one_that_never_ran(fleet):
    assert [run.epoch for run in scheduler_selectors.loop_runs()] == [None] * 4
    seed.history(fleet, minutes=4, rps=0.1)
    runs = {run.kind: run for run in scheduler_selectors.loop_runs()}
    assert runs["carbon"].epoch is not None
    assert runs["carbon"].epoch.due_at == NOW
    assert Decision.objects.get(pk=runs["carbon"].decision_id).epoch == runs["carbon"].epoch


def test_last_epochs_say_when_a_turn_left_no_epoch(fleet):
    seed.history(fleet, minutes=4, rps=0.1)
    service = Service.objects.get()
    state, _ = ControllerState.objects.update_or_create(service=service, kind="scale")
    runs = {run.kind: run for run in scheduler_selectors.loop_runs()}
    assert runs["scale"].looked_at == state.updated_at
    assert runs["shard"].looked_at is None


def test_gpus_that_are_off_by_plan_are_known_to_draw_nothing(fleet):
    off = [g for g in fleet.gpus if g.node.name == "n5"]
    site, now = off[0].node.cluster.site, NOW - timedelta(seconds=20)
    other = next(g for g in fleet.gpus if g.node.cluster.site != site)
    meter([*off, other])
    for n in range(60):
        entry(other, NOW - timedelta(seconds=10 * n + 20), 1_000.0)  # the ledger comes so far
    at_s = WINDOW.starts_s.index((NOW - timedelta(seconds=400)).timestamp())
    until_s = WINDOW.starts_s.index((NOW - timedelta(seconds=100)).timestamp())

    def seen() -> tuple[tuple[float | None, ...], tuple[bool, ...], tuple[bool, ...]]:
        (power,) = (own for own in selectors.power(WINDOW).sites if own.site == site.name)
        (sums,) = (own for own in selectors.ledger_sums(WINDOW, now.timestamp()).sites if own.site == site.name)
        return power.in_use_w, power.silent, sums.silent

    watts, silent, missing = seen()
    assert watts[at_s] is None
    assert silent[at_s]
    assert missing[at_s]
    PowerCycle.objects.create(
        node=off[0].node,
        off_asked_at=NOW - timedelta(seconds=500),
        off_at=NOW - timedelta(seconds=400),
        on_asked_at=NOW - timedelta(seconds=100),
    )
    watts, silent, missing = seen()
    assert set(watts[at_s:until_s]) == {0.0}, "its port said that it is off"
    assert not any(silent[at_s:until_s])
    assert not any(missing[at_s:until_s])
    assert watts[at_s - 1] is None, "it was only asked to go off"
    assert silent[at_s - 1]
    assert watts[until_s] is None, "while it boots nobody knows what it draws"
