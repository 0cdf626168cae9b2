"""A site's carbon intensity and price in the past, now and as forecast, from the points of its feeds.

The inventory (the ledger, reports) uses average intensity only. Decisions use the marginal rate where it is known for
every site that they compare, and the average otherwise: an average of one site against a marginal rate of another says
nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from django.db.models import Case, F, Value, When

from pools.models import Site
from telemetry.models import CarbonFeed, CarbonPoint

Signal = CarbonFeed.Signal
MIN_KNOWN_SHARE = 0.5
LONGEST_INTERVAL = timedelta(days=1)  # bounds how far back a point may begin that is still valid: keeps look-ups short


class IntensityCurve:
    """The intensity of one site over a stretch of time, read once: the average one unless another signal is named.

    Where an interval has both, what was measured goes before what was forecast, a null measurement included: the
    feed then said that it has no value, and a forecast may not paper over that. Of equals the newest issue counts.
    Forecasts of our own models count only where `modelled` says so, for decisions; the feed's best model goes first
    then. Of prices the values are per kWh.
    """

    def __init__(
        self,
        site: Site | int,
        start: datetime,
        end: datetime,
        signal: str = Signal.AVERAGE,
        modelled: bool = False,
    ) -> None:
        best = Case(When(model=F("feed__forecast_model"), then=Value(1)), default=Value(0))
        points = (
            CarbonPoint.objects.filter(
                feed__site=site,
                feed__signal=signal,
                start_at__gt=start - LONGEST_INTERVAL,
                start_at__lt=end,
                end_at__gt=start,
                **({} if modelled else {"model": ""}),
            )
            .order_by("start_at", "-forecast", best, "issued_at", "id")
            .values_list("start_at", "end_at", "price_per_kwh" if signal == Signal.PRICE else "value_g_per_kwh")
        )
        chosen: Mapping[datetime, tuple[datetime, float | None]] = {s: (e, value) for s, e, value in points}
        self._spells = [(s.timestamp(), e.timestamp(), value) for s, (e, value) in sorted(chosen.items())]
        self._longest_s = max((b - a for a, b, _ in self._spells), default=0.0)
        self.shortest_s = min((b - a for a, b, _ in self._spells), default=None)

    def _near(self, start_s: float, end_s: float) -> Sequence[tuple[float, float, float | None]]:
        """Returns the spells that may overlap [start_s, end_s), without going through all of them."""
        first = bisect_left(self._spells, start_s - self._longest_s, key=_begins)
        return self._spells[first : bisect_left(self._spells, end_s, key=_begins)]

    def mean(self, start_s: float, end_s: float, min_known_share: float = 1.0) -> float | None:
        """Mean over [start_s, end_s) in g/kWh, weighted by time; None when less than the given share is known."""
        known_s = total = 0.0
        for spell_start_s, spell_end_s, value in self._near(start_s, end_s):
            overlap_s = min(end_s, spell_end_s) - max(start_s, spell_start_s)
            if overlap_s > 0 and value is not None:
                known_s += overlap_s
                total += overlap_s * value
        if known_s <= 0 or known_s < min_known_share * (end_s - start_s) - 1e-6:
            return None
        return total / known_s

    def known_s(self, start_s: float, end_s: float) -> float:
        """For how long of [start_s, end_s) there is a value."""
        near = self._near(start_s, end_s)
        overlaps = (min(end_s, b) - max(start_s, a) for a, b, value in near if value is not None)
        return sum(max(0.0, overlap_s) for overlap_s in overlaps)

    def at(self, at_s: float) -> float | None:
        return next((value for start_s, end_s, value in self._spells if start_s <= at_s < end_s), None)


def _begins(spell: tuple[float, float, float | None]) -> float:
    return spell[0]


@dataclass(frozen=True, slots=True)
class DecisionCurves:
    """The curve of each site by key, all of one signal: `marginal` or `average`. Marginal rates may be negative."""

    signal: str
    by_site: Mapping[int, IntensityCurve]

    def steps(self, site: Site, start: datetime, step_s: float, n: int) -> tuple[float | None, ...]:
        """Returns the mean intensity of each of `n` steps in g/kWh.

        A step counts as known when at least half of it is: one missing five-minute value does not shut a site out for
        half an hour. The ledger is stricter.
        """
        edges = [start.timestamp() + step_s * i for i in range(n + 1)]
        curve = self.by_site[site.pk]
        return tuple(curve.mean(a, b, MIN_KNOWN_SHARE) for a, b in pairwise(edges))

    def at(self, site: Site, at: datetime) -> float | None:
        return self.by_site[site.pk].at(at.timestamp())


def for_decisions(sites: Sequence[Site], start: datetime, end: datetime) -> DecisionCurves:
    """What decisions that compare `sites` over [start, end) go by.

    Marginal when every site's marginal rate is known for at least half of the time in which its average is (a source
    without a forecast does not reach as far), and at the start.
    """
    average = {site.pk: IntensityCurve(site, start, end, modelled=True) for site in sites}
    with_marginal = CarbonFeed.objects.filter(site__in=sites, signal=Signal.MARGINAL).values_list("site", flat=True)
    if set(with_marginal) == set(average):
        marginal = {site.pk: IntensityCurve(site, start, end, Signal.MARGINAL, True) for site in sites}
        span = (start.timestamp(), end.timestamp())
        if all(
            marginal[pk].at(span[0]) is not None
            and marginal[pk].known_s(*span) >= MIN_KNOWN_SHARE * average[pk].known_s(*span)
            for pk in average
        ):
            return DecisionCurves(Signal.MARGINAL.value, marginal)
    return DecisionCurves(Signal.AVERAGE.value, average)


def intensity_at(site: Site | int, at: datetime, signal: str = Signal.AVERAGE) -> float | None:
    """Returns g/kWh around `at`, our own forecasts included, for routing; None when nothing is known."""
    return IntensityCurve(site, at, at + timedelta(microseconds=1), signal, modelled=True).at(at.timestamp())


def marginal_at(at: datetime) -> dict[int, float | None]:
    """Returns the marginal intensity in g/kWh around `at` of each site that has a feed of it."""
    with_feed = CarbonFeed.objects.filter(signal=Signal.MARGINAL).values_list("site", flat=True)
    return {site: intensity_at(site, at, Signal.MARGINAL) for site in with_feed}


def price_steps(site: Site, start: datetime, step_s: float, n: int, currency: str) -> tuple[float | None, ...]:
    """Returns the mean price per kWh of each of `n` steps; nothing without a price feed in this currency."""
    end = start + timedelta(seconds=step_s * n)
    around = {"start_at__gt": start - LONGEST_INTERVAL, "start_at__lt": end, "end_at__gt": start}
    priced = CarbonPoint.objects.filter(feed__site=site, feed__signal=Signal.PRICE, **around)
    if set(priced.order_by().values_list("currency", flat=True).distinct()) != {currency}:
        return ()
    curve = IntensityCurve(site, start, end, Signal.PRICE, True)
    return DecisionCurves(Signal.PRICE.value, {site.pk: curve}).steps(site, start, step_s, n)
