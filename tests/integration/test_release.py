"""What releases left behind: their databases become today's without loss. `tests.fakes.release` records them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import Sum

from pools.models import Service
from scheduler.models import Decision
from telemetry.models import EnergyEntry, Report, Settlement
from tests.fakes import metering
from tests.fakes.house import moment
from tests.fakes.release import dumps, rows
from tests.oracles import settled_lines

RELEASES = sorted((Path(__file__).parents[1] / "fixtures").glob("release_*"))
QUARTER_HOUR_UJ = 900 * 300 * 10**6  # of one GPU at 300 W, as `metering.quarter_hour` has it


COLUMNS: dict[str, dict[tuple[str, str], str]] = {}  # of each release's tables, as it left them
# Types that take all values of the type that a column had.
WIDER = {"integer": {"bigint"}, "smallint": {"integer", "bigint"}, "character varying": {"text"}}


def columns() -> dict[tuple[str, str], str]:
    """Returns types by table and column; of columns that an INSERT must fill in: with NOT NULL behind."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name, data_type, is_nullable = 'NO' AND column_default IS NULL"
            " AND is_identity = 'NO' AND is_generated = 'NEVER' FROM information_schema.columns"
            " WHERE table_schema = 'public'"
        )
        return {
            (table, column): f"{kind} NOT NULL" if must else kind
            for table, column, kind, must in cursor.fetchall()
            if not table[-8:].isdigit()
        }


def counts() -> dict[str, int]:
    """Rows of each table of ours; a partitioned table's are those of its partitions."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        there = {name for (name,) in cursor.fetchall()}
        found = {}
        for table in sorted(there):
            if table.startswith(rows.OURS) and not table[-8:].isdigit():
                cursor.execute(f"SELECT count(*) FROM {table}")
                found[table] = cursor.fetchone()[0]
    return found


@pytest.fixture(scope="module", params=RELEASES, ids=lambda folder: folder.name)
def upgraded(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, int]]:
    """Django is connected to the release's database, migrated; yields how many rows were in it before that."""
    ours = connection.settings_dict["NAME"]
    theirs = f"{ours}_release"
    with django_db_blocker.unblock():
        _say(f"DROP DATABASE IF EXISTS {theirs}", f"CREATE DATABASE {theirs}")
        connection.close()
        connection.settings_dict["NAME"] = theirs
        try:
            dumps.load(request.param / "dump.sql.gz")
            before = counts()
            COLUMNS[request.param.name] = columns()
            call_command("migrate", verbosity=0, interactive=False)
            yield before
        finally:
            connection.close()
            connection.settings_dict["NAME"] = ours
            _say(f"DROP DATABASE {theirs}")


def _say(*words: str) -> None:
    with connection.cursor() as cursor:
        for each in words:
            cursor.execute(each)


@pytest.fixture
def db(upgraded: dict[str, int], django_db_blocker: Any) -> Iterator[None]:
    """In place of pytest-django's: the release's database, which no test here writes to."""
    with django_db_blocker.unblock():
        yield


def test_no_row_is_lost_when_a_release_is_upgraded(upgraded: dict[str, int], db: None) -> None:
    now = counts()
    assert {table: now.get(table) for table in upgraded} == upgraded
    assert [table for table, number in upgraded.items() if not number] == []


def test_processes_of_a_release_work_on_while_its_database_is_upgraded(
    upgraded: dict[str, int], db: None, request: pytest.FixtureRequest
) -> None:
    """They read the columns that they know, and insert rows without those that they do not know."""
    release = request.node.callspec.params["upgraded"].name
    then, now = COLUMNS[release], columns()
    gone = {f"{table}.{column}" for table, column in then if (table, column) not in now}
    assert gone == set(), "dropped or renamed: leave it in the database until the release after this one"
    narrow = {
        f"{table}.{column}: {kind} became {now[table, column]}"
        for (table, column), kind in then.items()
        if _kind(now[table, column]) != _kind(kind) and _kind(now[table, column]) not in WIDER.get(_kind(kind), ())
    }
    assert narrow == set(), "of another type"
    tables = {table for table, _ in then}
    missing = {
        f"{table}.{column}"
        for (table, column), kind in now.items()
        if table in tables and kind.endswith("NOT NULL") and not then.get((table, column), "").endswith("NOT NULL")
    }
    assert missing == set(), "new and without a default in the database: give the field a db_default"


def _kind(words: str) -> str:
    return words.removesuffix(" NOT NULL")


def test_every_model_is_read_when_a_release_is_upgraded(upgraded: dict[str, int], db: None) -> None:
    """A table that the release did not have may be empty, but can be read."""
    empty = {table for table, model in rows.tables().items() if not list(model._default_manager.all()[:50])}
    assert empty & upgraded.keys() == set()


def test_the_ledger_adds_up_when_a_release_is_upgraded(db: None) -> None:
    start, end = moment(metering.START), moment(metering.END)
    (total,) = settled_lines.totals(start, end).values()
    entered = EnergyEntry.objects.filter(start_at__gte=start, start_at__lt=end).aggregate(uj=Sum("energy_uj"))
    assert total["energy_uj"] == entered["uj"] == QUARTER_HOUR_UJ
    assert Settlement.objects.filter(revision=1, cause="carbon").exists()
    first, second = Report.objects.exclude(summary=None).order_by("pk")
    assert second.revises == first
    assert first.summary["energy_j"] == second.summary["energy_j"] == QUARTER_HOUR_UJ / 1e6
    assert second.summary["location_gco2e"] > first.summary["location_gco2e"]


def test_decisions_say_why_when_a_release_is_upgraded(db: None) -> None:
    decision = Decision.objects.filter(kind="carbon").first()
    assert decision is not None
    assert decision.summary
    assert any(alternative["chosen"] for alternative in decision.alternatives)


def test_policies_have_their_new_names_when_a_release_is_upgraded(db: None) -> None:
    services = list(Service.objects.all())
    assert {service.policy for service in services} == {"greenserve_epochs"}
    assert all(service.policy_knobs() for service in services)
