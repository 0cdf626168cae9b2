"""An emergency reaches those that wait inside an engine: they are sent again with another number, and answered once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from core.engine.step_tables import round_up
from core.policy.tuning import LadderTuning
from pools import wire
from pools.gateway.placing.emergencies import MOST_TIMES
from pools.gateway.placing.slot import slots_at
from tests.fakes.fleet import MODEL
from tests.unit.pools.gateway.conftest import Bench, Start, completion, until
from tests.unit.pools.gateway.placing.test_projected_admission import emergencies_of, limited, look, pressed

PROMPT_TOKENS = 6000
LAX = 4  # requests that have time; the first of them is computed
URGENT = LAX  # comes last


async def crowded(
    start: Start, waiting: int | None = LAX, stream: bool = True, **policy: Any
) -> tuple[Bench, list[asyncio.Task[int]]]:
    """An engine that has begun none of its requests; the last one to come is late in the order in which they came."""
    often = wire.RequestTuning(ladder=LadderTuning(period_s=0.1))
    own = {"engine_priority": True, "emergencies_up_to": "reorder", "tuning": often, **policy}
    bench, _ = await pressed(start, 1, **own)
    (instance,) = bench.server.fleet.services[MODEL].ready
    table = instance.candidate().table
    assert table is not None
    prompt_s = table.prefill(round_up(PROMPT_TOKENS), 0)[0]
    bench.fleet.waiting = waiting  # type: ignore[assignment]
    limited(bench, ttft_s=20.0 * prompt_s)
    bench.engine.held = asyncio.Event()

    async def ask(n: int) -> int:
        headers = {**bench.auth, **({"x-slo-ttft-ms": str(round(4500.0 * prompt_s))} if n == URGENT else {})}
        body = completion(stream=stream, prompt=[n] + [1] * (PROMPT_TOKENS - 1))
        async with bench.post(body, headers=headers) as response:
            await response.read()
            return int(response.status)

    tasks = []
    for n in range(LAX + 1):
        tasks.append(asyncio.create_task(ask(n)))
        await until(lambda n=n: len(bench.engine.received) == n + 1)  # type: ignore[misc]
    return bench, tasks


def numbers(bench: Bench) -> dict[int, int]:
    """The newest number of each request."""
    return {request.body["prompt"][0]: request.body["priority"] for request in bench.engine.received}


async def ended(bench: Bench, tasks: list[asyncio.Task[int]]) -> None:
    """All are answered, once each, and on record as one attempt with its tokens."""
    assert bench.engine.held is not None
    bench.engine.held.set()
    assert await asyncio.gather(*tasks) == [200] * len(tasks)
    await until(lambda: len(bench.rows()) == len(tasks))
    rows = bench.rows()
    assert len({row.request_id for row in rows}) == len(tasks)
    assert {(row.status, row.attempts, row.prompt_tokens, row.output_tokens) for row in rows} == {
        ("ok", 1, PROMPT_TOKENS, 5)
    }
    assert len(bench.engine.received) - bench.engine.aborted == len(tasks), "each is answered once"
    (instance,) = bench.server.fleet.services[MODEL].ready
    assert (instance.in_flight, instance.unstarted, len(instance.slots)) == (0, 0, 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_urgent_request_is_sent_again_ahead_of_those_that_wait_in_the_engine(start: Start, stream: bool) -> None:
    bench, tasks = await crowded(start, stream=stream)
    before = numbers(bench)
    assert before[URGENT] == max(before.values())
    look(bench, time.monotonic())
    await until(lambda: len(bench.engine.received) == LAX + 2)
    await until(lambda: bench.engine.aborted == 1)
    after = numbers(bench)
    assert {n: number for n, number in after.items() if n != URGENT} == {n: before[n] for n in range(LAX)}
    assert after[0] <= after[URGENT] < after[1], "the first is computed already; it goes before the others"
    look(bench, time.monotonic() + 0.1)
    assert emergencies_of(bench).sent_again == 1, "the order is the wanted one"
    await ended(bench, tasks)


async def test_request_is_sent_again_a_few_times_at_most(start: Start) -> None:
    bench, tasks = await crowded(start)
    (instance,) = bench.server.fleet.services[MODEL].ready
    now_s = time.monotonic()
    for turn in range(MOST_TIMES + 2):
        look(bench, now_s + 0.1 * turn)
        await until(lambda turn=turn: len(bench.engine.received) == LAX + 1 + min(MOST_TIMES, turn + 1))  # type: ignore[misc]
        (urgent,) = [slot for slot in slots_at(instance) if slot.call.own_limits is not None]
        urgent.call.engine_priority = 1 << 50  # something has put it back to the end
    assert emergencies_of(bench).sent_again == MOST_TIMES
    await ended(bench, tasks)


@pytest.mark.parametrize(
    ("waiting", "policy"),
    [
        (0, {}),
        (None, {}),
        (LAX, {"engine_priority": False}),
    ],
)
async def test_nobody_is_sent_again_when_the_engine_computes_all_or_takes_no_numbers(
    start: Start, waiting: int | None, policy: dict[str, Any]
) -> None:
    bench, tasks = await crowded(start, waiting, **policy)
    look(bench, time.monotonic())
    assert emergencies_of(bench).counts, "it is late"
    assert emergencies_of(bench).sent_again == 0
    await ended(bench, tasks)
    assert (len(bench.engine.received), bench.engine.aborted) == (LAX + 1, 0)


async def test_request_stays_when_something_of_its_answer_has_come(start: Start) -> None:
    bench, _ = await pressed(start, 1, engine_priority=True)
    bench.engine.pace_s = 0.05
    task = asyncio.create_task(bench.post(completion(stream=True)).__aenter__())
    (instance,) = bench.server.fleet.services[MODEL].ready
    await until(lambda: any(slot.begun for slot in slots_at(instance)))
    (slot,) = slots_at(instance)
    assert slot.owner is not None
    assert not slot.owner.send_again(-1)
    response = await task
    assert response.status == 200
    await response.read()
    assert len(bench.engine.received) == 1
