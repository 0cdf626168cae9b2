"""The product as a whole, started once as a user starts it: PostgreSQL, Redis, Celery, the gateway, simulated nodes.

Each time: clients, and a replay with its records and joules. The dashboard, a policy and kills are in `make test-slow`.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import pytest

from core.simulator.workload import read_azure_trace
from tests.e2e import browser as chrome
from tests.e2e.product import BACK_WITHIN_S, Product, alive, kill, running, wait_for

MODEL = "llama3-70b"


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """The product without the demo's own traffic, so that every record is a test's."""
    with running(tmp_path_factory.mktemp("quiet"), traffic_rps=0) as product:
        yield product


@pytest.fixture
def client(quiet: Product) -> Iterator[openai.OpenAI]:
    key = next(iter(quiet.credentials["api_keys"].values()))
    with openai.OpenAI(base_url=f"{quiet.gateway}/v1", api_key=key, timeout=60, max_retries=0) as client:
        yield client


def records_since(product: Product, start: datetime) -> list[tuple[Any, ...]]:
    return product.sql(
        "SELECT request_id, prompt_tokens, output_tokens, tokens_source, tenant_id, status "
        "FROM telemetry_requestrecord WHERE started_at >= %s",
        start,
    )


def test_openai_client_completes_when_not_streamed(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Tell me of wind and sun.", max_tokens=12)
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "And of rain?"}], max_tokens=12
    )
    assert chat.choices[0].message.content
    assert chat.usage is not None
    assert 0 < chat.usage.completion_tokens <= 12


def test_openai_client_streams_with_usage_when_asked(client: openai.OpenAI) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt=[11] * 300,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"vllm_xargs": {"sim_output_tokens": 9}},
        )
    )
    assert chunks[-1].usage is not None
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (300, 9)
    chat = list(
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count."}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chat[-1].usage is not None
    assert "".join(c.choices[0].delta.content or "" for c in chat if c.choices)


def test_models_are_listed_when_asked_with_a_key(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_wrong_key_and_unknown_model_are_refused_in_openai_shape(quiet: Product, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="nobody", prompt="x")
    assert unknown.value.code == "model_not_found"
    wrong = openai.OpenAI(base_url=f"{quiet.gateway}/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError), wrong:
        wrong.models.list()


def test_curl_sees_a_stream_when_run_with_n(quiet: Product) -> None:
    key = next(iter(quiet.credentials["api_keys"].values()))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "stream": True}
    headers = ("-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json")
    done = subprocess.run(
        ["curl", "-sN", "--max-time", "30", *headers, "-d", json.dumps(body), f"{quiet.gateway}/v1/chat/completions"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    events = [line for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[0][6:])["object"] == "chat.completion.chunk"
    assert not any('"usage":{' in event for event in events), "usage was not asked for"


def replayed(product: Product, trace: Path, speed: int, limit: int) -> None:
    """Sends the trace's first requests; each has one record with the trace's tokens."""
    start = datetime.now(UTC)
    done = product.cli("replay", str(trace), "--speed", str(speed), "--limit", str(limit), "--json", timeout_s=400)
    result = json.loads(done.stdout)
    assert (result["sent"], result["ok"]) == (limit, limit), result
    wait_for(f"{limit} records", lambda: len(records_since(product, start)) >= limit, timeout_s=30)
    time.sleep(2)  # a double would come now

    rows = records_since(product, start)
    assert len(rows) == limit
    assert {row[5] for row in rows} == {"ok"}
    assert len({row[0] for row in rows}) == limit
    assert {row[3] for row in rows} == {"usage"}
    assert len({row[4] for row in rows}) == 4, "spread over four tenants"
    expected = [(r.prompt_tokens, r.output_tokens) for r in islice(read_azure_trace(trace), limit)]
    assert sorted((row[1], row[2]) for row in rows) == sorted(expected)


@pytest.mark.parametrize(
    ("speed", "limit"),
    [(4, 80), pytest.param(4, 500, marks=pytest.mark.slow("two minutes of traffic"))],
)
def test_every_record_and_joule_is_there_when_the_real_trace_is_replayed(
    quiet: Product, test_data: Path, speed: int, limit: int
) -> None:
    replayed(quiet, test_data / "azure_llm_2023_conv.csv.gz", speed, limit)
    balances = quiet.sql(
        "SELECT m.gpu_id, m.energy_j - m.opened_energy_j, sum(e.energy_j) FROM telemetry_metermark m "
        "JOIN telemetry_energyentry e USING (gpu_id) GROUP BY 1, 2"
    )
    assert len(balances) == 30, "every GPU of the demo fleet has entries"
    for gpu, counter_j, ledger_j in balances:
        assert math.isclose(counter_j, ledger_j, rel_tol=1e-9), f"GPU {gpu}: counter {counter_j} J, ledger {ledger_j} J"


def test_ledger_matches_the_nodes_own_counters_when_they_are_read_directly(quiet: Product) -> None:
    """What the ledger entered for a GPU lies between the counter at its mark and what the node shows now."""
    ports = json.loads((quiet.var_dir / "run" / "simnodes.json").read_text())
    marks = dict(quiet.sql("SELECT g.uuid, m.energy_j FROM telemetry_metermark m JOIN pools_gpu g ON g.id = m.gpu_id"))
    now = {}
    for port in ports.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/gpus", timeout=5) as answer:
            now |= {gpu["uuid"]: gpu["energy_j"] for gpu in json.load(answer)}
    assert set(now) == set(marks)
    for uuid, mark_j in marks.items():
        assert 0 < mark_j <= now[uuid] < mark_j + 700 * 60, uuid


def test_second_up_says_what_to_do_when_one_runs(quiet: Product) -> None:
    second = quiet.cli("up", "--detach", check=False)
    assert second.returncode != 0
    lines = [line for line in second.stderr.splitlines() if line.strip()]
    assert len(lines) == 1
    assert "greenserve down" in lines[0]


@pytest.mark.slow("four runs of the simulator")
def test_policies_are_compared_on_the_workers_when_asked(quiet: Product, tmp_path: Path) -> None:
    scenario, out = tmp_path / "small.yaml", tmp_path / "out.json"
    scenario.write_text(
        "fleet: {count: 2, model: Llama3-70B, gpu: A100-80GB, tp: 4}\n"
        "workload: {generate: azure-conv-like, rate_rps: 2, requests: 300}\n"
    )
    policies = ("--policy", "single_pool", "--policy", "least_loaded")
    quiet.cli("compare", str(scenario), *policies, "--distributed", "--json", str(out), timeout_s=180)
    far = json.loads(out.read_text())
    assert [run["policy"] for run in far["runs"]] == ["single_pool", "least_loaded"]
    quiet.cli("compare", str(scenario), *policies, "--json", str(out), timeout_s=180)
    near = json.loads(out.read_text())
    assert [run["energy_wh"] for run in far["runs"]] == [run["energy_wh"] for run in near["runs"]]
    bad = quiet.cli("compare", str(scenario), *policies, "--distributed", "--trace", "/none.csv", check=False)
    assert bad.returncode == 2
    assert "/none.csv" in bad.stderr


@pytest.mark.slow("pages are looked at without the whole product")
def test_charts_and_decisions_of_all_loops_are_seen_when_requests_were_served(quiet: Product, artifacts: Path) -> None:
    chrome.overview_is_drawn(quiet, artifacts, "full-stack")


@pytest.mark.slow("a policy is set and set back")
def test_policy_is_in_force_soon_after_it_was_set(quiet: Product, client: openai.OpenAI) -> None:
    """DynamoLLM's: requests are of table IV's classes, and clocks follow profiles."""
    since = datetime.now(UTC)
    quiet.cli("policy", MODEL, "dynamollm")
    classes = "SELECT DISTINCT request_class FROM telemetry_requestrecord WHERE started_at > %s AND status = 'ok'"

    def of_table_iv() -> bool:
        for tokens in (100, 3000):
            answer = client.completions.create(model=MODEL, prompt=[11] * tokens, max_tokens=12)
            assert answer.usage is not None
            assert answer.usage.completion_tokens <= 12
        seen = {row[0] for row in quiet.sql(classes, since)}
        return len(seen & {a + b for a in "SML" for b in "SML"}) >= 2

    wait_for("requests of two classes", of_table_iv, timeout_s=150, every_s=1)
    clocks = "SELECT summary FROM scheduler_decision WHERE at > %s AND kind = 'clock' AND reason <> ALL(%s)"
    wait_for(
        "a clock by profile",
        lambda: quiet.sql(clocks, since, ["no_data", "policy"]),
        timeout_s=60,
    )
    failed = "SELECT request_id, status, error FROM telemetry_requestrecord WHERE started_at > %s AND status <> 'ok'"
    assert quiet.sql(failed, since) == []


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow("a kill under load")) for name in ("gateway", "ingester", "redis")],
)
def test_process_is_back_and_nothing_finished_is_lost_when_it_is_killed(
    quiet: Product, client: openai.OpenAI, name: str
) -> None:
    before = set(quiet.sql("SELECT request_id FROM telemetry_requestrecord WHERE status = 'ok'"))
    old_pid = quiet.processes()[name]["pid"]
    kill(old_pid)

    def back() -> bool:
        row = quiet.processes()[name]
        return row["state"] == "running" and row["pid"] not in (None, old_pid) and alive(row["pid"])

    wait_for(f"{name} back", back, timeout_s=BACK_WITHIN_S, every_s=0.1)
    quiet.wait_until_serving()
    answer = client.completions.create(model=MODEL, prompt="Still there?", max_tokens=4)
    assert answer.choices[0].text
    records = "SELECT request_id FROM telemetry_requestrecord WHERE status = 'ok'"
    wait_for("a record more", lambda: set(quiet.sql(records)) > before, timeout_s=30)
