"""`greenserve truth`: the engine model, frozen, against measured tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from greenserve.cli import fail

if TYPE_CHECKING:
    from core.engine.truth.board import Board

FORMATS = ("mlenergy", "clock-sweep", "nodes")
_SWEPT = ("mistralai/Mistral-7B-Instruct-v0.3", "V100-PCIe-32GB")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="What the table's rows are.")
@click.option(
    "--configs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder of models' folders, OWNER__NAME/config.json.",
)
@click.option("--model", default=_SWEPT[0], show_default=True, help="Of a clock sweep: the model that was measured.")
@click.option("--gpu", default=_SWEPT[1], show_default=True, help="Of a clock sweep: the GPU type.")
@click.option("--by", multiple=True, help="Also show scores by this: gpu, model, task, kind, bits, series, phase.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print all as JSON, each row with what was measured and predicted."
)
def truth(file: Path, kind: str, configs: Path, model: str, gpu: str, by: tuple[str, ...], as_json: bool) -> None:
    """Scores the engine model against the measurements in FILE, without fitting anything to them.

    \b
    mlenergy     serving configurations kept at a batch: ITL, power, joules a token
    clock-sweep  one kind of work at locked clocks: time, power, energy, and the clock that the model chooses
    nodes        idle power of nodes with a model loaded
    """
    from core.engine.engine_model import UnknownConfiguration
    from core.engine.truth import clock_sweep, nodes, serving
    from core.engine.truth.board import BadTable

    shape_of = _shapes(configs)
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            rows = list(csv.DictReader(text))
        if kind == "clock-sweep":
            board = clock_sweep.score(rows, shape_of, model, gpu)
        elif kind == "nodes":
            board = nodes.score(rows)
        else:
            board = serving.score(rows, shape_of)
    except (OSError, UnicodeDecodeError, csv.Error, BadTable, UnknownConfiguration) as error:
        fail(f"{file}: {error}")
    except ValueError as error:
        fail(f"--model {model}: {error}")
    if as_json:
        click.echo(json.dumps({"file": file.name, "format": kind, **board.document()}, indent=1))
    else:
        _show(board, by)


def _shapes(configs: Path) -> Callable[[str], str]:
    from pools.model_files.hugging_face import shape_from

    @lru_cache
    def shape_of(name: str) -> str:
        folder = configs / name.replace("/", "__")
        if not folder.is_dir():
            raise ValueError(f"--configs has no folder {folder.name}")
        return shape_from(str(folder)).key

    return shape_of


def _show(board: Board, by: tuple[str, ...]) -> None:
    console = Console()
    for name in (None, *by):
        table = Table(box=None, pad_edge=False)
        table.add_column(name or "")
        for title in ("quantity", "rows", "MAPE %", "median %", "bias %"):
            table.add_column(title, justify="left" if title == "quantity" else "right")
        for key, scores in board.scores(name).items():
            for quantity, one in scores.items():
                figures = (f"{100 * value:.1f}" for value in (one.mape, one.median))
                table.add_row(key, quantity, str(one.rows), *figures, f"{100 * one.bias:+.1f}")
        console.print(table)
    for choice in board.choices:
        console.print(_words(choice))
    for reason, rows in board.refusals.items():
        console.print(f"not scored, {rows} rows: {reason}", highlight=False)


def _words(choice: Any) -> str:
    return (
        f"{choice.series}: the model chooses {choice.chosen_mhz:g} MHz, measured best {choice.best_mhz:g} MHz, "
        f"{100 * choice.regret:.1f} % more energy"
    )
