"""Ends what a node's runtime runs: an agent that ends leaves its engines running, a test does not."""

from __future__ import annotations

from pools.agent.vllm.runtime import VllmRuntime
from tests.fakes.simnode import eventually


def end_all(runtime: VllmRuntime, timeout_s: float) -> None:
    def gone() -> bool:
        for engine in runtime.list():
            runtime.stop(engine.uid)  # one that has failed is only taken off the list
        return not runtime.list()

    eventually(gone, timeout_s, "end of all engines")
