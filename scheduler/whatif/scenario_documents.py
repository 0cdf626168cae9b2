"""Scenarios as mappings: read from text, changed, checked. Pure but for a throw-away folder for their files.

Whoever asks for a study may not be allowed to read the server's files, so a scenario names none but the study's own.
"""

from __future__ import annotations

import copy
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from core import safe_yaml
from core.engine import gpu_types
from core.engine.engine_model import UnknownConfiguration
from core.simulator import fields
from core.simulator.kernel.simulated import SimulationError
from core.simulator.policies import POLICIES, PolicyConfig, StaticConfig, put_over, read_policy
from core.simulator.policies.policy_registry import check as check_policy
from core.simulator.runs.runner import requests_of
from core.simulator.scenario.layout import world_of
from core.simulator.scenario.scenario import Scenario, parse_scenario
from core.simulator.workload import TraceError

from .errors import BadStudy

MOST_TEXT = 400_000  # characters of a scenario
MOST_VALUES, MOST_DEPTH, MOST_NUMBER = 20_000, 30, 1e18
MOST_INSTANCES = 20_000
CHECKED_REQUESTS = 200_000  # of a trace, before a study is taken up: half a second; the runs read the rest
FOLDER = re.compile(r"\S*greenserve-study-[^/\s]*/")
MOST_SETTINGS, MOST_SETTING = 50, 500  # of a run; characters of each
BAD = (SimulationError, TraceError, UnknownConfiguration, ValueError, TypeError, OSError)
SHAPES = (AttributeError, KeyError, ArithmeticError, RecursionError)  # of what is no scenario at all

Document = dict[str, Any]
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A policy with knobs of its own, and fields of the scenario set otherwise (`key.key=value`)."""

    policy: str
    knobs: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    label: str = ""

    @property
    def title(self) -> str:
        """The label, or the run as the arguments of `greenserve compare` would name it."""
        return self.label or " ".join([self.line, *self.changes])

    @property
    def line(self) -> str:
        """`NAME {key: value}`."""
        knobs = ", ".join(f"{key}: {_flow(value)}" for key, value in self.knobs.items())
        return f"{self.policy} {{{knobs}}}" if knobs else self.policy


def read_text(text: str) -> Document:
    """Reads a scenario file's text. Raises BadStudy."""
    if len(text) > MOST_TEXT:
        raise BadStudy("scenario", f"longer than {MOST_TEXT:,} characters; put traces and series into files")
    try:
        document = safe_yaml.load(text)
    except safe_yaml.BadYamlError as error:
        raise BadStudy("scenario", f"not YAML: {error}") from None
    if not isinstance(document, dict):
        raise BadStudy("scenario", "a scenario is a mapping with the keys fleet, workload, policy ...")
    return plain(document)


def plain(document: Mapping[str, Any]) -> Document:
    """Returns a copy with texts for keys and for dates, as it comes back from the database."""
    found = _plain(document, [MOST_VALUES], 0)
    assert isinstance(found, dict)
    return found


