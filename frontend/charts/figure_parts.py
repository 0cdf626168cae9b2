"""Parts that several of the Overview's figures are made of."""

from __future__ import annotations

from collections.abc import Sequence

from telemetry.selectors.frames import SiteCarbon, SitePower, TimeRange, Values

from .plot_style import Figure, axis, short

STALE_S = 60.0
FULL = (0.09, 1.0)  # of the height; the decisions' ticks stand below


def rest_link(sites: Sequence[SitePower | SiteCarbon]) -> tuple[str, str] | None:
    """Returns the link to the sites that a chart adds up to one, and its text; None if it adds up none."""
    together = next((site.together for site in sites if site.colour is None), 0)
    return ("/sites/", f"all {together} other sites" if together > 1 else "the other site") if together else None


def rest_words(sites: Sequence[SitePower | SiteCarbon]) -> str:
    """Says what of the sites is added up."""
    if all(site.colour is not None for site in sites):
        return ""
    return f"; the {len(sites) - 1} sites that used most energy, all others added up"


def line(name: str, x: Figure, y: list[float | None], colour: str, dash: str, width: float = 2.0) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        **x,
        "y": y,
        "connectgaps": False,
        "line": {"color": colour, "dash": dash, "width": width},
    }


def bars(title: str, domain: tuple[float, float] = FULL) -> Figure:
    return {"yaxis": axis(title, domain, rangemode="tozero"), "barmode": "stack"}


def ended(until_s: float | None, window: TimeRange) -> float | None:
    """Returns until when a chart has figures; a step that has begun ends now."""
    return None if until_s is None else min(until_s, window.end_s)


def scaled(values: Values, divisor: float = 1.0) -> list[float | None]:
    return [None if value is None else short(value / divisor) for value in values]


def top_of(series: Sequence[Sequence[float | None]]) -> float | None:
    """Returns the height of the tallest stack."""
    return max((sum(v or 0.0 for v in column) for column in zip(*series, strict=True)), default=None)
