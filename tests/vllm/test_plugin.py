"""GreenServe's scheduler in a real vLLM: order, budget, what it leaves alone, and its socket."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from core.ports import EngineLimits, PermanentError
from pools.agent.vllm import vllm_control
from pools.agent.vllm.vllm_control import VllmScheduler
from pools.vllm_scheduler import SCHEDULER_CLS
from pools.vllm_scheduler.control_socket import LONGEST_LINE
from tests.fakes.simnode import ROOT

from .server import ENVIRONMENT, PYTHON, VllmServer

SEATS = 4
TRIES = 3
TOKENS = 2048
WITHIN = 0.95  # share of the gaps between tokens that keep a limit
LIMITS = EngineLimits(TOKENS, SEATS, preempts_s=0.001, margin_s=0.1)


class Tuned:
    """A vLLM with GreenServe's scheduler, and its socket."""

    def __init__(self, server: VllmServer, folder: Path) -> None:
        self.server, self.socket = server, folder / "s"
        self.scheduler = VllmScheduler(self.socket, timeout_s=10.0)

    async def stream(self, http: aiohttp.ClientSession, prompt_tokens: int, output_tokens: int, **body: Any) -> Written:
        """A request of exactly these lengths, and when its tokens came."""
        prompt = [random.randrange(10, 2000) for _ in range(prompt_tokens)]
        written = Written(time.monotonic())
        whole = {
            "model": self.server.model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            **body,
        }
        async with http.post(self.server.url + "/v1/completions", json=whole) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    written.at_s.append(time.monotonic())
        return written


class Written:
    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.at_s: list[float] = []


