"""Real engines from start to end, as an agent runs them: serve, measure, crash, hand over, outlive the agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.conf import settings

from pools import wire
from pools.agent.vllm.engine_processes import began_ticks, runs

from .node import NODE, PATIENCE_S, Bench, Clients, kill


@pytest.fixture(scope="module")
def bench(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5)
    for found in client.scan_iter("greenserve:*"):
        client.delete(found)
    folder = tmp_path_factory.mktemp("node")
    running = Bench(folder, tiny_model, client, settings.REDIS_URL, settings.CELERY_BROKER_URL)
    try:
        running.start()
        yield running
    finally:
        running.close()
        client.close()


def test_engine_serves_and_is_measured_when_it_is_wanted(bench: Bench) -> None:
    bench.want(bench.instance("first", 0))
    began_s = time.monotonic()
    state = bench.wait_until("first", "ready")
    print(f"\nstart to ready: {time.monotonic() - began_s:.1f} s")
    assert (state.model, state.gpu_type, state.tp) == ("Llama3-8B", "A100-80GB", 1)
    bench.wait(bench.answers, "answer", PATIENCE_S)
    with Clients(bench) as clients:
        bench.wait(lambda: clients.answered >= 20, "20 answers", PATIENCE_S)
        measured = bench.wait(lambda: (s := bench.seen("first", "ready")) and s.tpot_s and s, "TPOT", PATIENCE_S)
    assert clients.failures == []
    assert measured.kv_usage is not None
    assert measured.detail == "", "no metric is missing"
    agent = bench.state()
    assert agent is not None
    assert "declared, not measured" in agent.notices[0]
    assert agent.measure_only
    assert any("vLLM 0." in notice for notice in agent.notices)
    rows = [row for row in bench.samples() if row.gpu_uuid == f"CPU-{NODE}-0"]
    assert {row.instance_state for row in rows} >= {"starting", "ready"}
    assert rows[-1].instance_uid == "first"
    joules = [row.energy_j for row in rows if row.energy_j is not None]
    assert joules == sorted(joules)
    assert joules[-1] > joules[0]


def test_engine_and_its_requests_live_on_when_the_agent_is_killed(bench: Bench) -> None:
    bench.want(bench.instance("first", 0))
    bench.wait_until("first", "ready")
    record, before = bench.records()["first"], bench.state()
    assert before is not None
    bench.agent.end(9)
    assert began_ticks(record.pid) == record.began_ticks
    bench.agent.start()
    bench.wait(lambda: (s := bench.state()) and s.boot != before.boot, "new agent", PATIENCE_S)
    bench.wait_until("first", "ready")
    assert bench.records()["first"].pid == record.pid
    bench.wait(bench.answers, "answer", PATIENCE_S)


def test_instance_is_reported_and_started_again_when_its_engine_is_killed(bench: Bench) -> None:
    bench.want(bench.instance("first", 0))
    bench.wait_until("first", "ready")
    pid = bench.records()["first"].pid
    kill(pid)
    # What became of a process that a former agent started is not known; of its own child an agent hears the signal.
    assert bench.was("first", "failed").detail.startswith(("it ended with -9: ", "it has ended: "))
    assert not runs(pid), "its workers too have ended"
    began_s = time.monotonic()
    bench.wait_until("first", "ready")
    print(f"\ncrash to ready: {time.monotonic() - began_s:.1f} s")
    assert bench.records()["first"].pid != pid
    bench.wait(bench.answers, "answer", PATIENCE_S)


def test_no_request_fails_when_a_shadow_instance_takes_over_under_load(bench: Bench) -> None:
    """throttLL'eM IV-D: the new one starts beside the old, takes over when ready, the old one drains and ends."""
    bench.want(bench.instance("first", 0))
    bench.wait_until("first", "ready")
    bench.wait(bench.answers, "answer", PATIENCE_S)
    with Clients(bench) as clients:
        began_s = time.monotonic()
        shadow = bench.instance("second", 1, shadow_of="first")
        bench.want(bench.instance("first", 0), shadow)
        assert bench.wait_until("second", "ready").shadow_of == "first"
        ready_s = time.monotonic()
        bench.want(bench.instance("first", 0, "draining"), shadow)
        bench.gone("first")
        gone_s = time.monotonic()
        so_far = clients.answered
        bench.wait(lambda: clients.answered >= so_far + 10, "answers of the new one", PATIENCE_S)
    assert clients.failures == []
    print(f"\nshadow ready after {ready_s - began_s:.1f} s, old one gone {gone_s - ready_s:.1f} s later; ", end="")
    print(f"{clients.answered} requests, none failed")
    rows: list[wire.GpuSampleRow] = bench.samples()
    both = {row.at_s for row in rows if row.instance_uid == "second" and row.instance_state == "starting"}
    assert both, "the shadow is metered while it starts"
    assert any(row.instance_uid == "first" and row.instance_state == "ready" and row.running for row in rows)
    assert set(bench.records()) == {"second"}


def test_instance_ends_and_leaves_nothing_when_it_is_no_longer_wanted(bench: Bench) -> None:
    bench.want()
    bench.wait(lambda: not bench.records(), "end of all engines", PATIENCE_S)
    bench.wait(lambda: (s := bench.state()) and not s.instances and not s.error, "empty node", PATIENCE_S)
