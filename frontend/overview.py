"""Puts together what the Overview shows: the numbers, the charts, the recent decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.cache import cache
from django.urls import reverse

from scheduler import selectors as scheduler_selectors
from telemetry import selectors
from telemetry.frames import CELL_S, DecisionTick, SiteNow, SloFrame, Totals, Window

from . import alerts, attention, exports, figures, health, reader
from .plot_style import Look

CHARTS = ("power", "carbon", "slo", "jain")


@dataclass(frozen=True, slots=True)
class Summary:
    """The line of state, the numbers, and what needs attention."""

    sites: tuple[SiteNow, ...]
    today: Totals
    slo: SloFrame
    jain: float | None
    health: health.Health
    items: tuple[attention.Item, ...]

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
    def unknown_intensity(self) -> tuple[str, ...]:
        return tuple(site.label for site in self.sites if site.intensity_g_per_kwh is None)

    @property
    def nodes_reporting(self) -> int:
        return sum(node.state == "reporting" for node in self.health.nodes)

    @property
    def feeds_words(self) -> str:
        late = [row.feed.site_label for row in self.health.feeds if row.state != "fresh"]
        if not self.health.feeds:
            return "no carbon feed"
        return "carbon feeds fresh" if not late else f"carbon feed of {', '.join(late)} not fresh"

    @property
    def loops_words(self) -> str:
        wrong = [
            f"{loop.kind} {loop.state}"
            for loop in self.health.loops
            if loop.state not in ("on time", "no instance", "rests")
        ]
        return "loops on time" if not wrong else f"loops: {', '.join(wrong)}"


def summary(window: Window) -> Summary:
    now = datetime.fromtimestamp(window.end_s, UTC)
    state = health.gather(now)
    slo = selectors.slo(window)
    return Summary(
        sites=selectors.sites_now(window.end_s),
        today=_today(reader.midnight_s(window.end_s)),
        slo=slo,
        jain=selectors.tenant_fairness(window),
        health=state,
        items=attention.items(state, slo, alerts.open_alerts()),
    )


def _today(since_s: float) -> Totals:
    """A day's sum reads a day's entries, and the ledger posts a cell at a time: no more often than that."""
    key = f"totals-since-{since_s:.0f}"
    found: Totals | None = cache.get(key)
    if found is None:
        found = selectors.totals(since_s)
        cache.set(key, found, CELL_S)
    return found


def ticks(window: Window) -> tuple[DecisionTick, ...]:
    start, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (window.start_s, window.end_s))
    return tuple(
        DecisionTick(d.at.timestamp(), d.kind, d.reason, d.summary, reverse("decision", args=[d.pk]))
        for d in scheduler_selectors.ticks(start, end)
    )


def charts(window: Window, look: Look) -> dict[str, Any]:
    """All four figures. Eleven queries, whatever the range."""
    power, carbon = selectors.energy(window)
    marks: Sequence[DecisionTick] = ticks(window)
    return {
        "power": figures.power(power, look, marks),
        "carbon": figures.carbon(carbon, look, marks),
        "slo": figures.slo(selectors.slo(window), look, marks),
        "jain": figures.jain(selectors.fairness(window), look, marks),
    }


def table(chart: str, window: Window) -> str:
    """One chart's figures as CSV. Raises KeyError for a chart that is not there."""
    makers = {
        "power": lambda: exports.power(selectors.energy(window)[0]),
        "carbon": lambda: exports.carbon(selectors.energy(window)[1]),
        "slo": lambda: exports.slo(selectors.slo(window)),
        "jain": lambda: exports.jain(selectors.fairness(window)),
    }
    return makers[chart]()
