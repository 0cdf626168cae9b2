"""predictor list, use, rollback and off: the versions of trained encoders, and the one that gateways ask.

What the predictor's process learns while it serves has versions of its own, one a day: they are listed, too, and
`rollback --learned` goes back to the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from greenserve import env
from greenserve.cli import fail
from pools.lengths import kept_state
from pools.lengths.encoder.version_files import UnusableVersion
from pools.lengths.encoder.versions import InUse, Version, Versions
from pools.lengths.kept_state import KeptState, NoVersion

JSON: Callable[..., Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def versions() -> Iterator[Versions]:
    """Gives the versions of this data folder; what of them cannot be used ends the program with one line."""
    try:
        yield Versions(env.read().var_dir)
    except UnusableVersion as error:
        fail(str(error))


@click.command("list")
@JSON
def list_(as_json: bool) -> None:
    """List the versions of trained encoders, with their scores, and of what is learned while serving.

    `*` marks the encoder in use. Of what is learned, each day's last state is a version, seven days at most.
    """
    with versions() as kept:
        found, used = kept.all(), kept.in_use()
    learned = kept_state.versions(_learned_folder())
    if as_json:
        days = [{"until": kept.day.isoformat(), "bytes": kept.size_bytes} for kept in learned]
        rows = [_row(one) for one in found]
        click.echo(json.dumps({"in_use": _used_row(used), "versions": rows, "learned": days}))
        return
    for one in found:
        click.echo(f"{'*' if one.in_use else ' '} {one.name} {one.number}: {_words(one)}")
    if not found:
        click.echo("No encoder was trained yet.")
    elif used is not None and used.services is not None:
        click.echo(f"In use for {', '.join(used.services)} alone.")
    for kept_day in learned:
        click.echo(f"  learned while serving, until {kept_day.day}: {kept_day.size_bytes / 1e6:.1f} MB")


@click.command()
@click.argument("name")
@click.argument("version", type=click.IntRange(1), required=False)
@click.option("--service", "services", multiple=True, help="Only for this service; may be given again.  [default: all]")
@JSON
def use(name: str, version: int | None, services: tuple[str, ...], as_json: bool) -> None:
    """Put VERSION of the encoder NAME into use, the newest if none is given. Gateways take it at once.

    All of its files are checked first. Its classes are those of the answers that it was trained on: name with --service
    the services whose answers these were.
    """
    with versions() as kept:
        _say(kept.use(name, version, services or None), as_json)


@click.command()
@click.argument("name", required=False)
@click.option("--learned", is_flag=True, help="Go back with what is learned while serving, not with an encoder.")
@JSON
def rollback(name: str | None, learned: bool, as_json: bool) -> None:
    """Goes back to what predicted lengths before: a trained encoder, or what is learned while serving.

    With NAME, the version of this encoder is put into use again that was in use before the present one. What is learned
    while serving stays.

    With --learned, the predictor goes on with what it had learned from words and prompts until the last day before the
    present state; given again, until the day before that. The encoder stays. What it goes back from is left aside as
    lengths.undone.npz.
    """
    if learned == (name is not None):
        raise click.UsageError("Name an encoder, or give --learned.")
    if name is not None:
        with versions() as kept:
            _say(kept.rollback(name), as_json)
        return
    day = _learned_until()
    words = f"The predictor goes on with what it had learned until {day}."
    click.echo(json.dumps({"learned": {"until": day}}) if as_json else words)


@click.command()
@JSON
def off(as_json: bool) -> None:
    """Take the encoder out of use; its versions stay. Lengths are then predicted without it."""
    with versions() as kept:
        was = kept.off()
    words = "The encoder is out of use." if was else "No encoder was in use."
    click.echo(json.dumps({"in_use": None, "was_in_use": was}) if as_json else words)


def _learned_until() -> str:
    """Goes back by a day, and returns which."""
    from core.predictors.text_predictor import LengthPredictor

    try:
        return KeptState(_learned_folder(), LengthPredictor.restored, LengthPredictor).roll_back().day.isoformat()
    except (NoVersion, OSError) as error:
        fail(str(error))


def _learned_folder() -> Path:
    return env.read().var_dir / kept_state.FOLDER


def _say(used: InUse, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"in_use": _used_row(used)}))
        return
    of_which = "all services" if used.services is None else ", ".join(used.services)
    click.echo(f"{used.name} {used.version} is in use for {of_which}.")


def _used_row(used: InUse | None) -> dict[str, Any] | None:
    if used is None:
        return None
    services = None if used.services is None else list(used.services)
    return {"name": used.name, "version": used.version, "services": services, "earlier": list(used.earlier)}


def _row(one: Version) -> dict[str, Any]:
    import msgspec

    manifest = None if one.manifest is None else msgspec.to_builtins(one.manifest)
    row = {"name": one.name, "version": one.number, "in_use": one.in_use}
    return {**row, "fault": one.fault or None, "manifest": manifest}


def _words(one: Version) -> str:
    if one.manifest is None:
        return f"cannot be used: {one.fault}"
    made, scores = one.manifest, one.manifest.scores
    recall = "" if scores.recall_longest is None else f", recall of the longest {scores.recall_longest:.2f}"
    return (
        f"{made.encoder}, {made.preset}, {made.precision}, {made.made_at[:10]}; {made.classes} classes, accuracy "
        f"{scores.accuracy:.2f} (always the same class: {scores.base_accuracy:.2f}){recall}, MAE "
        f"{scores.mae_tokens:.0f} tokens, {scores.p99_ms:.1f} ms p99"
    )
