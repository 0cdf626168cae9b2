"""Requests for a service that sleeps: held until it wakes, and refused once patience is over."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from pools import wire
from pools.gateway.placing import dispatch
from tests.unit.pools.gateway.conftest import Bench, Start, completion, until


async def asleep(start: Start, patience_s: float | None) -> Bench:
    """A service with no instance at all: its last one was stopped."""
    bench = await start()
    bench.fleet.policy = wire.RequestPolicy(wake_patience_s=patience_s)
    bench.fleet.objectives = wire.LatencyLimits(0.05)  # a TTFT that no waking could keep
    bench.fleet.urls.clear()
    bench.publish()
    return bench


def wake(bench: Bench) -> None:
    bench.fleet.urls += [engine.url for engine in bench.engines]
    bench.publish()


def wishes(bench: Bench) -> list[str]:
    """Notes each wish to wake."""
    found: list[str] = []
    bench.server.gateway.dispatcher.wish = lambda: found.append("wake")
    return found


async def text_of(bench: Bench, **fields: Any) -> tuple[int, str, str]:
    async with bench.post(completion(**fields)) as response:
        body = b""
        with suppress(aiohttp.ClientPayloadError):  # a stream that is cut has no proper end
            async for piece in response.content.iter_any():
                body += piece
        return response.status, response.headers["Content-Type"], body.decode()


async def test_request_is_held_until_its_service_wakes_and_its_wait_is_on_record(start: Start) -> None:
    bench = await asleep(start, 30.0)
    wished = wishes(bench)
    task = asyncio.create_task(text_of(bench))
    await until(lambda: bench.server.gateway.dispatcher.waiting == 1)
    assert wished == ["wake"]
    assert bench.server.gateway.not_ready() == "", "a fleet that sleeps is not down"
    await asyncio.sleep(0.1)
    wake(bench)
    status, _, text = await task
    assert (status, "usage" in text) == (200, True)
    row = await bench.row()
    assert row.status == "ok"
    assert (row.queue_s or 0.0) > 0.1


async def test_stream_has_a_comment_now_and_then_while_its_service_wakes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "WAKING_PERIOD_S", 0.04)
    bench = await asleep(start, 30.0)
    task = asyncio.create_task(text_of(bench, stream=True))
    await until(lambda: bench.server.gateway.dispatcher.waiting == 1)
    await asyncio.sleep(0.1)
    wake(bench)
    status, kind, text = await task
    assert (status, kind) == (200, "text/event-stream; charset=utf-8")
    assert text.startswith(": waking\n\n: waking\n\n")
    events = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert events[-1] == "data: [DONE]"
    assert all("choices" in json.loads(event.removeprefix("data: ")) for event in events[:-1])
    row = await bench.row()
    assert row.status == "ok"
    assert (row.ttft_s or 0.0) > 0.1, "what it was held counts"


async def test_request_is_refused_with_a_code_of_its_own_when_patience_is_over(start: Start) -> None:
    bench = await asleep(start, 0.1)
    async with bench.post(completion()) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        error = (await response.json())["error"]
    assert error["code"] == "still_asleep"
    assert "0.1 s" in error["message"]
    row = await bench.row()
    assert (row.status, row.attempts) == ("rejected", 0)
    assert (row.queue_s or 0.0) > 0.05


async def test_stream_ends_with_an_error_event_when_patience_is_over(start: Start) -> None:
    bench = await asleep(start, 0.1)
    status, _, text = await text_of(bench, stream=True)
    assert status == 200, "its head went out with the first comment"
    comment, event, _ = text.split("\n\n")
    assert comment == ": waking"
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "still_asleep"
    assert (await bench.row()).status == "rejected"


async def test_stream_has_the_engines_refusal_as_an_event_when_it_woke_for_it(start: Start) -> None:
    bench = await asleep(start, 30.0)
    bench.engine.status = 400
    task = asyncio.create_task(text_of(bench, stream=True))
    await until(lambda: bench.server.gateway.dispatcher.waiting == 1)
    wake(bench)
    _, _, text = await task
    comment, event, _ = text.split("\n\n")
    assert comment == ": waking"
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == "engine says no"
    row = await bench.row()
    assert (row.status, row.http_status) == ("client_error", 200)


async def test_request_is_refused_at_once_when_its_service_never_sleeps(start: Start) -> None:
    bench = await asleep(start, None)
    wished = wishes(bench)
    async with bench.post(completion(stream=True)) as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "no_instance_available"
    assert wished == []


async def test_client_that_leaves_while_its_service_wakes_is_on_record_as_gone(start: Start) -> None:
    bench = await asleep(start, 30.0)
    async with bench.post(completion(stream=True)) as response:
        assert await response.content.readline() == b": waking\n"
        response.close()
    row = await bench.row()
    assert row.status == "client_gone"
    assert bench.server.gateway.dispatcher.waiting == 0
