"""Frames to Plotly figures: pure functions, JSON-able dictionaries, no Django.

A gap in the data is a gap in the drawing; units stand on every axis and in every hover; energy and carbon start at
zero. `meta` carries what stands around a chart: its question, source, freshness, and whether there is anything in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from telemetry.frames import CarbonFrame, DecisionTick, IntensityStep, JainFrame, PowerFrame, SloFrame, Values, Window

from . import formats
from .plot_style import DASHES, SERIES_COLOURS, Figure, Look, axis, band, decision_ticks, layout, site_colour

STALE_S = 60.0
FULL = (0.09, 1.0)  # of the height; the decisions' ticks stand below
KIND_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
BREAKS = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)
LEAST_SPAN = 0.02  # of an attainment axis: less makes noise look like trouble


def power(frame: PowerFrame, look: Look, ticks: Sequence[DecisionTick] = ()) -> Figure:
    """Mean power stacked by site, idle lighter and hatched; silent meters are grey bands; the cap is a line."""
    window = frame.window
    top = _top([[(a or 0) + (b or 0) for a, b in zip(s.in_use_w, s.idle_w, strict=True)] for s in frame.sites])
    divisor, prefix = formats.prefix(top or 1_000.0)
    unit = f"{prefix}W"
    x = look.times(window.middles_s)
    traces = []
    for site in frame.sites:
        colour = site_colour(site.rank)
        common = {"type": "bar", "x": x, "width": window.bucket_s * 1_000, "legendgroup": site.site}
        solid = {"color": colour, "line": {"width": 0}}
        hatched = {
            "color": colour,
            "opacity": 0.6,
            "line": {"width": 0},
            "pattern": {"shape": "/", "size": 5, "solidity": 0.4, "fgcolor": colour, "bgcolor": look.theme.rule},
        }
        for name, values, marker in (("in use", site.in_use_w, solid), ("idle", site.idle_w, hatched)):
            traces.append(
                common
                | {"name": site.label, "y": _scaled(values, divisor), "marker": marker, "showlegend": name == "in use"}
                | {"hovertemplate": f"{site.label} {name}: %{{y:.3~g}} {unit}<extra></extra>"}
            )
    figure = _figure(
        look, [*traces, decision_ticks(look, ticks)], layout(look, window, **_bars(look, f"power, {unit}"))
    )
    _bands(figure, look, window, [any(site.silent[i] for site in frame.sites) for i in range(window.count)])
    if frame.cap_w is not None:
        _level(figure, look, frame.cap_w / divisor, f"cap {formats.si(frame.cap_w, 'W')}")
    until_s = frame.metered_until_s
    return _with_meta(
        figure,
        question="Where does the power go?",
        source="energy ledger, metered at the GPUs, without PUE; hatched: idle; grey: a meter was silent",
        until=_said(look, until_s, window.end_s),
        stale=until_s is not None and until_s < window.end_s - STALE_S,
        empty=until_s is None,
    )


def carbon(frame: CarbonFrame, look: Look, ticks: Sequence[DecisionTick] = ()) -> Figure:
    """Carbon rate stacked by site, over each site's intensity with its forecast dashed, on one time axis."""
    window = frame.window
    divisor, prefix = formats.prefix(_top([s.rate_g_per_h for s in frame.sites]) or 1_000.0)
    unit = f"{prefix}gCO₂e/h"
    x = look.times(window.middles_s)
    traces = []
    for site in frame.sites:
        colour = site_colour(site.rank)
        traces.append(
            {"type": "bar", "name": site.label, "x": x, "width": window.bucket_s * 1_000, "legendgroup": site.site}
            | {"y": _scaled(site.rate_g_per_h, divisor), "marker": {"color": colour, "line": {"width": 0}}}
            | {"hovertemplate": f"{site.label}: %{{y:.3~g}} {unit}<extra></extra>"}
        )
        traces.append(_intensity_line(look, site.label, site.site, colour, site.actual, forecast=False))
        if site.forecast:
            traces.append(_intensity_line(look, site.label, site.site, colour, site.forecast, forecast=True))
    axes = _bars(look, unit, (0.47, 1.0)) | {
        "yaxis2": axis(look, "gCO₂e/kWh", (0.09, 0.38), rangemode="tozero", nticks=4)
    }
    figure = _figure(look, [*traces, decision_ticks(look, ticks)], layout(look, window, **axes))
    _bands(figure, look, window, _lacking([s.rate_g_per_h for s in frame.sites]))
    known = [s.known_until_s for s in frame.sites]
    stale = [s.label for s in frame.sites if s.actual and _feed_is_stale(s.actual, s.known_until_s, window.end_s)]
    sources = "; ".join(dict.fromkeys(s.source for s in frame.sites if s.source))
    return _with_meta(
        figure,
        question="How much carbon, and how clean is each grid?",
        source="energy ledger x PUE x grid average, location-based; dashed: forecast; grey: a site unknown"
        + (f". {sources}" if sources else ""),
        until=_said(look, max((k for k in known if k is not None), default=None), window.end_s),
        stale=bool(stale),
        stale_what=", ".join(stale),
        empty=not any(s.actual or any(v is not None for v in s.rate_g_per_h) for s in frame.sites),
    )


