"""The embedded servers: real ones, in folders of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dj_database_url
import psycopg
import pytest
import redis

from greenserve.process import Child, Spec, StartError
from greenserve.servers import embedded, postgres_server, server_folders
from tests import servers

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def var_dir(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "var"
    path.mkdir()
    yield path
    servers.remove(path)


def start(spec: Spec, var_dir: Path) -> Child:
    child = Child(spec, var_dir / "log" / f"{spec.name}.log")
    child.start()
    embedded.wait_ready(child, timeout_s=20)
    return child


def query(var_dir: Path, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(embedded.owner_url(var_dir), connect_timeout=5, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


@pytest.mark.slow("a database is started twice")
def test_servers_keep_their_data_when_started_again(var_dir: Path) -> None:
    with servers.running(var_dir) as (database_url, redis_url):
        assert database_url == embedded.owner_url(var_dir)
        version = query(var_dir, "SHOW server_version")[0][0]
        assert str(version).startswith("18.")
        query(var_dir, "CREATE EXTENSION pg_trgm; CREATE EXTENSION btree_gist; CREATE TABLE t (x text)")
        query(var_dir, "INSERT INTO t VALUES ('kept')")
        with redis.Redis.from_url(redis_url, socket_timeout=5) as client:
            client.set("a", "kept")
            assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    with servers.running(var_dir) as (_, redis_url):
        assert query(var_dir, "SELECT x FROM t") == [("kept",)]
        with redis.Redis.from_url(redis_url, socket_timeout=5) as client:
            assert client.get("a") == b"kept"


def test_data_of_the_former_redis_is_read(var_dir: Path) -> None:
    data = server_folders.folders_of(var_dir).redis_data
    data.mkdir(parents=True)
    shutil.copy(FIXTURES / "redis-6.2" / "appendonly.aof", data)  # as Redis 6.2.5 left it
    with servers.redis_running(var_dir) as url, redis.Redis.from_url(url, socket_timeout=5) as client:
        assert client.get("a") == b"kept"
        (group,) = client.xinfo_groups("st")
        assert (client.xlen("st"), group["name"], group["pending"]) == (1, b"g", 1)
        assert client.eval("return redis.call('GET', KEYS[1])", 1, "a") == b"kept"
        assert client.config_get("appendonly")["appendonly"] == "yes"
    with servers.redis_running(var_dir) as url, redis.Redis.from_url(url, socket_timeout=5) as client:
        assert client.get("a") == b"kept"


def test_servers_listen_on_sockets_alone_when_running(var_dir: Path) -> None:
    with servers.running(var_dir, durable=False) as (_, redis_url):
        assert query(var_dir, "SHOW listen_addresses") == [("",)]
        roles = "SELECT rolname, rolsuper, rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname ~ '^greenserve'"
        assert set(query(var_dir, roles)) == {("greenserve", True, True), ("greenserve_run", False, False)}
        with redis.Redis.from_url(redis_url, socket_timeout=5) as client:
            assert client.config_get("port")["port"] == "0"
        where = server_folders.folders_of(var_dir)
        for folder in (where.postgres_sockets, where.redis_socket.parent):
            assert folder.stat().st_mode & 0o077 == 0


def test_socket_paths_stay_short_when_the_folder_is_deep(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    where = server_folders.folders_of(deep)
    assert len(os.fsencode(where.redis_socket)) < server_folders.SOCKET_PATH_LIMIT
    assert len(os.fsencode(where.postgres_sockets / ".s.PGSQL.5432")) < server_folders.SOCKET_PATH_LIMIT
    assert server_folders.folders_of(deep) == where
    assert server_folders.folders_of(tmp_path / "other").redis_socket != where.redis_socket


def test_database_url_is_understood_by_django_when_parsed(tmp_path: Path) -> None:
    parsed = dj_database_url.parse(embedded.owner_url(tmp_path))
    assert parsed["HOST"] == str(server_folders.folders_of(tmp_path).postgres_sockets)
    assert (parsed["NAME"], parsed["USER"]) == ("greenserve", "greenserve")
    assert dj_database_url.parse(embedded.database_url(tmp_path))["USER"] == "greenserve_run"


def test_committed_rows_survive_when_the_server_is_killed(var_dir: Path) -> None:
    postgres_server.spec(var_dir, durable=False)  # the folder is made without waiting for the disk
    child = start(postgres_server.spec(var_dir), var_dir)
    query(var_dir, "CREATE TABLE t (x int); INSERT INTO t VALUES (1)")
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    while child.poll() is None:
        time.sleep(0.01)
    assert (server_folders.folders_of(var_dir).postgres_data / "postmaster.pid").exists()
    again = start(postgres_server.spec(var_dir), var_dir)
    assert query(var_dir, "SELECT x FROM t") == [(1,)]
    again.stop()


@pytest.mark.slow("a database is started twice")
def test_start_goes_well_when_a_stale_lock_names_a_living_stranger(var_dir: Path) -> None:
    start(postgres_server.spec(var_dir, durable=False), var_dir).stop()
    where = server_folders.folders_of(var_dir)
    lock = where.postgres_data / "postmaster.pid"
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        lock.write_text(f"{stranger.pid}\n{where.postgres_data}\n1\n5432\n{where.postgres_sockets}\n\n0 0\nready\n")
        (where.postgres_sockets / ".s.PGSQL.5432.lock").write_text(f"{stranger.pid}\n")
        start(postgres_server.spec(var_dir, durable=False), var_dir).stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.slow("a database is left behind")
def test_abandoned_server_is_ended_when_another_is_started(var_dir: Path) -> None:
    first = start(postgres_server.spec(var_dir, durable=False), var_dir)
    second = start(postgres_server.spec(var_dir, durable=False), var_dir)
    assert first.poll() is not None
    assert query(var_dir, "SELECT 1") == [(1,)]
    second.stop()


@pytest.mark.slow("a database is made twice")
def test_first_start_is_made_good_when_it_was_killed_half_way(var_dir: Path) -> None:
    where = server_folders.folders_of(var_dir)
    (where.postgres_home / "data.new" / "base").mkdir(parents=True)
    where.postgres_data.mkdir()
    start(postgres_server.spec(var_dir, durable=False), var_dir).stop()
    assert not (where.postgres_home / "data.new").exists()


@pytest.mark.parametrize(("version", "words"), [(None, "only half"), ("17\n", "written by PostgreSQL 17")])
def test_one_line_says_what_to_do_when_the_data_folder_cannot_be_used(
    var_dir: Path, version: str | None, words: str
) -> None:
    data = server_folders.folders_of(var_dir).postgres_data
    (data / "global").mkdir(parents=True)
    (data / "global" / "pg_control").touch()
    if version:
        (data / "PG_VERSION").write_text(version)
    with pytest.raises(StartError) as caught:
        postgres_server.spec(var_dir)
    message = str(caught.value)
    assert words in message
    assert f"mv {data}" in message
    assert "\n" not in message


@pytest.mark.slow("a database is made twice")
def test_data_of_a_deleted_folder_is_set_aside_when_the_folder_is_made_anew(var_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user's data lies in the folder itself")
    child = start(postgres_server.spec(var_dir, durable=False), var_dir)
    query(var_dir, "CREATE TABLE old (x int)")
    child.stop()
    (var_dir / "postgres-id").unlink()
    child = start(postgres_server.spec(var_dir, durable=False), var_dir)
    assert query(var_dir, "SELECT to_regclass('old')") == [(None,)]
    child.stop()
    assert len(list(server_folders.folders_of(var_dir).postgres_home.glob("data.2*"))) == 1


@pytest.mark.slow("a database that does not start")
def test_start_fails_with_the_servers_own_words_when_it_ends_at_once(var_dir: Path) -> None:
    start(postgres_server.spec(var_dir, durable=False), var_dir).stop()
    control = server_folders.folders_of(var_dir).postgres_data / "global" / "pg_control"
    control.write_bytes(b"\0" * control.stat().st_size)
    with pytest.raises(StartError, match=r"postgres ended: .*FATAL.*incompatible"):
        start(postgres_server.spec(var_dir, durable=False), var_dir)


@pytest.mark.slow("a database is made and left behind")
def test_lock_stays_when_an_old_servers_process_still_works_in_the_data(
    var_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_server, "NOTICED_WITHIN_S", 0.2)
    monkeypatch.setattr(postgres_server, "QUIT_WITHIN_S", 0.3)
    start(postgres_server.spec(var_dir, durable=False), var_dir).stop()
    where = server_folders.folders_of(var_dir)
    lock = where.postgres_data / "postmaster.pid"
    lock.write_text("2147483646\n")
    deaf = "import signal, time; signal.signal(signal.SIGQUIT, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    backend = subprocess.Popen([sys.executable, "-c", deaf], cwd=where.postgres_data, stdout=subprocess.PIPE)
    try:
        assert backend.stdout
        backend.stdout.readline()
        with pytest.raises(StartError, match=f"kill -QUIT {backend.pid}"):
            start(postgres_server.spec(var_dir, durable=False), var_dir)
        assert lock.exists()
    finally:
        backend.kill()
        backend.communicate()
