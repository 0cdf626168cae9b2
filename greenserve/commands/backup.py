"""backup and restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from greenserve import env
from greenserve.cli import fail

from .database import database as with_django

if TYPE_CHECKING:
    from greenserve.backup.archive import Manifest

FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.command()
@FILE
def backup(file: Path) -> None:
    """Write everything that this control plane keeps into one new FILE: the database, secrets, reports, journals and
    spools, what was learned, messages that wait in Redis, and the settings in force.

    GreenServe may run meanwhile. FILE holds secrets: only its owner can read it. It is read back and checked before the
    command ends.
    """
    from greenserve.backup import archive, run

    try:
        manifest = run.back_up(env.read(), file.absolute(), click.echo)
    except archive.BackupError as error:
        fail(str(error))
    click.echo(f"{file}: {len(manifest.entries)} parts, {file.stat().st_size / 1e6:.1f} MB; {_words(manifest)}")
    for path in manifest.left_out:
        click.echo(f"not in there, since it lies outside the data folder: {path}")


@click.command()
@FILE
@click.option("--check", is_flag=True, help="Check the file against its manifest, and change nothing.")
@with_django()
def restore(file: Path, check: bool) -> None:
    """Put a backup into the empty folder GREENSERVE_VAR and an empty database; then start GreenServe with `up`.

    Each part is compared with its SHA-256 before anything is written, and the ledger afterwards, to the microjoule.
    What is there is never written over.
    """
    from greenserve.backup import archive, database, run, state

    config = env.read()
    try:
        if check:
            manifest = archive.verify(file)
            click.echo(f"{file} is whole: {len(manifest.entries)} parts; {_words(manifest)}")
            return
        manifest, waiting = run.restore(config, file, database.known_migrations(), click.echo)
    except archive.BackupError as error:
        fail(str(error))
    click.echo(f"restored: {_words(manifest)}; the ledger is the same to the microjoule")
    click.echo(f"{waiting} messages wait to be stored. Settings of then: {config.var_dir / state.SETTINGS_KEPT_AS}")
    for path in manifest.left_out:
        click.echo(f"was not in the backup: {path}")


def _words(manifest: Manifest) -> str:
    entries, energy_uj = sum(manifest.ledger.entries.values()), sum(manifest.ledger.energy_uj.values())
    of = f"of {manifest.made_at} by GreenServe {manifest.greenserve}"
    return f"{of}, {entries} ledger entries of {energy_uj} microjoules"
