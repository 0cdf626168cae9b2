"""The source of what tenants have used of their budgets, and what the month comes to.

Rounds are each 15 s; a month of a thousand tenants has a million settled hours. Readings are kept for five minutes, as
long as a settled window, unless a budget changes; sums of whole days and of the newest seven are kept until one of
their hours is settled anew (`telemetry.reports.tenant_month`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.core.cache import cache

from pools.models import Site
from telemetry.models import Budget
from telemetry.report_values.month_forecast import DAYS
from telemetry.reports import budget_sides, tenant_month, tenant_use
from telemetry.reports.budget_sides import BudgetSide
from telemetry.reports.tenant_month import Figures, Month, Outlook

from .alert_state_machine import Level, Reading
from .sources import Rules, Source

USED, FORECAST = "budget_used", "budget_forecast"
KEPT_S = 300
WHY_UNKNOWN = {budget_sides.MONEY: "a tariff or rate is missing", budget_sides.CARBON: "an intensity is missing"}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a budget, and how much of it is used. `so_far` None: not known."""

    of: BudgetSide
    so_far: float | None
    outlook: Outlook

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def used(self) -> float | None:
        return None if self.so_far is None else self.so_far / self.of.budget

    @property
    def comes_to(self) -> float | None:
        return None if self.outlook.forecast is None else self.outlook.forecast.value / self.of.budget

    def words(self, value: float) -> str:
        return self.of.words(value)


def _budgets(now: datetime, rules: Rules) -> Iterator[Reading]:
    budgets = list(Budget.objects.select_related("tenant"))
    if not budgets:
        return
    month = tenant_month.month_start(now)
    known = repr([(one.tenant.name, [(side.unit, side.budget) for side in budget_sides.sides(one)]) for one in budgets])
    thresholds = [rules[name].threshold for name in (USED, FORECAST) if name in rules]
    digest = hashlib.sha256(f"{known}{thresholds}".encode()).hexdigest()
    key = f"budget-readings:{month:%Y-%m}:{digest}"
    found: list[Reading] | None = cache.get(key)
    if found is None:
        found = list(_read(budgets, month, rules))
        cache.set(key, found, KEPT_S)
    yield from found


def _read(budgets: Sequence[Budget], start: datetime, rules: Rules) -> Iterator[Reading]:
    month = tenant_month.month_of(start, tuple(Site.objects.order_by("pk").values_list("pk", flat=True)))
    settled = month.until > month.start
    sums = tenant_use.grouped(tenant_month.by_tenant(month) if settled else ())
    days = tenant_month.newest_days_by_tenant(month) if settled else {}
    unused = tenant_month.days_without_use(month) if settled else []
    for budget in budgets:
        pk = budget.tenant_id
        now = Figures.of(tenant_use.added_up(sums.get(pk, []))) if settled else None
        sides = _sides(month, budget, now, days.get(pk, unused))
        yield _used(month, budget, sides, rules[USED].threshold)
        yield _forecast(month, budget, sides, rules[FORECAST].threshold)


def _sides(month: Month, budget: Budget, now: Figures | None, days: Sequence[Figures | None]) -> list[Side]:
    found = []
    for side in budget_sides.sides(budget):
        so_far = None if now is None else side.used(now)
        by_day = [None if one is None else side.used(one) for one in days]
        found.append(Side(side, so_far, tenant_month.outlook(month, so_far, by_day, side.budget)))
    return found


def _used(month: Month, budget: Budget, sides: Sequence[Side], threshold: float) -> Reading:
    """Reads the fuller side. Where one is not known the other is enough to raise an alert, and not to end one."""
    known = sorted((one for one in sides if one.so_far is not None), key=lambda one: -(one.used or 0.0))
    said = [f"{_percent(one.used)} of the {one.name} is used, {one.words(one.so_far or 0.0)}" for one in known]
    said += [f"of the {one.name} it is not known: {_why(month, one)}" for one in sides if one.so_far is None]
    words = f"Budget of {_name(budget)}, {month.words}: {'; '.join(said)} ({_until(month)})"
    value = _whole([one.used for one in sides], threshold)
    level = Level.BAD if value is not None and value >= 1.0 else None
    return replace(_reading(USED, month, budget, value, words), level=level)


def _forecast(month: Month, budget: Budget, sides: Sequence[Side], threshold: float) -> Reading:
    known = sorted((one for one in sides if one.outlook.forecast is not None), key=lambda one: -(one.comes_to or 0.0))
    said = [_foretold(month, one) for one in known]
    said += [f"for the {one.name} there is no forecast" for one in sides if one.outlook.forecast is None]
    words = f"Budget of {_name(budget)}, {month.words}, by the forecast (modelled): {'; '.join(said)}"
    return _reading(FORECAST, month, budget, _whole([one.comes_to for one in sides], threshold), words)


def _foretold(month: Month, side: Side) -> str:
    forecast, at = side.outlook.forecast, side.outlook.used_up_at
    assert forecast is not None
    most = f"{_percent(side.comes_to)} of the {side.name}, {side.words(forecast.value)}"
    words = f"{most}, at the pace of the newest {DAYS} days"
    if at is None:
        return words
    return f"{words}; used up {'already' if at <= month.until else f'on {at:%-d %B}'}"


def _reading(rule: str, month: Month, budget: Budget, value: float | None, words: str) -> Reading:
    return Reading(rule, f"{budget.tenant.name}/{month.key}", value, words)


def _whole(shares: Sequence[float | None], threshold: float) -> float | None:
    """Returns the largest share; None where one is not known and the others do not say enough."""
    most = max((share for share in shares if share is not None), default=None)
    return most if most is None or None not in shares or most >= threshold else None


def _percent(share: float | None) -> str:
    return f"{(share or 0.0) * 100:.0f} %"


def _why(month: Month, side: Side) -> str:
    return WHY_UNKNOWN[side.name] if month.until > month.start else "nothing of the month is settled yet"


def _until(month: Month) -> str:
    return f"settled until {month.until:%-d %B %H:%M} UTC"


def _name(budget: Budget) -> str:
    return str(budget.tenant.label or budget.tenant.name)


BUDGETS = Source((USED, FORECAST), _budgets)
