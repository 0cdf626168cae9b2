"""Makes a backup, and restores one: the order of the steps, and the servers that they need."""

from __future__ import annotations

import contextlib
import importlib.metadata
import tempfile
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

from greenserve import env
from greenserve.process import Child, StartError
from greenserve.servers import embedded, postgres_server
from greenserve.supervision import preflight, product_processes

from . import archive, database, state
from .archive import BackupError, Manifest

SERVERS_WITHIN_S = 60.0
Report = Callable[[str], None]


def back_up(config: env.Env, path: Path, report: Report) -> Manifest:
    """Writes everything that this control plane keeps into one new file, and reads it back. Raises BackupError.

    It may run. Files are copied first, then messages in Redis, then the database: a record that moves on meanwhile is
    in there twice, and stored once.
    """
    if path.exists():
        raise BackupError(f"{path} is there already: give another name")
    if not path.parent.is_dir():
        raise BackupError(f"{path.parent} is no folder: make it, or give another name")
    with _servers(config), tempfile.TemporaryDirectory(prefix=".greenserve-backup-", dir=path.parent) as folder:
        home = Path(folder)
        report(f"copying what is kept in {config.var_dir}")
        files = state.copy_files(config.var_dir, home / "files")
        variables = env.ours()
        for name, content in (
            (state.STREAMS, state.read_streams(product_processes.redis_url(config))),
            (state.SETTINGS, state.settings_file(variables)),
        ):
            files[name] = home / name
            files[name].write_bytes(content)
        report("dumping the database")
        files[state.DATABASE] = home / state.DATABASE
        url = product_processes.owner_url(config)
        with database.one_moment(url) as (connection, snapshot):
            database.dump(url, files[state.DATABASE], snapshot)
            manifest = Manifest(
                format=archive.FORMAT,
                greenserve=importlib.metadata.version("greenserve"),
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
                migrations=database.migrations(connection),
                ledger=database.ledger(connection),
                entries=[archive.entry_of(name, copy) for name, copy in files.items()],
                left_out=_outside(config, variables.get("GREENSERVE_SECRETS_FILE")),
            )
        archive.write(path, manifest, files)
    report("reading it back")
    return archive.verify(path)


def restore(config: env.Env, path: Path, known: Collection[str], report: Report) -> tuple[Manifest, int]:
    """Puts a backup into an empty data folder and an empty database. Returns how many messages wait to be stored.

    The ledger is compared with that of the manifest, to the microjoule. Raises BackupError.

    Args:
        known: Migrations of this version, as `app.name`.
    """
    report("checking the file")
    manifest = archive.verify(path)
    if unknown := [name for name in manifest.migrations if name not in known]:
        raise BackupError(
            f"{path} is of GreenServe {manifest.greenserve}, whose database this version does not know ({unknown[0]}): "
            "restore it with that version or a later one"
        )
    if found := state.in_the_way(config.var_dir):
        words = ", ".join(found[:3])
        raise BackupError(
            f"{config.var_dir} is not empty ({words}): move it away, or set GREENSERVE_VAR to a new folder"
        )
    modes = {entry.name: entry.mode for entry in manifest.entries}
    url = product_processes.owner_url(config)
    for name, content in archive.members(path):
        if name.startswith(f"{state.FILES}{env.SECRETS}/"):  # the embedded Redis starts by its password in there
            state.write_file(config.var_dir, name, content, modes[name])
    with _servers(config), tempfile.TemporaryDirectory(prefix="greenserve-restore-") as folder:
        if not database.is_empty(url):
            raise BackupError("the database is not empty: name an empty one in DATABASE_URL")
        dump, messages = Path(folder) / state.DATABASE, b""
        for name, content in archive.members(path):
            if name == state.DATABASE:
                with dump.open("wb") as file:
                    while block := content.read(archive.BLOCK_BYTES):
                        file.write(block)
            elif name == state.STREAMS:
                messages = content.read()
            elif name == state.SETTINGS:
                state.write_file(config.var_dir, state.SETTINGS_KEPT_AS, content, 0o600)
            else:
                state.write_file(config.var_dir, name, content, modes[name])
        report("restoring the database")
        database.restore(url, dump)
        with database.one_moment(url) as (connection, _):
            if (now := database.ledger(connection)) != manifest.ledger:
                raise BackupError(f"the ledger is {now} and not {manifest.ledger}: do not start GreenServe on it")
        waiting = state.write_streams(product_processes.redis_url(config), messages)
    return manifest, waiting


def _outside(config: env.Env, secrets_file: str | None) -> list[str]:
    """Returns what the product reads and does not keep: operators keep it."""
    found = [secrets_file or "", str(config.feeds_dir or "")]
    return [path for path in found if path and not Path(path).is_relative_to(config.var_dir)]


@contextlib.contextmanager
def _servers(config: env.Env) -> Iterator[None]:
    """Has the servers of this control plane running for a block: those that run, its own, or started ones."""
    lock = preflight.Lock.of(config.var_dir)
    if lock.holder() is not None:
        yield
        return
    children: list[Child] = []
    try:
        lock.take()
        try:
            specs = [] if config.database_url else [postgres_server.spec(config.var_dir)]
            specs += [] if config.redis_url else [embedded.redis(config.var_dir)]
            for spec in specs:
                children.append(Child(spec, config.var_dir / "log" / f"{spec.name}.log"))
                children[-1].start()
            for child in children:
                embedded.wait_ready(child, SERVERS_WITHIN_S)
            yield
        finally:
            for child in reversed(children):
                child.stop()
            lock.release()
    except (StartError, preflight.Refusal) as error:
        raise BackupError(str(error)) from None
