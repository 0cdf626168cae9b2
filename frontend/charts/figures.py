"""Frames to figures: power, attainment and fairness over time. Pure functions, no Django.

A gap in the data is a gap in the drawing; units stand on every axis and in every hover; energy starts at zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from frontend import formats
from telemetry.selectors.frames import JainFrame, PowerFrame, SloFrame, SloSeries, TimeRange, Values

from .figure_parts import FULL, STALE_S, bars, ended, line, rest_link, rest_words, scaled, top_of
from .plot import plot
from .plot_style import (
    Figure,
    Look,
    axis,
    layout,
    level,
    series_style,
    short,
    silences,
    site_bar,
    site_hatched,
)

KIND_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
BREAKS = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)
MOST_SERIES = 6  # lines that a chart's colours tell apart
LEAST_SPAN = 0.02  # of an attainment axis: less makes noise look like trouble


def power(frame: PowerFrame, look: Look) -> Figure:
    """Draws mean power stacked by site, idle lighter and hatched; silent meters are grey bands; the cap is a line."""
    window = frame.time_range
    top = top_of([[(a or 0) + (b or 0) for a, b in zip(s.in_use_w, s.idle_w, strict=True)] for s in frame.sites])
    divisor, prefix = formats.prefix(top or 1_000.0)
    unit = f"{prefix}W"
    common = {"type": "bar", **look.grid(window.middles_s), "width": window.bucket_s * 1_000}
    traces = []
    for site in frame.sites:
        solid, hatched = site_bar(look, site.colour), site_hatched(look, site.colour)
        for name, values, marker in (("in use", site.in_use_w, solid), ("idle", site.idle_w, hatched)):
            traces.append(
                common
                | {
                    "name": site.label,
                    "legendgroup": site.site,
                    "y": scaled(values, divisor),
                    "marker": marker,
                    "showlegend": name == "in use",
                }
                | {"hovertemplate": f"{site.label} {name}: %{{y:.3~g}} {unit}<extra></extra>"}
            )
    arrangement = layout(look, window, bars(f"power, {unit}"))
    silences(arrangement, look, window, [any(site.silent[i] for site in frame.sites) for i in range(window.count)])
    if frame.cap_w is not None:
        level(traces, arrangement, look, frame.cap_w / divisor, f"cap {formats.si(frame.cap_w, 'W')}")
    until_s = frame.metered_until_s
    return plot(
        look,
        traces,
        arrangement,
        question="Where does the power go?",
        source="energy ledger, metered at the GPUs, without PUE; hatched: idle; grey bands: a meter was silent"
        + rest_words(frame.sites),
        rest=rest_link(frame.sites),
        until_s=ended(until_s, window),
        stale=until_s is not None and until_s < window.end_s - STALE_S,
        empty=until_s is None,
    )


def slo(frame: SloFrame, look: Look) -> Figure:
    """Draws the share of requests within each objective; the axis starts near the objective, and says so."""
    window = frame.time_range
    services = {s.service for s in frame.series}
    x = _at_ends(look, window)
    shown = _worst(frame.series)
    traces = []
    for n, series in enumerate(shown):
        kind = KIND_NAMES.get(series.kind, series.kind)
        name = kind if len(services) == 1 else f"{series.service} {kind}"
        burn = [None if a is None or series.target >= 1 else (1 - a) / (1 - series.target) for a in series.attained]
        traces.append(
            line(name, x, scaled(series.attained, 0.01), *series_style(n))
            | {"customdata": [[short(b, 3), judged] for b, judged in zip(burn, series.judged, strict=True)]}
            | {
                "hovertemplate": f"{name} ≤ {formats.seconds(series.objective_s)}: %{{y:.2f}} % of %{{customdata[1]}}, "
                "error budget burnt %{customdata[0]:.2~g}x<extra></extra>"
            }
        )
    hidden = len(frame.series) - len(shown)
    targets = sorted({s.target for s in shown})
    lowest = min([v for s in shown for v in s.attained if v is not None] + targets, default=0.9)
    low = _break(lowest)
    title = "% within objective" + (f" (from {low * 100:g} %)" if low > 0 else "")
    axes = {"yaxis": axis(title, FULL, range=[low * 100, 100 + (100 - low * 100) * 0.04])}
    arrangement = layout(look, window, axes)
    for target in targets:
        level(traces, arrangement, look, target * 100, f"objective {target * 100:g} %")
    return plot(
        look,
        traces,
        arrangement,
        question="Are the latency objectives met?",
        source=f"request records that ended in the {formats.seconds(frame.rolling_s)} before; failures count as missed"
        + (f"; the {len(shown)} furthest below their objectives of {len(frame.series)}" if hidden else ""),
        rest=("/services/", f"{hidden} further objectives") if hidden else None,
        until_s=ended(frame.last_end_s, window),
        empty=not any(v is not None for s in frame.series for v in s.attained),
    )


def jain(frame: JainFrame, look: Look) -> Figure:
    """Draws the Jain index of tenants, and that of lengths of each class of a service."""
    window = frame.time_range
    x = _at_ends(look, window)
    hover = "%{y:.3f}<extra></extra>"
    shown = sorted(frame.classes.items(), key=lambda item: _mean(item[1]))[:MOST_SERIES]
    shown.sort(key=lambda item: list(frame.classes).index(item[0]))
    several = len({service for service, _ in frame.classes}) > 1
    names = [f"of lengths, {service} {name}" if several else f"of lengths, {name}" for (service, name), _ in shown]
    traces = [
        line(name, x, scaled(values), *series_style(n)) | {"hovertemplate": f"{name}: {hover}"}
        for n, (name, (_, values)) in enumerate(zip(names, shown, strict=True))
    ]
    tenants = line("of tenants", x, scaled(frame.tenants), look.theme.ink, "solid", width=2.5)
    traces.insert(0, tenants | {"hovertemplate": f"of tenants: {hover}"})
    known = [v for values in (frame.tenants, *(v for _, v in shown)) for v in values if v is not None]
    low = _break(min(known, default=0.0))
    title = "Jain index (1 = even)" + (f", from {low:g}" if low > 0 else "")
    axes = {"yaxis": axis(title, FULL, range=[low, 1 + (1 - low) * 0.05])}
    arrangement = layout(look, window, axes)
    return plot(
        look,
        traces,
        arrangement,
        question="Is service even across tenants and lengths?",
        source=f"tokens in time of the last {formats.seconds(frame.rolling_s)}: each tenant's share; a class's totals "
        "by length quartile (FREESH eq. 9: long answers weigh more, some 0.65 is usual)"
        + (f"; the {len(shown)} least even classes of {len(frame.classes)}" if len(shown) < len(frame.classes) else ""),
        until_s=ended(frame.last_end_s, window),
        empty=not any(v is not None for v in frame.tenants),
    )


def _at_ends(look: Look, window: TimeRange) -> Figure:
    """Returns the ends of buckets as times; the last bucket is not over yet and ends now."""
    return {"x": look.times([min(end_s, window.end_s) for end_s in window.ends_s])}


def _worst(series: Sequence[SloSeries]) -> list[SloSeries]:
    """Returns the objectives furthest below their targets, in their original order."""
    known = sorted(series, key=lambda s: (s.overall is None, (s.overall or 0.0) - s.target))
    kept = {id(s) for s in known[:MOST_SERIES]}
    return [s for s in series if id(s) in kept]


def _mean(values: Values) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 1.0


def _break(lowest: float) -> float:
    """Returns where an axis up to 1 begins: at a round number so far below the lowest value that noise looks small."""
    return next(b for b in BREAKS if b <= min(lowest - (1 - lowest) * 0.15, 1 - LEAST_SPAN) or b == 0.0)
