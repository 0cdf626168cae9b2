"""PostgreSQL: what was measured and decided, and not on the way of a request."""

from __future__ import annotations

import psycopg

from greenserve.servers import embedded
from tests.chaos.fault import Fault
from tests.chaos.stand import Stand

NOBODY = "Clients notice nothing; records and samples wait in Redis or on disk, and are written once."
WRITE_ANYWAY = "-c default_transaction_read_only=off"


def _execute(stand: Stand, statement: str) -> None:
    """Also where sessions are read-only by default."""
    url = embedded.owner_url(stand.product.var_dir)
    with psycopg.connect(url, connect_timeout=5, autocommit=True, options=WRITE_ANYWAY) as connection:
        connection.execute(statement)  # type: ignore[call-overload]


def _read_only(stand: Stand) -> None:
    _execute(stand, "ALTER SYSTEM SET default_transaction_read_only = on")
    _execute(stand, "SELECT pg_reload_conf()")


def _writable(stand: Stand) -> None:
    _execute(stand, "ALTER SYSTEM RESET default_transaction_read_only")
    _execute(stand, "SELECT pg_reload_conf()")


def _take_all_connections(stand: Stand) -> None:
    """Takes what connections are left, and ends those of others, so that they look for new ones."""
    url, taken = embedded.owner_url(stand.product.var_dir), []
    stand.kept["taken"] = taken
    for _ in range(200):
        try:
            taken.append(psycopg.connect(url, connect_timeout=5, autocommit=True))
        except psycopg.OperationalError:
            break
    own = [connection.info.backend_pid for connection in taken]
    taken[0].execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> ALL(%s)",
        [own],
    )
    for _ in range(200):
        try:
            taken.append(psycopg.connect(url, connect_timeout=5, autocommit=True))
        except psycopg.OperationalError:
            break


def _give_connections(stand: Stand) -> None:
    for connection in stand.kept["taken"]:
        connection.close()


def _lock_records(stand: Stand) -> None:
    """As a migration or a careless person would."""
    connection = psycopg.connect(embedded.owner_url(stand.product.var_dir), connect_timeout=5)
    connection.execute("SET lock_timeout = '10s'")
    connection.execute("LOCK TABLE telemetry_requestrecord, telemetry_gpusample IN ACCESS EXCLUSIVE MODE")
    stand.kept["lock"] = connection


FAULTS = (
    Fault(
        name="PostgreSQL killed",
        component="PostgreSQL",
        kind="killed",
        promise=NOBODY,
        part=6,
        begin=lambda stand: stand.kill("postgres"),
    ),
    Fault(
        name="PostgreSQL frozen for 20 s",
        component="PostgreSQL",
        kind="frozen",
        promise=NOBODY,
        part=6,
        begin=lambda stand: stand.freeze("postgres"),
        end=Stand.thaw,
        lasts_s=20.0,
    ),
    Fault(
        name="PostgreSQL read-only for 20 s",
        component="PostgreSQL",
        kind="read-only",
        promise=NOBODY,
        part=6,
        begin=_read_only,
        end=_writable,
        lasts_s=20.0,
    ),
    Fault(
        name="PostgreSQL without a free connection for 20 s",
        component="PostgreSQL",
        kind="connections",
        promise=NOBODY,
        part=6,
        begin=_take_all_connections,
        end=_give_connections,
        lasts_s=20.0,
    ),
    Fault(
        name="tables of records and samples locked for 20 s",
        component="PostgreSQL",
        kind="locked",
        promise=NOBODY,
        part=6,
        begin=_lock_records,
        end=lambda stand: stand.kept["lock"].close(),
        lasts_s=20.0,
    ),
)
