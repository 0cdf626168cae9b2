"""Charts of a model's profiles and of the engine model: the energy-latency frontier, and energy over TP and clock.

Pure figures with their tables; who calls passes values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.cells import csv_text
from core.chart_values import COLOURS
from core.engine.engine_model import gpu
from core.engine.engine_params import split_fault
from core.engine.measured import engine_costs
from core.engine.parameter_caches import cached
from core.observations.mode_profile import Lengths, source_at
from core.types import Limits, Source
from frontend import formats
from frontend.charts.plot import plot
from frontend.charts.plot_style import Figure, Look

SYMBOLS = {"measured": "circle", "published": "square", "modelled": "diamond-open"}
CLOCKS = 9
_NEAR = 0.15  # of an axis: a label of some six characters
DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Point:
    """A mode for a class: one profile. `energy_j` a request: the instance's power by its largest rate."""

    label: str
    request_class: str
    gpu_type: str
    kind: str
    source: str
    energy_j: float
    latency_s: float
    max_rps: float


@dataclass(frozen=True, slots=True)
class ClockPoint:
    """An instance of `tp` GPUs at a clock, at the largest rate that keeps the limits; None: there is no such rate.

    `source`: of the energy.
    """

    tp: int
    mhz: float
    energy_per_token_j: float | None
    rps: float
    source: Source


def on_frontier(points: Sequence[Point]) -> list[Point]:
    """Returns the points that no other beats in both energy and latency, by latency."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.latency_s, p.energy_j)):
        if not best or point.energy_j < best[-1].energy_j:
            best.append(point)
    return best


def frontier(points: Sequence[Point], look: Look, latency: str, class_name: str) -> tuple[Figure, str]:
    """Draws joules for each request against latency, each mode as a point, the frontier as a line."""
    types = sorted({point.gpu_type for point in points})
    line = on_frontier(points)
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "frontier",
            "x": [p.latency_s for p in line],
            "y": [p.energy_j for p in line],
            "line": {"color": look.theme.muted, "width": 1.5, "dash": "dot", "shape": "hv"},
            "hoverinfo": "skip",
        }
    ]
    for n, kind in enumerate(types):
        own = [p for p in points if p.gpu_type == kind]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": kind,
                "x": [p.latency_s for p in own],
                "y": [p.energy_j for p in own],
                "text": [p.label.rpartition("/")[2] for p in own],
                "textposition": [_label_place(p, points, p in line) for p in own],
                "cliponaxis": False,
                "textfont": {"size": 11, "color": look.theme.muted},
                "marker": {
                    "size": 10,
                    "color": COLOURS[n % len(COLOURS)],
                    "symbol": [SYMBOLS.get(p.kind, "circle") for p in own],
                },
                "customdata": [[p.label, p.kind, p.source[:80], p.max_rps] for p in own],
                "hovertemplate": "%{customdata[0]}: %{y:.4~g} J/request, "
                f"{latency} %{{x:.3~g}} s at %{{customdata[3]:.3~g}} req/s<br>%{{customdata[1]}}: %{{customdata[2]}}"
                "<extra></extra>",
            }
        )
    kinds = sorted({p.kind for p in points})
    sources = "; ".join(sorted({p.source for p in points}))
    figure = _figure(
        look,
        traces,
        f"{latency}, s",
        "energy, J/request",
        question=f"Which mode serves {class_name} with least energy, and how fast?",
        source=f"profiles ({', '.join(kinds)}) at each mode's largest rate and top clock. {sources}",
        empty=not points,
    )
    figure["layout"]["xaxis"]["rangemode"] = figure["layout"]["yaxis"]["rangemode"] = "tozero"
    header = ("mode", "class", "kind", "source", "energy_j_per_request", f"{latency.lower()}_s", "max_rps")
    body = ((p.label, p.request_class, p.kind, p.source, p.energy_j, p.latency_s, p.max_rps) for p in points)
    return figure, csv_text(header, body)


def _label_place(point: Point, points: Sequence[Point], leads: bool) -> str:
    """Returns where a point's label hides no other point. `leads`: it is on the frontier, with its line above."""
    wide, high = max(p.latency_s for p in points), max(p.energy_j for p in points)
    beside = any(
        p is not point
        and 0.0 <= p.latency_s - point.latency_s < _NEAR * wide
        and abs(p.energy_j - point.energy_j) < _NEAR * high
        for p in points
    )
    if beside:
        return "bottom left"
    return "top right" if leads else "bottom right"


