"""A workload made of two parts: arrivals at the rates of a table, and lengths like those of a template."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from core.simulator.workload.curves import RateCurve
from core.simulator.workload.lengths import AZURE_CONV, Distribution, Lengths, Quantiles, quantile_table
from core.simulator.workload.spec import Workload
from core.simulator.workload.trace import TraceError, read_trace

COLUMNS = ("start_s", "requests_s")


@dataclass(frozen=True, slots=True)
class RateTable:
    """Rates in requests/s of even steps, over and over; `mean_rps` over all of them."""

    curve: RateCurve
    mean_rps: float


def read_rates(path: Path) -> RateTable:
    """Reads a CSV file, `.gz` too, with the columns start_s and requests_s: when a step begins, and its rate.

    Raises:
        TraceError: The file cannot be read, or a line is wrong (named).
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
        lines = list(csv.DictReader(text.splitlines()))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if len(lines) < 2 or any(name not in lines[0] for name in COLUMNS):
        raise TraceError(f"{path}: a table of rates has the columns {', '.join(COLUMNS)}, and at least two steps")
    starts_s, rates = ([_number(path, n, name, line[name]) for n, line in enumerate(lines, 2)] for name in COLUMNS)
    step_s = starts_s[1] - starts_s[0]
    for n, (start_s, following_s) in enumerate(pairwise(starts_s), 3):
        if step_s <= 0.0 or not math.isclose(following_s - start_s, step_s, rel_tol=1e-6):
            raise TraceError(f"{path}, line {n}: start_s '{following_s:g}' must be {step_s:g} s after the one before")
    if max(rates) <= 0.0:
        raise TraceError(f"{path}: one of the rates must be above 0")
    return RateTable(RateCurve(step_s, tuple(rates)), float(np.mean(rates)))


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise TraceError(f"{path}, line {line}: {name} '{text}' is not a number from 0 up")
    return value


def settings_of(table: RateTable, scale: float, workload: Workload, template: Path | None) -> tuple[str, ...]:
    """Returns the settings of a scenario that put the rates, times `scale`, in the place of its workload's.

    Lengths are drawn from the quantiles of `template`, a trace; without one they are the workload's own, or those of
    the Azure conversation hour where it has none.

    Raises:
        TraceError: The template cannot be used.
    """
    curve = {"step_s": table.curve.step_s, "rates": list(table.curve.rates)}
    lengths = None if template is None else quantile_table(read_trace(template))
    found = [
        "workload.trace=",
        "workload.generate=poisson",
        f"workload.rate_rps={scale * table.mean_rps:.9g}",
        "workload.rate_scale=1",
        "workload.rates=",
        f"workload.rate_curve={json.dumps(curve)}",
    ]
    if lengths is not None:
        found.append(f"workload.lengths={json.dumps(_section(lengths))}")
    elif workload.generator is None or workload.generator.lengths == AZURE_CONV:
        found.append("workload.lengths=azure-conv")
    return tuple(found)


def _section(lengths: Lengths) -> dict[str, object]:
    return {"prompt": _quantiles(lengths.prompt), "output": _quantiles(lengths.output)}


def _quantiles(lengths: Distribution) -> dict[str, object]:
    assert isinstance(lengths, Quantiles), "quantile_table makes no other"
    return {"quantiles": {"shares": list(lengths.shares), "tokens": list(lengths.tokens)}}
