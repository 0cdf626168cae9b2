"""predictor score: what predictors of answers' lengths are worth, on any file of prompts and lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from core.predictors import length_scores
from greenserve.cli import fail

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from core.predictors.length_scores import AnswerTable, LengthReport

MOST_TOKENS = 1 << 24
_TESTED = 24  # models by default: a minute and a half for 219 models and 644 prompts
_COLUMNS = (
    ("accuracy", "five classes"),
    ("longest_recall", "longest fifth"),
    ("class_error", "class error"),
    ("r2", "R2"),
    ("r2_log", "R2 of log"),
    ("mae_tokens", "MAE tokens"),
    ("accuracy_all_models", "all models' classes"),
    ("longest_recall_all_models", "their longest"),
)


@click.command()
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV, or CSV with gzip: a column with prompts, and for each model one with the tokens of its answers.",
)
@click.option("--text", default="prompt", show_default=True, help="The column with prompts.")
@click.option("--models", default=_TESTED, show_default=True, type=click.IntRange(0), help="Test so many; 0: all.")
@click.option("--folds", default=length_scores.FOLDS, show_default=True, type=click.IntRange(2, 20))
@click.option(
    "--seed", default=length_scores.SEED, show_default=True, help="Of folds, models and the order of answers."
)
@click.option(
    "--encoder",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A version that predictor train made, of other prompts: score alike by its vectors, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the figures of each model.")
def score(data: Path, text: str, models: int, folds: int, seed: int, encoder: Path | None, as_json: bool) -> None:
    """Scores predictors of answers' lengths by cross-validation over prompts.

    \b
    memory  what other models answered to the same prompt
    alike   what all models answered to the prompt most like it by an encoder's vectors (cosine at least 0.8)
    text    the words of the prompt and its sizes
    sizes   the sizes of the request alone
    base    how often each class comes

    Each learns, one answer at a time, from all prompts but those of one fold, which it is then asked of. Of those text,
    alike and sizes know no answer. memory knows the answers of the other models, and never that of the model it is
    asked of. Classes are the fifths of a model's own answers in the other folds; those of all models' answers are
    scored beside them. Models whose answers have no five classes are left out, and named.
    """
    table = read_table(data, text)

    def progress(done: int, of: int) -> None:
        click.echo(f"fold {done} of {of}", err=True)

    try:
        vectors = None if encoder is None else vectors_of(encoder, table.prompts)
        report = length_scores.score_lengths(table, models or None, folds, seed, vectors, progress)
    except ValueError as error:
        fail(f"{data}: {error}", 2)
    if as_json:
        about = {"file": data.name, "prompts": len(table.prompts), "models": len(table.models)}
        click.echo(json.dumps({**about, "folds": folds, "seed": seed, **_as_json(report)}))
        return
    _show(table, report, folds, seed)


def read_table(path: Path, text: str) -> AnswerTable:
    """Reads a table of prompts and answers. Ends the program where it is none, and says which column is wrong."""
    import numpy as np
    import polars as pl

    try:
        frame = pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        fail(f"{path}: it is no CSV: {str(error).splitlines()[0]}", 2)
    if text not in frame.columns:
        fail(f"{path}: it has no column {text}; name the one with prompts by --text", 2)
    models = [name for name in frame.columns if name != text]
    if not models:
        fail(f"{path}: it has no column with lengths beside {text}", 2)
    tokens = np.zeros((frame.height, len(models)), np.int64)
    for column, name in enumerate(models):
        written = frame[name].fill_null("").str.strip_chars()
        found = written.cast(pl.Float64, strict=False)
        wrong = (written != "") & (found.is_null() | ~found.is_between(0, MOST_TOKENS))
        if wrong.any():
            line = wrong.arg_max() or 0
            fail(f"{path}: column {name}, line {line + 2}: {written[line]!r} is no number of tokens", 2)
        tokens[:, column] = found.fill_null(0.0).to_numpy()
    prompts = tuple(frame[text].fill_null("").to_list())
    return length_scores.AnswerTable(prompts, tuple(models), tokens)


def vectors_of(encoder: Path, prompts: Sequence[str]) -> NDArray[np.float32]:
    """Returns what an encoder makes of prompts, (p, d). Ends the program where it cannot be used, and says why."""
    from core.ports import AdapterError
    from pools.lengths.encoder.needs import LearnedMissing
    from pools.lengths.encoder.predictor import EncoderPredictor
    from pools.lengths.encoder.version_files import UnusableVersion

    try:
        return EncoderPredictor.load(encoder).embed(prompts)
    except (UnusableVersion, LearnedMissing, AdapterError) as error:
        fail(f"--encoder: {error}")


def _as_json(report: LengthReport) -> dict[str, Any]:
    means = {name: report.mean(name) for name in report.figures}
    return {
        "tested": list(report.tested),
        "left_out": list(report.left_out),
        "mean": {name: None if one is None else _known(asdict(one)) for name, one in means.items()},
        "confusion": {name: [list(row) for row in rows] for name, rows in report.confusion.items()},
        "by_model": {
            name: {model: _known(asdict(one)) for model, one in by.items()} for name, by in report.figures.items()
        },
    }


def _known(figures: dict[str, float]) -> dict[str, float | None]:
    return {name: round(value, 4) if math.isfinite(value) else None for name, value in figures.items()}


def _show(table: AnswerTable, report: LengthReport, folds: int, seed: int) -> None:
    tested = f"{len(report.tested)} of {len(table.models)} models tested"
    click.echo(f"{len(table.prompts)} prompts, {tested}, {folds} folds, seed {seed}; means over models")
    if report.left_out:
        click.echo(f"left out, since their answers have no five classes of lengths: {', '.join(report.left_out)}")
    click.echo("".join([" " * 8, *(f"{title:>{max(9, len(title) + 2)}}" for _, title in _COLUMNS)]))
    for name in report.figures:
        mean = report.mean(name)
        if mean is None:
            click.echo(f"{name:8}  says nothing: there is no answer to the same prompt, or to one like it")
            continue
        values = (getattr(mean, key) for key, _ in _COLUMNS)
        cells = (
            f"{value:>{max(9, len(title) + 2)}.{1 if title == 'MAE tokens' else 3}f}"
            for value, (_, title) in zip(values, _COLUMNS, strict=True)
        )
        click.echo(f"{name:8}{''.join(cells)}")
