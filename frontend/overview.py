"""Puts together what the Overview shows: the numbers, the charts, the recent decisions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.cache import cache
from django.urls import reverse

from pools.access.rights import AnyUser
from pools.models import JobState
from scheduler import selectors as scheduler_selectors
from scheduler.operations import visibility
from telemetry import selectors
from telemetry.models import Report
from telemetry.models.rollups import MINUTE_S
from telemetry.report_values.basis import Baseline
from telemetry.report_values.report_request import ReportRequest
from telemetry.selectors.frames import (
    INTERVAL_S,
    CarbonFrame,
    DecisionTick,
    PowerFrame,
    SiteNow,
    SloFrame,
    TimeRange,
    Totals,
)
from telemetry.selectors.ledger_frames import LedgerSums

from . import attention, formats, health, loop_health, reader_choices, visible_health
from .alerts import alert_list
from .charts import carbon_figure, chart_csv, figures
from .charts.plot_style import Look
from .health import Health

CHARTS = ("power", "carbon", "slo", "jain")
MOST_SITES = 5  # that a chart draws by themselves; with all others together as many as there are colours


WEEK_S, HOUR_S = 7 * 86_400.0, 3_600.0
TREND_KEPT_S = 60


@dataclass(frozen=True, slots=True)
class Trend:
    """Today's whole hours against the same hours of last week, as a share more or less; None: either is not known."""

    until_s: float
    energy: float | None
    carbon: float | None


@dataclass(frozen=True, slots=True)
class Saved:
    """What a report says was saved: the baseline's figures, which are modelled, less the metered ones; None: not known.

    `hours`: of how many hours of the period, in words.
    """

    report_id: int
    period: str
    hours: str
    policy: str
    modelled_j: float
    metered_j: float
    carbon_gco2e: float | None

    @property
    def energy_j(self) -> float:
        return self.modelled_j - self.metered_j


@dataclass(frozen=True, slots=True)
class Summary:
    """The line of state, the numbers, what needs attention. `visible` is the part of `health` that a person may see."""

    sites: tuple[SiteNow, ...]
    today: Totals
    slo: SloFrame
    jain: float | None
    health: Health
    visible: Health
    items: tuple[attention.Item, ...]
    trend: Trend | None = None
    saved: Saved | None = None

    @property
    def burn(self) -> float | None:
        """Burn rate of the worst objective: missed share by the share that may miss. Above 1 the budget runs out."""
        worst = self.slo.worst
        if worst is None or worst.overall is None or worst.target >= 1.0:
            return None
        return (1.0 - worst.overall) / (1.0 - worst.target)

    @property
    def gpus(self) -> int:
        return sum(site.gpus for site in self.sites)

    @property
    def reporting(self) -> int:
        return sum(site.reporting for site in self.sites)

    @property
    def power_w(self) -> float | None:
        known = [site.power_w for site in self.sites if site.power_w is not None]
        return sum(known) if known else None

    @property
    def intensity_g_per_kwh(self) -> float | None:
        """Mean over the sites whose intensity is known, weighted by the power each draws now."""
        known = [
            (s.power_w, s.intensity_g_per_kwh) for s in self.sites if s.power_w and s.intensity_g_per_kwh is not None
        ]
        total = sum(power for power, _ in known)
        return sum(power * intensity for power, intensity in known) / total if total else None

    @property
    def unknown_intensity(self) -> str:
        """The sites without one, in words: by name where all of them may be known."""
        unknown = [site.label for site in self.sites if site.intensity_g_per_kwh is None]
        return formats.few(unknown) if self.visible is self.health else f"{len(unknown)} of {len(self.sites)} sites"

    @property
    def today_without(self) -> str:
        """The sites of whose carbon today some is not known, in words: by name where all of them may be known."""
        without = self.today.without
        return formats.few(without) if self.visible is self.health else f"{len(without)} of {len(self.sites)} sites"

    @property
    def nodes_reporting(self) -> int:
        return sum(node.state == "reporting" for node in self.health.nodes)

    @property
    def feeds_words(self) -> str:
        late = [row.feed.site_label for row in self.visible.feeds if row.state != "fresh"]
        if not self.visible.feeds:
            return "no carbon feed"
        return "carbon feeds fresh" if not late else f"carbon feed of {formats.few(late)} not fresh"

    @property
    def loops_words(self) -> str:
        loops = self.visible.loops
        wrong = [f"{loop.name} {loop.state}" for loop in loops if loop.state not in loop_health.WELL]
        paused = [f"{loop.name} {loop.words}" for loop in loops if loop.pause is not None]
        known = f"loops: {formats.few(wrong)}" if wrong else "other loops on time" if paused else "loops on time"
        return f"{known}; {formats.few(paused, 2)}" if paused else known


