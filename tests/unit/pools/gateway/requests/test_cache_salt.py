"""What keeps tenants' prefixes apart in engines' caches, and in the gateway's own picture of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pools import wire
from pools.gateway.errors import ApiError
from pools.gateway.placing.instance_choice import WarmPrefixes
from pools.gateway.requests import validation
from pools.gateway.requests.client_fields import ClientFields
from pools.gateway.requests.endpoint import ALL, COMPLETIONS, Endpoint
from tests.fakes.fleet import MODEL, SECRET, key
from tests.unit.pools.gateway.conftest import Bench, completion

OURS, THEIRS = "ab" * 32, "cd" * 32
PROMPTS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
    "embeddings": {"input": "Hi"},
    "responses": {"input": "Hi"},
    "rerank": {"query": "Hi", "documents": ["Ho"]},
    "score": {"text_1": "Hi", "text_2": "Ho"},
}


def relayed(body: bytes, salt: str, endpoint: Endpoint = COMPLETIONS, allowed: ClientFields | None = None) -> Any:
    """Returns the body as an engine reads it: of a name that comes twice the last one counts."""
    parsed = validation.decode(body, endpoint, allowed or ClientFields())
    found, _ = validation.relayed_body(body, parsed, "m", validation.cache_salt(parsed, salt))
    return json.loads(found)


def body(endpoint: Endpoint, **fields: Any) -> bytes:
    return json.dumps({"model": "m"} | PROMPTS[endpoint.name] | fields).encode()


@pytest.mark.parametrize("endpoint", ALL, ids=lambda endpoint: endpoint.name)
@pytest.mark.parametrize("model", ["m", "another"])
def test_engine_gets_the_tenants_salt(endpoint: Endpoint, model: str) -> None:
    assert relayed(body(endpoint, model=model), OURS, endpoint)["cache_salt"] == OURS
    assert "cache_salt" not in relayed(body(endpoint, model=model), "", endpoint)


@pytest.mark.parametrize("endpoint", ALL, ids=lambda endpoint: endpoint.name)
def test_clients_own_salt_is_hashed_with_its_tenants(endpoint: Endpoint) -> None:
    own = body(endpoint, cache_salt="mine")
    ours, theirs = (relayed(own, salt, endpoint)["cache_salt"] for salt in (OURS, THEIRS))
    assert len({"mine", OURS, THEIRS, ours, theirs}) == 5
    assert relayed(own, OURS, endpoint)["cache_salt"] == ours
    assert relayed(own, "", endpoint)["cache_salt"] == "mine"


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m","prompt":"Hi","cache\\u005fsalt":"%b"}' % THEIRS.encode(),
        b'{"model":"m","cache_salt":null,"prompt":"Hi","cache_salt":"%b"}' % THEIRS.encode(),
        b'{"model":"m","prompt":"Hi","reuse":1,"cache_salt":"%b"}' % THEIRS.encode(),
        b'{"model":"m","prompt":"Hi","stream":true,"cache_salt":"%b"}' % THEIRS.encode(),
    ],
)
def test_another_tenants_salt_never_reaches_an_engine_however_it_is_written(raw: bytes) -> None:
    allowed = ClientFields(frozenset({"cache_salt", "reuse"}))
    found = relayed(raw, OURS, allowed=allowed)["cache_salt"]
    assert found not in (THEIRS, None)
    assert relayed(b'{"model":"m","prompt":"Hi","cache_salt":null}', OURS, allowed=allowed)["cache_salt"] == OURS


@pytest.mark.parametrize("given", ["", "a" * 1025, 1, {"a": 1}])
def test_salt_that_no_engine_takes_is_refused_by_its_name(given: object) -> None:
    with pytest.raises(ApiError) as refused:
        validation.decode(body(COMPLETIONS, cache_salt=given), COMPLETIONS)
    assert (refused.value.status, refused.value.param) == (400, "cache_salt")


def test_gateways_own_prefixes_are_kept_apart_by_salt() -> None:
    warm, prompt = WarmPrefixes(), random.Random(1).randbytes(2 * WarmPrefixes.BLOCK_BYTES)
    warm.note(warm.find(f"service/{OURS}", prompt)[1], "a")
    assert warm.find(f"service/{OURS}", prompt)[0] == "a"
    assert warm.find(f"service/{THEIRS}", prompt)[0] is None


async def test_engine_and_routing_go_by_the_salt_of_the_callers_tenant(bench: Bench, monkeypatch: Any) -> None:
    scopes: list[str] = []
    find = WarmPrefixes.find

    def spied(self: WarmPrefixes, scope: str, prompt: bytes) -> tuple[str | None, list[int]]:
        scopes.append(scope)
        return find(self, scope, prompt)

    monkeypatch.setattr(WarmPrefixes, "find", spied)
    for salt in (OURS, THEIRS):
        made, fleet = key(SECRET, 1), bench.fleet.fleet()
        salted = wire.FleetKey(made.key_hash, 1, "acme", 1, cache_salt=salt)
        fleet = wire.Fleet(fleet.version, fleet.at_s, fleet.services, [salted], fleet.nodes)
        bench.server.fleet.apply(fleet, bench.fleet.states(), 0.0)
        async with bench.post(completion(prompt="word " * 600)) as answer:
            assert answer.status == 200
    assert [sent.body["cache_salt"] for sent in bench.engine.received] == [OURS, THEIRS]
    assert scopes == [f"{MODEL}/{OURS}", f"{MODEL}/{THEIRS}"]
