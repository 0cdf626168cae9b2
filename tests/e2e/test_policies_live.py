"""The five papers' systems on the demo fleet, one after another by one setting: each leaves its own traces."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.product import Product, running, wait_for

pytestmark = pytest.mark.slow

SERVICE = "llama3-70b"
PATIENCE_S = 150.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with running(tmp_path_factory.mktemp("policies"), traffic_rps=6) as product:
        yield product


def follow(product: Product, *words: str) -> datetime:
    """Changes the policy as an operator does; returns when."""
    now = datetime.now(UTC)
    product.cli("policy", SERVICE, *words)
    return now


def seen(product: Product, what: str, query: str, since: datetime, least: int = 1) -> list[tuple[Any, ...]]:
    """Waits for rows; the query's one parameter is the time since when."""

    def probe() -> list[tuple[Any, ...]] | None:
        rows = product.sql(query, since)
        return rows if len(rows) >= least else None

    return wait_for(what, probe, PATIENCE_S)


SERVED = "SELECT request_id FROM telemetry_requestrecord WHERE started_at > %s AND status = 'ok'"
CLOCKS = "SELECT reason, summary FROM scheduler_decision WHERE at > %s AND kind = 'clock'"


def clock_reasons(product: Product, since: datetime) -> set[str]:
    return {reason for reason, _ in product.sql(CLOCKS, since)}


def test_freesh_orders_by_laxity_and_moves_clocks(demo: Product) -> None:
    since = follow(demo, "freesh")
    seen(demo, "requests served", SERVED, since, 20)
    seen(demo, "a carbon epoch", "SELECT id FROM scheduler_decision WHERE at > %s AND kind = 'carbon'", since)
    moves = seen(demo, "a clock going down", CLOCKS + " AND reason = 'slack'", since)
    assert any("MHz" in summary for _, summary in moves)


def test_throttllem_asks_for_clocks_at_admissions(demo: Product) -> None:
    since = follow(demo, "throttllem")
    seen(demo, "a clock set at an admission", CLOCKS + " AND reason IN ('within_limits', 'lost', 'at_limit')", since)
    seen(demo, "requests served", SERVED, since, 20)


def test_muserve_moves_clocks_by_slack(demo: Product) -> None:
    since = follow(demo, "muserve")
    seen(demo, "requests served", SERVED, since, 20)
    seen(demo, "a clock moved by slack", CLOCKS + " AND reason IN ('slack', 'congested')", since)


def test_dynamollm_has_pools_of_table_iv_and_profiled_clocks(demo: Product) -> None:
    since = follow(demo, "dynamollm")
    seen(demo, "a class of table IV",
         "SELECT DISTINCT request_class FROM telemetry_requestrecord WHERE started_at > %s "
         "AND request_class IN ('SS','SM','SL','MS','MM','ML','LS','LM','LL')", since, 2)  # fmt: skip
    seen(demo, "scale decisions", "SELECT id FROM scheduler_decision WHERE at > %s AND kind = 'scale'", since)
    seen(demo, "a clock by profile", CLOCKS + " AND reason NOT IN ('no_data', 'policy')", since)
    seen(demo, "requests served", SERVED, since, 20)


@pytest.mark.parametrize(("policy", "where"), [("dynaserve", "split at token%"), ("pd_disagg", "split at token%")])
def test_requests_are_split_over_two_engines(demo: Product, policy: str, where: str) -> None:
    since = follow(demo, policy)
    seen(demo, "a request that was split", SERVED + f" AND route_reason LIKE '{where}'".replace("%", "%%"), since, 5)


def test_baseline_leaves_clocks_at_the_top_and_requests_whole(demo: Product) -> None:
    since = follow(demo, "single_pool")
    seen(demo, "requests served", SERVED, since, 20)
    later = datetime.now(UTC)
    seen(demo, "more requests served", SERVED, later, 20)
    assert not demo.sql(SERVED + " AND route_reason LIKE 'split%%'", later)
    assert clock_reasons(demo, later) <= {"policy"}
