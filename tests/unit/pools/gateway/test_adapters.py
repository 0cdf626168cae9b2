"""LoRA adapters that a service declares: engines load them when requests ask for them, and unload others for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.fakes.fleet import MODEL

from .conftest import Bench, Start, completion, until

Begin = Callable[..., Awaitable[Bench]]


@pytest.fixture
def begin(start: Start) -> Begin:
    """Starts engines that can load adapters, of a service that declares two and has place for one."""

    async def begun(engines: int = 1, **fields: Any) -> Bench:
        bench = await start(engines=engines)
        for engine in bench.engines:
            engine.adapters = {}
        bench.fleet.declared = ["legal", "medical"]
        for name, value in fields.items():
            setattr(bench.fleet, name, value)
        report(bench)
        return bench

    return begun


def report(bench: Bench) -> None:
    """The agents report now, with what the fleet says that engines have loaded."""
    bench.server.fleet.apply(bench.fleet.fleet(), bench.fleet.states(), time.monotonic())


async def ask(bench: Bench, model: str) -> tuple[int, Any]:
    async with bench.post(completion(model=model)) as response:
        return response.status, await response.json()


async def test_adapter_is_loaded_for_the_first_request_and_stays(begin: Begin) -> None:
    bench = await begin()
    for _ in range(2):
        status, body = await ask(bench, "legal")
        assert (status, body["model"]) == (200, "legal")
        report(bench)  # the agent has not asked the engine since
    assert bench.engine.orders == [("load", "legal")]
    assert bench.engine.adapters == {"legal": "acme/legal"}
    assert [(row.service, row.adapter, row.status) for row in bench.rows()] == [(MODEL, "legal", "ok")] * 2
    async with bench.http.get(bench.url + "/metrics") as response:
        counted = (await response.text()).splitlines()
    of_it = f'service="{MODEL}",adapter="legal"'
    assert {
        "greenserve_gateway_adapter_loads_total 1",
        f'greenserve_gateway_adapter_requests_total{{{of_it},status="ok"}} 2',
        f'greenserve_gateway_adapter_tokens_total{{{of_it},kind="prompt"}} 600',
        f'greenserve_gateway_adapter_tokens_total{{{of_it},kind="output"}} 10',
    } <= set(counted)


async def test_declared_adapters_are_listed_before_any_engine_has_them(begin: Begin) -> None:
    bench = await begin()
    async with bench.http.get(bench.url + "/v1/models", headers=bench.auth) as response:
        models = (await response.json())["data"]
    assert [(m["id"], m["parent"]) for m in models] == [(MODEL, None), ("legal", MODEL), ("medical", MODEL)]
    async with bench.http.get(bench.url + "/v1/models/medical", headers=bench.auth) as response:
        assert await response.json() == models[2]
    assert bench.engine.orders == []


async def test_least_recently_used_goes_for_another(begin: Begin) -> None:
    bench = await begin(declared=["legal", "medical", "tax"], max_loras=2)
    for name in ("legal", "medical", "legal", "tax"):
        assert (await ask(bench, name))[0] == 200
    assert bench.engine.orders == [("load", "legal"), ("load", "medical"), ("unload", "medical"), ("load", "tax")]
    assert {row.adapter for row in bench.rows()} == {"legal", "medical", "tax"}


async def test_adapter_with_requests_is_not_unloaded(begin: Begin) -> None:
    bench = await begin()
    await ask(bench, "legal")
    bench.engine.pace_s = 0.06
    busy = asyncio.create_task(ask(bench, "legal"))
    await until(lambda: len(bench.engine.received) == 2)
    waits = asyncio.create_task(ask(bench, "medical"))
    await asyncio.sleep(0.1)
    assert bench.engine.orders == [("load", "legal")]
    assert (await busy)[0] == (await waits)[0] == 200
    assert bench.engine.orders[1:] == [("unload", "legal"), ("load", "medical")]


async def test_what_somebody_loaded_by_hand_is_not_unloaded(begin: Begin) -> None:
    bench = await begin(adapters={0: ["by-hand"]}, max_loras=2)
    for name in ("legal", "medical"):
        assert (await ask(bench, name))[0] == 200
    assert bench.engine.orders[1:] == [("unload", "legal"), ("load", "medical")]


async def test_instance_with_the_adapter_goes_first_and_a_free_one_helps_when_it_is_full(begin: Begin) -> None:
    bench = await begin(engines=2)
    bench.fleet.policy = type(bench.fleet.policy)(engine_queue=1)
    report(bench)
    assert [(await ask(bench, "legal"))[0] for _ in range(3)] == [200] * 3
    first, other = sorted(bench.engines, key=lambda engine: -len(engine.orders))
    assert other.orders == []
    first.head_delay_s = 0.2
    answers = await asyncio.gather(*(ask(bench, "legal") for _ in range(3)))
    assert [status for status, _ in answers] == [200] * 3
    assert other.orders == [("load", "legal")]


async def test_engine_that_lost_its_adapter_loads_it_again(begin: Begin) -> None:
    bench = await begin()
    await ask(bench, "legal")
    bench.engine.adapters = {}  # another gateway has had it unloaded
    assert (await ask(bench, "legal"))[0] == 200
    assert bench.engine.orders == [("load", "legal")] * 2


async def test_other_gateways_load_and_unload_as_well(begin: Begin) -> None:
    bench = await begin()
    bench.engine.adapters = {"medical": "acme/medical"}  # which no report says yet
    assert (await ask(bench, "medical"))[0] == 200
    bench.engine.adapters = {}
    assert (await ask(bench, "legal"))[0] == 200
    assert bench.engine.orders == [("load", "medical"), ("unload", "medical"), ("load", "legal")]


@pytest.mark.parametrize(
    ("adapters", "fault", "why"),
    [
        (None, "", "it was started without LoRA adapters: start it anew"),
        ({}, "LoRA rank 64 is greater than max_lora_rank 16.", "LoRA rank 64 is greater than max_lora_rank 16."),
    ],
)
async def test_adapter_that_cannot_be_loaded_is_an_error_of_its_own_and_a_health_sign(
    begin: Begin, adapters: dict[str, str] | None, fault: str, why: str
) -> None:
    bench = await begin(engines=2)
    for engine in bench.engines:
        engine.adapters, engine.adapter_fault = adapters, fault
    for _ in range(2):  # the second one does not wait for engines to be asked again
        async with bench.post(completion(model="legal")) as response:
            assert response.status == 503
            assert response.headers["retry-after"] == "30"
            error = (await response.json())["error"]
        assert error["code"] == "adapter_not_loaded"
        assert "'legal'" in error["message"]
    assert [engine.orders for engine in bench.engines] == [[("load", "legal")]] * 2
    assert why in bench.server.fleet.unloadable["legal"]
    assert [(row.adapter, row.status) for row in bench.rows()] == [("legal", "rejected")] * 2
    assert (await ask(bench, MODEL))[0] == 200


async def test_another_engine_loads_what_one_could_not(begin: Begin) -> None:
    bench = await begin(engines=2)
    bench.engine.adapter_fault = "no"
    assert (await ask(bench, "legal"))[0] == 200
    assert [engine.orders for engine in bench.engines] == [[("load", "legal")]] * 2


async def test_nothing_is_loaded_while_no_instance_is_ready(begin: Begin) -> None:
    bench = await begin(state="draining")
    status, body = await ask(bench, "legal")
    assert (status, body["error"]["code"]) == (503, "no_instance_available")
    assert bench.engine.orders == []
