"""Two real engines with different models share one declared device under one plan; one ends, and wakes for a request.

All is done by what a person has: commands, and the REST API. The tests go in their order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.product import wait_for

from .joined_node import OUTPUT_TOKENS, PROMPT, READY_S, SERVICE, Joined, joined_node

OTHER, OTHER_CARD = "small", "Qwen3-8B"
HALF = "A100-80GB/2"
IDLE_S = 15.0
ASLEEP_S, WAKES_S = 120.0, 240.0


@pytest.fixture(scope="module")
def joined(
    vllm: Path, tiny_model: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Joined]:
    with joined_node(tmp_path_factory.mktemp("shared")) as found:
        # One would take the other's slice while this one sleeps, and give it back when it is waited for.
        found.enter(tiny_model, max_gpus=1)
        found.enter(small_model, OTHER_CARD, OTHER, max_gpus=1)
        found.open({"gpu_slices": 2, "schedulable": True})
        yield found


def living(joined: Joined) -> dict[str, dict[str, Any]]:
    """The instances that live, by service; each has one."""
    rows = [row for row in joined.api.rows("instances/") if row["state"] != "stopped"]
    found = {row["service"]: row for row in rows}
    assert len(found) == len(rows), rows
    return found


def stream(joined: Joined, service: str, timeout_s: float = 60.0) -> tuple[float, int]:
    """Streams an answer. Returns the seconds to its first token, and the number of its tokens."""
    began_s, first_s = time.monotonic(), None
    client = openai.OpenAI(
        base_url=f"{joined.product.gateway}/v1", api_key=joined.key, timeout=timeout_s, max_retries=0
    )
    with client.completions.create(
        model=service,
        prompt=PROMPT,
        max_tokens=OUTPUT_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    ) as chunks:
        tokens = 0
        for chunk in chunks:
            first_s = first_s or time.monotonic() - began_s
            if chunk.usage:
                tokens = chunk.usage.completion_tokens
    assert first_s is not None
    return first_s, tokens


def test_two_models_serve_at_once_on_slices_of_one_device(joined: Joined) -> None:
    def ready() -> bool:
        found = [row for row in joined.api.rows("instances/") if row["state"] == "ready"]
        return len(found) == 2

    wait_for("two ready instances", ready, READY_S, every_s=2.0)
    rows = living(joined).values()
    assert [(row["gpu_type"], row["tp"], row["node"]) for row in rows] == [(HALF, 1, "laptop")] * 2
    held = joined.product.sql("SELECT gpu_id, slice FROM pools_instancegpu WHERE released_at IS NULL ORDER BY slice")
    assert [number for _, number in held] == [0, 1]
    assert len({gpu for gpu, _ in held}) == 1
    with ThreadPoolExecutor(2) as both:
        answers = list(both.map(lambda service: stream(joined, service), (SERVICE, OTHER)))
    assert [tokens for _, tokens in answers] == [OUTPUT_TOKENS] * 2
    print(f"\nfirst tokens after {answers[0][0]:.2f} and {answers[1][0]:.2f} s")


def test_one_sleeps_and_wakes_for_a_request_that_is_held_while_the_other_serves(joined: Joined) -> None:
    patience = (f"sleep.patience_s={WAKES_S:g}", f"max_wait_s={WAKES_S:g}")  # a start takes more than the usual minute
    joined.product.cli("policy", OTHER, "greenserve", "sleep=stop", f"sleep.idle_s={IDLE_S:g}", *patience)
    wait_for("one instance is left", lambda: len(living(joined)) == 1, ASLEEP_S, every_s=2.0)
    wait_for("it is the one that does not sleep", joined.complete, 30.0)
    first_s, tokens = stream(joined, OTHER, WAKES_S)
    assert tokens == OUTPUT_TOKENS
    row = "SELECT queue_s FROM telemetry_requestrecord WHERE service = %s AND queue_s > 0.5 AND status = 'ok'"
    [(held_s,)] = wait_for("the record of a request that was held", lambda: joined.product.sql(row, OTHER), 30.0)
    assert held_s < first_s
    assert len(living(joined)) == 2
    print(f"\nheld for {held_s:.1f} s, first token after {first_s:.1f} s")
