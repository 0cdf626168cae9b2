"""Figures of charts that are not of live time: bars of an experiment, panels of a run or a profile. Pure, no Django."""

from __future__ import annotations

import math
from collections.abc import Sequence

from core.cells import csv_text
from core.chart_values import COLOURS, BarChart, Line, LinePanels, Stack, StackedBars

from .plot import plot
from .plot_style import DASHES, FORECAST_DASH, Figure, Look, axis, short, site_bar, site_hatched, wrapped

BAR_PX, BARS_FRAME_PX = 30, 90
LABEL_LETTERS = 26  # of a line, so that bars have room on a phone too
PANEL_PX, PANELS_FRAME_PX = 170, 120
VALUE_PX, INTERVAL_PX = 56, 88  # kept free beyond the longest bar for its value, without and with its interval
MOST_LABELS = 6  # of days
GAP = 0.06  # between panels, of the height


def bars(chart: BarChart, look: Look) -> Figure:
    """Draws bars, whiskers of their intervals, and the bound as a line. What is below 0 goes left."""
    ends = [end for bar in chart.bars for end in (bar.value - (bar.half or 0.0), bar.value + (bar.half or 0.0))]
    if chart.bound is not None:
        ends.append(chart.bound[0])
    low, high = min([0.0, *ends]), max([0.0, *ends])
    spread = any(bar.half for bar in chart.bars)
    labels = [wrapped(bar.label, LABEL_LETTERS) for bar in chart.bars]
    traces: list[Figure] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [bar.value for bar in chart.bars],
            "y": labels,
            "marker": {"color": COLOURS[0]},
            "error_x": {
                "type": "data",
                "array": [bar.half or 0.0 for bar in chart.bars],
                "visible": spread,
                "color": look.theme.ink,
                "width": 0,
            },
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "text",
            "x": [max(0.0, bar.value) + (bar.half or 0.0) for bar in chart.bars],
            "y": labels,
            "text": [_said(bar.value, bar.half) for bar in chart.bars],
            "textposition": "middle right",
            "cliponaxis": False,
            "hoverinfo": "skip",
        },
    ]
    layout: Figure = {
        "height": BARS_FRAME_PX + BAR_PX * len(chart.bars),
        "margin": {"l": 12, "r": INTERVAL_PX if spread else VALUE_PX, "t": 56, "b": 30},
        "title": {"text": chart.about, "x": 0.01, "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 8}}
        | {"font": {"size": 13}},
        "showlegend": False,
        "bargap": 0.3,
        "dragmode": False,
        "xaxis": {"range": [low, high], "fixedrange": True, "zeroline": True, "nticks": 4, "tickangle": 0},
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False, "nticks": 0, "ticklabelstandoff": 6},
        "shapes": [],
        "annotations": [],
    }
    if chart.bound is not None:
        value, words = chart.bound
        line = {"color": COLOURS[1], "width": 2, "dash": "dash"}
        layout["shapes"].append(
            {"type": "line", "xref": "x", "yref": "paper", "x0": value, "x1": value, "y0": 0, "y1": 1, "line": line}
        )
        layout["annotations"].append(
            {"text": f"{words} {_said(value, None)}", "x": value, "y": 1, "xref": "x", "yref": "paper"}
            | {"yanchor": "bottom", "showarrow": False, "font": {"color": look.theme.ink}}
        )
    return plot(look, traces, layout, question=chart.title, source="the simulator: modelled", empty=not chart.bars)


def stacked(chart: StackedBars, look: Look, source: str) -> Figure:
    """Draws stacked bars from zero. A hollow mark stands where a part is not known."""
    unit = chart.unit.replace("CO2", "CO₂")
    traces = [trace for stack in chart.stacks for trace in _stack_traces(stack, chart, unit, look)]
    columns = list(zip(*(stack.values for stack in chart.stacks), strict=True))
    by_date = zip(chart.dates, columns, strict=True)
    unknown = {date: sum(v or 0.0 for v in column) for date, column in by_date if None in column}
    if unknown:
        traces.append(
            {"type": "scatter", "mode": "markers", "name": "not known in full"}
            | {"hovertemplate": "not known in full<extra></extra>"}
            | {"x": list(unknown), "y": [short(top) for top in unknown.values()], "cliponaxis": False}
            | {"marker": {"symbol": "square-open", "color": look.theme.ink, "size": 8}}
        )
    labelled = chart.dates[:: math.ceil(len(chart.dates) / MOST_LABELS) or 1]
    layout: Figure = {
        "margin": {"l": 60, "r": 12, "t": 6, "b": 46},
        "hovermode": "x unified",
        "dragmode": False,
        "barmode": "stack",
        "bargap": 0.3,
        "xaxis": {"type": "category", "categoryorder": "array", "categoryarray": list(chart.dates), "showgrid": False}
        | {"fixedrange": True, "tickvals": list(labelled), "ticktext": [date[5:] for date in labelled], "tickangle": 0},
        "yaxis": axis(unit, (0.0, 1.0), rangemode="tozero"),
        "shapes": [],
        "annotations": [],
    }
    empty = not any(value is not None for stack in chart.stacks for value in stack.values)
    return plot(look, traces, layout, question=chart.title, source=source, empty=empty)


