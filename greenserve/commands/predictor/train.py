"""predictor train: an encoder that reads prompts, trained on one's own requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from greenserve.cli import fail
from pools.lengths.encoder import needs
from pools.lengths.encoder.presets import PRESETS

from .versions import JSON, versions

if TYPE_CHECKING:
    from pools.lengths.encoder.version_files import Manifest

_INTERRUPTED = 130  # as shells say of a program that Ctrl-C ended


@click.command()
@click.option(
    "--data", required=True, metavar="FILE", type=click.Path(path_type=Path), help="CSV, CSV.gz, Parquet or JSONL."
)
@click.option("--text", default="prompt", show_default=True, help="Column of prompts.")
@click.option("--length", default="tokens", show_default=True, help="Column of the answers' lengths in tokens.")
@click.option(
    "--encoder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="A BERT, RoBERTa, XLM-R or ModernBERT, with *.safetensors and tokenizer.json.  [default: a new small one]",
)
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="bert",
    show_default=True,
    help="bert reads 512 tokens (the small one 128); freesh up to 8 chunks of 512 through a BiLSTM.",
)
@click.option(
    "--precision",
    type=click.Choice(["int8", "float32"]),
    default="int8",
    show_default=True,
    help="Of the weights that serve.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same encoder.")
@click.option("--epochs", type=click.IntRange(1), help="At most.  [default: 5; of a small one 30]")
@click.option("--name", default="encoder", show_default=True, help="The predictor of which this is the next version.")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write the version there, not into the data folder.",
)
@JSON
def train(
    data: Path,
    text: str,
    length: str,
    encoder: Path | None,
    preset: str,
    precision: str,
    seed: int,
    epochs: int | None,
    name: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train an encoder on prompts and the lengths of their answers, and keep it as a version.

    15 % of the prompts stop the training early and 15 % score it; the rest trains. Borders of the five classes are the
    20, 40, 60 and 80 % quantiles of the part that trains. Ctrl-C keeps the best epoch so far; in the first epoch, it
    ends with nothing. What is trained is not in use yet: greenserve predictor use NAME.
    """
    try:
        needs.require(needs.TO_TRAIN, "to train an encoder")
        from pools.lengths.encoder import training_data
        from pools.lengths.encoder.build import build
        from pools.lengths.encoder.training import TrainingOptions

        rows = training_data.read(data, text, length)
        options = TrainingOptions(preset, encoder, seed, epochs)

        def write(folder: Path) -> Manifest:
            return build(rows, (text, length), options, precision, folder, _progress, _tell)

        if out is not None:
            _say(_into(out, write), str(out), "", as_json)
            return
        with versions() as kept, kept.draft(name) as draft:
            made = write(draft)
            number = kept.publish(name, draft)
        _say(made, str(kept.path(name, number)), f"greenserve predictor use {name} {number}", as_json)
    except KeyboardInterrupt:
        _tell("Interrupted before the first epoch ended: nothing was written.")
        raise SystemExit(_INTERRUPTED) from None
    except (needs.LearnedMissing, ValueError, ArithmeticError, OSError) as error:
        _fail(error)


def _into(out: Path, write: Callable[[Path], Manifest]) -> Manifest:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out: {out} is there and not empty; name another folder")
    out.mkdir(parents=True, exist_ok=True)
    return write(out)


def _say(made: Manifest, where: str, then: str, as_json: bool) -> None:
    if as_json:
        import msgspec

        click.echo(json.dumps({"folder": where, "manifest": msgspec.to_builtins(made)}))
        return
    scores = made.scores
    recall = "unknown" if scores.recall_longest is None else f"{scores.recall_longest:.2f}"
    click.echo(
        f"On {scores.tested_on} rows that it never saw: accuracy {scores.accuracy:.2f} (always the same class: "
        f"{scores.base_accuracy:.2f}), recall of the longest class {recall}, MAE {scores.mae_tokens:.0f} tokens; a "
        f"prompt takes {scores.p50_ms:.1f} ms (p50), {scores.p99_ms:.1f} ms (p99) on one core."
    )
    click.echo(f"Written to {where}.")
    if then:
        click.echo(f"Put it into use: {then}")


def _progress(epoch: int, trained: float, stopped: float, better: bool) -> None:
    _tell(f"epoch {epoch}: loss {trained:.4f}, held out {stopped:.4f}{', the best so far' if better else ''}")


def _tell(words: str) -> None:
    click.echo(words, err=True)


def _fail(error: Exception) -> NoReturn:
    fail(str(error))
