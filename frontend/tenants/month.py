"""A month of tenants as pages show it: sums of settled hours, the same days of last month, forecast and budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import methodcaller

from pools.models import Tenant
from telemetry.models import Budget
from telemetry.report_values.month_forecast import MonthForecast
from telemetry.reports import budget_sides, tenant_month, tenant_use
from telemetry.reports.tenant_month import DAY, Figures, Month, month_of, month_start
from telemetry.reports.tenant_use import HourSpan, Use
from telemetry.selectors.frames import TimeRange

__all__ = ["Figures", "Month", "month_of", "month_start"]  # pages name them here


@dataclass(frozen=True, slots=True)
class TenantRow:
    """`used`: shares of the budget's sides, by their names: those of which it is known."""

    name: str
    label: str
    figures: Figures
    used: tuple[tuple[str, float], ...]

    @property
    def energy_j(self) -> float:
        return self.figures.energy_j

    @property
    def carbon_g(self) -> float | None:
        return self.figures.carbon_g

    @property
    def cost(self) -> float | None:
        """Returns the cost where all of it is in one currency."""
        return self.figures.costs[0][1] if len(self.figures.costs) == 1 else None

    @property
    def budget_used(self) -> float | None:
        """Returns the largest share of the budget's sides."""
        return max((share for _, share in self.used), default=None)


@dataclass(frozen=True, slots=True)
class Quantity:
    """One line of a tenant's month. Values are in `unit`; `used_up_at`: when the budget is, at the forecast's pace."""

    name: str
    unit: str
    so_far: float | None
    before: float | None
    forecast: MonthForecast | None
    budget: float | None = None
    used_up_at: datetime | None = None

    @property
    def money(self) -> bool:
        return self.name == "Cost"

    @property
    def change(self) -> float | None:
        return None if self.so_far is None or not self.before else self.so_far / self.before - 1.0

    @property
    def used(self) -> float | None:
        return None if self.so_far is None or not self.budget else self.so_far / self.budget


def month_named(text: str, now: datetime) -> datetime:
    """Returns the start of a month such as 2026-10, in UTC; that of `now` where there is no text.

    Raises:
        ValueError: The text names no month.
    """
    if text and not re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", text):
        raise ValueError("write a year and a month such as 2026-10")
    return datetime.fromisoformat(f"{text}-01").replace(tzinfo=UTC) if text else month_start(now)


def tenant_rows(month: Month, every: bool) -> list[TenantRow]:
    """Returns tenants by their energy, the largest first. Five queries, and one more where whole days have changed.

    Args:
        every: those too that used nothing, and budgets, which are of all sites together.
    """
    by_tenant = tenant_use.grouped(tenant_month.by_tenant(month))
    budgets = {budget.tenant_id: budget for budget in Budget.objects.all()} if every else {}
    found = []
    for tenant in Tenant.objects.all():
        if tenant.pk in by_tenant or every:
            figures = Figures.of(tenant_use.added_up(by_tenant.get(tenant.pk, [])))
            used = _used(figures, budgets.get(tenant.pk))
            found.append(TenantRow(tenant.name, tenant.label or tenant.name, figures, used))
    return sorted(found, key=lambda row: (-row.figures.energy_j, row.name))


def _used(figures: Figures, budget: Budget | None) -> tuple[tuple[str, float], ...]:
    sides = () if budget is None else budget_sides.sides(budget)
    known = ((side, side.used(figures)) for side in sides)
    return tuple((side.name, used / side.budget) for side, used in known if used is not None)


def month_uses(month: Month, tenant: Tenant) -> list[Use]:
    """Returns what the month's sums and its table are of: the use of each service at each site. Two queries."""
    return tenant_use.use(month.span(tenant.pk), ("service", "site"))


