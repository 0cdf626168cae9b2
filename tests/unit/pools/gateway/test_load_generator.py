"""The replayer against a gateway with fake engines."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from core.simulator.workload import TraceRequest
from pools.gateway.server import Config, GatewayServer
from pools.load_generator import ReplayProgress, Seen, replay
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import MAX_MODEL_LEN, MODEL, OTHER_SECRET, SECRET
from tests.unit.pools.gateway.conftest import Bench, until

KEYS = {"acme": SECRET, "birch": OTHER_SECRET}


def trace(*lengths: tuple[int, int], gap_s: float = 0.01) -> list[TraceRequest]:
    return [TraceRequest(n * gap_s, prompt, output) for n, (prompt, output) in enumerate(lengths)]


async def test_tokens_equal_the_traces_when_everything_is_served(bench: Bench) -> None:
    steps: list[ReplayProgress] = []
    requests = trace((300, 7), (40, 2), (1000, 30), (5, 1), (8, 8))
    result = await replay(requests, bench.url, KEYS, MODEL, limit=4, on_progress=steps.append)
    assert (result.sent, result.ok, result.failed) == (4, 4, {})
    assert (result.prompt_tokens, result.output_tokens) == (1345, 40)
    assert set(result.ttft_s) == set(result.e2e_s) == {"p50", "p90", "p99"}
    assert all(value is not None and value > 0 for value in result.ttft_s.values())
    rows = bench.rows()
    assert sorted((row.prompt_tokens, row.output_tokens) for row in rows) == [(5, 1), (40, 2), (300, 7), (1000, 30)]
    assert sorted(row.tenant_id or 0 for row in rows) == [1, 1, 2, 2], "in turn over the tenants"
    assert {row.max_tokens for row in rows} == {1000}
    assert (steps[-1].sent, steps[-1].ok, steps[-1].in_flight) == (4, 4, 0)


async def test_arrivals_alone_are_scaled_when_sped_up(bench: Bench) -> None:
    bench.engine.held = asyncio.Event()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    running = asyncio.create_task(replay(trace(*[(5, 1)] * 5, gap_s=1.0), bench.url, KEYS, MODEL, speed=20.0))
    await until(lambda: len(bench.engine.received) == 5)  # open loop: requests overlap
    assert 0.19 <= loop.time() - began_s < 3.9
    bench.engine.held.set()
    assert (await running).ok == 5


async def test_failures_are_counted_by_reason_when_they_happen(bench: Bench) -> None:
    requests = trace((MAX_MODEL_LEN + 1, 5), (5, 2))
    result = await replay(requests, bench.url + "/v1", KEYS, MODEL)
    assert (result.ok, result.failed) == (1, {"400 context_length_exceeded": 1})
    bench.engine.die = "midway"
    bench.engine.die_after = 1
    bench.engine.pace_s = 0.05
    result = await replay(trace((5, 9)), bench.url, KEYS, MODEL)
    assert list(result.failed) in (["200 upstream_error"], ["connection broken: ClientPayloadError"])
    result = await replay(trace((5, 9)), bench.url, {"nobody": "wrong"}, MODEL)
    assert result.failed == {"401 invalid_api_key": 1}
    assert result.ttft_s == {"p50": None, "p90": None, "p99": None}


async def test_replay_goes_on_when_the_gateway_restarts(bench: Bench, tmp_path: Path) -> None:
    port = bench.server.port
    steps: list[ReplayProgress] = []
    enough = asyncio.Event()
    arrivals = (
        TraceRequest(n * 0.02, 5, 1) for n in itertools.takewhile(lambda _: not enough.is_set(), itertools.count())
    )
    running = asyncio.create_task(replay(arrivals, bench.url, KEYS, MODEL, on_progress=steps.append))
    await until(lambda: len(bench.rows()) >= 3)
    await bench.server.stop()
    await until(lambda: steps[-1].failed >= 1)
    second = GatewayServer(Config("127.0.0.1", port, tmp_path / "second"))
    await second.start()
    bench.server = second
    bench.publish()
    served = steps[-1].ok
    await until(lambda: steps[-1].ok >= served + 5)
    enough.set()
    result = await running
    assert result.failed.get("connection refused", 0) >= 1
    assert result.ok + sum(result.failed.values()) == result.sent
    await second.stop()


async def test_replay_ends_early_when_stopped_or_cancelled(bench: Bench) -> None:
    endless = (TraceRequest(n * 0.01, 5, 3) for n in itertools.count())
    stop = asyncio.Event()
    running = asyncio.create_task(replay(endless, bench.url, KEYS, MODEL, stop=stop))
    await until(lambda: len(bench.rows()) >= 5)
    stop.set()
    result = await running
    assert result.ok == result.sent >= 5
    bench.engine.pace_s = 5
    running = asyncio.create_task(replay(trace((5, 3), (5, 3)), bench.url, KEYS, MODEL))
    await until(lambda: len(bench.engine.received) == result.sent + 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: bench.engine.aborted == 2)


async def test_requests_take_turns_when_the_loop_is_closed(bench: Bench) -> None:
    steps: list[ReplayProgress] = []
    bench.engine.pace_s = 0.01
    result = await replay(
        trace(*[(5, 3)] * 8, gap_s=0.0), bench.url, KEYS, MODEL, on_progress=steps.append, concurrency=2
    )
    assert result.ok == 8
    assert max(step.in_flight for step in steps) == 2


async def test_each_request_asks_for_its_own_length_when_lengths_are_exact(bench: Bench) -> None:
    seen: list[Seen] = []
    bench.engine.tokens = 4
    result = await replay(
        trace((300, 4), (40, 9)), bench.url, KEYS, MODEL, max_tokens=77, exact=True, on_seen=seen.append
    )
    assert result.ok == 2
    assert {row.max_tokens for row in bench.rows()} == {4, 9}
    assert sorted((one.prompt_tokens, one.output_tokens) for one in seen) == [(40, 4), (300, 4)]
    for one in seen:
        assert one.tpot_s is not None
        assert one.tpot_s * 3 == pytest.approx(one.e2e_s - one.ttft_s)


@pytest.mark.parametrize(("answers", "failed"), [(1, {}), (0, {"connection broken: ServerDisconnectedError": 2})])
async def test_request_is_sent_once_more_when_its_server_hangs_up_before_it_answers(
    answers: int, failed: dict[str, int]
) -> None:
    """As one does whose connections have idled for too long. `answers`: on a connection, before it does."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for answer in range(answers + 1):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            if answer < answers:
                body = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        result = await replay(trace((5, 1), (5, 1), gap_s=0.1), f"http://127.0.0.1:{port}", KEYS, MODEL)
    assert (result.sent, result.failed) == (2, failed)
    assert connections == (2 if answers else 4)


@pytest.mark.parametrize(("speed", "keys"), [(0.0, KEYS), (-1.0, KEYS), (float("nan"), KEYS), (1.0, {})])
async def test_replay_is_refused_when_its_arguments_make_no_sense(speed: float, keys: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"speed|key"):
        await replay([], "http://127.0.0.1:1", keys, MODEL, speed=speed)


async def test_connection_refused_is_counted_when_nothing_listens() -> None:
    engine = await FakeEngine().start()
    await engine.stop()
    result = await replay(trace((5, 1)), engine.url, KEYS, MODEL)
    assert result.failed == {"connection refused": 1}
