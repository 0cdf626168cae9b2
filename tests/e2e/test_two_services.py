"""A second service, of a small model, beside the demo's: made through REST while the product runs, then both under each
policy, one after another, with clients that ask both all the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import openai
import pytest

from greenserve.client import Client
from tests.e2e.product import Product, running, wait_for

pytestmark = pytest.mark.slow("four policies on a fleet of two services")

LARGE, SMALL = "llama3-70b", "llama3-8b"
PATIENCE_S = 150.0
ANSWERED_WITHIN_S = 60.0  # the services' objective for a whole request
EACH, EVERY_S = 12, 1.0  # requests to each service, so long apart
POLICIES = ("greenserve_epochs", "greenserve", "freesh", "dynamollm")
OBJECTIVES_S = {"ttft": 2.0, "tpot": 0.15, "e2e": ANSWERED_WITHIN_S}
DECIDED = (
    "SELECT DISTINCT service.name FROM scheduler_epoch epoch "
    "JOIN pools_service service ON service.id = epoch.service_id "
    "WHERE epoch.kind = 'carbon' AND epoch.started_at > %s"
)
SERVES = (
    "SELECT DISTINCT service.name FROM pools_instance instance JOIN pools_pool pool ON pool.id = instance.pool_id "
    "JOIN pools_service service ON service.id = pool.service_id "
    "WHERE instance.state = 'ready' AND instance.desired = 'running'"
)
HAD_TWICE = (
    "SELECT gpu_id FROM pools_instancegpu WHERE released_at IS NULL AND NOT beside GROUP BY gpu_id HAVING count(*) > 1"
)


@dataclass
class Fleet:
    product: Product
    client: openai.OpenAI
    threads: ThreadPoolExecutor

    def names(self, query: str, *parameters: object) -> set[str]:
        return {name for (name,) in self.product.sql(query, *parameters)}

    def ask(self, service: str) -> float:
        """One request. Returns the seconds until its answer, which has all tokens that were asked for."""
        began = time.monotonic()
        answer = self.client.completions.create(
            model=service, prompt=[11] * 400, max_tokens=40, extra_body={"vllm_xargs": {"sim_output_tokens": 40}}
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 40
        return time.monotonic() - began

    def ask_both(self) -> dict[str, list[float]]:
        """A request to each each second. Returns the seconds until their answers; one without an answer raises."""
        sent: dict[str, list[Future[float]]] = {LARGE: [], SMALL: []}
        for _ in range(EACH):
            for service, own in sent.items():
                own.append(self.threads.submit(self.ask, service))
            time.sleep(EVERY_S)
        return {service: [one.result(timeout=PATIENCE_S) for one in own] for service, own in sent.items()}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running(tmp_path_factory.mktemp("two"), traffic_rps=0.4) as product:
        key = next(iter(product.credentials["api_keys"].values()))
        client = openai.OpenAI(base_url=f"{product.gateway}/v1", api_key=key, timeout=ANSWERED_WITHIN_S, max_retries=0)
        with client, ThreadPoolExecutor(64) as threads:
            yield Fleet(product, client, threads)


def add_service(product: Product) -> None:
    """Offers the model at all of the demo's sites, by one call."""
    rights = [f"--right={right}" for right in ("view", "operate", "administer")]
    token = product.cli("user", "token", product.credentials["admin"]["user"], "--label", "two", *rights).stdout.strip()
    objectives = {f"{kind}_s": seconds for kind, seconds in OBJECTIVES_S.items()}
    load = {"expected_rps": 2, "expected_prompt_tokens": 400, "expected_output_tokens": 40}
    with Client(product.web, token) as rest:
        rest.call(
            "POST", "offers/", {"name": SMALL, "model": "Llama3-8B", "max_model_len": 16_384, **objectives, **load}
        )


def test_second_service_answers_soon_after_it_is_made(fleet: Fleet) -> None:
    began = time.monotonic()
    add_service(fleet.product)

    def answered() -> bool:
        try:
            return bool(fleet.ask(SMALL))
        except openai.APIStatusError:  # the gateways do not know it yet, or nothing of it is ready
            return False

    wait_for("an answer of the new service", answered, PATIENCE_S)
    print(f"the first answer {time.monotonic() - began:.1f} s after the first request that made it")
    assert not fleet.product.sql(HAD_TWICE)


@pytest.mark.parametrize("policy", POLICIES)
def test_both_services_answer_every_request_under_each_policy(fleet: Fleet, policy: str) -> None:
    """While fleets change from the last policy to this one, and once they have."""
    since = datetime.now(UTC)
    for service in (LARGE, SMALL):
        fleet.product.cli("policy", service, policy)
    meanwhile = fleet.ask_both()
    wait_for("plans of both", lambda: fleet.names(DECIDED, since) == {LARGE, SMALL}, PATIENCE_S)
    wait_for("instances of both", lambda: fleet.names(SERVES) == {LARGE, SMALL}, PATIENCE_S)
    then = fleet.ask_both()
    assert not fleet.product.sql(HAD_TWICE)
    for service in (LARGE, SMALL):
        slowest = [max(times[service]) for times in (meanwhile, then)]
        print(f"{policy}: {service} at most {slowest[0]:.1f} s meanwhile, {slowest[1]:.1f} s then")
        assert max(slowest) < ANSWERED_WITHIN_S
