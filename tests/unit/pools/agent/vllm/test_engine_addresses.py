"""Where engines listen, and at which address gateways connect to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from core.engine.engine_launch import EngineLaunch
from core.ports import InstanceSpec, PermanentError
from pools import own_address
from pools.agent.reports import View, instance_state
from pools.agent.vllm.engine_records import EngineRecord
from pools.agent.vllm.launch import VllmOptions
from pools.agent.vllm.runtime import VllmRuntime
from pools.agent.vllm.vllm_options import engine_addresses
from pools.wire import DesiredInstance, LatencyLimits
from tests.fakes.simnode import eventually
from tests.fakes.vllm_program import program
from tests.fakes.vllm_runtime import end_all

LAN = "10.0.0.5"
REDIS = "redis://:secret@control.example:6379/0"
SPEC = InstanceSpec("engine", "Llama3-8B", "vllm-v1", ("G0",), 4096, launch=EngineLaunch("fake/good"))


@pytest.mark.parametrize(
    ("host", "address", "found"),
    [
        (None, None, (LAN, LAN)),
        ("10.9.9.9", None, ("10.9.9.9", "10.9.9.9")),
        ("0.0.0.0", None, ("0.0.0.0", LAN)),  # noqa: S104 - not listened on
        ("::", "box.example", ("::", "box.example")),
        (None, "203.0.113.7", (LAN, "203.0.113.7")),
        ("127.0.0.1", None, ("127.0.0.1", "127.0.0.1")),
    ],
)
def test_engines_listen_where_the_control_plane_is_reached_when_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, host: str | None, address: str | None, found: tuple[str, str]
) -> None:
    monkeypatch.setattr(own_address, "towards", {"control.example": LAN}.__getitem__)
    assert engine_addresses(REDIS, host, address) == found


def test_engines_listen_on_the_loopback_when_the_control_plane_is_on_this_machine() -> None:
    assert engine_addresses("unix:///var/redis.sock?db=0", None, None) == ("127.0.0.1", "127.0.0.1")


def test_remedy_is_named_when_no_address_can_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "towards", lambda _: None)
    with pytest.raises(PermanentError, match=r"no route leads to .* Redis at control\.example; give --engine-host"):
        engine_addresses(REDIS, None, None)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., VllmRuntime]]:
    options = VllmOptions(
        program(tmp_path), tmp_path / "engines", ports=(22_000, 23_999), stop_within_s=5.0, look_s=0.02
    )
    made: list[VllmRuntime] = []

    def agent(**changes: str) -> VllmRuntime:
        made.append(VllmRuntime(replace(options, **changes), lambda: SPEC.gpu_uuids))
        return made[-1]

    yield agent
    for runtime in made:
        end_all(runtime, 15.0)


def ready(runtime: VllmRuntime) -> tuple[str, str]:
    """Returns where the node reaches its engine, and where gateways do."""
    eventually(lambda: any(one.state == "ready" for one in runtime.list()), 30.0, "an engine that is ready")
    (status,) = runtime.list()
    desired = DesiredInstance("engine", 1, "Llama3-8B", "vllm-v1", ["G0"], 4096, "running", LatencyLimits())
    reported = instance_state(desired, status, None, {}, View(0.0)).url
    assert status.url is not None
    assert reported is not None
    return status.url, reported


def test_gateways_are_given_the_advertised_address_and_the_agent_asks_where_the_engine_listens(
    start: Callable[..., VllmRuntime],
) -> None:
    runtime = start(host="::1", address="box.example")
    runtime.start(SPEC)
    here, there = ready(runtime)
    port = here.rpartition(":")[2]
    assert (here, there) == (f"http://[::1]:{port}", f"http://box.example:{port}")
    taken_over = start(host="127.0.0.1")  # the engine listens where it was started
    assert ready(taken_over) == (f"http://[::1]:{port}", f"http://[::1]:{port}")


def test_refusal_names_the_option_when_the_address_is_not_this_machines(start: Callable[..., VllmRuntime]) -> None:
    with pytest.raises(PermanentError, match=r"at 192\.0\.2\.77: no address of this machine; see --engine-host"):
        start(host="192.0.2.77").start(SPEC)


def test_engines_of_an_agent_that_recorded_no_address_are_on_the_loopback() -> None:
    record = msgspec.to_builtins(EngineRecord(SPEC, 7, 7, "boot", 18_400, 0.0, host="10.0.0.5"))
    del record["host"]
    assert msgspec.convert(record, EngineRecord).host == "127.0.0.1"
