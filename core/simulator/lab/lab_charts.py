"""Bar charts of experiments, as SVG."""

from __future__ import annotations

from html import escape

from core.simulator.lab.bound import Bound
from core.simulator.lab.experiment import Bar, Chart, Experiment, Results

_BAR, _WIDTH = 22, 520
_LETTER, _LEAST_LEFT = 7, 160  # of labels' letters, wide ones too, as SVG has no way to measure text
_INK, _MUTED, _FILL, _MARK = "#1f2933", "#52606d", "#0072b2", "#d55e00"
_LEAST = 1e-9


def chart_of(experiment: Experiment, results: Results) -> Chart:
    """Returns the experiment's own chart, or the energy of each run that it lists.

    Runs that could not be done are left out.
    """
    if experiment.chart is not None:
        return experiment.chart(results)
    energy = tuple(Bar(label, own["energy_wh"] / 1e3) for label, own in experiment.shown(results).items())
    return Chart("energy of each run, kWh (simulated)", energy)


def svg(title: str, chart: Chart, bound: Bound | None = None) -> str:
    """Draws the bars, whiskers of their intervals, and the bound as a line. What is below 0 goes left."""
    ends = [end for bar in chart.bars for end in (bar.value - (bar.half or 0.0), bar.value + (bar.half or 0.0))]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    scale = _WIDTH / max(high - low, _LEAST)
    left = max([_LEAST_LEFT, *(16 + _LETTER * len(bar.label) for bar in chart.bars)])
    zero = left - low * scale
    foot = 40 + _BAR * len(chart.bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + _WIDTH + 100} {foot + 40}" '
        f'font-family="sans-serif" font-size="13" fill="{_INK}">',
        f'<rect width="100%" height="100%" fill="#ffffff"/><title>{escape(title)}</title>',
        f'<text x="{left}" y="24" fill="{_MUTED}">{escape(chart.about)}</text>',
        *(part for n, bar in enumerate(chart.bars) for part in _bar(bar, 40 + _BAR * n, left, zero, scale)),
    ]
    if bound is not None:
        x = zero + bound.energy_wh / 1e3 * scale
        parts += [
            f'<line x1="{x:.1f}" y1="34" x2="{x:.1f}" y2="{foot}" stroke="{_MARK}" stroke-dasharray="4 3"/>',
            f'<text x="{x:.1f}" y="{foot + 16}" text-anchor="middle" fill="{_MARK}">clairvoyant bound '
            f"{bound.energy_wh / 1e3:,.2f}</text>",
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(bar: Bar, y: int, left: int, zero: float, scale: float) -> list[str]:
    width, half = abs(bar.value) * scale, (bar.half or 0.0) * scale
    tip = zero + bar.value * scale
    value = f"{bar.value:,.2f}" if bar.half is None else f"{bar.value:.1f} ± {bar.half:.1f}"
    parts = [
        f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{min(zero, tip):.1f}" y="{y}" width="{width:.1f}" height="{_BAR - 6}" fill="{_FILL}"/>',
        f'<text x="{max(zero, tip) + half + 6:.1f}" y="{y + 12}">{value}</text>',
    ]
    if half:
        parts.append(f'<path d="M{tip - half:.1f} {y + 8}H{tip + half:.1f}" stroke="{_INK}" stroke-width="2"/>')
    return parts
