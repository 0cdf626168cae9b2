"""Carbon over time: each site's rate, stacked, and the intensity of its grid below, on one time axis. Pure.

What is not known of a site is that site's alone: a dotted line in its colour at the foot of the stack, and a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable

from frontend import formats
from telemetry.selectors.frames import CarbonFrame, IntensityStep, SiteCarbon, TimeRange

from .figure_parts import STALE_S, bars, ended, line, rest_link, rest_words, scaled, top_of
from .plot import plot
from .plot_style import FORECAST_DASH, Figure, Look, axis, layout, runs, site_bar, site_line, site_style

STACK, GRID = (0.47, 1.0), (0.09, 0.38)  # of the height
DOTTED, DOTTED_STEP = 0.455, 0.013  # where unknown times stand, and how far one site's are below another's


def carbon(frame: CarbonFrame, look: Look) -> Figure:
    """Draws the carbon rate stacked by site, over each site's intensity with its forecast dashed."""
    window = frame.time_range
    divisor, prefix = formats.prefix(top_of([s.rate_g_per_h for s in frame.sites]) or 1_000.0)
    unit = f"{prefix}gCO₂e/h"
    common = {"type": "bar", **look.grid(window.middles_s), "width": window.bucket_s * 1_000}
    traces = []
    for site in frame.sites:
        traces.append(
            common
            | {"name": site.label, "legendgroup": site.site}
            | {"y": scaled(site.rate_g_per_h, divisor), "marker": site_bar(look, site.colour)}
            | {"hovertemplate": f"{site.label}: %{{y:.3~g}} {unit}<extra></extra>"}
        )
        if site.actual:
            traces.append(_intensity_line(look, site, site.actual, forecast=False))
        if site.forecast:
            traces.append(_intensity_line(look, site, site.forecast, forecast=True))
    axes = bars(unit, STACK) | {"yaxis2": axis("gCO₂e/kWh", GRID, rangemode="tozero", nticks=4)}
    arrangement = layout(look, window, axes)
    arrangement["shapes"] += _unknown(frame, look)
    said = [words for site in frame.sites if (words := _without(site, window, look))]
    current = [site for site in frame.sites if site.actual and not _is_late(site, window)]
    sources = "; ".join(dict.fromkeys(s.source for s in frame.sites if s.source))
    return plot(
        look,
        traces,
        arrangement,
        question="How much carbon, and how clean is each grid?",
        source="energy ledger x PUE x grid average, location-based; dashed: forecast"
        + ("; dotted: the site's carbon is not known and not in the stack" if len(arrangement["shapes"]) > 1 else "")
        + rest_words(frame.sites)
        + (f". {sources}" if sources else ""),
        rest=rest_link(frame.sites),
        until_s=ended(max((s.known_until_s for s in frame.sites if s.known_until_s is not None), default=None), window),
        stale=any(s.known_until_s is not None for s in frame.sites) and not current,
        lacking="; ".join(said),
        empty=not any(s.actual or any(v is not None for v in s.rate_g_per_h) for s in frame.sites),
    )


def _intensity_line(look: Look, site: SiteCarbon, steps: Iterable[IntensityStep], *, forecast: bool) -> Figure:
    """Steps as the feed gives them: level from start to end, open where it had no value."""
    x: list[str] = []
    y: list[float | None] = []
    issued: list[str] = []
    last_end_s: float | None = None
    for step in steps:
        if last_end_s is not None and step.start_s > last_end_s:
            x.append(look.time(last_end_s))
            y.append(None)
            issued.append("")
        said = look.said(step.issued_at_s) if step.issued_at_s is not None else ""
        x += [look.time(step.start_s), look.time(step.end_s)]
        y += [step.g_per_kwh] * 2
        issued += [said] * 2
        last_end_s = step.end_s
    what = "forecast of %{customdata}" if forecast else "grid"
    colour, dash = site_line(site.colour)
    drawn = line(site.label, {"x": x}, y, colour, FORECAST_DASH if forecast else dash, 1.5 if forecast else 2.0)
    return drawn | {
        "yaxis": "y2",
        "legendgroup": site.site,
        "showlegend": False,
        "customdata": issued,
        "hovertemplate": f"{site.label} {what}: %{{y:.0f}} gCO₂e/kWh<extra></extra>",
    }


def _unknown(frame: CarbonFrame, look: Look) -> list[Figure]:
    """Marks with dots, at the foot of the stack and in each site's colour, when its carbon is not known."""
    lacking = [site for site in frame.sites if any(site.unknown)]
    return [
        {"type": "line", "xref": "x", "yref": "paper", "x0": look.time(start_s), "x1": look.time(end_s)}
        | {"y0": DOTTED - n * DOTTED_STEP, "y1": DOTTED - n * DOTTED_STEP}
        | {"line": {"color": site_style(site.colour)[0], "width": 3, "dash": "2px,2px"}}
        for n, site in enumerate(lacking)
        for start_s, end_s in runs(frame.time_range, site.unknown)
    ]


def _without(site: SiteCarbon, window: TimeRange, look: Look) -> str:
    """Says what is not known of a site; empty: all is."""
    if site.colour is None:
        return f"{site.label}: some are not known" if any(site.unknown) else ""
    if not site.source:
        return f"{site.label}: no carbon feed"
    if site.known_until_s is None:
        return f"{site.label}: no value from its feed"
    return f"{site.label}: no feed since {look.said(site.known_until_s)}" if _is_late(site, window) else ""


def _is_late(site: SiteCarbon, window: TimeRange) -> bool:
    """A feed is late once a whole further step, and a minute at least, has passed without a value."""
    if site.known_until_s is None:
        return True
    step_s = site.actual[-1].end_s - site.actual[-1].start_s if site.actual else STALE_S
    return site.known_until_s < window.end_s - max(STALE_S, step_s)
