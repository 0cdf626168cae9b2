"""Refuses requests of tenants whose budget of the month is spent.

What is spent comes with the fleet, from the settled ledger, which is some minutes behind. Tokens of the minutes since
are counted here: those of this gateway, and what others say of theirs. The ledger will have them all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from ..errors import budget_spent
from ..requests.call import Call

_MINUTE_S = 60
_KEPT_S = 86_400.0  # the ledger has settled it long before


class BudgetKeeper:
    """Times are Unix time: months are."""

    def __init__(self) -> None:
        self._tokens: dict[str, Counter[int]] = {}  # by tenant, then by the minute in which their requests came

    def check(self, call: Call) -> None:
        """Raises ApiError 429 once the budget of the call's tenant is spent."""
        budget, now_s = call.key.budget, call.request.started_at_s
        if budget is None or now_s >= budget.ends_at_s:  # a new month, of which nothing has been said yet
            return
        spent = budget.spent
        if budget.tokens is not None and not spent:
            used = budget.tokens_used + self._since(call.key.tenant, budget.counted_to_s)
            spent = f"{used:,} of {budget.tokens:,} tokens" if used >= budget.tokens else ""
        if spent:
            wait_s = max(1, math.ceil(budget.ends_at_s - now_s))
            raise budget_spent(call.key.tenant, spent, datetime.fromtimestamp(budget.ends_at_s, UTC), wait_s)

    def count(self, call: Call, tokens: int) -> None:
        """Counts the tokens of a request that has ended."""
        budget = call.key.budget
        if budget is not None and budget.tokens is not None:
            self._tokens.setdefault(call.key.tenant, Counter())[_minute(call.request.started_at_s)] += tokens

    def count_elsewhere(self, used: Mapping[str, int], at_s: float) -> None:
        """Counts tokens of requests that have ended at other gateways, by tenant; `at_s`: when that was heard."""
        for tenant, tokens in used.items():
            minutes = self._tokens.setdefault(tenant, Counter())
            minutes[_minute(at_s)] += tokens
            for minute in [minute for minute in minutes if at_s - minute * _MINUTE_S > _KEPT_S]:
                del minutes[minute]  # of a tenant without a budget, which nobody asks for

    def _since(self, tenant: str, counted_to_s: float) -> int:
        """Returns the tokens that the ledger does not have yet, and forgets the others."""
        minutes = self._tokens.get(tenant)
        if minutes is None:
            return 0
        for minute in [minute for minute in minutes if minute < _minute(counted_to_s)]:
            del minutes[minute]
        return minutes.total()


def _minute(at_s: float) -> int:
    return int(at_s // _MINUTE_S)
