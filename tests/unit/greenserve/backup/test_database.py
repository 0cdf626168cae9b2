"""Which of PostgreSQL's programs a backup runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenserve.backup import database
from greenserve.backup.archive import BackupError

URL = "postgresql://greenserve@db/greenserve?sslmode=verify-full"


def test_database_by_tls_needs_the_programs_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match="on Debian the package postgresql-client"):
        database.dump(URL, tmp_path / "dump", "snapshot")
    program = tmp_path / "pg_dump"
    program.write_text('#!/bin/sh\nfor word; do echo "$word"; done > "$0.words"\n')
    program.chmod(0o755)
    database.dump(URL, tmp_path / "dump", "snapshot")
    assert any("sslmode=verify-full" in word for word in Path(f"{program}.words").read_text().splitlines())
