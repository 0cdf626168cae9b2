"""Who goes when: lines at the gateway, their orders and bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pools import wire
from tests.fakes.fleet import OTHER_SECRET
from tests.unit.pools.gateway.conftest import Bench, Start, completion, until


async def bench_with(start: Start, engines: int = 1, delay_s: float = 0.0, **policy: Any) -> Bench:
    """Each engine takes one request at a time; the others wait at the gateway."""
    bench = await start(engines)
    for engine in bench.engines:
        engine.head_delay_s = delay_s
    bench.fleet.policy = wire.RequestPolicy(engine_queue=1, **policy)
    bench.publish()
    return bench


def hold(bench: Bench) -> asyncio.Event:
    """Engines answer once it is set."""
    held = asyncio.Event()
    for engine in bench.engines:
        engine.held = held
    return held


def prompts(bench: Bench) -> list[int]:
    return [request.body["prompt"][0] for engine in bench.engines for request in engine.received]


async def sent(bench: Bench, name: int, prompt_tokens: int = 300, secret: str | None = None, **fields: Any) -> Any:
    """A stream, recognised by its prompt's first token; its status and headers when it is over."""
    headers = bench.auth if secret is None else {"Authorization": f"Bearer {secret}"}
    body = completion(prompt=[name] + [1] * (prompt_tokens - 1), stream=True, **fields)
    async with bench.post(body, headers=headers) as response:
        await response.read()
        return response.status, response.headers


async def in_order(bench: Bench, *requests: dict[str, Any]) -> list[int]:
    """Sends one that occupies the engine, then the others, and says in which order the engine got them."""
    held = hold(bench)
    tasks = [asyncio.create_task(sent(bench, 0))]
    await until(lambda: len(prompts(bench)) == 1)
    for name, request in enumerate(requests, start=1):
        tasks.append(asyncio.create_task(sent(bench, name, **request)))
        await until(lambda name=name: bench.server.gateway.dispatcher.waiting == name)
    held.set()
    statuses = [status for status, _ in await asyncio.gather(*tasks)]
    assert statuses == [200] * len(tasks)
    assert bench.server.gateway.dispatcher.waiting == 0
    return prompts(bench)[1:]


LONG, SHORT = {"max_tokens": 900}, {"max_tokens": 2}


@pytest.mark.parametrize(
    ("order", "expected"),
    [("fcfs", [1, 2, 3]), ("sjf", [2, 3, 1]), ("srtf", [2, 3, 1]), ("edf", [2, 3, 1]), ("llf", [2, 3, 1])],
)
async def test_waiting_requests_go_in_the_order_of_the_policy(start: Start, order: str, expected: list[int]) -> None:
    bench = await bench_with(start, order=order, aging_tokens_per_s=1.0)
    # Predictions are bounded by max_tokens; before there is history they are 129 (the prior) at most.
    assert await in_order(bench, LONG, SHORT, SHORT) == expected


async def test_hints_of_the_client_move_its_request_when_it_waits(start: Start) -> None:
    bench = await bench_with(start)
    order = await in_order(
        bench, {}, {"priority": -1}, {"priority": 1}, {"service_tier": "priority"}, {"service_tier": "flex"}
    )
    assert order == [4, 2, 1, 3, 5]
    assert all("priority" not in r.body and "service_tier" not in r.body for r in bench.engine.received)


async def test_client_cannot_make_its_request_urgent_when_laxity_is_the_order(start: Start) -> None:
    bench = await bench_with(start, order="llf")
    flex = {"priority": 10, "service_tier": "flex", **SHORT}
    order = await in_order(bench, flex, SHORT, {"priority": -10, "service_tier": "priority", **SHORT})
    assert order == [1, 2, 3]


async def test_tenants_share_when_weights_are_given(start: Start) -> None:
    bench = await bench_with(start, tenant_weights={})
    acme, birch = {}, {"secret": OTHER_SECRET}
    assert await in_order(bench, acme, acme, acme, birch, birch) == [1, 4, 2, 5, 3]


async def test_priority_goes_to_the_engine_when_the_policy_says_so(start: Start) -> None:
    bench = await bench_with(start, order="llf", engine_priority=True)
    await in_order(bench, LONG, SHORT)
    by_name = {request.body["prompt"][0]: request.body["priority"] for request in bench.engine.received}
    assert by_name[2] < by_name[1], "it has more to generate by 1.4 x Lat"
    assert all(isinstance(value, int) for value in by_name.values())


