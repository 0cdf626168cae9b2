"""A machine without a GPU joins a running GreenServe, as docs/nodes.md has it: plans start its engine, and end it.

All is done by what a person has: commands, and the REST API. The engine is a real vLLM, its weights are tiny.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai
import pytest

from scripts.fleet_by_rest import Fleet
from tests.e2e.product import Product, wait_for

from .server import DTYPE, VLLM

NODE, SITE, SERVICE = "laptop", "home", "tiny"
MODE = "A100-80GB/TP1"
CARD = "Llama3-8B"  # what plans count on; the weights are the tiny model's
READY_S, GONE_S = 400.0, 120.0


class OwnProduct(Product):
    """Without the demo's fleet."""

    @property
    def env(self) -> dict[str, str]:
        return super().env | {"GREENSERVE_DEMO": "0"}


@dataclass
class Joined:
    product: OwnProduct
    api: Fleet
    agent: subprocess.Popen[bytes]
    said: str  # by `node join`

    def instance(self, *states: str) -> dict[str, Any] | None:
        return next((row for row in self.api.rows("instances/") if row["state"] in states), None)

    def client(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.product.gateway}/v1", api_key=key, timeout=60.0, max_retries=0)

    def complete(self, key: str) -> openai.types.Completion | None:
        """A completion through the gateway; None: it does not have one to serve it yet."""
        try:
            return self.client(key).completions.create(
                model=SERVICE, prompt=[7] * 30, max_tokens=16, extra_body={"ignore_eos": True}
            )
        except openai.APIStatusError:
            return None


@pytest.fixture
def joined(vllm: Path, tmp_path: Path) -> Iterator[Joined]:
    folder = tmp_path / "joined"
    folder.mkdir()
    product = OwnProduct(folder / "var")
    agent: subprocess.Popen[bytes] | None = None
    try:
        product.up()
        product.cli("user", "create", "ops", "--role", "administrator")
        rights = [word for right in ("view", "operate", "administer") for word in ("--right", right)]
        secret = product.cli("user", "token", "ops", "--label", "test", *rights).stdout.strip()
        api = Fleet(product.web, secret)
        api.ensure("sites", {"name": SITE, "label": "Home", "grid_zone": "DE", "pue": 1.2}, ("name",))
        api.ensure("clusters", {"site": SITE, "name": "main"}, ("site", "name"))
        api.call("POST", "feeds/", feed(folder))
        token = product.cli("node", "token", "--cluster", f"{SITE}/main").stdout.strip()
        machine = ("--cpu", "A100-80GB:2", "--power", "8:45", "--vllm", str(VLLM), "--keep", str(folder / "node"))
        said = product.cli("node", "join", product.web, token, "--name", NODE, *machine).stdout
        agent = run_unit(said, folder / "agent.log")
        with api:
            yield Joined(product, api, agent, said)
    finally:
        product.down()
        if agent is not None:
            end_group(agent)
        for record in (folder / "node" / "engines" / "engines").glob("*.json"):
            with suppress(ProcessLookupError, KeyError):
                os.killpg(json.loads(record.read_text())["pid"], signal.SIGKILL)


def feed(folder: Path) -> dict[str, Any]:
    """An operator's own figures: the same all day."""
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    hours = [f"{day + timedelta(hours=n):%Y-%m-%dT%H:%M:%SZ}" for n in range(25)]
    lines = ["zone,start_utc,end_utc,signal,value,unit,factor,source"]
    lines += [f"DE,{hours[n]},{hours[n + 1]},average,300,gCO2e/kWh,lifecycle,test" for n in range(24)]
    file = folder / "var" / "feeds" / "carbon.csv"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join([*lines, ""]))
    config = {"file": file.name, "repeat": "day"}
    what = {"site": SITE, "signal": "average", "factor": "lifecycle"}
    return {**what, "provider": "static_csv", "zone": "DE", "config": config}


def run_unit(said: str, log: Path) -> subprocess.Popen[bytes]:
    """What systemd would make of the unit that `node join` printed."""
    unit = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    settings = dict(line.split("=", 1) for line in Path(unit["EnvironmentFile"]).read_text().splitlines())
    command = shlex.split(unit["ExecStart"].replace("%%", "%"))
    env = {"PATH": os.environ["PATH"], "HOME": str(log.parent), **settings}
    with log.open("ab") as file:
        return subprocess.Popen(
            command, cwd=unit["WorkingDirectory"], env=env, stdout=file, stderr=file, start_new_session=True
        )


def end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def test_plans_start_a_real_engine_serve_it_and_drain_it_when_a_machine_has_joined(
    joined: Joined, tiny_model: Path
) -> None:
    api = joined.api
    node = api.call("GET", f"nodes/{NODE}/")
    assert (node["schedulable"], node["gpus"]) == (False, {"A100-80GB": 2})
    assert "It runs engines when it is opened to planning" in joined.said
    api.call("PATCH", f"nodes/{NODE}/", {"schedulable": True}, etag=node["etag"])
    card = {"name": CARD, "max_model_len": 2048, "weights": str(tiny_model), "dtype": DTYPE}
    api.ensure("models", card, ("name",))
    api.ensure("partitions", {"name": "one", "source": "All requests alike"}, ("name",))
    api.ensure("classes", {"partition": "one", "name": "all", "rank": 0}, ("partition", "name"))
    service = {"name": SERVICE, "model_card": CARD, "partition": "one", "partitions": ["one"]}
    load = {"expected_rps": 0.5, "expected_prompt_tokens": 100, "expected_output_tokens": 32}
    api.ensure("services", {**service, **load}, ("name",))
    api.ensure("slos", {"service": SERVICE, "kind": "ttft", "objective_s": 30.0}, ("service", "kind"))
    pool = api.ensure(
        "pools", {"service": SERVICE, "site": SITE, "request_class": "one/all"}, ("service", "site", "request_class")
    )
    api.ensure("tenants", {"name": "acme", "label": "Acme"}, ("name",))
    key = api.call("POST", "keys/", {"tenant": "acme", "label": "first"})["secret"]

    wait_for("a ready instance", lambda: joined.instance("ready"), READY_S, every_s=2.0)
    answer = wait_for("a completion", lambda: joined.complete(key), 60.0, every_s=2.0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    chunks = joined.client(key).chat.completions.create(
        model=SERVICE, messages=[{"role": "user", "content": "Hello"}], max_tokens=8, stream=True
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("length", "stop")
    records = wait_for("their records", lambda: served(list(api.rows("requests/")), 2), 60.0)
    assert {(record["tenant"], record["output_tokens"]) for record in records} == {("acme", 16), ("acme", 8)}
    settled = wait_for("energy of the start and after it", lambda: energy(joined.product), 90.0, every_s=2.0)
    assert settled["transition"] > 0

    hour = datetime.now(UTC) + timedelta(hours=1)
    word = {"kind": "workers", "pool": pool["id"], "workers": {MODE: 0}, "reason": "the machine is to be left alone"}
    api.call("POST", "overrides/", {**word, "expires_at": hour.isoformat()})
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
