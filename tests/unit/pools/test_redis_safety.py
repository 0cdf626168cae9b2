"""A Redis that everybody can steer nodes through is refused everywhere by one function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from greenserve import env
from greenserve.process import StartError
from greenserve.servers import server_checks
from greenserve.supervision import product_processes
from pools import redis_safety
from pools.agent.app import AgentStep, app
from pools.gateway.__main__ import _config
from pools.gateway.picker.__main__ import main as picker

BARE, LOOPBACK = "redis://10.0.0.5:6379/0", "redis://127.0.0.1:6379/0"


@pytest.mark.parametrize(
    "url",
    [
        "unix:///run/redis.sock?db=1",
        "rediss://:hush@cache.example:6379/0",
        "rediss://node-1:hush@10.0.0.5:6379/0",
        "rediss://cache.example:6379/0?password=hush",
        "redis://:hush@127.0.0.1:6379/0",
        "redis://:hush@[::1]:6379/0",
        "redis://:hush@localhost/0",
    ],
)
def test_redis_is_taken_when_it_is_a_socket_or_has_a_password_and_tls_beyond_the_machine(url: str) -> None:
    assert redis_safety.fault(url) == ""


@pytest.mark.parametrize(
    ("url", "lacks"),
    [
        (BARE, "a password and TLS (rediss://)"),
        ("redis://:hush@10.0.0.5:6379/0", "TLS (rediss://)"),
        ("redis://:hush@127.0.0.1.example.org:6379/0", "TLS (rediss://)"),
        ("redis://user@cache/0", "a password and TLS (rediss://)"),
        ("rediss://cache:6379/0", "a password"),
        (LOOPBACK, "a password"),
    ],
)
def test_refusal_says_what_is_lacking_and_which_setting_takes_it_all_the_same(url: str, lacks: str) -> None:
    said = redis_safety.fault(url)
    assert f"without {lacks}, and" in said
    assert "GREENSERVE_REDIS_INSECURE=1" in said
    assert "hush" not in said
    assert redis_safety.fault(url, insecure=True) == ""


def test_product_refuses_before_it_connects() -> None:
    with pytest.raises(StartError, match=r"REDIS_URL: .*GREENSERVE_REDIS_INSECURE=1"):
        server_checks.redis(BARE)
    with pytest.raises(StartError, match=r"REDIS_URL: .*refused"):
        server_checks.redis("redis://127.0.0.1:1/0", insecure=True)


def test_gateway_and_picker_refuse_unless_the_option_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--redis-url", LOOPBACK, "--spool", str(tmp_path)]
    for start in (_config, picker):
        with pytest.raises(SystemExit):
            start(given)
        assert "--redis-insecure" in capsys.readouterr().err.rpartition("error:")[2]
    assert _config([*given, "--redis-insecure"]).redis_url == LOOPBACK


def test_agent_refuses_before_it_does_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(AgentStep, "_adapters", lambda self: made.append(self))
    worker = type("Worker", (), {"app": app})
    monkeypatch.setattr(app.conf, "broker_url", BARE)
    step = AgentStep(worker, node="n1", control="http://127.0.0.1:1")
    with pytest.raises(click.UsageError, match=r"BROKER_URL: .*--redis-insecure"):
        step.start(worker)
    assert not made


def test_setting_reaches_gateways_picker_and_agents(tmp_path: Path) -> None:
    for value, there in (("1", True), ("0", False)):
        config = env.read({"GREENSERVE_VAR": str(tmp_path), "GREENSERVE_REDIS_INSECURE": value})
        specs = [*product_processes.gateways(config), product_processes.picker(config, 9002)]
        specs.append(product_processes.agent(config, "n1", 9000))
        assert all(("--redis-insecure" in spec.argv) is there for spec in specs)