async def test_shorter_prompt_has_priority_in_the_engine_when_the_policy_says_so(start: Start) -> None:
    bench = await bench_with(start, order="spf", aging_tokens_per_s=0.0, engine_priority=True)
    for tokens in (300, 20):
        async with bench.post(completion(prompt=[5] * tokens), headers=bench.auth) as response:
            assert response.status == 200
    assert [request.body["priority"] for request in bench.engine.received] == [300_000, 20_000]


async def test_shorter_answer_has_priority_in_the_engine_when_aging_is_measured(start: Start) -> None:
    bench = await bench_with(start, order="sjf", aging_measured=True, engine_priority=True)
    await in_order(bench, {"max_tokens": 100}, {"max_tokens": 4})
    by_name = {request.body["prompt"][0]: request.body["priority"] for request in bench.engine.received}
    # Of the prior's tail, four times 129 tokens, and the limit of 60 s: so much a token counts.
    assert by_name[1] - by_name[2] == pytest.approx(96 * 60_000 / 516, abs=1000)


async def test_request_is_refused_when_the_line_is_full(start: Start) -> None:
    bench = await bench_with(start, max_queued_requests=1)
    held = hold(bench)
    tasks = [asyncio.create_task(sent(bench, n)) for n in range(2)]
    await until(lambda: bench.server.gateway.dispatcher.waiting == 1)
    async with bench.post(completion()) as response:
        assert response.status == 429
        assert 1 <= int(response.headers["Retry-After"]) <= 60
        assert (await response.json())["error"]["code"] == "queue_full"
    held.set()
    assert [status for status, _ in await asyncio.gather(*tasks)] == [200, 200]
    assert sorted(row.status for row in bench.rows()) == ["ok", "ok", "rejected"]


async def test_line_is_bounded_by_tokens_too(start: Start) -> None:
    bench = await bench_with(start, max_queued_tokens=1000)
    held = hold(bench)
    tasks = [asyncio.create_task(sent(bench, n)) for n in range(3)]
    await until(lambda: bench.server.gateway.dispatcher.waiting == 2)
    async with bench.post(completion(prompt=[1] * 800)) as response:
        assert response.status == 429
    held.set()
    await asyncio.gather(*tasks)


async def test_requests_wait_when_an_instance_is_about_to_be_ready(start: Start) -> None:
    """Of several classes, since each has its queue: a policy has changed, and the last instance went first."""
    bench = await bench_with(start)
    bench.fleet.state = "starting"
    bench.publish()
    tasks = [asyncio.create_task(sent(bench, n, tokens)) for n, tokens in enumerate((20, 300))]
    await until(lambda: bench.server.gateway.dispatcher.waiting == 2)
    bench.fleet.state = "ready"
    bench.publish()
    assert [status for status, _ in await asyncio.gather(*tasks)] == [200, 200]
    assert all(row.queue_s > 0.0 for row in bench.rows())


@pytest.mark.parametrize(
    ("ttft_s", "max_wait_s"), [pytest.param(0.1, 120.0, id="its TTFT"), pytest.param(None, 0.1, id="max_wait_s")]
)
async def test_request_is_refused_when_no_instance_has_come_up_in_time(
    start: Start, ttft_s: float | None, max_wait_s: float
) -> None:
    bench = await bench_with(start, max_wait_s=max_wait_s)
    bench.fleet.objectives, bench.fleet.state = wire.LatencyLimits(ttft_s), "starting"
    bench.publish()
    async with bench.post(completion()) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        assert (await response.json())["error"]["code"] == "no_instance_available"
    (row,) = bench.rows()
    assert (row.status, row.attempts) == ("rejected", 0)
    assert row.queue_s > 0.05  # of 0.1: a TTFT counts from when the request came


async def test_request_waits_on_for_room_when_an_instance_that_came_up_is_full(start: Start) -> None:
    bench = await bench_with(start)
    bench.fleet.objectives, bench.fleet.state = wire.LatencyLimits(0.3), "starting"
    bench.publish()
    held = hold(bench)
    tasks = [asyncio.create_task(sent(bench, n)) for n in range(2)]
    await until(lambda: bench.server.gateway.dispatcher.waiting == 2)
    bench.fleet.state = "ready"
    bench.publish()
    await until(lambda: len(prompts(bench)) == 1)
    await asyncio.sleep(0.3)
    held.set()
    assert [status for status, _ in await asyncio.gather(*tasks)] == [200, 200]


