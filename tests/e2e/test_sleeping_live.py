"""A service of the running product ends its engines for want of requests, and wakes for one that is held meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import openai
import pytest

from tests.e2e.product import Product, running, wait_for

pytestmark = pytest.mark.slow("a product, and two starts of its engines")

SERVICE = "llama3-70b"
IDLE_S = 5.0
TOKENS = 20
LIVING = "SELECT uid FROM pools_instance WHERE state <> 'stopped'"
READY = "SELECT uid::text FROM pools_instance WHERE state = 'ready' AND desired = 'running'"


def asleep(product: Product) -> bool:
    return not product.sql(LIVING) and product.status_of(f"{product.gateway}/ready") == 200


def ask(client: openai.OpenAI) -> tuple[float, int]:
    """Sends a stream. Returns the seconds to its first token, and how many tokens came."""
    began_s, first_s, tokens = time.monotonic(), None, 0
    own = {"vllm_xargs": {"sim_output_tokens": TOKENS}}
    with client.completions.create(
        model=SERVICE, prompt=[11] * 300, max_tokens=TOKENS, stream=True, extra_body=own
    ) as stream:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].text:
                first_s = first_s or time.monotonic() - began_s
                tokens += 1
    assert first_s is not None
    return first_s, tokens


def test_service_sleeps_without_requests_and_wakes_for_one_that_is_held(tmp_path: Path) -> None:
    with running(tmp_path, traffic_rps=0.0) as product:
        key = next(iter(product.credentials["api_keys"].values()))
        client = openai.OpenAI(base_url=f"{product.gateway}/v1", api_key=key, max_retries=0, timeout=90.0)
        wait_for("an engine is ready", lambda: product.sql(READY), 120.0)
        ask(client)
        product.cli("policy", SERVICE, "greenserve", "sleep=stop", f"sleep.idle_s={IDLE_S:g}")
        before = {uid for (uid,) in product.sql(READY)}
        wait_for("the service sleeps", lambda: asleep(product), 120.0)

        held_s, tokens = ask(client)

        assert tokens == TOKENS
        after = {uid for (uid,) in product.sql(READY)}
        assert after
        assert not after & before, "new engines were started for it"
        row = "SELECT status, attempts, ttft_s, queue_s FROM telemetry_requestrecord WHERE queue_s > 0.5"
        [(status, attempts, ttft_s, queue_s)] = wait_for("its record", lambda: product.sql(row), 30.0)
        assert (status, attempts) == ("ok", 1)
        assert queue_s <= ttft_s <= held_s
        print(f"\nheld for {queue_s:.1f} s, first token after {held_s:.1f} s")
