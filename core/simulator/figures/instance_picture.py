"""A picture of one instance: batch, power, KV cache and queue over time, as SVG."""

from __future__ import annotations

import numpy as np

from core.simulator.kernel.kernel import SEGMENT_COLUMNS
from core.simulator.kernel.outcome import Floats, Outcome

_WIDTH, _HEIGHT, _LEFT, _GAP = 1000, 110, 90, 40
_INK, _LINE, _GRID = "#334155", "#0f766e", "#cbd5e1"


def instance_svg(outcome: Outcome, instance: int = 0) -> str:
    """Draws means over stretches of a thousandth of the run. Needs the segments: `simulate(..., keep_segments=...)`.

    Raises:
        ValueError: No segment of the instance was kept.
    """
    rows = np.empty((0, len(SEGMENT_COLUMNS))) if outcome.segments is None else outcome.segments
    rows = rows[rows[:, 0] == instance]
    if not rows.size:
        raise ValueError(f"nothing to draw: no iteration of {outcome.instances[instance].name} was kept")
    named = dict(zip(SEGMENT_COLUMNS, rows.T, strict=True))
    start_s, end_s = named["start_s"], named["end_s"]
    until_s = float(end_s[-1])
    spec = outcome.instances[instance]
    watts = named["energy_j"] / (end_s - start_s)
    panels = [
        ("batch, sequences", _means(start_s, end_s, named["decodes"], 0.0, until_s)),
        ("power, W", _means(start_s, end_s, watts, spec.idle_w(spec.mhz), until_s)),
        ("KV cache, share", _means(start_s, end_s, named["kv_tokens"] / spec.kv_capacity, 0.0, until_s)),
        ("waiting, requests", _means(start_s, end_s, named["waiting"], 0.0, until_s)),
    ]
    height = len(panels) * (_HEIGHT + _GAP) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" '
        f'font-family="sans-serif" font-size="13" fill="{_INK}">',
        f"<title>{spec.name}: {spec.model} on {spec.tp} x {spec.gpu}</title>",
    ]
    for n, (label, values) in enumerate(panels):
        parts += _panel(label, values, 30 + n * (_HEIGHT + _GAP))
    parts += [
        f'<text x="{_LEFT}" y="{height - 12}">0 s</text>',
        f'<text x="{_LEFT + _WIDTH}" y="{height - 12}" text-anchor="end">{until_s:.0f} s</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _means(start_s: Floats, end_s: Floats, values: Floats, idle: float, until_s: float) -> Floats:
    """Returns time-weighted means over `_WIDTH` equal stretches of a value that is `idle` between segments."""
    edges = np.linspace(0.0, until_s, _WIDTH + 1)
    times = np.concatenate([[0.0], np.stack([start_s, end_s], axis=1).ravel()])
    rates = np.stack([np.full(start_s.size, idle), values], axis=1).ravel()
    integral = np.concatenate([[0.0], np.cumsum(rates * np.diff(times))])
    result: Floats = np.diff(np.interp(edges, times, integral)) / (until_s / _WIDTH)
    return result


def _panel(label: str, values: Floats, top: float) -> list[str]:
    high = max(float(values.max()), 1e-9)
    bottom = top + _HEIGHT
    high_text = f"{high:,.0f}" if high >= 1000 else f"{high:.3g}"
    points = " ".join(f"{_LEFT + x},{bottom - _HEIGHT * max(0.0, v) / high:.1f}" for x, v in enumerate(values.tolist()))
    return [
        f'<text x="{_LEFT}" y="{top - 8}">{label}</text>',
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _WIDTH}" y2="{bottom}" stroke="{_GRID}"/>',
        f'<line x1="{_LEFT}" y1="{top}" x2="{_LEFT + _WIDTH}" y2="{top}" stroke="{_GRID}"/>',
        f'<text x="{_LEFT - 8}" y="{top + 4}" text-anchor="end">{high_text}</text>',
        f'<text x="{_LEFT - 8}" y="{bottom + 4}" text-anchor="end">0</text>',
        f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="1"/>',
    ]