def _stack_traces(stack: Stack, chart: StackedBars, unit: str, look: Look) -> list[Figure]:
    """Returns the bars of one part, and those of what is lighter of it above them."""
    lights = stack.light or [0.0] * len(stack.values)
    pairs = list(zip(stack.values, lights, strict=True))
    parts = [(stack.name, site_bar(look, stack.colour), [None if v is None else short(v - of) for v, of in pairs])]
    if stack.light:
        lighter = [None if v is None else short(of) for v, of in pairs]
        parts.append((f"{stack.name} {chart.light}", site_hatched(look, stack.colour), lighter))
    return [
        {"type": "bar", "name": name, "legendgroup": stack.name, "x": list(chart.dates), "y": values, "marker": marker}
        | {"showlegend": name == stack.name, "hovertemplate": f"{name}: %{{y:.4~g}} {unit}<extra></extra>"}
        for name, marker, values in parts
    ]


def stacked_table(chart: StackedBars) -> str:
    """Writes the values as CSV, a line for each bar; empty: not known."""
    columns: list[tuple[str, Sequence[float | None]]] = []
    for stack in chart.stacks:
        columns.append((f"{stack.name} [{chart.unit}]", stack.values))
        if stack.light:
            columns.append((f"of it {chart.light} [{chart.unit}]", stack.light))
    rows = ([label, *(short(values[n], 9) for _, values in columns)] for n, label in enumerate(chart.dates))
    return csv_text(["day", *(name for name, _ in columns)], rows)


def panels(chart: LinePanels, look: Look) -> Figure:
    """Draws panels above each other, each with its own value axis."""
    count = len(chart.panels)
    height = (1.0 - GAP * (count - 1)) / count
    traces: list[Figure] = []
    layout: Figure = {
        "height": PANELS_FRAME_PX + PANEL_PX * count,
        "margin": {"l": 64, "r": 16, "t": 30, "b": 50},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "xaxis": _shared_axis(chart) | {"anchor": "y" if count == 1 else f"y{count}"},
        "shapes": [],
        "annotations": [],
    }
    named: set[str] = set()
    for n, panel in enumerate(chart.panels):
        name = f"y{n + 1}" if n else "y"
        top = 1.0 - n * (height + GAP)
        layout[f"yaxis{name[1:]}"] = axis(panel.about, (max(0.0, top - height), top), rangemode="tozero")
        for line in panel.lines:
            traces.append(_line(line, name, chart.marked, line.name not in named))
            named.add(line.name)
    empty = not any(value is not None for panel in chart.panels for line in panel.lines for value in line.y)
    return plot(look, traces, layout, question=chart.title, source=chart.source, empty=empty)


def _line(line: Line, value_axis: str, marked: bool, first: bool) -> Figure:
    turn, place = divmod(line.colour, len(COLOURS))
    dash = FORECAST_DASH if line.dashed else DASHES[turn % len(DASHES)]
    return {
        "type": "scatter",
        "mode": "lines+markers" if marked else "lines",
        "name": line.name,
        "legendgroup": line.name,
        "showlegend": bool(line.name) and first,
        "x": [short(x, 6) for x in line.x],
        "y": [short(y) for y in line.y],
        "yaxis": value_axis,
        "connectgaps": False,
        "line": {"color": COLOURS[place], "width": 1.5, "dash": dash},
        "hovertemplate": f"{line.name} %{{y:.4~g}}<extra></extra>".lstrip(),
    }


def _shared_axis(chart: LinePanels) -> Figure:
    made = axis(chart.x_about, (0.0, 1.0))
    xs = [x for panel in chart.panels for line in panel.lines for x in line.x]
    if not chart.doubling or not xs:
        return made
    first, last = math.floor(math.log2(min(xs))), math.ceil(math.log2(max(xs)))
    return made | {"type": "log", "tickvals": [2.0**power for power in range(first, last + 1)]}


def _said(value: float, half: float | None) -> str:
    if half is not None:
        return f"\u2002{value:.1f} ± {half:.1f}"
    return f"\u2002{value:,.2f}" if abs(value) >= 1.0 else f"\u2002{value:.3g}"
