"""What every adapter of these ports must do: the runtime, control and metrics of engines.

Add an adapter as a parameter of `node`.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from core.ports import (
    AdapterError,
    EngineControl,
    EngineLimits,
    EngineMetrics,
    InstanceRuntime,
    InstanceSpec,
    InstanceStatus,
    PermanentError,
    RetryableError,
)
from pools.agent.devices.sim import SimEngineControl, SimInstanceRuntime
from pools.agent.http_client import HttpClient
from pools.agent.vllm.vllm_metrics import VllmMetrics
from tests.fakes.simnode import SimnodeProcess, eventually
from tests.ports import free_port


@dataclass
class Node:
    runtime: InstanceRuntime
    metrics: EngineMetrics
    control: EngineControl
    dead_runtime: InstanceRuntime
    spec: InstanceSpec  # one that this node can run
    model: str
    ready_s: float = 60.0
    ends_s: float = 20.0
    long_tokens: int = 150  # of an answer that takes long enough to be seen running
    refuses_while_draining: bool = True  # False: who sends knows it beforehand, as gateways do

    def status(self, uid: str) -> InstanceStatus | None:
        return next((status for status in self.runtime.list() if status.uid == uid), None)

    def ready(self, spec: InstanceSpec) -> str:
        self.runtime.start(spec)
        eventually(lambda: (s := self.status(spec.uid)) and s.state == "ready", self.ready_s, f"ready {spec.uid}")
        status = self.status(spec.uid)
        assert status is not None
        assert status.url is not None
        return status.url

    def gone(self, uid: str) -> None:
        eventually(lambda: self.status(uid) is None, self.ends_s, f"end of {uid}")

    def complete(self, url: str, tokens: int) -> int:
        """Status of a completion of so many tokens, asked for with the engine's key; blocks until it has ended."""
        key = next((status.key for status in self.runtime.list() if status.url == url), "")
        body = {"model": self.model, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), method="POST")
        request.add_header("Content-Type", "application/json")
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=180) as response:
                assert json.load(response)["usage"]["completion_tokens"] == tokens
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@pytest.fixture(params=["sim"])
def node(request: pytest.FixtureRequest, simnode: SimnodeProcess) -> Iterator[Node]:
    assert request.param == "sim"
    client = HttpClient(simnode.url, 1.0)
    dead = HttpClient(f"http://127.0.0.1:{free_port()}", 1.0)
    spec = InstanceSpec("engine", "Llama3-8B", "vllm-v1", (simnode.uuid(0),), 8192)
    runtime = SimInstanceRuntime(client)
    metrics = VllmMetrics()
    yield Node(runtime, metrics, SimEngineControl(client), SimInstanceRuntime(dead), spec, "Llama3-8B")
    for status in runtime.list():
        runtime.stop(status.uid)
    metrics.close()
    client.close()


def test_instance_comes_up_and_serves_when_it_is_started(node: Node) -> None:
    url = node.ready(node.spec)
    status = node.status("engine")
    assert status is not None
    assert status.gpu_uuids == node.spec.gpu_uuids
    assert status.start in ("warm", "cold")
    assert node.complete(url, 5) == 200


def test_second_start_changes_nothing_when_the_uid_is_the_same(node: Node) -> None:
    url = node.ready(node.spec)
    node.runtime.start(node.spec)
    assert [(status.uid, status.url) for status in node.runtime.list()] == [("engine", url)]


def test_stop_is_no_error_when_nothing_is_there(node: Node) -> None:
    node.runtime.stop("nobody")
    node.runtime.drain("nobody")
    node.ready(node.spec)
    node.runtime.stop("engine")
    node.runtime.stop("engine")
    node.gone("engine")


def test_start_is_retryable_when_a_gpu_is_held(node: Node) -> None:
    node.ready(node.spec)
    other = InstanceSpec("other", node.spec.model, node.spec.engine, node.spec.gpu_uuids, node.spec.max_model_len)
    with pytest.raises(RetryableError, match="allocated"):
        node.runtime.start(other)
    node.runtime.stop("engine")
    node.gone("engine")
    node.ready(other)


def test_start_is_refused_for_good_when_the_gpu_is_not_there(node: Node) -> None:
    with pytest.raises(PermanentError):
        node.runtime.start(InstanceSpec("x", node.spec.model, node.spec.engine, ("no-such-gpu",), 1024))


def test_running_request_is_finished_and_new_ones_are_refused_when_draining(node: Node) -> None:
    url = node.ready(node.spec)
    statuses: list[int] = []
    request = threading.Thread(target=lambda: statuses.append(node.complete(url, node.long_tokens)))
    request.start()
    eventually(lambda: node.metrics.scrape("engine", url).running == 1, 30.0, "running request")
    node.runtime.drain("engine")
    status = eventually(lambda: (s := node.status("engine")) and s.state == "draining" and s, 30.0, "draining")
    assert status is not None
    if node.refuses_while_draining:
        assert node.complete(url, 1) == 503
    node.runtime.drain("engine")  # twice does no harm
    request.join(node.ends_s)
    assert statuses == [200]
    node.gone("engine")


def test_idle_instance_ends_at_once_when_it_drains(node: Node) -> None:
    node.ready(node.spec)
    node.runtime.drain("engine")
    node.gone("engine")


def test_metrics_tell_what_was_served_when_requests_have_ended(node: Node) -> None:
    url = node.ready(node.spec)
    before = node.metrics.scrape("engine", url)
    assert before.missing == ()
    assert (before.running, before.waiting, before.ttft_s) == (0, 0, None)
    node.complete(url, 20)
    after = node.metrics.scrape("engine", url)
    assert after.generation_tokens_total is not None
    assert before.generation_tokens_total is not None
    assert after.generation_tokens_total - before.generation_tokens_total == 20
    assert after.ttft_s is not None
    assert after.tpot_s is not None
    assert after.e2e_s is not None
    assert after.e2e_s == pytest.approx(after.ttft_s + 19 * after.tpot_s, rel=0.05)


def test_engine_sleeps_and_serves_again_when_it_is_woken(node: Node) -> None:
    url = node.ready(node.spec)
    for _ in range(2):  # twice does no harm
        node.control.sleep("engine")
    eventually(lambda: (s := node.status("engine")) and s.state == "sleeping", 60.0, "sleep")
    assert node.metrics.scrape("engine", url).running == 0
    eventually(lambda: _accepted(lambda: node.control.wake("engine")), 60.0, "waking")
    assert node.ready(node.spec) == url
    node.control.wake("engine")
    assert node.complete(url, 5) == 200


def test_limits_are_reported_when_they_were_changed(node: Node) -> None:
    limits = EngineLimits(512, 32, 0.1)
    node.ready(node.spec)
    node.control.tune("engine", limits)
    status = node.status("engine")
    assert status is not None
    assert status.limits in (limits, None)


def test_change_is_refused_for_good_when_there_is_no_such_instance(node: Node) -> None:
    with pytest.raises(PermanentError):
        node.control.sleep("nobody")


def _accepted(action: Callable[[], None]) -> bool:
    """False: not now, but maybe soon."""
    try:
        action()
    except RetryableError:
        return False
    return True


def test_fault_is_retryable_when_the_node_does_not_answer(node: Node) -> None:
    for action in (
        node.dead_runtime.list,
        lambda: node.dead_runtime.start(node.spec),
        lambda: node.dead_runtime.stop("x"),
        lambda: node.metrics.scrape("x", f"http://127.0.0.1:{free_port()}"),
    ):
        with pytest.raises(AdapterError) as caught:
            action()
        assert isinstance(caught.value, RetryableError)
