"""What is to be otherwise than in a scenario: read, and put over it. Pure."""

from __future__ import annotations

import copy
import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.cells import csv_text

from .errors import BadStudy
from .scenario_documents import Document, Files, children, groups, workloads

SLO_KEYS = ("ttft_s", "tpot_s", "e2e_s", "itl_p99_s")


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes to a scenario. Scales are factors; None: as it is.

    `gpus`: site -> GPU type -> GPUs; `instances`: name of a group -> instances; `pues`, `carbon_scales` and
    `price_scales`: site -> value.
    """

    rate_scale: float | None = None
    duration_s: float | None = None
    requests: int | None = None
    gpus: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    instances: Mapping[str, int] = field(default_factory=dict)
    pues: Mapping[str, float] = field(default_factory=dict)
    carbon_scales: Mapping[str, float] = field(default_factory=dict)
    price_scales: Mapping[str, float] = field(default_factory=dict)
    slo: Mapping[str, float] = field(default_factory=dict)


def read(given: object) -> Changes:
    """Reads the changes: numbers only, each in its range. Raises BadStudy."""
    if not isinstance(given, Mapping):
        raise BadStudy("changes", "an object, like {rate_scale: 2}")
    known = set(Changes.__dataclass_fields__)
    if unknown := sorted(set(given) - known):
        raise BadStudy(f"changes.{unknown[0]}", f"unknown field; known: {', '.join(sorted(known))}")
    own: dict[str, Any] = {}
    for key, least in (("rate_scale", 1e-6), ("duration_s", 1e-3)):
        if given.get(key) is not None:
            own[key] = _number(f"changes.{key}", given[key], least)
    if given.get("requests") is not None:
        own["requests"] = _whole("changes.requests", given["requests"], 1, 10**9)
    readers: dict[str, Callable[[str, Any], Any]] = {
        "instances": lambda path, value: _whole(path, value, 1),
        "pues": lambda path, value: _number(path, value, 1.0),
        "carbon_scales": lambda path, value: _number(path, value, 0.0),
        "price_scales": lambda path, value: _number(path, value, 0.0),
        "slo": lambda path, value: _number(path, value, 1e-6),
        "gpus": lambda path, value: {k: _whole(f"{path}.{k}", v, 0) for k, v in _mapping(path, value).items()},
    }
    for key, read in readers.items():
        items = _mapping(f"changes.{key}", given.get(key) or {})
        own[key] = {name: read(f"changes.{key}.{name}", value) for name, value in items.items()}
    if strange := sorted(set(own["slo"]) - set(SLO_KEYS)):
        raise BadStudy(f"changes.slo.{strange[0]}", f"unknown; known: {', '.join(SLO_KEYS)}")
    return Changes(**own)


def _mapping(path: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadStudy(path, "an object with a value for each name")
    return {str(key): item for key, item in value.items()}


def _number(path: str, value: object, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e12:
        raise BadStudy(path, f"must be a number of at least {least:g}, not {value!r}")
    return float(value)


def _whole(path: str, value: object, least: int, most: int = 100_000) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadStudy(path, f"must be a whole number from {least} to {most:,}, not {value!r}")
    return value


def put(document: Mapping[str, Any], files: Files, changes: Changes) -> tuple[Document, dict[str, bytes]]:
    """The scenario and its files with the changes made. Raises BadStudy where there is nothing to change."""
    found, kept = copy.deepcopy(dict(document)), dict(files)
    for _, workload in workloads(found):
        if changes.rate_scale is not None:
            workload["rate_scale"] = changes.rate_scale * float(workload.get("rate_scale", 1.0))
        if changes.duration_s is not None:
            workload["duration_s"] = changes.duration_s
            workload.pop("requests", None)
        if changes.requests is not None:
            workload["requests"] = changes.requests
    own = {str(group.get("name", "node")): group for group in groups(found)}
    for name, count in changes.instances.items():
        if name not in own:
            raise BadStudy("changes.instances", f"there is no group '{name}'; there are {', '.join(own)}")
        own[name]["count"] = count
    if changes.instances:
        found["cut_fleet"] = False  # the groups are to be the fleet of policies without a loop over instances
    _resize(found, changes.gpus)
    for scales, key in ((changes.carbon_scales, "carbon_g_per_kwh"), (changes.price_scales, "usd_per_kwh")):
        for name, scale in scales.items():
            site = _site(found, name)
            if site.get(key) is None:
                raise BadStudy(f"sites.{name}.{key}", "is not known, so that there is nothing to scale")
            site[key] = _scaled(site[key], scale, kept)
    for name, pue in changes.pues.items():
        _site(found, name)["pue"] = pue
    if changes.slo:
        _set_slo(found, changes.slo)
    return found, kept


def _resize(document: Document, gpus: Mapping[str, Mapping[str, int]]) -> None:
    """Sets the GPUs of sites, and the instances of static policies in the same proportion. Zero leaves them out.

    What nodes they are on is no longer known then."""
    for name, counts in gpus.items():
        own = _site(document, name).setdefault("gpus", {})
        for gpu_type, count in counts.items():
            before, own[gpu_type] = own.get(gpu_type), count
            if isinstance(nodes := _site(document, name).get("nodes"), dict) and before != count:
                nodes.pop(gpu_type, None)
            for group in groups(document):
                if before and group.get("site") == name and group.get("gpu") == gpu_type:
                    group["count"] = max(1, round(int(group.get("count", 1)) * count / before)) if count else 0
    if any(0 in counts.values() for counts in gpus.values()):
        _leave_out(document)


def _leave_out(document: Document) -> None:
    """Leaves out groups without instances, types without GPUs, and sites without either."""
    if isinstance(document.get("fleet"), list):
        document["fleet"] = [group for group in groups(document) if group.get("count", 1)]
    for path, site in children(document, "sites"):
        if isinstance(own := site.get("gpus"), dict):
            site["gpus"] = {gpu_type: count for gpu_type, count in own.items() if count}
            if not site["gpus"]:
                del document["sites"][path.removeprefix("sites.")]
    if not groups(document) or not document.get("sites"):
        raise BadStudy("changes.gpus", "no site has GPUs left; leave some")


def _scaled(value: Any, scale: float, files: dict[str, bytes]) -> Any:
    if isinstance(value, list):
        return [item * scale for item in value]
    if not isinstance(value, dict):
        return value * scale
    rows = list(csv.DictReader(io.StringIO(files[value["csv"]].decode())))
    scaled = ((row["start"], float(row["value"]) * scale if row["value"] else None) for row in rows)
    files[value["csv"]] = csv_text(("start", "value"), scaled).encode()
    return value


def _set_slo(document: Document, slo: Mapping[str, float]) -> None:
    """For all: the scenario's own, and those of services and classes, which would else go before it."""
    holders = [document, *(service for _, service in children(document, "services"))]
    for holder in list(holders):
        classes = holder.get("classes") or []
        holders += [one for one in (classes if isinstance(classes, list) else [classes]) if isinstance(one, dict)]
        for classes in (holder.get("partitions") or {}).values():
            holders += [one for one in classes if isinstance(one, dict)]
    for holder in holders:
        if holder is document or isinstance(holder.get("slo"), dict):
            holder["slo"] = {**(holder.get("slo") or {}), **slo}


def _site(document: Document, name: str) -> dict[str, Any]:
    site = (document.get("sites") or {}).get(name)
    if not isinstance(site, dict):
        known = ", ".join(document.get("sites") or {}) or "none"
        raise BadStudy(f"sites.{name}", f"there is no such site in the scenario; there are: {known}")
    return site
