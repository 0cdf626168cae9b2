"""The contract of the engine ports, as tests/contracts has it for simulated engines, kept by a real vLLM.

One engine for all: those of the suite that end it come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from core.engine.engine_launch import EngineLaunch
from core.ports import InstanceSpec
from pools.agent.vllm.launch import VllmOptions
from pools.agent.vllm.runtime import VllmRuntime
from pools.agent.vllm.vllm_metrics import VllmMetrics
from tests.contracts import test_engine_ports as contract
from tests.fakes.vllm_runtime import end_all

from .node import CARD, ENGINE_ARGUMENTS, ENGINE_ENVIRONMENT, LONGEST_TOKENS, READY_S
from .server import DTYPE, VLLM

DEVICE = "CPU-contract-0"


@pytest.fixture(scope="module")
def runtime(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmRuntime]:
    options = VllmOptions(
        program=VLLM,
        folder=tmp_path_factory.mktemp("v"),
        ports=(18600, 18699),
        arguments=ENGINE_ARGUMENTS,
        environment=ENGINE_ENVIRONMENT,
        by_uuid=False,
        offline=True,
        sleep=True,
        plugin=True,
    )
    made = VllmRuntime(options, lambda: (DEVICE,))
    yield made
    end_all(made, 60.0)


@pytest.fixture
def node(runtime: VllmRuntime, tiny_model: Path) -> Iterator[contract.Node]:
    launch = EngineLaunch(str(tiny_model), DTYPE)
    spec = InstanceSpec("engine", CARD, "vllm-v1", (DEVICE,), LONGEST_TOKENS, launch=launch)
    metrics = VllmMetrics()
    yield contract.Node(
        runtime,
        metrics,
        runtime,
        runtime,
        spec,
        CARD,
        ready_s=READY_S,
        ends_s=90.0,
        long_tokens=1500,
        refuses_while_draining=False,
    )
    metrics.close()


test_instance_comes_up_and_serves_when_it_is_started = contract.test_instance_comes_up_and_serves_when_it_is_started
test_second_start_changes_nothing_when_the_uid_is_the_same = (
    contract.test_second_start_changes_nothing_when_the_uid_is_the_same
)
test_metrics_tell_what_was_served_when_requests_have_ended = (
    contract.test_metrics_tell_what_was_served_when_requests_have_ended
)
test_engine_sleeps_and_serves_again_when_it_is_woken = contract.test_engine_sleeps_and_serves_again_when_it_is_woken
test_limits_are_reported_when_they_were_changed = contract.test_limits_are_reported_when_they_were_changed
test_change_is_refused_for_good_when_there_is_no_such_instance = (
    contract.test_change_is_refused_for_good_when_there_is_no_such_instance
)
test_start_is_refused_for_good_when_the_gpu_is_not_there = (
    contract.test_start_is_refused_for_good_when_the_gpu_is_not_there
)


def test_limits_reach_the_engine_when_the_plugin_runs_in_it(node: contract.Node) -> None:
    """The suite leaves open whether an engine can say its limits; with the plug-in this one can."""
    limits = replace(node.spec.limits, max_num_seqs=16)
    node.ready(node.spec)
    node.control.tune("engine", limits)
    status = node.status("engine")
    assert status is not None
    assert status.limits == limits


test_running_request_is_finished_and_new_ones_are_refused_when_draining = (
    contract.test_running_request_is_finished_and_new_ones_are_refused_when_draining
)