def slo(frame: SloFrame, look: Look, ticks: Sequence[DecisionTick] = ()) -> Figure:
    """Share of requests within each objective; the axis starts near the objective, and says so."""
    window = frame.window
    services = {s.service for s in frame.series}
    x = look.times([min(end_s, window.end_s) for end_s in window.ends_s])
    traces = []
    for n, series in enumerate(frame.series):
        kind = KIND_NAMES.get(series.kind, series.kind)
        name = kind if len(services) == 1 else f"{series.service} {kind}"
        burn = [None if a is None or series.target >= 1 else (1 - a) / (1 - series.target) for a in series.attained]
        traces.append(
            _line(name, x, _scaled(series.attained, 0.01), SERIES_COLOURS[n % 6], DASHES[n % 6])
            | {"customdata": [[b, judged] for b, judged in zip(burn, series.judged, strict=True)]}
            | {
                "hovertemplate": f"{name} ≤ {formats.seconds(series.objective_s)}: %{{y:.2f}} % of %{{customdata[1]}}, "
                "error budget burnt %{customdata[0]:.2~g}x<extra></extra>"
            }
        )
    targets = sorted({s.target for s in frame.series})
    lowest = min([v for s in frame.series for v in s.attained if v is not None] + targets, default=0.9)
    low = _break(lowest)
    title = "% within objective" + (f" (from {low * 100:g} %)" if low > 0 else "")
    axes = {"yaxis": axis(look, title, FULL, range=[low * 100, 100 + (100 - low * 100) * 0.04])}
    figure = _figure(look, [*traces, decision_ticks(look, ticks)], layout(look, window, **axes))
    for target in targets:
        _level(figure, look, target * 100, f"objective {target * 100:g} %")
    return _with_meta(
        figure,
        question="Are the latency objectives met?",
        source=f"request records that ended in the {formats.seconds(frame.rolling_s)} before; failures count as missed",
        until=_said(look, frame.last_end_s, window.end_s),
        empty=not any(v is not None for s in frame.series for v in s.attained),
    )


def jain(frame: JainFrame, look: Look, ticks: Sequence[DecisionTick] = ()) -> Figure:
    """Jain's index of tokens delivered in time: across tenants, and within each class across output lengths."""
    window = frame.window
    x = look.times([min(end_s, window.end_s) for end_s in window.ends_s])
    hover = "%{y:.3f}<extra></extra>"
    traces = [
        _line(f"class {name}", x, list(values), SERIES_COLOURS[n % 6], DASHES[1 + n % 5])
        | {"hovertemplate": f"class {name}: {hover}"}
        for n, (name, values) in enumerate(frame.classes.items())
    ]
    tenants = _line("across tenants", x, list(frame.tenants), look.theme.ink, "solid", width=2.5)
    traces.insert(0, tenants | {"hovertemplate": f"across tenants: {hover}"})
    known = [v for values in (frame.tenants, *frame.classes.values()) for v in values if v is not None]
    low = _break(min(known, default=0.0))
    title = "Jain index (1 = even)" + (f", from {low:g}" if low > 0 else "")
    axes = {"yaxis": axis(look, title, FULL, range=[low, 1 + (1 - low) * 0.05])}
    figure = _figure(look, [*traces, decision_ticks(look, ticks)], layout(look, window, **axes))
    return _with_meta(
        figure,
        question="Is service even across tenants and lengths?",
        source=f"tokens in time of the last {formats.seconds(frame.rolling_s)}: each tenant's share; a class's totals "
        "by length quartile (FREESH eq. 9: long answers weigh more, some 0.65 is usual)",
        until=_said(look, frame.last_end_s, window.end_s),
        empty=not any(v is not None for v in frame.tenants),
    )


