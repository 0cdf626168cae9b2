"""Bars over days, stacked by site, as vector drawings for the document. The same site has the dashboard's colour."""

from __future__ import annotations

import math

from reportlab.graphics.shapes import Drawing, Line, Rect, String
from reportlab.lib.colors import Color, HexColor, white

from core.chart_values import COLOURS, Stack, StackedBars

INK, MUTED, RULE = HexColor("#1a1d21"), HexColor("#5b626b"), HexColor("#e3e6ea")
FONT = "Helvetica"
LEFT, RIGHT, FOOT, TOP = 46.0, 4.0, 26.0, 20.0
MOST_LABELS = 10


def site_colour(place: int) -> Color:
    return HexColor(COLOURS[place % len(COLOURS)])


def bars(chart: StackedBars, width: float, height: float) -> Drawing:
    """Draws stacked bars from zero. A day on which a site's value is not known has a hollow grey mark instead."""
    drawing = Drawing(width, height)
    dates, stacks = chart.dates, chart.stacks
    sums = [sum(max(0.0, one.values[i] or 0.0) for one in stacks) for i in range(len(dates))]
    top, step = _axis(max(sums, default=0.0))
    inner_w, inner_h = width - LEFT - RIGHT, height - FOOT - TOP
    drawing.add(
        String(0, height - 9, f"{chart.title}, {chart.unit}", fontName="Helvetica-Bold", fontSize=8.5, fillColor=INK)
    )
    _legend(drawing, chart, width, height)
    for n in range(round(top / step) + 1):
        y = FOOT + inner_h * n * step / top
        drawing.add(Line(LEFT, y, width - RIGHT, y, strokeColor=RULE if n else MUTED, strokeWidth=0.5))
        text = f"{n * step:,.6g}"
        drawing.add(String(LEFT - 4, y - 2.5, text, textAnchor="end", fontName=FONT, fontSize=7, fillColor=MUTED))
    slot = inner_w / max(1, len(dates))
    bar = min(slot * 0.72, 26.0)
    for i, date in enumerate(dates):
        x = LEFT + slot * i + (slot - bar) / 2
        y = FOOT
        for one in stacks:
            y = _part(drawing, one, i, x, y, bar, inner_h / top)
        if i % max(1, math.ceil(len(dates) / MOST_LABELS)) == 0:
            drawing.add(
                String(
                    x + bar / 2, FOOT - 10, _day(date), textAnchor="middle", fontName=FONT, fontSize=7, fillColor=MUTED
                )
            )
    return drawing


def _part(drawing: Drawing, one: Stack, i: int, x: float, y: float, bar: float, scale: float) -> float:
    """Draws one site's part of a day upwards from y, and gives where it ends."""
    value = one.values[i]
    if value is None:
        drawing.add(Rect(x, y, bar, 3, fillColor=white, strokeColor=MUTED, strokeWidth=0.4, strokeDashArray=[1.5, 1]))
        return y + 3
    light = one.light[i] if one.light else 0.0
    colour = site_colour(one.colour)
    for part, shade in ((value - light, colour), (light, _lighter(colour))):
        if part > 0:
            drawing.add(Rect(x, y, bar, part * scale, fillColor=shade, strokeColor=white, strokeWidth=0.3))
            y += part * scale
    return y


def _legend(drawing: Drawing, chart: StackedBars, width: float, height: float) -> None:
    """From the right end of the title's line leftwards."""
    words = [(one.name, site_colour(one.colour)) for one in chart.stacks]
    if chart.light:
        words.append((f"lighter: {chart.light}", HexColor("#c9ced4")))
    x = width - RIGHT
    for label, colour in reversed(words):
        x -= 4.1 * len(label)
        drawing.add(String(x, height - 9, label, fontName=FONT, fontSize=7.5, fillColor=MUTED))
        x -= 9
        drawing.add(Rect(x, height - 9, 6, 6, fillColor=colour, strokeColor=None))
        x -= 8


def _axis(most: float) -> tuple[float, float]:
    """Returns (top, step) of about four round steps."""
    if most <= 0:
        return 1.0, 0.25
    step = 10.0 ** math.floor(math.log10(most / 4))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if most / (step * m) <= 5)
    return step * math.ceil(most / step - 1e-9), step


def _lighter(colour: Color) -> Color:
    return Color(*(1 - (1 - part) * 0.45 for part in (colour.red, colour.green, colour.blue)))


def _day(date: str) -> str:
    return date[5:]
