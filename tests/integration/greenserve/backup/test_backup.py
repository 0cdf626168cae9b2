"""A backup of one installation becomes another one, whose ledger is the same to the microjoule."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from greenserve import env
from greenserve.backup import run, state
from greenserve.backup.archive import BackupError
from greenserve.backup.database import known_migrations
from pools import demo, wire
from pools.models import Gpu
from telemetry.models import EnergyEntry
from tests.integration.scheduler.test_batches import child_env

pytestmark = pytest.mark.django_db(transaction=True)
AT = datetime(2026, 11, 27, 12, tzinfo=UTC)


def quiet(_: str) -> None:
    """Reports to nobody."""


def test_all_is_restored_and_nothing_is_written_over(tmp_path: Path, redis_client, empty_database: str) -> None:
    demo.load()
    gpu = Gpu.objects.select_related("node__cluster").first()
    for number in range(50):
        start = AT + timedelta(seconds=10 * number)
        EnergyEntry.objects.create(
            gpu=gpu,
            site=gpu.node.cluster.site,
            start_at=start,
            end_at=start + timedelta(seconds=10),
            kind="idle",
            energy_uj=10**12 + number,
        )
    source, target = tmp_path / "source", tmp_path / "target"
    kept = {"secret-key": "hush", "secrets/nodes-authority.pem": "pem", "spool/requests.g.1.jsonl": "row"}
    for name, content in kept.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(content)
    redis_client.xadd(wire.REQUEST_STREAM, {"b": b"one"})
    redis_client.xadd(wire.batch_stream("n1"), {"b": b"two"})
    here = child_env()
    config = env.read({"GREENSERVE_VAR": str(source), **{n: here[n] for n in ("DATABASE_URL", "REDIS_URL")}})
    path = tmp_path / "backup.tar"
    manifest = run.back_up(config, path, quiet)
    assert manifest.ledger.energy_uj["telemetry_energyentry"] == 50 * 10**12 + sum(range(50))
    with pytest.raises(BackupError, match="is there already"):
        run.back_up(config, path, quiet)

    redis_client.delete(wire.REQUEST_STREAM, wire.batch_stream("n1"))
    empty = env.read({"GREENSERVE_VAR": str(target), "DATABASE_URL": empty_database, "REDIS_URL": here["REDIS_URL"]})
    with pytest.raises(BackupError, match="with that version or a later one"):
        run.restore(empty, path, known_migrations() - {manifest.migrations[-1]}, quiet)
    with pytest.raises(BackupError, match="is not empty"):
        run.restore(config, path, known_migrations(), quiet)
    restored, waiting = run.restore(empty, path, known_migrations(), quiet)
    assert (restored, waiting) == (manifest, 2)
    assert [fields for _, fields in redis_client.xrange(wire.batch_stream("n1"))] == [{b"b": b"two"}]
    assert [fields for _, fields in redis_client.xrange(wire.REQUEST_STREAM)] == [{b"b": b"one"}]
    assert (target / "secrets" / "nodes-authority.pem").read_text() == "pem"
    assert (target / "secret-key").read_text() == "hush"
    assert (target / state.SETTINGS_KEPT_AS).stat().st_mode & 0o777 == 0o600
    with psycopg.connect(empty_database) as other:
        assert other.execute("SELECT count(*), sum(energy_uj) FROM telemetry_energyentry").fetchone() == (
            50,
            50 * 10**12 + sum(range(50)),
        )
        tables = (
            "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p', 'i') AND relnamespace = 'public'::regnamespace"
        )
        triggers = "SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal"
        with connection.cursor() as cursor:
            for question in (tables, triggers):
                cursor.execute(question)
                assert other.execute(question).fetchone() == cursor.fetchone(), "no table, index or trigger is missing"
    for name in ("secrets", "spool"):
        (target / name).rename(tmp_path / f"moved-{name}")
    (target / state.SETTINGS_KEPT_AS).unlink()
    with pytest.raises(BackupError, match="database is not empty"):
        run.restore(empty, path, known_migrations(), quiet)


@pytest.fixture
def empty_database() -> Iterator[str]:
    here, name = child_env()["DATABASE_URL"], f"restored_{secrets.token_hex(4)}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    yield f"{here.rsplit('/', 1)[0]}/{name}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")
