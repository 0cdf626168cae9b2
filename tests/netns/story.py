"""What happens on the machines, step by step: docs/production.md, and faults that an operator meets.

Each step is a function; together they are the `STEPS`, in their order.
"""

from __future__ import annotations

import gzip
import json
import time
from datetime import UTC, datetime

from tests.e2e.product import ROOT, wait_for
from tests.netns.stage import Stage, say

LEADS_WITHIN_S = 15.0
REFUSED_WITHIN_S = 3.0
READY_WITHIN_S = 420.0
SETTLES_WITHIN_S = 1500.0  # a window of five minutes, sixteen minutes for late samples, and beat
LEDGER = "SELECT kind, sum(energy_uj) FROM telemetry_energyentry GROUP BY kind ORDER BY kind"


def servers_and_control_planes(stage: Stage) -> None:
    stage.page.section("## 1. Store")
    stage.page.section("## 2. Control planes")
    assert leader(stage, "control") == "", "the first control plane has no name"


def fleet_and_nodes(stage: Stage) -> None:
    stage.page.section("## 3. Fleet")
    stage.page.section("## 4. Nodes")


def first_request(stage: Stage) -> None:
    """Streams through a real vLLM on one node, and a simulated engine on the other."""
    since = now()
    stage.page.section("## 5. First request")
    wait_for("answers of both sites", lambda: served_by_both(stage, since), 180.0)


def firewall_and_trust(stage: Stage) -> None:
    """Engines are open to control planes alone, and nobody reads a node's engine without its key."""
    engines = {row["pool"].split("/")[1]: row["url"] for row in stage.rows("instances/?state=ready")}
    for url in engines.values():
        assert url.startswith("https://"), engines
        reached = ("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "4")
        assert stage["office"].run(*reached, f"{url}/health", check=False).stdout == "000"
        assert stage["control"].run(*reached, f"{url}/health", check=False).stdout == "200"
        assert stage["control"].run(*reached, f"{url}/v1/models", check=False).stdout == "401"
    open_ports = ("bash", "-c", "timeout 4 bash -c '</dev/tcp/store/5432' 2>&1")
    assert stage["gpu-1"].run(*open_ports, check=False).returncode != 0, "a node reaches the database"


def node_cut_off_and_back(stage: Stage) -> None:
    """Requests are served by the other node meanwhile, and by both afterwards; no joule of its GPUs is lost."""
    stage.network.cut("gpu-1")
    began = time.monotonic()
    faults = [fault for fault in (stage.ask() for _ in range(15)) if fault]
    assert not faults, faults
    say(f"  15 requests in {time.monotonic() - began:.1f} s while gpu-1 is cut off, none failed")
    wait_for("gpu-1 to be known as silent", lambda: not stage.rest("nodes/gpu-1/state/")["heard"], 90.0)
    assert stage.status("https://llm.example/ready") == "200"
    stage.network.mend("gpu-1")
    wait_for("gpu-1 to be heard", lambda: stage.rest("nodes/gpu-1/state/")["heard"], 90.0)
    since = now()
    wait_for("answers of both sites", lambda: served_by_both(stage, since), 180.0)


STEPS = (
    servers_and_control_planes,
    fleet_and_nodes,
    first_request,
    firewall_and_trust,
    node_cut_off_and_back,
)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def served_by_both(stage: Stage, since: str) -> bool:
    fault = stage.ask()
    assert not fault, fault
    return stage.sites_that_served(since) == {"north", "south"}


def leader(stage: Stage, name: str) -> str | None:
    """Returns which control plane leads, as one says it; None: none does."""
    page = stage[name].shell("greenserve doctor --json || true")
    return str(json.loads(page)["leader"]) if page else None


def dump() -> str:
    return gzip.decompress((ROOT / "tests/fixtures/release_0_1_0/dump.sql.gz").read_bytes()).decode()
