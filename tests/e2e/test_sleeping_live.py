"""A service of the running product ends its engines for want of requests, and wakes for one that is held meanwhile.
Three take turns on one GPU.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from greenserve.client import Client
from tests.e2e.product import Product, running, wait_for

pytestmark = pytest.mark.slow("a product, and two starts of its engines")

SERVICE = "llama3-70b"
IDLE_S = 5.0
TOKENS = 20
LIVING = "SELECT uid FROM pools_instance WHERE state <> 'stopped'"
READY = "SELECT uid::text FROM pools_instance WHERE state = 'ready' AND desired = 'running'"


def asleep(product: Product) -> bool:
    return not product.sql(LIVING) and product.status_of(f"{product.gateway}/ready") == 200


def ask(client: openai.OpenAI, service: str = SERVICE) -> tuple[float, int]:
    """Sends a stream. Returns the seconds to its first token, and how many tokens came."""
    began_s, first_s, tokens = time.monotonic(), None, 0
    own = {"vllm_xargs": {"sim_output_tokens": TOKENS}}
    with client.completions.create(
        model=service, prompt=[11] * 300, max_tokens=TOKENS, stream=True, extra_body=own
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


TURNS = ("first", "second", "third")
PATIENCE_S = 120.0
CHANGES = (
    "SELECT command ->> 'type', command ->> 'service' FROM scheduler_decision, jsonb_array_elements(commands) command "
    "WHERE command ->> 'type' IN ('PutToSleep', 'WakeUp') ORDER BY scheduler_decision.id"
)
ON_THE_GPU = (
    "SELECT count(*) FROM pools_instancegpu hold JOIN pools_gpu gpu ON gpu.id = hold.gpu_id "
    "WHERE gpu.uuid = 'SIM-small-0' AND hold.released_at IS NULL"
)


STATES = (
    "SELECT service.name, instance.uid::text FROM pools_instance instance "
    "JOIN pools_pool pool ON pool.id = instance.pool_id JOIN pools_service service ON service.id = pool.service_id "
    "JOIN pools_node node ON node.id = instance.node_id WHERE node.name = 'small' AND instance.state <> 'stopped'"
)


def leave_one_gpu(product: Product, kind: str) -> None:
    """A new node has one GPU, and no other is used; three services of a small model may run there."""
    rights = [f"--right={right}" for right in ("view", "operate", "administer")]
    token = product.cli("user", "token", product.credentials["admin"]["user"], "--label", "turns", *rights).stdout
    gpu = {"gpu_type": "H100-SXM-80GB", "memory_gb": 80, "min_mhz": 210, "max_mhz": 1980, "tdp_w": 700}
    with Client(product.web, token.strip()) as rest:
        rest.call("POST", "nodes/", {"cluster": "location-1/main", "name": "small", "simulated": True})
        rest.call("POST", "gpus/", {"node": "small", "index": 0, "uuid": "SIM-small-0", **gpu})
        product.sql("UPDATE pools_node SET schedulable = false WHERE name <> 'small' RETURNING name")
        for name in TURNS:
            offer = {"name": name, "model": "Llama3-8B", "max_model_len": 8_192, "ttft_s": 20.0, "e2e_s": 60.0}
            rest.call("POST", "offers/", {**offer, "sites": ["location-1"], "policy": "single_pool"})
            own = (
                f"sleep={kind}",
                "sleep.idle_s=600",
                f"sleep.patience_s={PATIENCE_S:g}",
                f"max_wait_s={PATIENCE_S:g}",
            )
            product.cli("policy", name, "single_pool", *own)


@pytest.mark.parametrize("kind", ["stop", "level"])
def test_three_services_take_turns_on_one_gpu(tmp_path: Path, kind: str) -> None:
    with running(tmp_path, traffic_rps=0.0) as product:
        key = next(iter(product.credentials["api_keys"].values()))
        client = openai.OpenAI(base_url=f"{product.gateway}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)
        leave_one_gpu(product, kind)
        known = "SELECT count(DISTINCT service_id) FROM scheduler_controllerstate WHERE kind = 'sleep'"
        wait_for("plans of all", lambda: product.sql(known) == [(len(TURNS),)], 120.0)

        one_by_one = [ask(client, name) for name in (*TURNS, TURNS[0])]
        engines = set(product.sql(STATES))
        with ThreadPoolExecutor(len(TURNS)) as threads:
            at_once = list(threads.map(lambda name: ask(client, name), TURNS))

        for name, (held_s, _) in zip((*TURNS, TURNS[0], *TURNS), (*one_by_one, *at_once), strict=True):
            print(f"{name}: first token after {held_s:.1f} s")
        assert {tokens for _, tokens in (*one_by_one, *at_once)} == {TOKENS}
        before = product.sql(CHANGES)
        woken = [name for kind, name in before if kind == "WakeUp"]
        assert len(woken) <= len(one_by_one) + len(at_once), "one waking a turn"
        time.sleep(10.0)
        assert product.sql(CHANGES) == before, "nobody moves while nobody asks"
        assert product.sql(ON_THE_GPU) == [(1,)]
        assert len(engines) == (len(TURNS) if kind == "level" else 1)
        if kind == "level":
            assert set(product.sql(STATES)) == engines, "the same engines were woken, and none was started anew"