@pytest.mark.parametrize("urls", ["none", "draining"])
async def test_request_is_refused_at_once_when_no_instance_comes_up(start: Start, urls: str) -> None:
    bench = await bench_with(start)
    if urls == "none":
        bench.fleet.urls.clear()
    bench.fleet.state = "draining"
    bench.publish()
    async with bench.post(completion()) as response:
        assert response.status == 503
    assert not bench.rows()[0].queue_s


async def test_request_that_waits_too_long_learns_when_to_come_again(start: Start) -> None:
    bench = await bench_with(start, max_wait_s=0.1)
    held = hold(bench)
    first = asyncio.create_task(sent(bench, 0))
    await until(lambda: len(prompts(bench)) == 1)
    status, headers = await sent(bench, 1)
    assert status == 429
    assert int(headers["Retry-After"]) >= 1
    held.set()
    assert (await first)[0] == 200
    assert prompts(bench) == [0]


async def test_place_goes_to_the_next_when_a_client_leaves_the_line(start: Start) -> None:
    bench = await bench_with(start)
    held = hold(bench)
    first = asyncio.create_task(sent(bench, 0))
    await until(lambda: len(prompts(bench)) == 1)
    leaver = asyncio.create_task(sent(bench, 1))
    await until(lambda: bench.server.gateway.dispatcher.waiting == 1)
    stayer = asyncio.create_task(sent(bench, 2))
    await until(lambda: bench.server.gateway.dispatcher.waiting == 2)
    leaver.cancel()
    await until(lambda: bench.server.gateway.dispatcher.waiting == 1)
    held.set()
    assert [(await task)[0] for task in (first, stayer)] == [200, 200]
    assert prompts(bench) == [0, 2]
    assert sorted(row.status for row in bench.rows()) == ["client_gone", "ok", "ok"]
    (instance,) = bench.server.fleet.instances()
    assert (instance.in_flight, instance.unstarted) == (0, 0)


async def test_all_engines_are_used_when_each_takes_one_at_a_time(start: Start) -> None:
    bench = await bench_with(start, engines=3)
    held = hold(bench)
    tasks = [asyncio.create_task(sent(bench, n)) for n in range(9)]
    await until(lambda: bench.server.gateway.dispatcher.waiting == 6)
    await until(lambda: [len(engine.received) for engine in bench.engines] == [1, 1, 1])
    held.set()
    assert [status for status, _ in await asyncio.gather(*tasks)] == [200] * 9
    assert len(prompts(bench)) == 9


async def test_line_moves_on_when_the_policy_changes(start: Start) -> None:
    bench = await bench_with(start)
    held = hold(bench)
    tasks = [asyncio.create_task(sent(bench, n)) for n in range(3)]
    await until(lambda: bench.server.gateway.dispatcher.waiting == 2)
    bench.fleet.policy = wire.RequestPolicy(engine_queue=10, order="llf")
    bench.publish()
    await until(lambda: len(prompts(bench)) == 3)
    held.set()
    await asyncio.gather(*tasks)


async def test_no_answer_is_held_up_when_it_does_not_stream(start: Start) -> None:
    """Its first byte comes with its last: the next one goes when the first one's prompt should be done with."""
    bench = await bench_with(start)
    held = hold(bench)

    async def whole(name: int) -> int:
        async with bench.post(completion(prompt=[name, 1, 1])) as response:
            return response.status

    tasks = [asyncio.create_task(whole(n)) for n in range(4)]
    await until(lambda: len(prompts(bench)) == 4)
    assert not any(task.done() for task in tasks)
    held.set()
    assert await asyncio.gather(*tasks) == [200] * 4


@pytest.mark.parametrize("route", ["weighted_round_robin", "round_robin", "least_loaded"])
async def test_instances_take_turns_when_routed_so(start: Start, route: str) -> None:
    bench = await start(2)
    bench.fleet.policy = wire.RequestPolicy(route=route)
    bench.publish()
    for engine in bench.engines:
        engine.pace_s = 0.05
    await asyncio.gather(*(sent(bench, n) for n in range(8)))
    assert [len(engine.received) for engine in bench.engines] == [4, 4]


async def test_own_objective_decides_when_the_request_brings_one(start: Start) -> None:
    bench = await start(1)
    for headers, meets in (({}, True), ({"x-slo-ttft-ms": "0.001"}, False)):
        async with bench.post(completion(prompt=[5] * 20), headers=bench.auth | headers) as response:
            assert response.status == 200
        assert ("no instance keeps the limits" not in bench.rows()[-1].route_reason) == meets
    async with bench.post(completion(), headers=bench.auth | {"x-slo-tpot-ms": "soon"}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "x-slo-tpot-ms"
    async with bench.post(completion(service_tier="gold")) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "service_tier"