def summary(user: AnyUser, window: TimeRange, power: selectors.PowerNow | None = None) -> Summary:
    """Makes this person's summary. `power` is the GPUs' power at the end of `window`, if it is known already."""
    now = datetime.fromtimestamp(window.end_s, UTC)
    state = health.gather(now)
    known = visible_health.health(user, state)
    slo = selectors.slo(window)
    return Summary(
        sites=selectors.sites_now(window.end_s, power),
        today=_today(reader_choices.midnight_s(window.end_s)),
        slo=slo,
        jain=selectors.tenant_fairness(window),
        health=state,
        visible=known,
        items=attention.items(known, slo, alert_list.open_alerts(user)),
        trend=_trend(reader_choices.midnight_s(window.end_s), window.end_s),
        saved=_saved(user),
    )


def _trend(midnight_s: float, now_s: float) -> Trend | None:
    """Returns the trend, or None in the first hour of a day. Makes two queries, at most once a minute."""
    until_s = now_s // HOUR_S * HOUR_S
    if until_s <= midnight_s:
        return None
    key = f"trend-{midnight_s:.0f}-{until_s:.0f}"
    found: Trend | None = cache.get(key)
    if found is None:
        today = selectors.totals(midnight_s, until_s)
        before = selectors.totals(midnight_s - WEEK_S, until_s - WEEK_S)
        found = Trend(until_s, _more(today.energy_j, before.energy_j), _more(today.carbon_gco2e, before.carbon_gco2e))
        cache.set(key, found, TREND_KEPT_S)
    return found


def _more(now: float | None, before: float | None) -> float | None:
    return now / before - 1.0 if now is not None and before else None


def _saved(user: AnyUser) -> Saved | None:
    """Reads the savings from the newest report with a baseline that this person may see. Makes one query."""
    reports = Report.objects.filter(job__state=JobState.DONE, basis__baseline__policy__isnull=False)
    report = visibility.for_sites(user, reports).order_by("-pk").only("asked", "basis", "summary").first()
    summary = (report.summary or {}) if report else {}
    if report is None or report.basis is None or summary.get("energy_j") is None:
        return None
    baseline = Baseline.from_json(report.basis["baseline"])
    period = ReportRequest.from_json(report.asked).span()
    metered_g, modelled_ug = summary.get("location_gco2e"), baseline.location_ug
    return Saved(
        report_id=report.pk,
        period=period.words,
        hours=baseline.hours_words(period),
        policy=baseline.policy,
        modelled_j=baseline.energy_uj / 1e6,
        metered_j=summary["energy_j"],
        carbon_gco2e=modelled_ug / 1e6 - metered_g if metered_g is not None and modelled_ug is not None else None,
    )


def _today(since_s: float) -> Totals:
    """A day's sum reads a day's entries, and the ledger posts an interval at a time: no more often than that."""
    key = f"totals-since-{since_s:.0f}"
    found: Totals | None = cache.get(key)
    if found is None:
        found = selectors.totals(since_s)
        cache.set(key, found, INTERVAL_S)
    return found


def ticks(user: AnyUser, window: TimeRange) -> tuple[DecisionTick, ...]:
    """Returns the decisions of `window` that this person may see. Makes one query."""
    start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (window.start_s, window.end_s))
    own = visibility.decisions(user, scheduler_selectors.decisions())
    own = own.select_related(None).only("at", "kind", "reason", "summary")
    return tuple(
        DecisionTick(d.at.timestamp(), d.kind, d.reason, d.summary, reverse("decision", args=[d.pk]))
        for d in scheduler_selectors.ticks(start, end, own)
    )


def charts(user: AnyUser, window: TimeRange, look: Look, wanted: Collection[str] = CHARTS) -> dict[str, Any]:
    """Returns the requested figures, of all four; sites that this person may not see are drawn as others.

    At most ten queries, whatever the range.
    """
    found: dict[str, Any] = {}
    if {"power", "carbon"} & set(wanted):
        power, carbon = selectors.energy(window, most=MOST_SITES, named=visible_health.site_names(user))
        found |= {"power": figures.power(power, look), "carbon": carbon_figure.carbon(carbon, look)}
    if "slo" in wanted:
        found["slo"] = figures.slo(selectors.slo(window), look)
    if "jain" in wanted:
        found["jain"] = figures.jain(selectors.fairness(window), look)
    return {name: figure for name, figure in found.items() if name in wanted}


def table(user: AnyUser, chart: str, window: TimeRange) -> str:
    """Writes one chart's figures as CSV. Raises KeyError for a chart that does not exist."""

    def energy(window: TimeRange) -> tuple[PowerFrame, CarbonFrame, LedgerSums]:
        frames = selectors.energy(window, named=visible_health.site_names(user))
        return *frames, selectors.ledger_sums(window, time.time())

    def power() -> str:
        watts, _, sums = energy(window)
        return chart_csv.power(watts, sums)

    def carbon() -> str:
        _, rates, sums = energy(window.coarser(MINUTE_S))  # settlements restate the carbon of whole minutes
        return chart_csv.carbon(rates, sums)

    makers: dict[str, Callable[[], str]] = {
        "power": power,
        "carbon": carbon,
        "slo": lambda: chart_csv.slo(selectors.slo(window)),
        "jain": lambda: chart_csv.jain(selectors.fairness(window)),
    }
    return makers[chart]()
