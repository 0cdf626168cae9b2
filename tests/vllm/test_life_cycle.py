"""Real engines from start to end, as an agent runs them: serve, measure, crash, hand over, outlive the agent."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.conf import settings

from pools import wire
from pools.agent.vllm.engine_access import new_key
from pools.agent.vllm.engine_processes import began_ticks, runs
from pools.engine_trust import trust_in
from tests.e2e.product import GREENSERVE
from tests.fakes.certificates import Authority

from .engine_client import serial_of
from .node import CARD, NODE, PATIENCE_S, Bench, Clients, kill


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


def test_engine_speaks_to_those_alone_who_trust_its_nodes_authority(bench: Bench, tmp_path: Path) -> None:
    bench.want(bench.instance("first", 0))
    bench.wait_until("first", "ready")
    engine = bench.client("first")
    assert engine.ask("/health")[0] == 200
    assert engine.shown() == serial_of(bench.tls.certificate)
    for trust in (ssl.create_default_context(), trust_in(Authority(tmp_path, "another").path)):
        with pytest.raises(ssl.SSLCertVerificationError):
            engine.ask("/health", trust=trust)
    with pytest.raises((http.client.HTTPException, OSError)):
        urllib.request.urlopen(engine.page.replace("https:", "http:"), timeout=10)


def test_engine_asks_for_its_key_wherever_something_can_be_had_or_changed(bench: Bench) -> None:
    bench.want(bench.instance("first", 0))
    bench.wait_until("first", "ready")
    engine = bench.client("first")
    own, body = engine.record.key, {"model": CARD, "prompt": [7] * 30, "max_tokens": 4}
    for path in ("/v1/completions", "/invocations"):  # they do the same
        assert engine.ask(path, "", body)[0] == 401
        assert engine.ask(path, new_key(), body)[0] == 401
        status, answer = engine.ask(path, own, body)
        assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 4)
    assert engine.ask("/openapi.json")[0] == 401
    paths = set(json.loads(engine.ask("/openapi.json", own)[1])["paths"])
    assert {path for path in paths if engine.ask(path)[0] != 401} == {
        *("/health", "/ping", "/load", "/version", "/metrics")
    }


def test_engine_is_observed_and_what_nothing_meters_is_missing_and_not_zero(bench: Bench, tmp_path: Path) -> None:
    bench.want(bench.instance("first", 0))
    bench.wait_until("first", "ready")
    bench.wait(bench.answers, "answer", PATIENCE_S)
    document, requests = tmp_path / "observed.json", 4
    command = [str(GREENSERVE), "observe", "--metrics", bench.client("first").page]
    command += ["--authority", str(bench.tls.authority), "--json", str(document), "--carbon", "300"]
    command += ["--minutes", "1", "--every", "5", "--ttft-s", "10", "--tpot-s", "2.5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as observing:
        assert observing.stderr is not None
        assert observing.stderr.readline() == "observing 1 page: 0 %\n"  # what is counted from now on is seen
        assert [bench.complete(16)[0] for _ in range(requests)] == [200] * requests
        said, complained = observing.communicate(timeout=PATIENCE_S)
    assert observing.returncode == 0, complained
    found = json.loads(document.read_text())
    (target,) = found["targets"]
    assert (target["engine"], target["model"], target["failed"], target["missing"]) == ("vLLM", CARD, 0, [])
    figures = {name: (figure["value"], figure["source"]) for name, figure in found["figures"].items()}
    counted = {"requests": requests, "prompt_tokens": requests * 30, "output_tokens": requests * 16}
    assert {name: figures.pop(name) for name in counted} == {
        name: (count, "counter") for name, count in counted.items()
    }
    assert set(figures.values()) == {(None, "missing")}
    assert "give --dcgm URL, or --declared-w WATTS" in found["figures"]["energy_wh"]["note"]
    assert "no GPU was metered" in said
    attained = {own["objective"]: own for own in found["attainment"]}
    assert (attained["ttft"]["most"], attained["tpot"]["most"], attained["e2e"]["derived"]) == (1.0, 1.0, True)
    assert {(own["of"], own["counts"], own["source"]) for own in attained.values()} == {
        (requests, "requests", "histogram")
    }
    assert found["savings"]["why_not"]


def test_running_engine_shows_the_certificate_that_its_node_has_got_meanwhile(bench: Bench) -> None:
    bench.want(bench.instance("first", 0))
    bench.wait_until("first", "ready")
    engine, began_s = bench.client("first"), time.monotonic()
    bench.renew()
    new = serial_of(bench.tls.certificate)
    assert engine.shown() != new
    bench.wait(lambda: engine.shown() == new, "new certificate", PATIENCE_S)
    print(f"\nnew certificate shown after {time.monotonic() - began_s:.1f} s")
    assert bench.records()["first"].pid == engine.record.pid
    assert bench.answers()


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
