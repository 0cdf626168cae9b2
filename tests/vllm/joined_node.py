"""A machine without a GPU that has joined a running GreenServe, and its engine: a real vLLM with tiny weights."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import openai

from pools.agent.node_identity import NodeIdentity
from pools.agent.vllm.engine_records import Records
from pools.registration.authority import LIFETIME, NODES, Authority
from scripts.fleet_by_rest import Fleet
from tests.e2e.product import Product, wait_for

from .engine_client import EngineClient
from .server import DTYPE, VLLM

NODE, SITE, SERVICE = "laptop", "home", "tiny"
CARD = "Llama3-8B"  # what plans count on; the weights are the tiny model's
READY_S = 400.0
PROMPT, OUTPUT_TOKENS = [7] * 30, 16


class OwnProduct(Product):
    """Without the demo's fleet."""

    @property
    def env(self) -> dict[str, str]:
        return super().env | {"GREENSERVE_DEMO": "0"}

    def up(self) -> None:
        self.cli("up", "--detach", timeout_s=READY_S)  # a machine that is busy with engines takes minutes


@dataclass
class Joined:
    product: OwnProduct
    api: Fleet
    agent: subprocess.Popen[bytes]
    said: str  # by `node join`
    kept: Path  # its `--keep`
    key: str = ""  # of a client of the gateway

    # -- by what a person has ----------------------------------------------------------------------

    def serve(self, weights: Path) -> None:
        """Enters what is missing until the engine serves."""
        self.enter(weights)
        self.open({"schedulable": True})
        wait_for("a ready instance", lambda: self.instance("ready"), READY_S, every_s=2.0)
        wait_for("a completion", self.complete, 60.0, every_s=2.0)

    def open(self, values: dict[str, Any]) -> None:
        """Changes the node, to open it to planning."""
        node = self.api.call("GET", f"nodes/{NODE}/")
        self.api.call("PATCH", f"nodes/{NODE}/", values, etag=node["etag"])

    def enter(self, weights: Path, card_name: str = CARD, service_name: str = SERVICE, **fields: Any) -> None:
        """Enters a service, and what it needs. `fields`: more of the service's."""
        api = self.api
        card = {"name": card_name, "max_model_len": 2048, "weights": str(weights), "dtype": DTYPE}
        api.ensure("models", card, ("name",))
        api.ensure("partitions", {"name": "one", "source": "All requests alike"}, ("name",))
        api.ensure("classes", {"partition": "one", "name": "all", "rank": 0}, ("partition", "name"))
        service = {"name": service_name, "model_card": card_name, "partition": "one", "partitions": ["one"]}
        load = {"expected_rps": 0.5, "expected_prompt_tokens": 100, "expected_output_tokens": 32}
        api.ensure("services", {**service, **load, **fields}, ("name",))
        api.ensure("slos", {"service": service_name, "kind": "ttft", "objective_s": 30.0}, ("service", "kind"))
        pool = {"service": service_name, "site": SITE, "request_class": "one/all"}
        api.ensure("pools", pool, tuple(pool))
        api.ensure("tenants", {"name": "acme", "label": "Acme"}, ("name",))
        self.key = self.key or api.call("POST", "keys/", {"tenant": "acme", "label": "first"})["secret"]

    def instance(self, *states: str) -> dict[str, Any] | None:
        return next((row for row in self.api.rows("instances/") if row["state"] in states), None)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.product.gateway}/v1", api_key=self.key, timeout=60.0, max_retries=0)

    def complete(self) -> openai.types.Completion | None:
        """A completion through the gateway; None: it does not have one to serve it yet."""
        try:
            return self.client().completions.create(
                model=SERVICE, prompt=PROMPT, max_tokens=OUTPUT_TOKENS, extra_body={"ignore_eos": True}
            )
        except openai.APIStatusError:
            return None

    # -- the engine itself -------------------------------------------------------------------------

    @property
    def identity(self) -> NodeIdentity:
        return NodeIdentity.of(self.kept, NODE)

    @property
    def engine(self) -> EngineClient:
        (found,) = Records(self.kept / "engines" / "engines").all()
        return EngineClient(found, self.identity.authority)

    def grow_old(self) -> int:
        """Makes the identity one of three weeks ago, on both sides; returns its certificate's serial number."""
        now, age = datetime.now(UTC), LIFETIME * 0.7
        columns = "issued_at = issued_at - %s, expires_at = expires_at - %s"
        ((names,),) = self.product.sql(f"UPDATE pools_nodeidentity SET {columns} RETURNING names", age, age)
        nodes = Authority.open(self.product.var_dir / "secrets", NODES, now)
        old = nodes.sign_node(self.identity.request(NODE, names), NODE, frozenset(), now - age)
        self.identity.keep(old.pem, nodes.certificate_pem, self.identity.redis_authority.read_text())
        return int(old.serial, 16)


@contextmanager
def joined_node(folder: Path) -> Iterator[Joined]:
    """A product of its own, and a machine that has joined it and runs its agent."""
    product, kept = OwnProduct(folder / "var"), folder / "node"
    agent: subprocess.Popen[bytes] | None = None
    try:
        product.up()
        product.cli("user", "create", "ops", "--role", "administrator")
        rights = [word for right in ("view", "operate", "administer") for word in ("--right", right)]
        secret = product.cli("user", "token", "ops", "--label", "test", *rights).stdout.strip()
        api = Fleet(product.web, secret)
        api.ensure("sites", {"name": SITE, "label": "Home", "grid_zone": "DE", "pue": 1.2}, ("name",))
        api.ensure("clusters", {"site": SITE, "name": "main"}, ("site", "name"))
        api.call("POST", "feeds/", _feed(folder))
        token = product.cli("node", "token", "--cluster", f"{SITE}/main").stdout.strip()
        # One device, one engine: a plan that knows nothing of its load yet begins with all of them.
        machine = ("--cpu", "A100-80GB:1", "--power", "8:45", "--vllm", str(VLLM), "--keep", str(kept))
        said = product.cli("node", "join", product.web, token, "--name", NODE, *machine).stdout
        agent = _run_unit(said, folder / "agent.log")
        with api:
            yield Joined(product, api, agent, said, kept)
    finally:
        product.down()
        if agent is not None:
            _end_group(agent)
        for record in (kept / "engines" / "engines").glob("*.json"):
            with suppress(ProcessLookupError, KeyError):
                os.killpg(json.loads(record.read_text())["pid"], signal.SIGKILL)


def _feed(folder: Path) -> dict[str, Any]:
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


def _run_unit(said: str, log: Path) -> subprocess.Popen[bytes]:
    """What systemd would make of the unit that `node join` printed."""
    unit = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    settings = dict(line.split("=", 1) for line in Path(unit["EnvironmentFile"]).read_text().splitlines())
    command = shlex.split(unit["ExecStart"].replace("%%", "%"))
    env = {"PATH": os.environ["PATH"], "HOME": str(log.parent), **settings}
    with log.open("ab") as file:
        return subprocess.Popen(
            command, cwd=unit["WorkingDirectory"], env=env, stdout=file, stderr=file, start_new_session=True
        )


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