@pytest.fixture(scope="module")
def tuned(vllm_server: Callable[..., VllmServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    folder = tmp_path_factory.mktemp("instance")
    server = vllm_server(
        env=vllm_control.environment(folder, folder / "s", by_laxity=False),
        scheduler_cls=SCHEDULER_CLS,
        max_num_seqs=SEATS,
        max_num_batched_tokens=TOKENS,
        no_enable_prefix_caching=True,
    ).start()
    yield Tuned(server, folder)
    server.stop()
    assert not (folder / "s").exists()


@pytest.fixture
def engine(tuned: Tuned) -> Iterator[Tuned]:
    yield tuned
    tuned.scheduler.order(by_laxity=False)
    tuned.scheduler.tune(LIMITS)


@pytest.fixture
async def http() -> Any:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
        yield session


async def finished(engine: Tuned, http: aiohttp.ClientSession, slos_s: list[float], tokens: int) -> list[float]:
    """The SLOs of requests that come together, in the order in which they end."""
    ended: list[float] = []

    async def one(slo_s: float) -> None:
        await engine.stream(http, 32, tokens, vllm_xargs={"slo_s": slo_s})
        ended.append(slo_s)

    await asyncio.gather(*(one(slo_s) for slo_s in slos_s))
    return ended


async def test_requests_end_in_the_order_of_their_objectives(engine: Tuned, http: aiohttp.ClientSession) -> None:
    slos_s = [30.0, 2.0, 10.0] * 8
    for _ in range(TRIES):  # on a machine that stalls some have ended before the others have come
        engine.scheduler.order(by_laxity=True)
        by_laxity = await finished(engine, http, slos_s, 100)
        displaced = engine.scheduler.stats()["displaced"]
        engine.scheduler.order(by_laxity=False)
        as_they_came = await finished(engine, http, slos_s, 100)
        print(f"ended by laxity: {by_laxity}; as they came: {as_they_came}; gave way: {displaced}")
        if by_laxity == sorted(slos_s):
            break
    assert by_laxity == sorted(slos_s)
    assert as_they_came != sorted(slos_s)


async def test_more_urgent_by_lat_goes_first(engine: Tuned, http: aiohttp.ClientSession) -> None:
    engine.scheduler.order(by_laxity=True)
    ended: list[str] = []

    async def one(name: str, **hints: float) -> None:
        await engine.stream(http, 32, 150, vllm_xargs=hints)
        ended.append(name)

    # Due at 1.4 x Lat from their arrival; the long ones have 12 s to wait, the short ones 0.4 s.
    rows = [("long", 30.0)] * SEATS + [("short", 1.0)] * SEATS
    for _ in range(TRIES):
        ended.clear()
        await asyncio.gather(*(one(name, lat_s=lat_s, ttft_s=0.1, predicted_tokens=150) for name, lat_s in rows))
        if ended == (right := ["short"] * SEATS + ["long"] * SEATS):
            break
    assert ended == right


async def test_budget_takes_effect_at_once_when_it_is_cut(engine: Tuned, http: aiohttp.ClientSession) -> None:
    before = engine.scheduler.stats()["steps"]
    await engine.stream(http, 1800, 1)
    whole = engine.scheduler.stats()["steps"] - before
    assert engine.scheduler.tune(EngineLimits(64, SEATS)) == EngineLimits(64, SEATS)
    await engine.stream(http, 1800, 1)
    cut = engine.scheduler.stats()["steps"] - before - whole
    print(f"a prompt of 1,800 tokens took {whole} step(s), and {cut} with a budget of 64 tokens")
    assert whole == 1
    assert cut == -(-1800 // 64)


async def mixed_load(engine: Tuned, http: aiohttp.ClientSession) -> tuple[dict[str, Any], float]:
    """Two streams, while prompts of 1,500 tokens come again and again: the scheduler's figures, and prompts a second.

    The gaps between tokens are those of the engine's steps: a client sees several tokens at once where it is slower.
    """
    telling = [asyncio.create_task(engine.stream(http, 32, 500)) for _ in range(2)]
    prompts, began_s = 0, time.monotonic()
    while not all(task.done() for task in telling):
        await engine.stream(http, 1500, 1)
        prompts += 1
    rps = prompts / (time.monotonic() - began_s)
    return engine.scheduler.stats(), rps


async def test_tokens_keep_coming_when_prompts_would_hold_them_up(engine: Tuned, http: aiohttp.ClientSession) -> None:
    for _ in range(TRIES):  # a busy machine may hold up steps of its own
        engine.scheduler.tune(LIMITS)
        free, free_rps = await mixed_load(engine, http)
        assert free["ready"]
        print(f"coefficients of a step's time: {', '.join(f'{value:.2g}' for value in free['coefficients'])}")
        limit_s = (free["itl_p50_s"] + free["itl_p99_s"]) / 2.0  # between a step of decodes and one with a prompt
        engine.scheduler.tune(replace(LIMITS, itl_limit_s=limit_s))
        held, held_rps = await mixed_load(engine, http)
        for name, found, rps in (("no limit", free, free_rps), (f"limit {limit_s * 1e3:.1f} ms", held, held_rps)):
            p50_s, p99_s = found["itl_p50_s"], found["itl_p99_s"]
            print(f"ITL, {name}: p50 {p50_s * 1e3:.1f} ms, p99 {p99_s * 1e3:.1f} ms, {rps:.1f} prompts/s")
        cut, within = held["cut"] - free["cut"], held["itl_within"]
        print(f"margin {held['margin']:.2f}, budget cut in {cut} steps, {within:.1%} of the gaps within the limit")
        assert held_rps > 0.0
        if cut > 0 and within >= WITHIN and held["itl_p99_s"] < free["itl_p99_s"]:
            return
    pytest.fail(f"the limit is kept by less than {WITHIN:.0%} of the gaps, or changes nothing")


async def test_nothing_is_lost_when_it_is_switched_under_load(engine: Tuned, http: aiohttp.ClientSession) -> None:
    switches, written = 0, []
    while switches < 20:  # a fast engine is done with a round before much was switched
        these = [asyncio.create_task(engine.stream(http, 100 * n, 60, vllm_xargs={"slo_s": n})) for n in range(1, 13)]
        while not all(task.done() for task in these):
            switches += 1
            await asyncio.to_thread(engine.scheduler.order, switches % 2 == 1)
            limits = EngineLimits(TOKENS // (1 + switches % 3), 1 + switches % SEATS, 0.02)
            await asyncio.to_thread(engine.scheduler.tune, limits)
            await asyncio.sleep(0.02)
        written += [task.result() for task in these]
    assert all(one.at_s for one in written)


async def test_bad_messages_are_answered_and_hold_nothing_up(engine: Tuned, http: aiohttp.ClientSession) -> None:
    with pytest.raises(PermanentError, match="order is one of vllm, llf"):
        engine.scheduler._call({"op": "set", "order": "edf"})
    telling = asyncio.create_task(engine.stream(http, 32, 200))
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as rude:
        for client in (silent, rude):
            client.settimeout(10)
            client.connect(str(engine.socket))
        rude.sendall(b"\x00" * LONGEST_LINE)
        written = await telling
    assert len(written.at_s) > 1
    assert engine.scheduler.limits() == LIMITS


async def test_hint_that_makes_no_sense_is_counted_and_the_request_served(
    engine: Tuned, http: aiohttp.ClientSession
) -> None:
    engine.scheduler.order(by_laxity=True)
    before = engine.scheduler.stats()["bad_hints"]
    written = await engine.stream(http, 32, 20, vllm_xargs={"slo_s": "soon", "lat_s": -3})
    assert written.at_s
    assert engine.scheduler.stats()["bad_hints"] == before + 2


# -- without a model running -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schedules(tiny_model: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("schedules.py")), str(tiny_model)],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


KINDS = ["fcfs-sync", "fcfs-async", "priority-sync", "priority-async"]


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_are_those_of_vllm_when_it_is_off(schedules: dict[str, Any], kind: str) -> None:
    found = schedules[f"same-{kind}"]
    assert found["equal"]
    assert found["asynchronous"] == kind.endswith("-async")
    assert found["preemptions"] > 0  # so that the decisions were not all easy ones


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_gets_its_tokens_and_blocks_come_back_when_it_is_switched_to_and_fro(
    schedules: dict[str, Any], kind: str
) -> None:
    found = schedules[f"switched-{kind}"]
    assert found["complete"] == found["wanted"] > 100
    assert found["over_budget"] == 0
    assert found["displaced"] > 0
    assert found["free_blocks"] == found["blocks"]


def test_urgent_request_runs_at_once_when_the_batch_is_full(schedules: dict[str, Any]) -> None:
    found = schedules["urgent_first"]
    assert found["runs"]
    assert found["waits"] == len(found["gave_way"]) == 1


def test_other_version_of_vllm_is_refused_in_words_that_name_the_supported_one(vllm: Path) -> None:
    script = "import vllm; vllm.__version__ = '0.33.1'; import pools.vllm_scheduler as p; p.GreenServeScheduler"
    done = subprocess.run(
        [str(PYTHON), "-c", script],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert "made for vLLM 0.32.0, and this is vLLM 0.33.1" in done.stderr
