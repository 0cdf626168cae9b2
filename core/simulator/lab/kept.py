"""Figures of the laboratory, kept beside its document: what tables and sentences need, small and in a fixed order.

They do not say which code they are of: `greenserve lab` replaces those of the experiments that it runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.simulator.figures.run_figures import ENERGY_KINDS
from core.simulator.lab.bound import Bound
from core.simulator.lab.decomposition import Decomposition
from core.simulator.lab.experiment import Experiment
from core.simulator.lab.found import Found
from core.simulator.lab.measures import CALCULATED, Figures

WALL = "wall_s"  # what a run took on one processor: the one figure that two like runs do not share
COLUMNS = (
    *(WALL, "energy_wh", *(f"energy_wh_by.{kind}" for kind in ENERGY_KINDS), "carbon_g", "gpu_hours", "clock_mhz"),
    *("power_w.p50", "power_w.p99", "simulated_s", "finished", "preemptions", "iterations"),
    *("slo_attainment", "itl_in_time", "violation_rate", "goodput_rps", "goodput_tokens_s", "jain_lengths"),
    *(f"{name}.{of}" for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s") for of in ("p50", "p99", "mean")),
)
_DIGITS = 6

Kept = dict[str, Found]  # by the experiment's name


class KeptError(ValueError):
    """Kept figures that cannot be used; the message names the file."""


def write(path: Path, kept: Mapping[str, Found]) -> None:
    """Writes a line a run, so that a change of one figure is a change of one line."""
    path.write_text("".join(f"{line}\n" for line in _lines(kept)), encoding="utf-8")


def read(path: Path) -> Kept:
    """Reads what is kept; no file: nothing.

    Raises:
        KeptError: The file is none of kept figures.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {name: _found(document["columns"], own) for name, own in document["experiments"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KeptError(f"{path}: no figures of the laboratory ({error!r}); `greenserve lab` writes them") from error


def lacks(experiments: Iterable[Experiment], kept: Mapping[str, Found]) -> list[str]:
    """Says of which runs, and of which calculated figures, nothing is kept."""
    found = []
    for own in experiments:
        mine = kept.get(own.name, Found({CALCULATED: {}}))
        known = {*mine.runs, *mine.failed, *mine.results[CALCULATED]}
        names = (*(run.label for run in own.runs), *(one.name for one in own.calculated))
        found += [f"{own.name}: no figures of {name}" for name in names if name not in known]
    return found


def rounded(value: float | None) -> float | int | None:
    """Rounds to what is kept."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def row(figures: Figures) -> list[float | int | None]:
    """Returns a run's figures in the order of COLUMNS; None: it has none of that name."""
    return [rounded(_at(figures, column)) for column in COLUMNS]


def _at(figures: Figures, column: str) -> float | None:
    value: Any = figures
    for part in column.split("."):
        value = None if value is None else value.get(part)
    return value if value is None else float(value) if isinstance(value, float) else int(value)


def _lines(kept: Mapping[str, Found]) -> Iterator[str]:
    yield f'{{"columns": {json.dumps(COLUMNS)},'
    yield '"experiments": {'
    for n, (name, found) in enumerate(kept.items()):
        yield f"{json.dumps(name)}: {{"
        yield f'"notes": {json.dumps(found.notes)},'
        yield f'"failed": {json.dumps(found.failed, sort_keys=True)},'
        yield f'"bound": {json.dumps(_bound_values(found.bound))},'
        parts = None if found.decomposition is None else asdict(found.decomposition)
        yield f'"decomposition": {json.dumps(parts and _rounded(parts))},'
        yield f'"{CALCULATED}": {json.dumps(_rounded(found.results.get(CALCULATED, {})), sort_keys=True)},'
        yield '"runs": {'
        for k, (label, own) in enumerate(sorted(found.runs.items(), key=lambda run: run[0])):
            yield f"{json.dumps(label)}: {json.dumps(row(own))}" + ("," if k < len(found.runs) - 1 else "")
        yield "}}" + ("," if n < len(kept) - 1 else "")
    yield "}}"


def _rounded(values: Mapping[str, float | None]) -> dict[str, float | int | None]:
    return {name: rounded(value) for name, value in values.items()}


def _bound_values(bound: Bound | None) -> dict[str, Any] | None:
    if bound is None:
        return None
    own = {"energy_wh": bound.energy_wh, "gpu_hours": bound.gpu_hours, "carbon_g": bound.carbon_g}
    return {**_rounded(own), "short": bound.short, "keeps": bound.keeps}


def _bound(values: Mapping[str, Any] | None) -> Bound | None:
    if values is None:
        return None
    return Bound(values["energy_wh"], values["gpu_hours"], (), values["short"], values["carbon_g"], values["keeps"])


def _found(columns: list[str], own: Mapping[str, Any]) -> Found:
    results = {label: _figures(columns, values) for label, values in own["runs"].items()}
    parts = own["decomposition"]
    return Found(
        {**results, CALCULATED: own[CALCULATED]},
        own["failed"],
        _bound(own["bound"]),
        None if parts is None else Decomposition(**parts),
        tuple(own["notes"]),
    )


def _figures(columns: list[str], values: list[Any]) -> Figures:
    found: dict[str, Any] = {}
    for column, value in zip(columns, values, strict=True):
        name, _, part = column.partition(".")
        if part:
            found.setdefault(name, {})[part] = value
        else:
            found[name] = value
    return found
