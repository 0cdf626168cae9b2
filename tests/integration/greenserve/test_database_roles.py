"""What the role that the product works under may do in PostgreSQL, and what not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import ProgrammingError, connection, transaction

from greenserve.plain_errors import explain
from greenserve.servers.postgres_server import RUN_ROLE
from greenserve.supervision import database_roles
from pools.access import audit
from pools.models import AuditEntry, Gpu, Pool, Site
from telemetry.carbon import feeds
from telemetry.models import CarbonFeed, CarbonPoint, EnergyEntry, GpuSample
from telemetry.storage import time_partitions
from telemetry.storage.brin_summaries import Summaries

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture(autouse=True)
def granted(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [RUN_ROLE])
        if not cursor.fetchone():  # a server of one's own
            cursor.execute(f"CREATE ROLE {RUN_ROLE}")
    database_roles.grant(RUN_ROLE)


@contextmanager
def as_the_product() -> Iterator[None]:
    execute(f"SET ROLE {RUN_ROLE}")
    try:
        yield
    finally:
        execute("RESET ROLE")


REFUSED = [
    "TRUNCATE pools_auditentry",
    "ALTER TABLE pools_auditentry DISABLE TRIGGER ALL",
    "ALTER TABLE pools_auditentry DISABLE TRIGGER pools_auditentry_no_truncate",
    "DROP TRIGGER pools_auditentry_append_only ON pools_auditentry",
    "DROP TABLE pools_auditentry",
    "UPDATE pools_auditentry SET label = ''",
    "DELETE FROM pools_auditentry",
    "SET session_replication_role = replica",
    "CREATE OR REPLACE FUNCTION pools_refuse_change() RETURNS trigger LANGUAGE sql AS 'SELECT NULL'",
    "TRUNCATE telemetry_energyentry",
    "UPDATE telemetry_energyentry SET energy_uj = 0",
    "UPDATE telemetry_energyentry SET site_id = 1",
    "DELETE FROM telemetry_energyentry",
    "DELETE FROM telemetry_settlement",
    "UPDATE telemetry_carbonpoint SET value_g_per_kwh = 0",
    "TRUNCATE telemetry_requestrecord",
    "TRUNCATE pools_site CASCADE",
    "DELETE FROM django_migrations",
    "CREATE TABLE mine (x int)",
    "CREATE TEMPORARY TABLE mine (x int)",
    "CREATE SCHEMA mine",
    "CREATE ROLE mine",
    "SELECT telemetry_make_partition('pools_auditentry', '2026-05-01')",
    "SELECT telemetry_drop_partition('telemetry_requestrecord', '2026-05-01')",
    "SELECT telemetry_sum_up_brin('telemetry_requestshare_settlement', 0, 32, 32)",
]


@pytest.mark.parametrize("statement", REFUSED)
def test_product_has_no_right_to(statement: str) -> None:
    time_partitions.ensure([date(2026, 5, 1)])
    with (
        as_the_product(),
        pytest.raises(ProgrammingError) as refused,
        transaction.atomic(),
    ):
        execute(statement)
    assert getattr(refused.value.__cause__, "sqlstate", None) == "42501", refused.value
    assert "no right" in (explain(refused.value) or "")


def test_product_writes_the_trail_and_changes_the_fleet(demo_rows: object) -> None:
    with as_the_product():
        before = AuditEntry.objects.count()
        site = Site.objects.first()
        assert site is not None
        values = audit.values(site)
        Site.objects.filter(pk=site.pk).update(pue=1.3)
        audit.record(audit.Actor(User(is_superuser=True)), "update", site, values, values | {"pue": 1.3})
        assert AuditEntry.objects.count() == before + 1


def test_product_keeps_partitions_and_writes_into_them(demo_rows: object) -> None:
    gpu = Gpu.objects.first()
    with as_the_product():
        time_partitions.ensure([date(2026, 4, 1)])
        dropped = time_partitions.keep(14, NOW)
        assert "telemetry_gpusample_20260401" in dropped
        GpuSample.objects.create(at=NOW, gpu=gpu, energy_j=1.0)
        Summaries().keep_up(NOW)
        execute("INSERT INTO telemetry_gpusample_20260502 (at, gpu_id) VALUES ('2026-05-02 01:00+00', 1)")
        execute("SELECT telemetry_sum_up_brin(i.indexrelid, 0, 32, 32) FROM pg_index i "
                "WHERE i.indrelid = 'telemetry_gpusample_20260501'::regclass")  # fmt: skip
        execute("SELECT nextval(pg_get_serial_sequence('telemetry_settlement', 'id'))")


def test_product_forgets_forecasts_and_pools_of_the_ledger(demo_rows: object) -> None:
    feed, gpu, pool = CarbonFeed.objects.first(), Gpu.objects.first(), Pool.objects.first()
    assert feed is not None
    assert gpu is not None
    CarbonPoint.objects.create(
        feed=feed,
        start_at=NOW,
        end_at=NOW + timedelta(minutes=5),
        value_g_per_kwh=1.0,
        raw_unit="gCO2e/kWh",
        forecast=True,
        issued_at=NOW,
    )
    entry = EnergyEntry.objects.create(
        gpu=gpu,
        site=gpu.node.cluster.site,
        pool=pool,
        start_at=NOW,
        end_at=NOW + timedelta(seconds=10),
        kind="idle",
        energy_uj=1,
    )
    with as_the_product():
        assert feeds.forget(NOW + timedelta(days=1)) >= 1
        EnergyEntry.objects.filter(pk=entry.pk).update(pool=None)
    entry.refresh_from_db()
    assert entry.pool_id is None


def test_more_rights_than_needed_are_named() -> None:
    assert "owns the tables" in database_roles.beyond()[0]
    with as_the_product():
        assert database_roles.beyond() == []


def test_granting_to_the_owner_itself_takes_nothing() -> None:
    rights = "SELECT current_user::text, relacl::text FROM pg_class WHERE relname = 'pools_auditentry'"
    with connection.cursor() as cursor:
        cursor.execute(rights)
        owner, before = cursor.fetchone()
        database_roles.grant(owner)
        cursor.execute(rights)
        assert cursor.fetchone() == (owner, before)
