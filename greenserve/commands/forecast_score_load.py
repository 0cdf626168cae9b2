"""forecast score-load: models of load on a file of rates, as they would have forecast it while it ran."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from greenserve.cli import fail

if TYPE_CHECKING:
    from core.predictors.seasonal import Floats

_DAY_S = 86_400.0


def _read(path: Path) -> tuple[float, float, Floats]:
    """Returns when the first step began, a step's length, and the rate of each step, NaN in gaps.

    Raises ValueError, with the line and the remedy.
    """
    starts: list[float] = []
    rates: list[float] = []
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        missing = {"start_s", "requests_s"} - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"line 1: no column {', '.join(sorted(missing))}; name the columns start_s and requests_s")
        for row in rows:
            line = rows.line_num
            try:
                starts.append(float(row["start_s"]))
                rates.append(float(row["requests_s"]) if row["requests_s"] else math.nan)
            except (TypeError, ValueError):
                raise ValueError(
                    f"line {line}: give start_s and requests_s as numbers; an empty rate is a gap"
                ) from None
            if not math.isfinite(starts[-1]) or math.isinf(rates[-1]) or rates[-1] < 0.0:
                raise ValueError(f"line {line}: a start is a number of seconds, and a rate is not below 0")
    if len(starts) < 2:
        raise ValueError("give two steps at the least")
    step_s = starts[1] - starts[0]
    for number, (before_s, after_s) in enumerate(pairwise(starts)):
        if after_s - before_s != step_s or step_s <= 0.0:
            raise ValueError(
                f"line {number + 3}: steps are even and in order; here {before_s:g} s is before {after_s:g} s"
            )
    if _DAY_S % step_s:
        raise ValueError(f"steps of {step_s:g} s do not make up a day: give steps that do, such as 300 or 600 s")
    return starts[0], step_s, np.array(rates)


@click.command("score-load")
@click.option(
    "--rates",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="CSV with start_s and requests_s, in even steps; an empty rate is a gap.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def score_load(rates: Path, as_json: bool) -> None:
    """Show how good forecasts of the next six steps are on the later half of a recorded load: mean pinball loss of the
    median and of the 90 % quantile in requests/s, MAPE, and the median's loss where load rose and where it fell.

    Models that learn do so each day from all before. The last row is of the models that back-tests chose day by day.
    """
    from core.predictors import load_scores
    from core.predictors.seasonal import MODELS, History
    from telemetry.forecasts import learned

    try:
        first_s, step_s, values = _read(rates)
        history = History(values, round(first_s / step_s), round(_DAY_S / step_s), 0.0)
        found = load_scores.score(
            history, MODELS, learned.load_learners(MODELS, load_scores.STEPS), lambda line: click.echo(line, err=True)
        )
    except ValueError as error:
        fail(f"{rates}: {error}", 2)
    if as_json:
        document = {"step_s": step_s, "steps_ahead": load_scores.STEPS, "quantile": load_scores.QUANTILE}
        click.echo(json.dumps({**document, "scores": [asdict(one) for one in found]}, indent=1))
        return
    table = Table("Model", title=f"Next {load_scores.STEPS} steps of {step_s:g} s", title_justify="left")
    for name in ("Median", "90 %", "MAPE", "Rises", "Falls", "Days chosen"):
        table.add_column(name, justify="right")
    for one in found:
        losses = [f"{value:.3g}" if value is not None else "-" for value in (one.median, one.upper)]
        turns = [f"{value:.3g}" if value is not None else "-" for value in (one.rises, one.falls)]
        percentage = "-" if one.mape is None else f"{one.mape:.1%}"
        table.add_row(one.model, *losses, percentage, *turns, str(one.chosen_days) if one.chosen_days else "-")
    Console().print(table)
    if not learned.available():
        click.echo(f"  the LSTM has no score: PyTorch is not installed ({learned.REMEDY})")
