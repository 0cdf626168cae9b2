"""A simulated engine goes to another TP degree in place, over HTTP and in this process: DynamoLLM IV-C, live."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.engine.overheads import Overheads, weight_bytes
from core.ports import InstanceStatus
from tests.integration.pools.test_simnode_abilities import MODEL, Node, body
from tests.representatives import first

SPEEDUP = 20.0


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node("one", tmp_path, SPEEDUP) as opened:
        yield opened


def gpus(*indices: int) -> list[str]:
    return [f"SIM-one-{index}" for index in indices]


def status(node: Node) -> InstanceStatus:
    return next(one for one in node.node.list() if one.uid == "a")


async def order(node: Node, *indices: int) -> tuple[int, str]:
    code, answer = await node.call("POST", "/instances/a/reshard", {"gpu_uuids": gpus(*indices)})
    return code, str(answer)


async def settled(node: Node) -> None:
    await node.until(lambda: not status(node).taking)


@pytest.mark.parametrize(("before", "after"), first(1, [((0,), (0, 1)), ((0, 1), (1,))], "one engine grows"))
async def test_stream_runs_through_when_its_engine_goes_to_another_tp(
    node: Node, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    url = await node.start("a", before[0])
    if len(before) > 1:
        await order(node, *before)
        await settled(node)
    whole = await node.complete(url, max_tokens=40)
    process, texts, degrees = status(node).url, [], set()
    fields = body(max_tokens=40, stream=True)
    async with node._session.post(f"{url}/v1/completions", json=fields) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            texts.append(json.loads(line[6:])["choices"][0]["text"])
            degrees.add(len(status(node).gpu_uuids))
            if len(texts) == 5:
                assert (await order(node, *after))[0] == 202
                assert set(status(node).taking) == set(gpus(*after))
                assert set(status(node).gpu_uuids) == set(gpus(*before))
    assert "".join(texts) == whole["choices"][0]["text"]
    await settled(node)
    now = status(node)
    assert (now.state, now.url, set(now.gpu_uuids)) == ("ready", process, set(gpus(*after)))
    assert degrees <= {len(before), len(after)}
    held = {gpu.index for gpu in node.node._bank.gpus.values() if gpu.held}
    assert held == set(after)
    again = await node.complete(url, max_tokens=40)
    assert again["choices"][0]["text"] == whole["choices"][0]["text"]


async def test_change_takes_what_the_links_take_when_weights_move(node: Node) -> None:
    await node.start("a", 0)
    overheads = Overheads()
    began_s = time.monotonic()
    await order(node, 0, 1)
    await settled(node)
    took_s = (time.monotonic() - began_s) * SPEEDUP
    moved_s = weight_bytes(MODEL) / 2 / overheads.link_bytes_per_s  # half of them to the second GPU
    assert moved_s + overheads.sync_s <= took_s <= moved_s + overheads.sync_s + 2.0


async def test_next_tokens_come_faster_when_more_gpus_share_the_work(node: Node) -> None:
    url = await node.start("a", 0)
    alone = node.node._instances["a"]._engine_model.iteration(1410.0, (), 1, 100).t_s
    await order(node, 0, 1)
    await settled(node)
    engine = node.node._instances["a"]._engine_model
    assert engine.tp == 2
    assert engine.iteration(1410.0, (), 1, 100).t_s < alone
    began_s = time.monotonic()
    await node.complete(url, max_tokens=50)
    assert time.monotonic() - began_s >= 50 * engine.iteration(1410.0, (), 1, 20).t_s


async def test_order_is_refused_when_its_gpus_are_not_to_be_had(node: Node) -> None:
    await node.start("a", 0)
    await node.start("b", 1)
    assert await order(node, 0, 1) == (409, str({"error": "SIM-one-1 is allocated to instance b"}))
    assert (await order(node, 0, 9))[0] == 400
    assert (await node.call("POST", "/instances/c/reshard", {"gpu_uuids": gpus(2)}))[0] == 404
    assert (await order(node, 0))[0] == 202  # it is there
    assert not status(node).taking


async def test_second_order_and_sleep_wait_while_the_first_is_under_way(node: Node) -> None:
    await node.start("a", 0)
    await order(node, 0, 1)
    assert (await order(node, 1, 0))[0] == 202  # the same again
    assert (await order(node, 0, 2))[0] == 409
    assert (await node.call("POST", "/instances/a/sleep", {}))[0] == 409
    await settled(node)
    assert set(status(node).gpu_uuids) == set(gpus(0, 1))


async def test_gpus_of_both_layouts_are_free_when_it_is_stopped_on_the_way(node: Node) -> None:
    await node.start("a", 0)
    await order(node, 0, 1)
    await node.call("DELETE", "/instances/a")
    assert not any(gpu.held for gpu in node.node._bank.gpus.values())
    await asyncio.sleep(2.0 / SPEEDUP)
    await node.start("b", 1)