@cached(maxsize=256)
def grid(
    model: str, gpu_type: str, engine: str, prompt_tokens: float, output_tokens: float, limits: Limits
) -> tuple[ClockPoint, ...]:
    """Computes energy per output token over TP and clock as plans do: by profiles, else by the engine model.

    Raises UnknownConfiguration.
    """
    lengths = Lengths(prompt_tokens, output_tokens)
    params = gpu(gpu_type)
    clocks = [params.f_min + (params.f_max - params.f_min) * n / (CLOCKS - 1) for n in range(CLOCKS)]
    cells = []
    for tp in DEGREES:
        if split_fault(model, gpu_type, tp):
            continue
        costs = engine_costs(model, gpu_type, tp, engine)
        for mhz in clocks:
            rps = costs.max_rps(prompt_tokens, output_tokens, mhz, limits)  # 0 where the model does not fit
            # At the very edge rounding can make a rate unstable: just below it the instance is as full.
            state = costs.steady_state(rps * 0.999, prompt_tokens, output_tokens, mhz) if rps > 0 else None
            energy = state.power_w / (rps * 0.999 * output_tokens) if state and math.isfinite(state.e2e_s) else None
            source = source_at(costs, mhz, state.batch if state else 1.0, lengths)
            cells.append(ClockPoint(tp, mhz, energy, rps, source))
    return tuple(cells)


def heat(
    cells: Sequence[ClockPoint], look: Look, what: str, basis: str, bases: Mapping[int, str]
) -> tuple[Figure, str]:
    """Draws energy per token over TP degree and clock; a field is blank where the limits cannot be kept.

    `bases`: the source of the figures of each TP degree, in words.
    """
    clocks = sorted({cell.mhz for cell in cells})
    degrees = sorted({cell.tp for cell in cells})
    by = {(cell.tp, cell.mhz): cell for cell in cells}
    known = [cell for cell in cells if cell.energy_per_token_j is not None]
    best = min(known, key=lambda c: c.energy_per_token_j or 0.0, default=None)
    values = [[by[tp, mhz].energy_per_token_j for mhz in clocks] for tp in degrees]
    source = f"{_by_degree(bases)}{basis}, each at its largest rate; blank: no rate keeps the limits."
    trace: Figure = {
        "type": "heatmap",
        "x": [f"{mhz:.0f}" for mhz in clocks],
        "y": [f"TP{tp}" for tp in degrees],
        "z": [[None if v is None else float(f"{v:.4g}") for v in row] for row in values],
        "text": [["" if v is None else formats.figures(v, 2) for v in row] for row in values],
        "texttemplate": "%{text}",
        "colorscale": [[0, "#cfe8f7"], [1, "#0a4a75"]],
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"title": {"text": "J/token", "font": {"size": 12}}, "thickness": 12, "outlinewidth": 0},
        "customdata": [[by[tp, mhz].source.value for mhz in clocks] for tp in degrees],
        "hovertemplate": "%{y} at %{x} MHz: %{z:.4~g} J/token, %{customdata}<extra></extra>",
    }
    least = (
        f" Least: TP{best.tp} at {best.mhz:.0f} MHz, {formats.figures(best.energy_per_token_j or 0.0)} J/token."
        if best
        else ""
    )
    figure = _figure(
        look,
        [trace],
        "SM clock, MHz",
        "",
        question=f"How do TP degree and clock change the energy of a token on {what}?",
        source=source + least,
        empty=not known,
    )
    figure["layout"]["xaxis"]["type"] = figure["layout"]["yaxis"]["type"] = "category"
    header = ("tp", "sm_clock_mhz", "energy_j_per_token", "rps", "source")
    return figure, csv_text(header, ((c.tp, c.mhz, c.energy_per_token_j, c.rps, c.source) for c in cells))


def _by_degree(bases: Mapping[int, str]) -> str:
    """Returns `TP4: measured 3 h ago; TP1, TP2: modelled; `, those with most in common last."""
    found: dict[str, list[str]] = {}
    for tp, words in bases.items():
        found.setdefault(words, []).append(f"TP{tp}")
    if len(found) == 1:
        return f"{next(iter(found))}; "
    return "".join(
        f"{', '.join(own)}: {words}; " for words, own in sorted(found.items(), key=lambda item: len(item[1]))
    )


def _figure(look: Look, traces: list[Figure], x: str, y: str, *, question: str, source: str, empty: bool) -> Figure:
    arrangement = {
        "margin": {"l": 56, "r": 12, "t": 6, "b": 40},
        "xaxis": {"title": {"text": x}, "zeroline": False, "fixedrange": True},
        "yaxis": {"title": {"text": y}, "zeroline": False},
        "annotations": [],
    }
    return plot(look, traces, arrangement, question=question, source=source, empty=empty)
