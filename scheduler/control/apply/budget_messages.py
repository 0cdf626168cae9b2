"""Makes the messages of tenants' budgets that refuse: what is spent of each in this month, by the settled ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

from django.core.cache import cache
from django.db.models import Max

from pools import wire
from pools.models import Site
from telemetry.models import Budget, Settlement
from telemetry.reports import budget_sides, tenant_month, tenant_use
from telemetry.reports.budget_sides import TOKENS, BudgetSide
from telemetry.reports.tenant_month import Figures, Month

KEPT_S = 60  # publishings are each few seconds, and windows are settled each five minutes


def by_tenant(now: datetime) -> dict[int, wire.RefusingBudget]:
    """Returns the budgets by the tenant's id. Sums are read each minute, and at once after a budget was changed."""
    budgets = list(Budget.objects.filter(refuses=True))
    if not budgets:
        return {}
    start = tenant_month.month_start(now)
    sides = {budget.tenant_id: budget_sides.sides(budget) for budget in budgets}
    known = repr([(pk, [(side.unit, side.budget) for side in own]) for pk, own in sorted(sides.items())])
    key = f"refusing-budgets:{start:%Y-%m}:{hashlib.sha256(known.encode()).hexdigest()}"
    found: dict[int, wire.RefusingBudget] | None = cache.get(key)
    if found is None:
        found = _read(sides, tenant_month.month_of(start, tuple(Site.objects.values_list("pk", flat=True))))
        cache.set(key, found, KEPT_S)
    return found


def _read(sides: dict[int, list[BudgetSide]], month: Month) -> dict[int, wire.RefusingBudget]:
    sums = tenant_use.grouped(tenant_month.by_tenant(month))
    # Of sites that are settled to different moments the latest: what is missing of the others is not refused for.
    newest = Settlement.objects.filter(start_at__gte=month.start).aggregate(at=Max("end_at"))["at"] or month.start
    return {
        pk: _message(own, Figures.of(tenant_use.added_up(sums.get(pk, []))), month, newest) for pk, own in sides.items()
    }


def _message(sides: Sequence[BudgetSide], figures: Figures, month: Month, newest: datetime) -> wire.RefusingBudget:
    spent = [_words(side, figures) for side in sides if side.least(figures) >= side.budget]
    tokens = next((int(side.budget) for side in sides if side.name == TOKENS), None)
    return wire.RefusingBudget(month.end.timestamp(), "; ".join(spent), tokens, figures.tokens, newest.timestamp())


def _words(side: BudgetSide, figures: Figures) -> str:
    """Says what is spent. Where a part is not known (an intensity or a rate is missing), it is at least the rest."""
    whole = side.used(figures) is not None
    return f"{'' if whole else 'at least '}{side.words(side.least(figures))}"
