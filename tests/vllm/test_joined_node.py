"""A machine without a GPU joins a running GreenServe, as docs/nodes.md has it: plans start its engine, and end it.

All is done by what a person has: commands, and the REST API. One engine serves all tests, in their order: a real vLLM,
which has the node's certificate and a key of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.product import Product, wait_for

from .engine_client import serial_of
from .joined_node import CARD, OUTPUT_TOKENS, PROMPT, SERVICE, Joined, joined_node

MODE = "A100-80GB/TP1"
GONE_S = 120.0
RENEWED_S = 300.0  # the agent asks each minute, takes the answer a minute later, and engines read it within one more


@pytest.fixture(scope="module")
def joined(vllm: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    with joined_node(tmp_path_factory.mktemp("joined")) as found:
        node = found.api.call("GET", "nodes/laptop/")
        assert (node["schedulable"], node["gpus"]) == (False, {"A100-80GB": 1})
        assert "It runs engines when it is opened to planning" in found.said
        found.serve(tiny_model)
        yield found


def test_engine_that_plans_started_serves_and_is_metered(joined: Joined) -> None:
    answer = joined.complete()
    assert answer is not None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == OUTPUT_TOKENS
    chunks = joined.client().chat.completions.create(
        model=SERVICE, messages=[{"role": "user", "content": "Hello"}], max_tokens=8, stream=True
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("length", "stop")
    records = wait_for("their records", lambda: served(list(joined.api.rows("requests/")), 3), 60.0)
    tokens = {(record["tenant"], record["output_tokens"]) for record in records}
    assert tokens == {("acme", OUTPUT_TOKENS), ("acme", 8)}
    settled = wait_for("energy of the start and after it", lambda: energy(joined.product), 90.0, every_s=2.0)
    assert settled["transition"] > 0


def test_engine_has_the_identity_of_its_node_and_a_key_of_its_own(joined: Joined) -> None:
    engine = joined.engine
    assert engine.shown() == serial_of(joined.identity.certificate)
    body = {"model": CARD, "prompt": PROMPT, "max_tokens": 4}
    assert [engine.ask("/v1/completions", key, body)[0] for key in ("", engine.record.key)] == [401, 200]


def test_running_engine_shows_the_certificate_that_its_agent_renewed(joined: Joined) -> None:
    engine, began_s = joined.engine, time.monotonic()
    before = engine.shown(), joined.grow_old()

    def renewed() -> int | None:
        return found if (found := serial_of(joined.identity.certificate)) not in before else None

    new = wait_for("the renewed certificate", renewed, RENEWED_S)
    renewed_s = time.monotonic()
    wait_for("its appearance at the engine", lambda: engine.shown() == new, RENEWED_S)
    print(f"\nrenewed {renewed_s - began_s:.0f} s after it was time, shown {time.monotonic() - renewed_s:.0f} s later")
    assert joined.engine.record.pid == engine.record.pid
    assert joined.complete() is not None


def test_engine_drains_and_ends_when_its_pool_is_to_have_no_workers(joined: Joined) -> None:
    running = joined.instance("ready")
    assert running is not None
    hour = datetime.now(UTC) + timedelta(hours=1)
    word = {
        "kind": "workers",
        "pool": running["pool"],
        "workers": {MODE: 0},
        "reason": "the machine is to be left alone",
    }
    joined.api.call("POST", "overrides/", {**word, "expires_at": hour.isoformat()})
    wait_for("the end of the instance", lambda: joined.instance("stopped"), GONE_S, every_s=1.0)
    assert joined.agent.poll() is None


def served(records: list[dict[str, Any]], so_many: int) -> list[dict[str, Any]] | None:
    """Those that were answered; those before them came when the gateway had no word of the instance yet."""
    others = {record["status"] for record in records} - {"ok", "rejected"}
    assert not others, records
    answered = [record for record in records if record["status"] == "ok"]
    return answered if len(answered) >= so_many else None


def energy(product: Product) -> dict[str, float] | None:
    """Joules settled for the pool's instances, by kind, once a start and something after it are."""
    rows = product.sql("SELECT kind, sum(energy_uj) FROM telemetry_energyentry WHERE instance_id > 0 GROUP BY kind")
    found = {kind: float(total) / 1e6 for kind, total in rows}
    return found if {"transition"} < set(found) else None
