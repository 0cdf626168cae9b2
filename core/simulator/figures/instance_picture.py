"""A picture of one instance, as values: batch, power, KV cache and queue over time."""

from __future__ import annotations

import numpy as np

from core.chart_values import Line, LinePanel, LinePanels
from core.simulator.kernel.kernel import SEGMENT_COLUMNS
from core.simulator.kernel.outcome import Floats, Outcome

_STRETCHES = 1000


def instance_panels(outcome: Outcome, instance: int = 0) -> LinePanels:
    """Returns means over stretches of a thousandth of the run. Needs the segments: `simulate(..., keep_segments=...)`.

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
    middles_s = (np.arange(_STRETCHES) + 0.5) * (until_s / _STRETCHES)
    shown = [
        ("batch, sequences", named["decodes"], 0.0),
        ("power, W", watts, spec.idle_w(spec.mhz)),
        ("KV cache, share", named["kv_tokens"] / spec.kv_capacity, 0.0),
        ("waiting, requests", named["waiting"], 0.0),
    ]
    panels = []
    for about, values, idle in shown:
        means = _means(start_s, end_s, values, idle, until_s)
        panels.append(LinePanel(about, (Line("", middles_s.tolist(), means.tolist()),)))
    return LinePanels(
        f"{spec.name}: {spec.model} on {spec.tp} x {spec.gpu}",
        "the simulator: modelled; each point is the mean over a thousandth of the run",
        "simulated time, s",
        tuple(panels),
    )


def _means(start_s: Floats, end_s: Floats, values: Floats, idle: float, until_s: float) -> Floats:
    """Returns time-weighted means over `_STRETCHES` equal stretches of a value that is `idle` between segments."""
    edges = np.linspace(0.0, until_s, _STRETCHES + 1)
    times = np.concatenate([[0.0], np.stack([start_s, end_s], axis=1).ravel()])
    rates = np.stack([np.full(start_s.size, idle), values], axis=1).ravel()
    integral = np.concatenate([[0.0], np.cumsum(rates * np.diff(times))])
    result: Floats = np.diff(np.interp(edges, times, integral)) / (until_s / _STRETCHES)
    return result
