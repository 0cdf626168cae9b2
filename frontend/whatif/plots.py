"""Figures of studies and runs: values to Plotly's dictionaries and to CSV. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.cells import csv_text
from core.chart_values import COLOURS
from frontend import formats
from frontend.charts.plot import plot
from frontend.charts.plot_style import DASHES, Figure, Look, axis
from scheduler.whatif import comparing

SOURCE = "the simulator: modelled, not measured"
KEYS = {"power": "power_w", "carbon": "carbon_g_per_h"}
_NAMED = 6  # dots that can all be named beside them
_BARS = 16  # that can all be named
_SAFE = str.maketrans("<>{}%", "\u2039\u203a()\uff05")
UNITS = {"power": "W", "carbon": "gCO₂e/h"}


@dataclass(frozen=True, slots=True)
class Shown:
    """A run that is done. `url` is its page."""

    index: int
    label: str
    figures: Mapping[str, Any]
    series: Mapping[str, Any]
    url: str


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def pareto(runs: Sequence[Shown], against: str, currency: str, target: float, look: Look) -> Figure:
    """Draws SLO attainment over energy, carbon or cost, and a line at the objective `target`, a share.

    A dot opens its run; it is filled if no run beats it in both.

    Of many runs only those are named beside their dots, the others when they are pointed at.
    """
    figure = comparing.AGAINST[against]
    known = [
        (run, x, y)
        for run in runs
        if (x := figure.of(run.figures)) is not None and (y := comparing.ATTAINMENT.of(run.figures)) is not None
    ]
    best = comparing.unbeaten([(x, y) for _, x, y in known])
    unit = comparing.unit_of(figure, currency)
    divisor, prefix = formats.prefix(max((x for _, x, _ in known), default=1.0)) if against != "cost" else (1.0, "")
    front = sorted((x / divisor, y * 100) for (_, x, y), good in zip(known, best, strict=True) if good)
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "markers+text" if good or len(known) <= _NAMED else "markers",
            "name": run.label,
            "x": [x / divisor],
            "y": [y * 100],
            "text": [run.label[:28]],
            "textposition": "top center",
            "textfont": {"size": 11, "color": look.theme.muted},
            "customdata": [run.url],
            "cliponaxis": False,
            "showlegend": False,
            "marker": {
                "size": 12,
                "color": colour(run.index) if good else look.theme.paper,
                "line": {"width": 2, "color": colour(run.index)},
            },
            "hovertemplate": f"{_safe(run.label)}: %{{x:.4~g}} {prefix}{unit}, %{{y:.2f}} %, "
            f"{comparing.verdict(run.figures, target).words}<extra></extra>",
        }
        for (run, x, y), good in zip(known, best, strict=True)
    ]
    data.insert(
        0,
        {
            "type": "scatter",
            "mode": "lines",
            "name": "not beaten",
            "x": [x for x, _ in front],
            "y": [y for _, y in front],
            "line": {"color": look.theme.muted, "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
            "showlegend": False,
        },
    )
    lowest = min((target * 100, *(y * 100 for _, _, y in known))) if known else 0.0
    span = max(1.0, 100.0 - lowest)
    layout = _layout(f"{figure.label.lower()}, {prefix}{unit}", "SLO attainment, %")
    layout["yaxis"]["range"] = [max(0.0, lowest - 0.15 * span) if lowest > 0 else -3.0, 100.0 + 0.15 * span]
    layout["xaxis"]["rangemode"] = "tozero"
    if known:
        layout["xaxis"]["range"] = [0.0, max(x for _, x, _ in known) / divisor * 1.15]
    layout["hovermode"] = "closest"
    rule = {"color": look.theme.ink, "width": 1, "dash": "dash"}
    at = {"xref": "paper", "yref": "y"}
    layout["shapes"] = [{**at, "type": "line", "x0": 0, "x1": 1, "y0": target * 100, "y1": target * 100, "line": rule}]
    words = {"text": f"objective {target * 100:.4g} %", "showarrow": False, "font": {"size": 11}}
    layout["annotations"] = [{**at, **words, "x": 0, "xanchor": "left", "y": target * 100, "yanchor": "bottom"}]
    question = f"Which policy keeps the objectives for the least {figure.label.lower()}?"
    broken = "" if lowest <= 0 else f"; the attainment axis begins at {layout['yaxis']['range'][0]:.4g} %"
    objective = f"Dashed: the objective, {target * 100:.4g} % of requests within every limit"
    caption = f"{SOURCE}. {objective}. Filled: no other run beats it in both; click a dot to open its run{broken}"
    return plot(look, data, layout, question=question, source=caption, empty=not known)


def energy(runs: Sequence[Shown], bound_wh: float | None, look: Look) -> Figure:
    """Draws a bar for each run of an experiment, and the bound as a line."""
    known = [(run, wh) for run in runs if (wh := comparing.AGAINST["energy"].of(run.figures)) is not None]
    divisor, prefix = formats.prefix(max((wh for _, wh in known), default=1.0))
    data: list[Figure] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [run.label for run, _ in known],
            "x": [float(f"{wh / divisor:.5g}") for _, wh in known],
            "text": [f"{wh / divisor:,.4g}" for _, wh in known],
            "textposition": "outside",
            "cliponaxis": False,
            "showlegend": False,
            "marker": {"color": colour(0)},
            "hovertemplate": f"%{{y}}: %{{x:.4~g}} {prefix}Wh<extra></extra>",
        }
    ]
    layout = _layout(f"energy, {prefix}Wh", "")
    layout |= {"hovermode": "closest", "bargap": 0.3}
    longest = max(bound_wh or 0.0, *(wh for _, wh in known), 0.0) / divisor
    layout["xaxis"]["range"] = [0.0, 1.2 * longest or 1.0]  # the figures stand behind the bars
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False}
    if len(known) <= _BARS:
        layout["yaxis"]["dtick"] = 1
    source = SOURCE
    if bound_wh is not None and known:
        at = bound_wh / divisor
        line = {"color": look.theme.muted, "width": 2, "dash": "dash"}
        layout["shapes"] = [{"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}]
        source += f"; dashed: the bound, {at:,.4g} {prefix}Wh"
    return plot(look, data, layout, question="How much energy does each run take?", source=source, empty=not known)


def ratios(runs: Sequence[Shown], look: Look) -> Figure:
    """Draws bars of energy, carbon and cost, each run's as a ratio to the first's."""
    rows = comparing.compared([(run.index, run.label, run.figures) for run in runs])
    places = {key: comparing.FIGURES.index(figure) for key, figure in comparing.AGAINST.items()}
    keys = [key for key in places if any(row.ratios[places[key]] is not None for row in rows)]
    data: list[Figure] = [
        {
            "type": "bar",
            "name": row.label,
            "x": [comparing.AGAINST[key].label for key in keys],
            "y": [row.ratios[places[key]] for key in keys],
            "marker": {"color": colour(row.index), "pattern": {"shape": "/" if row.index >= len(COLOURS) else ""}},
            "hovertemplate": f"{_safe(row.label)}: %{{y:.3f}} x<extra></extra>",
        }
        for row in rows
    ]
    layout = _layout("", "ratio to the first run")
    layout |= {"barmode": "group", "bargap": 0.3}
    layout["xaxis"] |= {"type": "category", "showgrid": False}
    layout["yaxis"]["rangemode"] = "tozero"
    return plot(
        look,
        data,
        layout,
        question="How much less does each take than the first?",
        source=SOURCE,
        empty=not keys or len(rows) < 2,
    )


def over_time(runs: Sequence[Shown], chart: str, look: Look) -> Figure:
    """Draws all sites together, a line for each run."""
    lines = [(run.label, run.index, *_total(run.series, KEYS[chart])) for run in runs]
    without = sorted({name for run in runs for name in _unknown(run.series, KEYS[chart])})
    what = {"power": "How much power does each draw?", "carbon": "How much carbon does each emit?"}[chart]
    caption = {"power": f"{SOURCE}; at the GPUs, without PUE", "carbon": f"{SOURCE}; PUE included"}[chart]
    return _lines(lines, UNITS[chart], what, caption, look, f"{formats.few(without)}: not known" if without else "")


def by_site(run: Shown, chart: str, places: Mapping[str, int], look: Look) -> Figure:
    """Draws a run's sites, a line each. `places` among the colours of the fleet's sites; others take what is free."""
    own = site_lines(run, chart)
    free = (n for n in itertools.count() if n not in {places[name] for name in own if name in places})
    lines = [(name, places[name] if name in places else next(free), *line) for name, line in own.items()]
    what = {"power": "Where does the power go?", "carbon": "Where is carbon emitted?"}[chart]
    caption = {"power": f"{SOURCE}; at the GPUs, without PUE", "carbon": f"{SOURCE}; PUE included"}[chart]
    return _lines(lines, UNITS[chart], what, caption, look)


def site_lines(run: Shown, chart: str) -> dict[str, tuple[Sequence[float], Sequence[float | None]]]:
    """Returns the middles of the steps in seconds, and the values, by site."""
    step_s, end_s = run.series.get("step_s"), run.series.get("end_s")
    sites = {name: own[KEYS[chart]] for name, own in (run.series.get("sites") or {}).items()}
    return {name: (_middles(step_s, end_s, len(values)), values) for name, values in sites.items()}


def table(lines: Mapping[str, tuple[Sequence[float], Sequence[float | None]]], unit: str) -> str:
    """Writes the series as CSV, a row for each step of each; empty: not known."""
    rows = ((name, at, value) for name, (at_s, values) in lines.items() for at, value in zip(at_s, values, strict=True))
    return csv_text(("series", "at_s", unit), rows)


def totals(runs: Sequence[Shown], chart: str) -> dict[str, tuple[Sequence[float], Sequence[float | None]]]:
    return {run.label: _total(run.series, KEYS[chart]) for run in runs}


def _total(series: Mapping[str, Any], key: str) -> tuple[list[float], list[float | None]]:
    """Returns the middles of the steps in seconds, and sums over sites; None where any is not known.

    A site of which nothing at all is known is left out.
    """
    unknown = _unknown(series, key)
    own = [site[key] for name, site in (series.get("sites") or {}).items() if name not in unknown]
    count = min((len(values) for values in own), default=0)
    sums = [None if any(v[k] is None for v in own) else sum(v[k] for v in own) for k in range(count)]
    return _middles(series.get("step_s"), series.get("end_s"), count), sums


def _unknown(series: Mapping[str, Any], key: str) -> set[str]:
    """Returns the sites of which nothing is known."""
    sites = series.get("sites") or {}
    return {name for name, site in sites.items() if all(value is None for value in site[key])}


def _middles(step_s: float | None, end_s: float | None, count: int) -> list[float]:
    if not step_s:
        return [0.0] * count
    ends = [min(step_s * (k + 1), end_s or step_s * (k + 1)) for k in range(count)]
    return [(step_s * k + end) / 2.0 for k, end in enumerate(ends)]


def _lines(
    lines: Sequence[tuple[str, int, Sequence[float], Sequence[float | None]]],
    unit: str,
    question: str,
    source: str,
    look: Look,
    lacking: str = "",
) -> Figure:
    longest_s = max((at_s[-1] for _, _, at_s, _ in lines if at_s), default=1.0)
    scale, name = next(
        (s, n)
        for s, n in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
        if longest_s >= 3 * s or s == 1.0
    )
    largest = max((abs(v) for _, _, _, values in lines for v in values if v is not None), default=1.0)
    divisor, prefix = formats.prefix(largest or 1.0)
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label,
            "x": [at / scale for at in at_s],
            "y": [None if v is None else float(f"{v / divisor:.5g}") for v in values],
            "connectgaps": False,
            "line": {
                "color": colour(index),
                "dash": DASHES[index // len(COLOURS) % len(DASHES)],
                "width": 2,
                "shape": "hvh",
            },
            "hovertemplate": f"{_safe(label)}: %{{y:.3~g}} {prefix}{unit}<extra></extra>",
        }
        for label, index, at_s, values in lines
    ]
    layout = _layout(f"since the scenario began, {name}", f"{prefix}{unit}")
    layout["yaxis"]["rangemode"] = "tozero"
    layout["xaxis"]["unifiedhovertitle"] = {"text": f"%{{x:.4~g}} {name}"}
    return plot(
        look,
        data,
        layout,
        question=question,
        source=source,
        lacking=lacking,
        empty=not any(v is not None for _, _, _, values in lines for v in values),
    )


def _safe(text: str) -> str:
    """In a hover, braces and angle brackets would be taken for templates and tags."""
    return text.translate(_SAFE)


def _layout(x_title: str, y_title: str) -> Figure:
    return {
        "margin": {"l": 60, "r": 24, "t": 6, "b": 44},
        "hovermode": "x unified",
        "dragmode": False,
        "xaxis": axis(x_title, (0.0, 1.0), type="linear", fixedrange=True, nticks=5),
        "yaxis": axis(y_title, (0.0, 1.0)),
        "annotations": [],
        "shapes": [],
    }
