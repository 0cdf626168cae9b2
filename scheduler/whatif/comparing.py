"""What came of a study: figures side by side, ratios to the first run, which runs no other one beats. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.cells import csv_text


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the comparison. `path`: where it stands in a run's figures; `better`: less, more, or neither ("")."""

    key: str
    label: str
    unit: str
    path: tuple[str, ...]
    better: str = "less"

    def of(self, figures: Mapping[str, Any] | None) -> float | None:
        value: Any = figures
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        found: float | None = value
        return found


FIGURES = (
    Figure("energy_wh", "Energy", "Wh", ("energy_wh",)),
    Figure("carbon_g", "Carbon", "gCO₂e", ("carbon_g",)),
    Figure("cost", "Cost", "", ("cost_usd",)),
    Figure("gpu_hours", "GPU time", "h", ("gpu_hours",)),
    Figure("slo_attainment", "SLO attainment", "share", ("slo_attainment",), "more"),
    Figure("ttft_p99_s", "TTFT p99", "s", ("ttft_s", "p99")),
    Figure("tpot_p99_s", "TPOT p99", "s", ("tpot_s", "p99")),
    Figure("e2e_p99_s", "E2E p99", "s", ("e2e_s", "p99")),
    Figure("goodput_rps", "Goodput", "requests/s", ("goodput_rps",), "more"),
    Figure("jain_tenants", "Jain index of tenants", "", ("jain_tenants",), "more"),
    Figure("jain_lengths", "Jain index of lengths", "", ("jain_lengths",), "more"),
    Figure("rejected", "Rejected", "requests", ("rejected",)),
    Figure("clock_mhz", "Mean clock", "MHz", ("clock_mhz",), ""),
)
AGAINST = {"energy": FIGURES[0], "carbon": FIGURES[1], "cost": FIGURES[2]}  # of the Pareto plot
ATTAINMENT = FIGURES[4]


@dataclass(frozen=True, slots=True)
class Compared:
    """A run among others: its figures in the order of FIGURES, and their ratios to the first run's."""

    index: int
    label: str
    values: tuple[float | None, ...]
    ratios: tuple[float | None, ...]


def compared(runs: Sequence[tuple[int, str, Mapping[str, Any]]]) -> list[Compared]:
    """Compares the runs that are done, in order, as (index, label, figures); ratios are to the first of them."""
    found: list[Compared] = []
    for index, label, figures in runs:
        values = tuple(figure.of(figures) for figure in FIGURES)
        first = found[0].values if found else values
        found.append(Compared(index, label, values, tuple(_ratio(a, b) for a, b in zip(values, first, strict=True))))
    return found


def unbeaten(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Says of each (cost, merit) whether no other point costs less or as much and has more merit or as much."""
    return [
        not any(x <= own_x and y >= own_y and (x, y) != (own_x, own_y) for x, y in points) for own_x, own_y in points
    ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says whether a run keeps the objective, also in words; None: its scenario has none."""

    kept: bool | None
    words: str


def verdict(figures: Mapping[str, Any] | None, target: float) -> Verdict:
    """Judges a run: in all, and for each of its services, at least `target` of the requests keep every limit."""
    attained = ATTAINMENT.of(figures)
    if figures is None or attained is None:
        return Verdict(None, "no objective")
    of_service = {
        name: own["slo_attainment"]
        for name, own in (figures.get("by_service") or {}).items()
        if own.get("slo_attainment") is not None
    }
    below = [name for name, share in of_service.items() if share < target]
    share = f"{target * 100:.4g} %"
    if attained >= target and not below:
        return Verdict(True, f"keeps {share}")
    where = f" at {', '.join(below)}" if below and len(of_service) > 1 else ""
    return Verdict(False, f"misses {share}{where}")


def as_json(runs: Sequence[tuple[int, str, Mapping[str, Any]]], currency: str, target: float) -> dict[str, Any]:
    rows = compared(runs)
    return {
        "currency": currency,
        "target": target,
        "ratios_to": rows[0].label if rows else None,
        "figures": {figure.key: {"label": figure.label, "unit": unit_of(figure, currency)} for figure in FIGURES},
        "runs": [
            {
                "index": row.index,
                "label": row.label,
                "keeps_objective": verdict(figures, target).kept,
                "values": {figure.key: value for figure, value in zip(FIGURES, row.values, strict=True)},
                "ratios": {figure.key: ratio for figure, ratio in zip(FIGURES, row.ratios, strict=True)},
            }
            for row, (_, _, figures) in zip(rows, runs, strict=True)
        ],
    }


def as_csv(runs: Sequence[tuple[int, str, Mapping[str, Any]]], currency: str, target: float) -> str:
    """Writes a row for each run; an empty field is not known."""
    units = [f"{figure.key} ({unit})" if (unit := unit_of(figure, currency)) else figure.key for figure in FIGURES]
    header = ["run", "objective", *units, *(f"{figure.key} ratio to the first" for figure in FIGURES)]
    rows = (
        [row.label, verdict(figures, target).words, *row.values, *row.ratios]
        for row, (_, _, figures) in zip(compared(runs), runs, strict=True)
    )
    return csv_text(header, rows)


def unit_of(figure: Figure, currency: str) -> str:
    return currency if figure.key == "cost" else figure.unit


def _ratio(value: float | None, first: float | None) -> float | None:
    return None if value is None or not first else value / first
