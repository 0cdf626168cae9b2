"""Budgets of a month that refuse, by times that are handed in, and through a gateway with OpenAI's own client."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import openai
import pytest

from pools import wire
from pools.gateway.accounts.monthly_budgets import BudgetKeeper
from pools.gateway.errors import ApiError
from tests.fakes.fleet import MODEL, SECRET, key
from tests.unit.pools.gateway.conftest import Bench, completion, until

DECEMBER_S = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
NOW_S = DECEMBER_S - 3_600


@dataclass
class CameAt:
    started_at_s: float


@dataclass
class AskedCall:
    """What a keeper looks at of a call."""

    key: wire.FleetKey
    request: CameAt


def asked(budget: wire.RefusingBudget | None, at_s: float = NOW_S, tenant: str = "acme") -> Any:
    return AskedCall(wire.FleetKey("ab" * 32, 1, tenant, 7, budget=budget), CameAt(at_s))


def refused(keeper: BudgetKeeper, call: Any) -> ApiError:
    with pytest.raises(ApiError) as found:
        keeper.check(call)
    return found.value


def test_spent_budget_refuses_until_the_month_ends() -> None:
    keeper, budget = BudgetKeeper(), wire.RefusingBudget(DECEMBER_S, "79.00 of 79.00 USD")
    error = refused(keeper, asked(budget))
    assert (error.status, error.kind, error.code) == (429, "insufficient_quota", "insufficient_quota")
    assert error.message == (
        "The budget of the tenant 'acme' for November 2026 is spent: 79.00 of 79.00 USD. "
        "It begins anew at 2026-12-01T00:00Z."
    )
    assert error.retry_after_s == 3_600
    assert error.limit_headers == {b"x-should-retry": b"false"}
    keeper.check(asked(budget, DECEMBER_S))
    keeper.check(asked(wire.RefusingBudget(DECEMBER_S)))
    keeper.check(asked(None))


def test_tokens_are_counted_until_the_ledger_has_them() -> None:
    keeper = BudgetKeeper()
    budget = wire.RefusingBudget(DECEMBER_S, "", 1_000, 600, NOW_S - 300)
    keeper.count(asked(budget, NOW_S - 240), 399)
    keeper.check(asked(budget))
    keeper.count(asked(budget, NOW_S - 301), 1)
    keeper.check(asked(budget))
    keeper.count(asked(budget, NOW_S), 1)
    assert "1,000 of 1,000 tokens" in refused(keeper, asked(budget)).message
    keeper.check(asked(budget, tenant="other"))
    keeper.check(asked(wire.RefusingBudget(DECEMBER_S, "", 1_000, 998, NOW_S)))
    refused(keeper, asked(wire.RefusingBudget(DECEMBER_S, "", 1_000, 1_000, NOW_S + 60)))


def test_tokens_of_other_gateways_count_until_the_ledger_has_them() -> None:
    keeper = BudgetKeeper()
    budget = wire.RefusingBudget(DECEMBER_S, "", 1_000, 600, NOW_S - 300)
    keeper.count_elsewhere({"acme": 300, "other": 9_000}, NOW_S - 60)
    keeper.check(asked(budget))
    keeper.count_elsewhere({"acme": 100}, NOW_S)
    assert "1,000 of 1,000 tokens" in refused(keeper, asked(budget)).message
    keeper.check(asked(wire.RefusingBudget(DECEMBER_S, "", 1_000, 999, NOW_S + 60)))


def put(bench: Bench, budget: wire.RefusingBudget) -> None:
    """Puts one key in force, whose tenant has the budget."""
    made, fleet = key(SECRET, 1), bench.fleet.fleet()
    own = wire.FleetKey(made.key_hash, 1, "acme", 1, budget=budget)
    fleet = wire.Fleet(fleet.version, fleet.at_s, fleet.services, [own], fleet.nodes)
    bench.server.fleet.apply(fleet, bench.fleet.states(), 0.0)


async def test_openais_client_hears_of_a_spent_budget_once(bench: Bench) -> None:
    put(bench, wire.RefusingBudget(time.time() + 86_400, "1.00 of 1.00 kgCO₂e"))
    async with openai.AsyncOpenAI(base_url=f"{bench.url}/v1", api_key=SECRET, max_retries=2) as client:
        with pytest.raises(openai.RateLimitError) as found:
            await client.completions.create(model=MODEL, prompt="Say so", max_tokens=5)
    assert (found.value.code, found.value.type) == ("insufficient_quota", "insufficient_quota")
    assert "1.00 of 1.00 kgCO₂e" in found.value.message
    assert 86_000 < int(found.value.response.headers["retry-after"]) <= 86_400
    await until(lambda: len(bench.rows()) == 1)
    assert not bench.engine.received
    assert "budget" in bench.rows()[0].error


async def test_tokens_of_answers_spend_the_budget(bench: Bench) -> None:
    put(bench, wire.RefusingBudget(time.time() + 86_400, "", 301, 0, time.time() - 600))
    for status in (200, 429):
        async with bench.post(completion()) as answer:
            assert answer.status == status
            await answer.read()
