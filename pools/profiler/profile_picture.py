"""A picture of a profile, as SVG: time and power of an iteration over the batch, for each clock, and its hull."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from core.engine.profiles import Point

from .result import ProfilingResult

_WIDTH, _HEIGHT, _LEFT, _GAP = 420, 260, 70, 60
_INK, _GRID = "#334155", "#cbd5e1"
_COLOURS = ("#0f766e", "#b45309", "#4338ca", "#be123c", "#4d7c0f", "#0369a1", "#a21caf", "#57534e")
Place = tuple[float, float]


def profile_svg(outcome: ProfilingResult) -> str:
    """Draws three panels: seconds and watts of decodes over their batch (context as measured), and the hull."""
    profile = outcome.profile
    decodes = [point for point in profile.points if point.batch]
    clocks = sorted({point.mhz for point in decodes})

    def curves(value: Callable[[Point], float | None]) -> list[tuple[str, list[Place]]]:
        found = []
        for mhz in clocks:
            for shortest in (True, False):
                line = _curve([p for p in decodes if p.mhz == mhz], value, shortest)
                found.append((f"{mhz:g} MHz, {'shorter' if shortest else 'longer'} contexts", line))
        return found

    panels: list[tuple[str, list[tuple[str, list[Place]]]]] = [
        ("iteration, ms", curves(lambda point: point.t_s * 1e3)),
        ("power, W", curves(lambda point: point.watts)),
        ("hull: context a sequence, tokens", [("", [*outcome.hull, *outcome.hull[:1]])]),
    ]
    width = _LEFT + len(panels) * (_WIDTH + _GAP)
    height = _HEIGHT + 90 + 18 * len(clocks)
    title = escape(f"{profile.model} on {profile.tp} x {profile.gpu}: {profile.origin}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="13" fill="{_INK}">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-weight="bold">{title}</text>',
    ]
    for n, (label, lines) in enumerate(panels):
        parts += _panel(label, lines, _LEFT + n * (_WIDTH + _GAP), 60)
    for n, mhz in enumerate(clocks):
        y = _HEIGHT + 100 + 18 * n
        parts.append(f'<rect x="{_LEFT}" y="{y - 9}" width="18" height="4" fill="{_colour(2 * n)}"/>')
        parts.append(f'<text x="{_LEFT + 26}" y="{y}">{mhz:g} MHz (dashed: the longer contexts)</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(points: Sequence[Point], value: Callable[[Point], float | None], shortest: bool) -> list[Place]:
    """Returns each batch's point with its shortest or longest context."""
    chosen: dict[int, Point] = {}
    for point in sorted(points, key=lambda one: one.context_tokens, reverse=shortest):
        chosen[point.batch] = point
    places = [(float(batch), value(point)) for batch, point in sorted(chosen.items())]
    return [(x, y) for x, y in places if y is not None]


def _colour(n: int) -> str:
    return _COLOURS[n // 2 % len(_COLOURS)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.3g}"


def _panel(label: str, lines: Sequence[tuple[str, list[Place]]], left: float, top: float) -> list[str]:
    """Draws batches in logarithms from left to right, values from 0 upwards."""
    xs = [x for _, line in lines for x, _ in line] or [1.0]
    high = max((y for _, line in lines for _, y in line), default=0.0) or 1.0
    low_x, span = math.log2(min(xs)), max(1.0, math.log2(max(xs)) - math.log2(min(xs)))
    bottom = top + _HEIGHT

    def at(x: float, y: float) -> Place:
        return left + (math.log2(x) - low_x) / span * _WIDTH, bottom - y / high * _HEIGHT

    parts = [
        f'<text x="{left}" y="{top - 12}">{label}</text>',
        f'<path d="M{left},{top}V{bottom}H{left + _WIDTH}" fill="none" stroke="{_GRID}"/>',
        f'<text x="{left - 6}" y="{top + 5}" text-anchor="end">{_short(high)}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{left}" y="{bottom + 18}">{min(xs):g}</text>',
        f'<text x="{left + _WIDTH}" y="{bottom + 18}" text-anchor="end">batch {max(xs):g}</text>',
    ]
    for n, (name, line) in enumerate(lines):
        dash = ' stroke-dasharray="5 4"' if n % 2 else ""
        places = [at(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{_colour(n)}" stroke-width="1.5"{dash}/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_colour(n)}"><title>{escape(name)} batch {bx:g}: '
            f"{by:.4g}</title></circle>"
            for (x, y), (bx, by) in zip(places, line, strict=True)
        ]
    return parts
