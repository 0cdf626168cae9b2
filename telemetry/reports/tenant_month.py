"""A calendar month of tenants: sums of settled hours that are kept, its newest days, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from django.core.cache import cache
from django.db.models import Min

from telemetry.models import Settlement
from telemetry.report_values import month_forecast
from telemetry.report_values.month_forecast import MonthForecast
from telemetry.report_values.totals import Totals

from . import tenant_use
from .tenant_use import HourSpan, Use

DAY = timedelta(days=1)
KEPT_S = 86_400


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in UTC at some sites. `until`: up to when all of them are settled; its start: none is."""

    start: datetime
    end: datetime
    until: datetime
    site_ids: tuple[int, ...]

    @property
    def key(self) -> str:
        return f"{self.start:%Y-%m}"

    @property
    def words(self) -> str:
        """Returns the month of UTC, whichever zone the reader is in."""
        return f"{self.start:%B %Y}"

    @property
    def words_before(self) -> str:
        return f"{self.before:%B}"

    @property
    def over(self) -> bool:
        return self.until >= self.end

    @property
    def left_days(self) -> float:
        return (self.end - self.until) / DAY

    @property
    def before(self) -> datetime:
        return (self.start - DAY).replace(day=1)

    def span(self, tenant_id: int | None = None) -> HourSpan:
        """Returns the whole month: what is settled of it, at some sites perhaps more than at others."""
        return HourSpan(self.start, self.end, self.site_ids, tenant_id)

    def same_days_before(self, tenant_id: int) -> HourSpan:
        """Returns as much of the month before; all of it, where that is shorter."""
        as_long = tenant_use.whole_hour(self.before + (self.until - self.start))
        return HourSpan(self.before, min(self.start, as_long), self.site_ids, tenant_id)

    def newest_days(self, tenant_id: int | None) -> HourSpan:
        end = tenant_use.whole_hour(self.until)
        return HourSpan(end - month_forecast.DAYS * DAY, end, self.site_ids, tenant_id)


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums that a line shows. None: not known, or of a part not; `costs` by currency.

    `least_...`: what is known of it, the rest counted as nothing.
    """

    energy_j: float
    carbon_g: float | None
    costs: tuple[tuple[str, float | None], ...]
    output_tokens: int
    tokens: int  # of prompts too
    least_carbon_g: float
    least_costs: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, by_currency: Mapping[str, Totals]) -> Figures:
        total = Totals()
        for totals in by_currency.values():
            total += totals
        costs = ((currency, _known(totals.cost_nano, 1e9)) for currency, totals in by_currency.items())
        carbon_g = _known(total.location, 1e6) if total.lines else 0.0
        least = ((name, (one.electricity_nano + one.rental_nano) / 1e9) for name, one in by_currency.items())
        return cls(
            total.energy_uj / 1e6,
            carbon_g,
            tuple(costs),
            total.output_tokens,
            total.prompt_tokens + total.output_tokens,
            total.location_ug / 1e6,
            tuple(least),
        )

    def cost(self, currency: str) -> float | None:
        """Returns what it cost in a currency: nothing where it paid nothing in it. None: not known."""
        return dict(self.costs).get(currency, 0.0)

    def least_cost(self, currency: str) -> float:
        return dict(self.least_costs).get(currency, 0.0)


def month_of(start: datetime, site_ids: Sequence[int]) -> Month:
    end = (start + 32 * DAY).replace(day=1)
    settled = tenant_use.settled_until(site_ids, start)
    return Month(start, end, start if settled is None else max(start, min(settled, end)), tuple(site_ids))


def month_start(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def by_tenant(month: Month) -> list[Use]:
    """Returns each tenant's use of the month's whole days and of the newest one.

    Sums of the whole days, of which a large fleet has a million hours, are kept until one of them is settled anew.
    """
    rented = tenant_use.rented(month.span())
    today = month.until.replace(hour=0, minute=0, second=0, microsecond=0)
    days, newest = replace(month.span(), end=today), replace(month.span(), start=today)
    version = tenant_use.newest_version(days)
    key = f"tenants:2:{month.key}:{today:%d}:{version}:{_joined(month.site_ids)}:{_joined(sorted(rented))}"
    found: list[Use] | None = cache.get(key)
    if found is None:
        found = tenant_use.use(days, ("tenant",), rented_sites=rented)
        cache.set(key, found, KEPT_S)
    return [*found, *tenant_use.use(newest, ("tenant",), rented_sites=rented)]


def _joined(numbers: Iterable[int]) -> str:
    return "-".join(map(str, numbers))


def newest_days(month: Month, tenant_id: int) -> list[Figures | None]:
    """Returns each of the newest settled days, of 24 hours; None: before anything was settled. Three queries."""
    return _of_days(month, tenant_use.use(month.newest_days(tenant_id), ("day",)), _begun(month))


def newest_days_by_tenant(month: Month) -> dict[int, list[Figures | None]]:
    """Returns the same of all tenants that used something. One query while no hour of the days is settled anew."""
    span = month.newest_days(None)
    key = f"tenant-days:2:{span.end:%Y-%m-%dT%H}:{tenant_use.newest_version(span)}:{_joined(month.site_ids)}"
    found: dict[int, list[Figures | None]] | None = cache.get(key)
    if found is None:
        begun = _begun(month)
        found = {
            tenant_id: _of_days(month, [replace(one, key=one.key[1:]) for one in own], begun)
            for tenant_id, own in tenant_use.grouped(tenant_use.use(span, ("tenant", "day"))).items()
        }
        cache.set(key, found, KEPT_S)
    return found


def days_without_use(month: Month) -> list[Figures | None]:
    """Returns the newest days of a tenant that used nothing in them. One query."""
    return _of_days(month, (), _begun(month))


def _begun(month: Month) -> datetime:
    """Returns when the first window of the newest days begins; their end where there is none."""
    span = month.newest_days(None)
    first = Settlement.objects.filter(site__in=month.site_ids, start_at__gte=span.start).aggregate(at=Min("start_at"))
    return first["at"] or span.end


def _of_days(month: Month, uses: Sequence[Use], begun: datetime) -> list[Figures | None]:
    span = month.newest_days(None)
    by_day = tenant_use.grouped(uses)
    return [
        Figures.of(tenant_use.added_up(by_day.get(n, []))) if span.start + n * DAY >= begun else None
        for n in range(month_forecast.DAYS)
    ]


@dataclass(frozen=True, slots=True)
class Outlook:
    """The forecast of one amount of a month. None: not known; `used_up_at`: when the budget is, if within the month."""

    forecast: MonthForecast | None
    used_up_at: datetime | None


def outlook(month: Month, so_far: float | None, days: Sequence[float | None], budget: float | None) -> Outlook:
    """Forecasts one amount of the month from its newest days; all are in the unit of the budget."""
    if so_far is None:
        return Outlook(None, None)
    forecast = month_forecast.month_forecast(so_far, days, month.left_days)
    if budget is None or forecast is None:
        return Outlook(forecast, None)
    left = month_forecast.used_up_in_days(so_far, budget, forecast.a_day)
    return Outlook(forecast, None if left is None or left > month.left_days else month.until + left * DAY)


def _known(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit
