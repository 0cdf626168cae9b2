"""What gateways get to know of budgets that refuse: by the settled ledger, and with what is missing as missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pools import wire
from pools.access import people
from pools.access.audit import Actor
from pools.models import ApiKey, Pool
from scheduler.control.apply import budget_messages
from scheduler.control.apply.fleet_messages import fleet_snapshot
from telemetry.models import Budget, Settlement, StatementLine
from tests.fakes import seed

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 20, 18, 10, tzinfo=UTC)
UNTIL = datetime(2026, 3, 20, 18, tzinfo=UTC)
APRIL_S = datetime(2026, 4, 1, tzinfo=UTC).timestamp()
HOUR = timedelta(hours=1)


@pytest.fixture
def seeded(redis_client) -> seed.Seeded:
    """acme used 1 kWh, 1 kgCO2e, 1 USD and 1000 tokens in the hour that was settled last."""
    cache.clear()
    found = seed.fleet(NOW)
    use(found, UNTIL - HOUR)
    return found


def use(seeded: seed.Seeded, at: datetime, *, site: int = 0, unknown_uj: int = 0) -> None:
    pool = Pool.objects.filter(site=seeded.sites[site]).order_by("pk")[0]
    window = Settlement.objects.create(
        site=pool.site, start_at=at, end_at=at + HOUR, revision=0, cause="", sources={}, currency="USD",
        energy_uj=1, unattributed_uj=0,
    )  # fmt: skip
    StatementLine.objects.create(
        settlement=window, entry="original", kind="serving", pool=pool, service="llama3-70b", tenant=seeded.tenants[0],
        energy_uj=3_600_000_000_000, facility_uj=3_600_000_000_000, gpu_us=1_000_000, carbon_ug=1_000_000_000,
        carbon_unknown_uj=unknown_uj, cost_nano=1_000_000_000, rental_unknown_us=1_000_000,
        prompt_tokens=600, output_tokens=400,
    )  # fmt: skip


def budget(seeded: seed.Seeded, **given: Any) -> wire.RefusingBudget:
    """Sets a budget that refuses, and returns what gateways get to know of it."""
    given = {"refuses": True, "amount": None, "currency": "", "carbon_kg": None, "tokens": None} | given
    Budget.objects.update_or_create(tenant=seeded.tenants[0], defaults=given)
    return budget_messages.by_tenant(NOW)[seeded.tenants[0].pk]


@pytest.mark.parametrize(
    ("given", "spent"),
    [
        ({"amount": 1, "currency": "USD"}, "1.00 of 1.00 USD"),
        ({"amount": "1.01", "currency": "USD"}, ""),
        ({"amount": 1, "currency": "EUR"}, ""),
        ({"carbon_kg": "0.5"}, "1.00 of 0.50 kgCO₂e"),
        ({"energy_kwh": "0.9", "carbon_kg": 1}, "1.00 of 1.00 kgCO₂e; 1.00 of 0.90 kWh"),
        ({"tokens": 1000}, "1,000 of 1,000 tokens"),
        ({"tokens": 1001}, ""),
    ],
)
def test_each_side_is_compared_with_what_is_settled(seeded, given, spent):
    found = budget(seeded, **given)
    assert (found.spent, found.ends_at_s) == (spent, APRIL_S)
    assert (found.tokens, found.tokens_used) == (given.get("tokens"), 1_000)
    assert found.counted_to_s == UNTIL.timestamp()


def test_carbon_that_is_not_known_is_missing_and_not_zero(seeded):
    use(seeded, UNTIL - 2 * HOUR, unknown_uj=100)
    assert budget(seeded, carbon_kg=3).spent == "", "2 kg are known: nobody can say that 3 are spent"
    assert budget(seeded, carbon_kg=2).spent == "at least 2.00 of 2.00 kgCO₂e"


def test_tokens_are_counted_by_gateways_from_where_the_site_that_is_settled_furthest_ends(seeded):
    use(seeded, UNTIL, site=1)
    found = budget(seeded, tokens=10_000)
    assert (found.tokens_used, found.counted_to_s) == (2_000, (UNTIL + HOUR).timestamp())


def test_new_month_begins_with_nothing_spent(seeded):
    budget(seeded, tokens=1)
    at = datetime(2026, 4, 1, 0, 1, tzinfo=UTC)
    (found,) = budget_messages.by_tenant(at).values()
    assert (found.spent, found.tokens_used, found.counted_to_s) == ("", 0, APRIL_S)


def test_keys_of_the_tenant_alone_carry_a_budget_and_only_one_that_refuses(seeded):
    keys = [people.new_key(Actor(channel="page"), tenant, "ci")[0] for tenant in seeded.tenants[:2]]
    budget(seeded, tokens=1)
    carried = {key.key_id: key.budget for key in fleet_snapshot(NOW, 1).keys}
    assert carried[keys[0].pk].spent == "1,000 of 1 tokens"
    assert carried[keys[1].pk] is None
    Budget.objects.update(refuses=False)
    assert {key.budget for key in fleet_snapshot(NOW, 1).keys} == {None}
    assert ApiKey.objects.count() == len(carried)


def test_sums_are_not_read_again_at_each_publishing_unless_a_budget_changes(seeded):
    first = budget(seeded, tokens=1001)
    with CaptureQueriesContext(connection) as queries:
        assert list(budget_messages.by_tenant(NOW).values()) == [first]
    assert len(queries) == 1, "the budgets alone"
    assert budget(seeded, tokens=1000).spent
