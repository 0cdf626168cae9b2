"""Dashboards, rules and docs name only metrics that are served, and the docs name all of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from frontend import health
from frontend.metrics import metrics_page, readings
from pools.agent.agent_metrics import AgentCollector, Board
from pools.gateway.http.connections import Connections
from pools.gateway.runtime import GatewayRuntime, GatewayRuntimeConfig

ROOT = Path(__file__).parent.parent.parent
DASHBOARDS = sorted((ROOT / "docker/grafana/dashboards").glob("*.json"))
PROMETHEUS = ROOT / "docker/prometheus"
NAME = re.compile(r"\bgreenserve_[a-z0-9_]+")
SAMPLES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
    "gauge": ("",),
}
# Base units, as Prometheus wants them at a name's end; what has none counts things, or is 0 or 1.
UNITS = ("seconds", "joules", "watts", "grams", "bytes", "hertz", "celsius", "ratio", "grams_per_joule", "info")
NOT_BASE = ("_ms", "_milliseconds", "_minutes", "_hours", "_kwh", "_wh", "_mhz", "_percent", "_kilograms", "_kb", "_mb")


class _NoRedis:
    def __enter__(self) -> _NoRedis:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _EmptyScrapeState:
    rising = readings.Rising()

    def energy(self) -> list[Any]:
        return []

    def settle(self) -> None:
        pass


@pytest.fixture
def families(monkeypatch, tmp_path) -> dict[str, tuple[str, str, str]]:
    """Every family that is served by web, agents and gateways: name -> (type, help, where)."""
    empty: dict[str, Any] = {
        "dead_rows": 0, "tasks": {}, "site_power": {}, "ledger_shares": [], "feed_ages": [], "intensities": {},
        "attainment": {}, "instances": [], "decisions": [], "epochs": [], "jobs": [], "batches": ([], 0),
        "open_alerts": [],
    }  # fmt: skip
    for name, value in empty.items():
        monkeypatch.setattr(readings, name, lambda *_, value=value: value)
    nothing = health.Health(datetime.now(UTC).timestamp(), "", True)
    monkeypatch.setattr(health, "gather", lambda _: nothing)
    monkeypatch.setattr(metrics_page, "_redis", _NoRedis)
    monkeypatch.setattr(metrics_page.selectors, "tenant_fairness", lambda _: None)
    found = {name: (*what, "web") for name, what in _served(metrics_page.FleetCollector(_EmptyScrapeState())).items()}  # type: ignore[arg-type]
    found |= {name: (*what, "agent") for name, what in _served(AgentCollector(Board("n1"))).items()}
    runtime = GatewayRuntime(GatewayRuntimeConfig(tmp_path, learns=False))
    try:
        found |= {
            name: (*what, "gateway") for name, what in _parsed(runtime.metrics_page(0, Connections()).decode()).items()
        }
    finally:
        runtime.journal.close()
        runtime.classifier.close()
    return found


def _served(collector: Collector) -> dict[str, tuple[str, str]]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return _parsed(generate_latest(registry).decode())


def _parsed(text: str) -> dict[str, tuple[str, str]]:
    return {
        f"{f.name}_total" if f.type == "counter" else f.name: (f.type, f.documentation)
        for f in text_string_to_metric_families(text)
    }


def _samples(families: dict[str, tuple[str, str, str]]) -> set[str]:
    names = set()
    for name, (kind, _, _) in families.items():
        names |= {name} if kind in ("counter", "gauge") else {name + suffix for suffix in SAMPLES[kind]}
    return names


def _expressions(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        yield str(variable["query"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_name_only_what_is_served(families, path):
    board = json.loads(path.read_text())
    named = {name for expression in _expressions(board) for name in NAME.findall(expression)}
    assert named
    assert named <= _samples(families)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_is_whole(path):
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        where = panel["gridPos"]
        assert where["x"] + where["w"] <= 24
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_there_is_a_dashboard_for_the_fleet_the_gateway_and_the_nodes():
    assert [path.stem for path in DASHBOARDS] == ["greenserve-fleet", "greenserve-gateway", "greenserve-nodes"]


def test_rules_parse_and_name_only_what_is_served(families):
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert set(NAME.findall(rule["expr"])) <= _samples(families), rule["alert"]
        assert {"summary", "step"} <= set(rule["annotations"])
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_promtool_accepts_rules_and_configuration():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on the PATH; the distribution's package is called prometheus")
    for what in (("check", "rules", "rules.yml"), ("check", "config", "prometheus.yml")):
        done = subprocess.run(
            [promtool, *what], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_configuration_asks_the_web_process_and_its_list():
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    by_name = {job["job_name"]: job for job in config["scrape_configs"]}
    assert by_name["greenserve"]["metrics_path"] == "/metrics"
    assert by_name["greenserve-fleet"]["http_sd_configs"][0]["url"].endswith("/metrics/targets")
    gateways, others = (by_name[f"greenserve-{job}"]["relabel_configs"] for job in ("gateways", "fleet"))
    assert (gateways[0]["action"], others[0]["action"]) == ("keep", "drop"), "agents and engines never see the token"


def test_docs_have_a_row_for_each_metric_and_no_other(families):
    """Name, type and where it is served; regenerate the rows by hand when this fails: it prints what they should be."""
    text = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(greenserve_\w+)` \| (\w+) \| (\w+) \|", text, re.M)
    expected = sorted((name, kind, where) for name, (kind, _, where) in families.items())
    assert sorted(rows) == expected


def test_names_are_in_base_units(families):
    for name, (kind, words, _) in families.items():
        assert not name.removesuffix("_total").endswith(NOT_BASE), name
        assert words.endswith("."), name
        assert name.endswith("_total") == (kind == "counter"), name
        if any(unit in name for unit in ("joule", "watt", "gram", "byte", "hertz", "celsius")):
            assert name.removesuffix("_total").endswith(UNITS), name
