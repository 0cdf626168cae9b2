"""predictor list, use, rollback and off: the versions of trained encoders, and the one that gateways ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from greenserve import env
from greenserve.cli import fail
from pools.lengths.encoder.version_files import UnusableVersion
from pools.lengths.encoder.versions import InUse, Version, Versions

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
    """List the versions of trained encoders, with their scores. `*` marks the one in use."""
    with versions() as kept:
        found, used = kept.all(), kept.in_use()
    if as_json:
        click.echo(json.dumps({"in_use": _used_row(used), "versions": [_row(one) for one in found]}))
        return
    for one in found:
        click.echo(f"{'*' if one.in_use else ' '} {one.name} {one.number}: {_words(one)}")
    if not found:
        click.echo("No encoder was trained yet.")
    elif used is not None and used.services is not None:
        click.echo(f"In use for {', '.join(used.services)} alone.")


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
@click.argument("name")
@JSON
def rollback(name: str, as_json: bool) -> None:
    """Put the version of the encoder NAME into use again that was in use before the present one."""
    with versions() as kept:
        _say(kept.rollback(name), as_json)


@click.command()
@JSON
def off(as_json: bool) -> None:
    """Take the encoder out of use; its versions stay. Lengths are then predicted without it."""
    with versions() as kept:
        was = kept.off()
    words = "The encoder is out of use." if was else "No encoder was in use."
    click.echo(json.dumps({"in_use": None, "was_in_use": was}) if as_json else words)


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
