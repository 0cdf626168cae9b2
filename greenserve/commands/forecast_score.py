"""forecast score: carbon models on any file of grids' hours, as CarbonCast scores its own."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from greenserve.cli import fail

if TYPE_CHECKING:
    from core.predictors.carbon_scores import GridScores

_DAY = click.DateTime(formats=["%Y-%m-%d"])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--carbon", type=_FILE, required=True, help="CSV with region, utc, g_per_kwh; may be compressed (.gz).")
@click.option("--weather", type=_FILE, help="CSV with region, utc, and the weather forecast for that hour.")
@click.option("--from", "since", type=_DAY, required=True, help="First day that is scored, UTC.")
@click.option("--to", "until", type=_DAY, required=True, help="Last day that is scored, UTC.")
@click.option("--grid", "names", multiple=True, help="Only this grid; may be given more than once.")
@click.option(
    "--relearn-days", type=click.IntRange(1, 3_660), default=92, show_default=True, help="Learn again so often."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def score(
    carbon: Path,
    weather: Path | None,
    since: datetime,
    until: datetime,
    names: tuple[str, ...],
    relearn_days: int,
    as_json: bool,
) -> None:
    """Show how good forecasts of 96 hours are, one a day, from 28 days of history: MAPE by day ahead, pinball loss, how
    many hours the interval from 10 to 90 % covers, the grams that a plan by the forecast costs, and seconds of CPU.

    Models that learn do so from all that lies before a forecast; `gru` from all grids of the file, also where only some
    are scored. Scoring takes about two minutes a grid, and some minutes more for `gru`. `*` marks the model that a
    back-test on the 60 days before chooses.
    """
    from core.predictors import carbon_scores
    from telemetry.forecasts.learned import GRU
    from telemetry.forecasts.learned.carbon_makers import GruMakers

    from .carbon_files import BadFile, grids

    if until < since:
        fail("--to lies before --from", 2)
    try:
        known = grids(carbon, weather)
    except BadFile as error:
        fail(str(error), 2)
    unknown = sorted(set(names) - set(known))
    if unknown:
        fail(f"--grid: {carbon} has no {', '.join(unknown)}; it has {', '.join(known)}", 2)
    found, networks = [], GruMakers(known, relearn_days)
    for name in names or known:
        grid = known[name]
        start, end = (_hours(day) - grid.first_hour for day in (since, until + timedelta(days=1)))
        end = min(end, grid.carbon.size)
        try:
            found.append(carbon_scores.score(name, grid, start, end, relearn_days, _progress, {GRU: networks.of(name)}))
        except ValueError as error:
            click.echo(f"{error}", err=True)
    if not found:
        fail("no grid has enough hours for a score", 2)
    if as_json:
        click.echo(json.dumps(document(found, since, until, relearn_days), indent=1))
    else:
        _show(found)


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _hours(day: datetime) -> int:
    return round(day.replace(tzinfo=UTC).timestamp()) // 3_600


def document(found: list[GridScores], since: datetime, until: datetime, relearn_days: int) -> dict[str, Any]:
    """Returns what `--json` prints: shares as shares, grams and seconds, null where nothing is known."""
    return {
        "from": f"{since:%Y-%m-%d}",
        "to": f"{until:%Y-%m-%d}",
        "relearn_days": relearn_days,
        "grids": [asdict(grid) for grid in found],
    }


def _show(found: list[GridScores]) -> None:
    console = Console()
    for grid in found:
        table = Table(title=grid.grid, title_justify="left")
        table.add_column("Model")
        for name in ("Day 1", "Day 2", "Day 3", "Day 4", "Pinball", "10-90 %", "Regret", "CPU", "Learning"):
            table.add_column(name, justify="right")
        for one in grid.scores:
            mark = "* " if one.model == grid.chosen else "  "
            days = ["-" if day is None else f"{day:.1%}" for day in one.mape]
            covers = "-" if one.coverage is None else f"{one.coverage:.0%}"
            seconds = (f"{one.forecast_s:.2f} s", f"{one.training_s:.0f} s" if one.training_s else "-")
            table.add_row(mark + one.model, *days, f"{one.pinball:.3g}", covers, f"{one.regret_g:.0f} g", *seconds)
        console.print(table)
        for model, why in grid.silent.items():
            click.echo(f"  {model} has no score: {why}")
        if grid.scores:
            one = grid.scores[0]
            click.echo(
                f"  MAPE by day ahead, mean of {one.forecasts} forecasts; regret of 24 kWh in the cleanest quarter of "
                f"four days:\n  the truth's plan emits {one.clean_g:.0f} g, running evenly {one.chance_g:.0f} g more"
            )
