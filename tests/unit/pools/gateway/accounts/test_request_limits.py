"""Limits of tenants and keys, by a clock that is handed in, and through a gateway with OpenAI's own client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from core.ports import RequestFeatures
from pools import wire
from pools.gateway.accounts.networks import Networks
from pools.gateway.accounts.request_limits import LimitKeeper, duration
from pools.gateway.errors import ApiError
from tests.fakes.fleet import MODEL, SECRET, key
from tests.unit.pools.gateway.conftest import Bench, completion, until


@dataclass
class AskedAt:
    received_s: float


@dataclass
class AskedCall:
    """What `admit` looks at of a call."""

    key: wire.FleetKey
    request: AskedAt
    prompt_tokens: int = 10
    max_tokens: int | None = None
    predicted_tokens: int | None = 5
    features: RequestFeatures | None = None
    charge: Any = None
    limit_headers: bytes = b""


@dataclass
class Counter:
    """Sends requests of one key to a keeper."""

    limits: wire.RequestLimits | None = None
    tenant_limits: wire.RequestLimits | None = None
    gateways: int = 1
    keeper: LimitKeeper = field(default_factory=LimitKeeper)

    def ask(self, at_s: float, key_id: int = 1, **asked: Any) -> AskedCall:
        own = wire.FleetKey("ab" * 32, key_id, "acme", 7, [], None, self.limits, self.tenant_limits)
        call = AskedCall(own, AskedAt(at_s), **asked)
        self.keeper.admit(call, self.gateways)  # type: ignore[arg-type]
        return call

    def refused(self, at_s: float, key_id: int = 1, **asked: Any) -> ApiError:
        with pytest.raises(ApiError) as found:
            self.ask(at_s, key_id, **asked)
        assert found.value.status == 429
        return found.value


def test_requests_of_a_minute_are_refused_beyond_the_limit_and_come_back_with_time() -> None:
    counter = Counter(wire.RequestLimits(requests_per_minute=2))
    counter.ask(100.0)
    last = counter.ask(100.0)
    assert b"x-ratelimit-limit-requests: 2\r\n" in last.limit_headers
    assert b"x-ratelimit-remaining-requests: 0\r\n" in last.limit_headers
    assert b"x-ratelimit-reset-requests: 1m0s\r\n" in last.limit_headers
    error = counter.refused(101.0)
    assert (error.code, error.kind, error.retry_after_s) == ("rate_limit_exceeded", "requests", 29)
    counter.ask(130.0)
    counter.refused(130.0)


def test_a_refused_request_takes_nothing_when_the_tenants_limit_holds_and_the_keys_does_not() -> None:
    counter = Counter(wire.RequestLimits(requests_per_minute=1), wire.RequestLimits(requests_per_minute=2))
    counter.ask(100.0)
    for _ in range(5):
        counter.refused(100.0)
    counter.ask(100.0, key_id=2)
    assert "tenant" in counter.refused(100.0, key_id=3).message


def test_tokens_are_charged_at_most_and_then_as_they_were() -> None:
    counter = Counter(wire.RequestLimits(tokens_per_minute=100))
    call = counter.ask(0.0, max_tokens=80)
    assert b"x-ratelimit-remaining-tokens: 10\r\n" in call.limit_headers
    assert counter.refused(0.0).kind == "tokens"
    call.charge.settle(30, 0.0)
    assert b"x-ratelimit-remaining-tokens: 55\r\n" in counter.ask(0.0).limit_headers


def test_tokens_beyond_the_charge_are_a_debt() -> None:
    counter = Counter(wire.RequestLimits(tokens_per_minute=60))
    call = counter.ask(0.0)
    call.charge.settle(120, 0.0)
    assert counter.refused(60.0).retry_after_s == 15
    counter.ask(76.0)


def test_tokens_of_a_request_that_nobody_served_are_given_back() -> None:
    counter = Counter(wire.RequestLimits(tokens_per_minute=15))
    call = counter.ask(0.0)
    counter.refused(0.0)
    call.charge.settle(0, 0.0)
    counter.ask(0.0)


def test_a_request_larger_than_the_limit_is_never_admitted_and_not_to_be_tried_again() -> None:
    error = Counter(wire.RequestLimits(tokens_per_minute=100)).refused(0.0, max_tokens=91)
    assert error.retry_after_s is None
    assert error.limit_headers[b"x-should-retry"] == b"false"


def test_each_answer_counts_when_several_are_asked_for() -> None:
    features = RequestFeatures(chat=False, at_s=0.0, sequences=3)
    call = Counter(wire.RequestLimits(tokens_per_minute=100)).ask(0.0, max_tokens=20, features=features)
    assert b"x-ratelimit-remaining-tokens: 30\r\n" in call.limit_headers


def test_requests_at_a_time_are_refused_until_one_has_ended() -> None:
    counter = Counter(tenant_limits=wire.RequestLimits(concurrent_requests=1))
    call = counter.ask(0.0)
    assert counter.refused(1.0, key_id=2).retry_after_s == 1
    call.charge.settle(0, 2.0)
    counter.ask(2.0, key_id=2)


def test_each_of_several_gateways_allows_its_part() -> None:
    counter = Counter(wire.RequestLimits(requests_per_minute=4, tokens_per_minute=100), gateways=2)
    counter.ask(0.0)
    counter.refused(0.0, max_tokens=80)  # 90 tokens fit into the limit, and are admitted once this part is whole
    counter.ask(60.0, max_tokens=80)
    assert counter.refused(60.0).kind == "tokens"


def test_what_is_used_of_the_minute_stays_used_when_the_limit_changes() -> None:
    counter = Counter(wire.RequestLimits(requests_per_minute=10))
    for _ in range(5):
        counter.ask(0.0)
    counter.limits = wire.RequestLimits(requests_per_minute=20)
    assert b"x-ratelimit-remaining-requests: 9\r\n" in counter.ask(0.0).limit_headers


def test_nothing_is_charged_when_there_are_no_limits() -> None:
    call = Counter().ask(0.0)
    assert call.charge is None
    assert call.limit_headers == b""


@pytest.mark.parametrize(
    ("seconds", "written"), [(0, b"0s"), (0.1201, b"121ms"), (1.5, b"1.5s"), (59.99, b"1m0s"), (360, b"6m0s")]
)
def test_durations_are_written_as_openais(seconds: float, written: bytes) -> None:
    assert duration(seconds) == written


@pytest.mark.parametrize(
    ("host", "held"),
    [
        ("192.0.2.9", True),
        ("::ffff:192.0.2.9", True),
        ("192.0.3.9", False),
        ("2001:db8::1", True),
        ("2001:db9::1", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("proxy", False),
    ],
)
def test_addresses_are_of_networks_in_each_of_their_forms(host: str, held: bool) -> None:
    networks = Networks()
    assert [networks.hold(["192.0.2.0/24", "2001:db8::/48"], host) for _ in range(2)] == [held, held]


def limit(bench: Bench, limits: wire.RequestLimits | None = None, **fields: Any) -> None:
    """Puts one key in force, in the place of all others."""
    made = key(SECRET, 1, fields.pop("services", ()))
    fleet = bench.fleet.fleet()
    changed = wire.FleetKey(made.key_hash, 1, made.tenant, 1, made.services, None, limits, **fields)
    fleet = wire.Fleet(fleet.version, fleet.at_s, fleet.services, [changed], fleet.nodes)
    bench.server.fleet.apply(fleet, bench.fleet.states(), 0.0)


async def test_openais_client_raises_its_rate_limit_error_when_a_key_is_over_its_limit(start: Any) -> None:
    bench = await start()
    limit(bench, wire.RequestLimits(requests_per_minute=1, tokens_per_minute=1000))
    async with openai.AsyncOpenAI(base_url=f"{bench.url}/v1", api_key=SECRET, max_retries=0) as client:
        answered = await client.completions.with_raw_response.create(model=MODEL, prompt="Say so", max_tokens=5)
        assert answered.headers["x-ratelimit-limit-requests"] == "1"
        assert answered.headers["x-ratelimit-remaining-requests"] == "0"
        assert int(answered.headers["x-ratelimit-remaining-tokens"]) > 900
        with pytest.raises(openai.RateLimitError) as refused:
            await client.completions.create(model=MODEL, prompt="Say so", max_tokens=5)
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.response.headers["retry-after"] == "60"
    assert refused.value.response.headers["x-ratelimit-reset-requests"]
    await until(lambda: len(bench.rows()) == 2)
    row = bench.rows()[-1]
    assert (row.status, row.http_status, row.attempts) == ("client_error", 429, 0)
    assert "requests per minute" in row.error
    assert len(bench.engine.received) == 1


async def test_a_stream_carries_the_headers_and_gives_its_place_back_when_it_ends(start: Any) -> None:
    bench = await start()
    limit(bench, wire.RequestLimits(concurrent_requests=1, requests_per_minute=100))
    for left in ("99", "98"):
        async with bench.post(completion(stream=True)) as answer:
            assert answer.status == 200
            assert answer.headers["x-ratelimit-remaining-requests"] == left
            await answer.read()


async def test_a_key_for_another_address_is_refused_as_one_that_is_not_known(start: Any) -> None:
    bench = await start()
    limit(bench, addresses=["192.0.2.0/24"])
    async with bench.post(completion()) as answer:
        assert answer.status == 401
        refused = await answer.json()
    async with bench.http.get(f"{bench.url}/v1/models", headers=bench.auth) as answer:
        assert answer.status == 401
    async with bench.post(completion(), headers={"Authorization": "Bearer wrong"}) as answer:
        assert await answer.json() == refused
    limit(bench, addresses=["127.0.0.0/8"])
    async with bench.post(completion()) as answer:
        assert answer.status == 200