def quantities(month: Month, tenant: Tenant, budget: Budget | None, uses: Sequence[Use]) -> list[Quantity]:
    """Returns energy, carbon, tokens where the budget has some, and cost in each currency. Five queries.

    Args:
        uses: The month's.
    """
    sums = tenant_use.added_up(uses)
    now = Figures.of(sums) if sums or month.until > month.start else None
    past = tenant_use.added_up(tenant_use.use(month.same_days_before(tenant.pk)))
    before = Figures.of(past) if past else None
    days = [] if month.over else tenant_month.newest_days(month, tenant.pk)
    sides = {side.name: side for side in (budget_sides.sides(budget) if budget else ())}

    def amount_of(name: str, per_unit: float = 1.0) -> float | None:
        return sides[name].budget * per_unit if name in sides else None

    measures = [
        _Measure("Energy", "Wh", lambda figures: figures.energy_j / 3_600, amount_of(budget_sides.ENERGY, 1e3)),
        _Measure("Carbon", "gCO₂e", lambda figures: figures.carbon_g, amount_of(budget_sides.CARBON, 1e3)),
    ]
    if budget_sides.TOKENS in sides:
        measures.append(_Measure("Tokens", "", lambda figures: figures.tokens, amount_of(budget_sides.TOKENS)))
    money = sides.get(budget_sides.MONEY)
    for currency in sorted({*sums, *([money.unit] if money else [])}):
        own = money.budget if money and money.unit == currency else None
        measures.append(_Measure("Cost", currency, methodcaller("cost", currency), own))
    return [_quantity(month, measure, now, before, days) for measure in measures]


@dataclass(frozen=True, slots=True)
class _Measure:
    name: str
    unit: str
    value: Callable[[Figures], float | None]
    budget: float | None


def _quantity(
    month: Month, measure: _Measure, now: Figures | None, before: Figures | None, newest: Sequence[Figures | None]
) -> Quantity:
    so_far, budget = None if now is None else measure.value(now), measure.budget
    days = [None if day is None else measure.value(day) for day in newest]
    found = tenant_month.outlook(month, so_far, days, budget)
    past = None if before is None else measure.value(before)
    return Quantity(measure.name, measure.unit, so_far, past, found.forecast, budget, found.used_up_at)


@dataclass(frozen=True, slots=True)
class PivotRow:
    """A service at a site, or a sum over sites (`site` empty), or all of it (both empty)."""

    service: str
    site: str
    figures: Figures


def by_service_and_site(uses: Sequence[Use], sites: Mapping[int, str]) -> list[PivotRow]:
    """Returns each service's use at each site, with its sum, and the sum of all."""
    by_service: dict[str, list[Use]] = {}
    for one in uses:
        by_service.setdefault(one.key[0] or "(no service)", []).append(one)
    found = []
    for service, own in by_service.items():
        at: dict[int, list[Use]] = {}
        for one in own:
            at.setdefault(one.key[1], []).append(one)
        rows = [PivotRow(service, sites[pk], Figures.of(tenant_use.added_up(part))) for pk, part in at.items()]
        found += sorted(rows, key=lambda row: row.site)
        if len(rows) > 1:
            found.append(PivotRow(service, "", Figures.of(tenant_use.added_up(own))))
    return [*found, PivotRow("", "", Figures.of(tenant_use.added_up(uses)))] if len(by_service) > 1 else found


def daily(month: Month, tenant: Tenant) -> tuple[TimeRange, list[Figures | None]]:
    """Returns the whole days of this month and the one before, in UTC; None: nothing was used. Two queries."""
    end = tenant_use.whole_hour(month.until).replace(hour=0)
    span = HourSpan(month.before, max(end, month.before + DAY), month.site_ids, tenant.pk)
    uses = tenant_use.grouped(tenant_use.use(span, ("day",)))
    window = TimeRange(span.start.timestamp(), span.end.timestamp(), DAY.total_seconds())
    return window, [Figures.of(tenant_use.added_up(uses[n])) if n in uses else None for n in range(window.count)]