def _plain(value: object, room: list[int], depth: int) -> Any:
    """Returns the value as PostgreSQL can store it in JSON. Raises BadStudy where nobody could have written it."""
    room[0] -= 1
    if room[0] < 0 or depth > MOST_DEPTH:
        raise BadStudy("scenario", f"more than {MOST_VALUES:,} values, or {MOST_DEPTH} levels; put series into files")
    if isinstance(value, Mapping):
        return {_text(str(key)): _plain(item, room, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, room, depth + 1) for item in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not abs(value) < MOST_NUMBER:
        raise BadStudy("scenario", f"has a number that is not finite, or beyond {MOST_NUMBER:g}")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _text(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _text(value: str) -> str:
    if "\0" in value:
        raise BadStudy("scenario", "has a NUL character in a text")
    return value


def text_of(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=110)


def run_spec(given: object) -> RunSpec:
    """Reads a run: `"NAME {key: value} field.field=value"`, or a mapping with `policy`, `knobs`, `set` and `label`.

    Raises:
        BadStudy: It is neither, or there is no such policy.
    """
    if isinstance(given, str):
        given = _run_line(given)
    if not isinstance(given, Mapping):
        raise BadStudy("runs", "each is a text like 'freesh {order: fcfs}', or an object with policy, knobs and set")
    if unknown := sorted(set(given) - {"policy", "knobs", "set", "label"}):
        raise BadStudy("runs", f"unknown key '{unknown[0]}'; known: policy, knobs, set, label")
    knobs, changes = given.get("knobs") or {}, given.get("set") or []
    if not isinstance(knobs, Mapping):
        raise BadStudy("runs", "knobs are an object, like {order: fcfs}")
    if not isinstance(changes, (list, tuple)) or not all(isinstance(item, str) for item in changes):
        raise BadStudy("runs", "set is a list of texts like fleet.count=8")
    if len(changes) > MOST_SETTINGS or any(len(item) > MOST_SETTING for item in changes):
        raise BadStudy("runs", f"set has at most {MOST_SETTINGS} texts of at most {MOST_SETTING} characters")
    if given.get("policy") not in POLICIES:
        raise BadStudy("runs", f"unknown policy '{str(given.get('policy'))[:80]}'; known: {', '.join(POLICIES)}")
    label = _text(str(given.get("label") or "")[:200])
    return RunSpec(given["policy"], plain(knobs), tuple(_text(item) for item in changes), label)


def _run_line(given: str) -> dict[str, Any]:
    """Reads a run as `RunSpec.title` writes it."""
    head, close, tail = given.rpartition("}")
    words = (tail if close else given).split()
    name, brace, rest = head.partition("{") if close else (words.pop(0) if words else "", "", "")
    try:
        knobs = safe_yaml.load(brace + rest + close) or {}
    except safe_yaml.BadYamlError:
        knobs = None
    if knobs is None or not all("=" in word for word in words):
        raise BadStudy("runs", f"'{given[:80]}': write NAME, NAME {{key: value}} or NAME {{key: value}} field=value")
    return {"policy": name.strip(), "knobs": knobs, "set": words}


def for_run(document: Mapping[str, Any], run: RunSpec) -> Document:
    """The scenario of one run: its fields set, its policy in the place of the file's.

    A policy of the scenario's own name keeps the scenario's keys, with the run's put over them, as in `compare`.
    Raises ScenarioError.
    """
    found = copy.deepcopy(dict(document))
    for setting in run.changes:
        fields.put(found, setting)
    own = found.get("policy", "single_pool")
    keys = own if isinstance(own, dict) else {"name": str(own)}
    found["policy"] = put_over(keys, run.knobs, run.policy)
    return found


@contextmanager
def opened(document: Mapping[str, Any], files: Files) -> Iterator[Scenario]:
    """Yields the scenario with its files on disk for as long as it is used. Raises what `parse_scenario` does, and
    BadStudy where it names a file that is not the study's.
    """
    check_files(document, files)
    declared = gpu_types.declared()  # which a scenario's own may replace
    with tempfile.TemporaryDirectory(prefix="greenserve-study-") as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        try:
            yield parse_scenario(document, Path(folder) / "study.yaml")
        finally:
            gpu_types.declare(declared)


def check(document: Mapping[str, Any], files: Files, runs: Sequence[RunSpec]) -> None:
    """Raises BadStudy, which names the field, when a run could not begin."""
    for n, run in enumerate(runs):
        try:
            own = for_run(document, run)
            config = read_policy(own["policy"])
        except (*BAD, *SHAPES) as error:
            raise BadStudy("runs", f"{run.title}: {error}") from None
        counts = [group.get("count", 1) for group in groups(own)]
        if sum(count for count in counts if isinstance(count, int)) > MOST_INSTANCES:
            raise BadStudy("fleet", f"more than {MOST_INSTANCES:,} instances; take fewer, or larger ones")
        try:
            with opened(own, files) as scenario:
                _check_policy(run, config, scenario)
                if any(service.workload.trace for service in scenario.services):
                    requests_of(scenario, at_hand=1 if n else CHECKED_REQUESTS)
        except BadStudy:
            raise
        except TraceError as error:
            raise BadStudy("traffic.trace", FOLDER.sub("", str(error))) from None
        except (*BAD, *SHAPES) as error:
            raise BadStudy.of(error) from None


def _check_policy(run: RunSpec, config: PolicyConfig, scenario: Scenario) -> None:
    """Raises BadStudy for a policy that is not for such a fleet: before the study runs, not when it has failed."""
    if isinstance(config, StaticConfig) and not config.cuts_fleet:
        return
    try:
        check_policy(config, world_of(scenario))
    except BAD as error:
        raise BadStudy("runs", f"{run.title}: {error}") from None


def check_files(document: Mapping[str, Any], files: Files) -> None:
    """Refuses every file that is not the study's own. Raises BadStudy."""
    for path, name in _named_files(document):
        if not isinstance(name, str) or name not in files:
            known = f"it has {', '.join(sorted(files))}" if files else "it has none"
            raise BadStudy(path, f"there is no file '{name}' with this study ({known}); upload a trace instead")


def _named_files(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, workload in workloads(document):
        if workload.get("trace"):
            yield f"{path}.trace", workload["trace"]
    sites = children(document, "sites")
    if isinstance(document.get("prices"), dict):
        sites.append(("prices", document["prices"]))
    for path, site in sites:
        for key in ("carbon_g_per_kwh", "usd_per_kwh"):
            if isinstance(site.get(key), dict):
                yield f"{path}.{key}.csv", site[key].get("csv")


def workloads(document: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns path and mapping of each workload."""
    found = [
        (f"{path}.workload", service["workload"])
        for path, service in children(document, "services")
        if isinstance(service.get("workload"), dict)
    ]
    if isinstance(document.get("workload"), dict):
        found.append(("workload", document["workload"]))
    return found


def groups(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    fleet = document.get("fleet")
    return [group for group in (fleet if isinstance(fleet, list) else [fleet]) if isinstance(group, dict)]


def children(document: Mapping[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    section = document.get(key)
    if not isinstance(section, Mapping):
        return []
    return [(f"{key}.{name}", item) for name, item in section.items() if isinstance(item, dict)]


def _flow(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).strip().removesuffix("...").strip()
