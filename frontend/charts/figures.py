"""Frames to Plotly figures: pure functions, JSON-able dictionaries, no Django.

A gap in the data is a gap in the drawing; units stand on every axis and in every hover; energy and carbon start at
zero. `meta` carries what stands around a chart: its question, source, freshness, and whether there is anything in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from frontend import formats
from telemetry.selectors.frames import (
    CarbonFrame,
    IntensityStep,
    JainFrame,
    PowerFrame,
    SiteCarbon,
    SitePower,
    SloFrame,
    SloSeries,
    TimeRange,
    Values,
)

from .plot_style import FORECAST_DASH, Figure, Look, axis, layout, level, series_style, short, silences, site_colours

STALE_S = 60.0
FULL = (0.09, 1.0)  # of the height; the decisions' ticks stand below
KIND_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
BREAKS = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.0)
MOST_SERIES = 6  # lines that a chart's colours tell apart
LEAST_SPAN = 0.02  # of an attainment axis: less makes noise look like trouble


def power(frame: PowerFrame, look: Look) -> Figure:
    """Draws mean power stacked by site, idle lighter and hatched; silent meters are grey bands; the cap is a line."""
    window = frame.time_range
    top = _top([[(a or 0) + (b or 0) for a, b in zip(s.in_use_w, s.idle_w, strict=True)] for s in frame.sites])
    divisor, prefix = formats.prefix(top or 1_000.0)
    unit = f"{prefix}W"
    common = {"type": "bar", **look.grid(window.middles_s), "width": window.bucket_s * 1_000}
    traces = []
    for site, colour in zip(frame.sites, site_colours([s.rank for s in frame.sites]), strict=True):
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
                | {
                    "name": site.label,
                    "legendgroup": site.site,
                    "y": _scaled(values, divisor),
                    "marker": marker,
                    "showlegend": name == "in use",
                }
                | {"hovertemplate": f"{site.label} {name}: %{{y:.3~g}} {unit}<extra></extra>"}
            )
    figure: Figure = {"data": traces, "layout": layout(look, window, **_bars(look, f"power, {unit}"))}
    silences(figure, look, window, [any(site.silent[i] for site in frame.sites) for i in range(window.count)])
    if frame.cap_w is not None:
        level(figure, look, frame.cap_w / divisor, f"cap {formats.si(frame.cap_w, 'W')}")
    until_s = frame.metered_until_s
    return _with_meta(
        figure,
        question="Where does the power go?",
        source="energy ledger, metered at the GPUs, without PUE; hatched: idle; grey bands: a meter was silent"
        + _rest_words([s.rank for s in frame.sites]),
        rest=_rest(frame.sites),
        until=_said(look, until_s, window.end_s),
        stale=until_s is not None and until_s < window.end_s - STALE_S,
        empty=until_s is None,
    )


def carbon(frame: CarbonFrame, look: Look) -> Figure:
    """Draws the carbon rate stacked by site, over each site's intensity with its forecast dashed, on one time axis."""
    window = frame.time_range
    divisor, prefix = formats.prefix(_top([s.rate_g_per_h for s in frame.sites]) or 1_000.0)
    unit = f"{prefix}gCO₂e/h"
    common = {"type": "bar", **look.grid(window.middles_s), "width": window.bucket_s * 1_000}
    traces = []
    for site, colour in zip(frame.sites, site_colours([s.rank for s in frame.sites]), strict=True):
        traces.append(
            common
            | {"name": site.label, "legendgroup": site.site}
            | {"y": _scaled(site.rate_g_per_h, divisor), "marker": {"color": colour, "line": {"width": 0}}}
            | {"hovertemplate": f"{site.label}: %{{y:.3~g}} {unit}<extra></extra>"}
        )
        if site.rank is None:
            continue
        traces.append(_intensity_line(look, site.label, site.site, colour, site.actual, forecast=False))
        if site.forecast:
            traces.append(_intensity_line(look, site.label, site.site, colour, site.forecast, forecast=True))
    axes = _bars(look, unit, (0.47, 1.0)) | {
        "yaxis2": axis(look, "gCO₂e/kWh", (0.09, 0.38), rangemode="tozero", nticks=4)
    }
    figure: Figure = {"data": traces, "layout": layout(look, window, **axes)}
    silences(figure, look, window, _lacking(frame))
    known = [s.known_until_s for s in frame.sites]
    stale = [s.label for s in frame.sites if s.actual and _feed_is_stale(s.actual, s.known_until_s, window.end_s)]
    sources = "; ".join(dict.fromkeys(s.source for s in frame.sites if s.source))
    return _with_meta(
        figure,
        question="How much carbon, and how clean is each grid?",
        source="energy ledger x PUE x grid average, location-based; dashed: forecast; grey: a site unknown"
        + _rest_words([s.rank for s in frame.sites])
        + (f". {sources}" if sources else ""),
        rest=_rest(frame.sites),
        until=_said(look, max((k for k in known if k is not None), default=None), window.end_s),
        stale=bool(stale),
        stale_what=", ".join(stale),
        empty=not any(s.actual or any(v is not None for v in s.rate_g_per_h) for s in frame.sites),
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
            _line(name, x, _scaled(series.attained, 0.01), *series_style(n))
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
    axes = {"yaxis": axis(look, title, FULL, range=[low * 100, 100 + (100 - low * 100) * 0.04])}
    figure: Figure = {"data": traces, "layout": layout(look, window, **axes)}
    for target in targets:
        level(figure, look, target * 100, f"objective {target * 100:g} %")
    return _with_meta(
        figure,
        question="Are the latency objectives met?",
        source=f"request records that ended in the {formats.seconds(frame.rolling_s)} before; failures count as missed"
        + (f"; the {len(shown)} furthest below their objectives of {len(frame.series)}" if hidden else ""),
        rest=("/services/", f"{hidden} further objectives") if hidden else None,
        until=_said(look, frame.last_end_s, window.end_s),
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
        _line(name, x, _scaled(values), *series_style(n)) | {"hovertemplate": f"{name}: {hover}"}
        for n, (name, (_, values)) in enumerate(zip(names, shown, strict=True))
    ]
    tenants = _line("of tenants", x, _scaled(frame.tenants), look.theme.ink, "solid", width=2.5)
    traces.insert(0, tenants | {"hovertemplate": f"of tenants: {hover}"})
    known = [v for values in (frame.tenants, *(v for _, v in shown)) for v in values if v is not None]
    low = _break(min(known, default=0.0))
    title = "Jain index (1 = even)" + (f", from {low:g}" if low > 0 else "")
    axes = {"yaxis": axis(look, title, FULL, range=[low, 1 + (1 - low) * 0.05])}
    figure: Figure = {"data": traces, "layout": layout(look, window, **axes)}
    return _with_meta(
        figure,
        question="Is service even across tenants and lengths?",
        source=f"tokens in time of the last {formats.seconds(frame.rolling_s)}: each tenant's share; a class's totals "
        "by length quartile (FREESH eq. 9: long answers weigh more, some 0.65 is usual)"
        + (f"; the {len(shown)} least even classes of {len(frame.classes)}" if len(shown) < len(frame.classes) else ""),
        until=_said(look, frame.last_end_s, window.end_s),
        empty=not any(v is not None for v in frame.tenants),
    )


# -- parts -----------------------------------------------------------------------------------------


def _with_meta(
    figure: Figure,
    *,
    question: str,
    source: str,
    until: str | None,
    empty: bool,
    stale: bool = False,
    stale_what: str = "",
    rest: tuple[str, str] | None = None,
) -> Figure:
    """Adds what stands around a chart. `rest`: link to what the chart leaves out or adds up, and what that is."""
    figure["meta"] = {
        "question": question,
        "source": source,
        "until": until,
        "empty": empty,
        "stale": stale,
        "stale_what": stale_what,
        "rest": rest,
    }
    return figure


def _rest(sites: Sequence[SitePower | SiteCarbon]) -> tuple[str, str] | None:
    """Returns the link to the sites that a chart adds up to one, and its text; None if it adds up none."""
    together = next((site.together for site in sites if site.rank is None), 0)
    return ("/sites/", f"all {together} other sites" if together > 1 else "the other site") if together else None


def _rest_words(ranks: Sequence[int | None]) -> str:
    return f"; the {len(ranks) - 1} sites that used most energy, all others added up" if None in ranks else ""


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


def _line(name: str, x: Figure, y: list[float | None], colour: str, dash: str, width: float = 2.0) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        **x,
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
    line = _line(label, {"x": x}, y, colour, FORECAST_DASH if forecast else "solid", 1.5 if forecast else 2.0)
    return line | {
        "yaxis": "y2",
        "legendgroup": group,
        "showlegend": False,
        "customdata": issued,
        "hovertemplate": f"{label} {what}: %{{y:.0f}} gCO₂e/kWh<extra></extra>",
    }


def _said(look: Look, until_s: float | None, now_s: float) -> str | None:
    """Returns the time until which a chart has figures; a step that has begun ends now."""
    return None if until_s is None else look.time(min(until_s, now_s))


def _break(lowest: float) -> float:
    """Returns where an axis up to 1 begins: at a round number so far below the lowest value that noise looks small."""
    return next(b for b in BREAKS if b <= min(lowest - (1 - lowest) * 0.15, 1 - LEAST_SPAN) or b == 0.0)


def _bars(look: Look, title: str, domain: tuple[float, float] = FULL) -> Figure:
    return {"yaxis": axis(look, title, domain, rangemode="tozero"), "barmode": "stack"}


def _scaled(values: Values, divisor: float = 1.0) -> list[float | None]:
    return [None if value is None else short(value / divisor) for value in values]


def _top(series: Sequence[Sequence[float | None]]) -> float | None:
    """Returns the height of the tallest stack."""
    return max((sum(v or 0.0 for v in column) for column in zip(*series, strict=True)), default=None)


def _lacking(frame: CarbonFrame) -> list[bool]:
    """Where some sites are known and others are not: a stack there is too low."""
    known = [
        [value is not None for value in column] for column in zip(*(s.rate_g_per_h for s in frame.sites), strict=True)
    ]
    within = [any(column) for column in zip(*(s.partial for s in frame.sites if s.partial), strict=True)]
    between = [any(column) and not all(column) for column in known]
    return [a or b for a, b in zip(between, within or [False] * len(between), strict=True)]


def _feed_is_stale(actual: Sequence[IntensityStep], known_until_s: float | None, now_s: float) -> bool:
    """A feed is late once a whole further step, and a minute at least, has passed without a value."""
    step_s = actual[-1].end_s - actual[-1].start_s
    return known_until_s is None or known_until_s < now_s - max(STALE_S, step_s)