# -- parts -----------------------------------------------------------------------------------------


def _figure(look: Look, data: list[Figure], arrangement: Figure) -> Figure:
    return {"data": data, "layout": arrangement}


def _with_meta(
    figure: Figure,
    *,
    question: str,
    source: str,
    until: str | None,
    empty: bool,
    stale: bool = False,
    stale_what: str = "",
) -> Figure:
    figure["meta"] = {
        "question": question,
        "source": source,
        "until": until,
        "empty": empty,
        "stale": stale,
        "stale_what": stale_what,
    }
    return figure


def _line(name: str, x: list[str], y: list[float | None], colour: str, dash: str, width: float = 2.0) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "connectgaps": False,
        "line": {"color": colour, "dash": dash, "width": width},
    }


def _intensity_line(
    look: Look, label: str, group: str, colour: str, steps: Iterable[IntensityStep], *, forecast: bool
) -> Figure:
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
        said = look.time(step.issued_at_s)[11:] if step.issued_at_s is not None else ""
        x += [look.time(step.start_s), look.time(step.end_s)]
        y += [step.g_per_kwh] * 2
        issued += [said] * 2
        last_end_s = step.end_s
    what = "forecast of %{customdata}" if forecast else "grid"
    line = _line(label, x, y, colour, "4px,3px" if forecast else "solid", 1.5 if forecast else 2.0)
    return line | {
        "yaxis": "y2",
        "legendgroup": group,
        "showlegend": False,
        "customdata": issued,
        "hovertemplate": f"{label} {what}: %{{y:.0f}} gCO₂e/kWh<extra></extra>",
    }


def _said(look: Look, until_s: float | None, now_s: float) -> str | None:
    """Until when a chart's figures reach; a step that has begun reaches to now."""
    return None if until_s is None else look.time(min(until_s, now_s))


def _break(lowest: float) -> float:
    """Where an axis up to 1 begins: below its lowest value, at a round number, and not so near that noise looms."""
    return next(b for b in BREAKS if b <= min(lowest - (1 - lowest) * 0.15, 1 - LEAST_SPAN) or b == 0.0)


def _bars(look: Look, title: str, domain: tuple[float, float] = FULL) -> Figure:
    return {"yaxis": axis(look, title, domain, rangemode="tozero"), "barmode": "stack"}


def _scaled(values: Values, divisor: float) -> list[float | None]:
    """Five significant figures: more cannot be seen, and a page fetches this every few seconds."""
    return [None if value is None else float(f"{value / divisor:.5g}") for value in values]


def _top(series: Sequence[Sequence[float | None]]) -> float | None:
    """The tallest stack."""
    return max((sum(v or 0.0 for v in column) for column in zip(*series, strict=True)), default=None)


def _bands(figure: Figure, look: Look, window: Window, lacking: Sequence[bool]) -> None:
    """One grey band for each run of buckets in which a stack lacks a site."""
    starts_s, ends_s = window.starts_s, window.ends_s
    begun: float | None = None
    for i, lacks in enumerate(lacking):
        if lacks and begun is None:
            begun = starts_s[i]
        if begun is not None and (not lacks or i == len(lacking) - 1):
            figure["layout"]["shapes"].append(band(look, begun, ends_s[i] if lacks else starts_s[i]))
            begun = None


def _lacking(series: Sequence[Values]) -> list[bool]:
    """Where some sites are known and others are not: a stack there is too low."""
    known = [[value is not None for value in column] for column in zip(*series, strict=True)]
    return [any(column) and not all(column) for column in known]


def _level(figure: Figure, look: Look, y: float, text: str) -> None:
    """A thin line at a target or a limit, named at its right end."""
    ink = look.theme.ink
    figure["layout"]["shapes"].append(
        {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": y, "y1": y}
        | {"line": {"color": ink, "width": 1, "dash": "dash"}}
    )
    figure["layout"]["annotations"].append(
        {"xref": "paper", "yref": "y", "x": 1, "y": y, "text": text, "showarrow": False, "xanchor": "right"}
        | {"yanchor": "bottom", "font": {"size": 11, "color": ink}, "bgcolor": look.theme.paper, "opacity": 0.85}
    )


def _feed_is_stale(actual: Sequence[IntensityStep], known_until_s: float | None, now_s: float) -> bool:
    """A feed is late once a whole further step, and a minute at least, has passed without a value."""
    step_s = actual[-1].end_s - actual[-1].start_s
    return known_until_s is None or known_until_s < now_s - max(STALE_S, step_s)
