"""Several control planes on one Redis: each goes by its name, and a second one of a name is refused."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from frontend import health
from greenserve import env
from greenserve.process import StartError
from greenserve.supervision import up
from greenserve.supervision.watchdog import signs_from
from pools import wire
from scheduler import tasks

SHARED = {"DATABASE_URL": "postgresql://db/g", "REDIS_URL": "redis://cache", "GREENSERVE_SECRET_KEY": "same"}


def config(folder: Path, plane: str = "") -> env.Env:
    more = SHARED | {"GREENSERVE_PLANE": plane, "GREENSERVE_DEMO": "0"} if plane else {}
    return env.read({"GREENSERVE_VAR": str(folder), **more})


def table(*names: str) -> wire.ProcessTable:
    rows = [wire.ProcessRow(name, 1, "running", time.time(), 0, "") for name in names]
    return wire.ProcessTable(time.time(), rows)


def test_tables_of_all_control_planes_are_one_list_and_nodes_keep_their_names(redis_client, tmp_path):
    up._publisher(redis_client, config(tmp_path / "a"))(table("beat", "gateway", "node.n1"))
    up._publisher(redis_client, config(tmp_path / "b", "b"))(table("beat", "gateway.1", "node.n2"))
    names = [row.name for row in health.read_table(redis_client).processes]
    assert names == ["beat", "gateway", "node.n1", "b.beat", "b.gateway.1", "node.n2"]


def test_second_control_plane_of_a_name_is_refused_and_one_that_starts_again_is_not(redis_client, tmp_path):
    first, again, second = config(tmp_path / "a"), config(tmp_path / "a"), config(tmp_path / "b")
    up.refuse_second(redis_client, first)
    up._publisher(redis_client, first)(table("beat"))
    up.refuse_second(redis_client, again)
    with pytest.raises(StartError, match="GREENSERVE_PLANE") as refused:
        up.refuse_second(redis_client, second)
    assert f"{socket.gethostname()}:{tmp_path / 'a'}" in str(refused.value)
    up.refuse_second(redis_client, config(tmp_path / "b", "b"))
    redis_client.delete(wire.PROCESSES_KEY)
    up.refuse_second(redis_client, second)


def test_each_supervisor_watches_its_own_processes(redis_client, settings):
    settings.GREENSERVE_PLANE = "b"
    tasks.heartbeat()
    redis_client.set(wire.alive_key("b.beat"), b"one")
    assert signs_from(redis_client, "b")() == {"beat": b"one", "epochs": b"1", "ingester": None}
    assert signs_from(redis_client)() == {"beat": None, "epochs": None, "ingester": None}
