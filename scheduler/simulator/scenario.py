"""Scenario files: YAML to a fleet, a load, objectives and prices. Every error names the field and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from scheduler.core.engine_model import UnknownConfiguration, engine_model, gpu
from scheduler.simulator import fields
from scheduler.simulator.fields import ScenarioError, Section
from scheduler.simulator.fleet import (
    MAX_SEQUENCES,
    TOKENS_PER_ITERATION,
    FixedCosts,
    InstanceSpec,
    SimulationError,
)
from scheduler.simulator.metrics import SitePrices, Slo

POLICIES = ("single_pool", "least_loaded", "multi_pool")
GENERATORS = ("azure-conv-like", "poisson")
DEFAULT_SITE = "site"


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A request class: a cell of lengths (lower bounds inclusive, upper ones exclusive), and its objectives."""

    name: str
    rank: int
    input_min: int = 0
    input_max: int | None = None
    output_min: int = 0
    output_max: int | None = None
    slo: Slo = field(default_factory=Slo)


@dataclass(frozen=True, slots=True)
class Group:
    """Instances of one kind. `classes`: what they serve under multi_pool; none: shared out by load."""

    instances: tuple[InstanceSpec, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Where requests come from: a trace, or a generator with a rate. Lengths of `poisson`: a number, or mean of an
    exponential distribution."""

    trace: Path | None = None
    generate: str | None = None
    rate_rps: float = 1.0
    requests: int | None = None
    duration_s: float | None = None
    prompt_tokens: int = 1000
    output_tokens: int = 200
    lengths: str = "fixed"
    rate_scale: float = 1.0
    prefix_hit_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    seed: int
    policy: str
    groups: tuple[Group, ...]
    workload: Workload
    classes: tuple[ClassSpec, ...]
    sites: Mapping[str, SitePrices]
    overload: str  # refuse | allow


def read_scenario(path: str | Path, settings: Sequence[str] = ()) -> Scenario:
    """Reads a scenario file, with `settings` (each `key.key=value`) put over what it says.

    Raises:
        ScenarioError: The file cannot be read or a field is wrong.
    """
    path = Path(path)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ScenarioError(f"{path}: a scenario is a mapping with the keys fleet, workload, policy ...")
    for setting in settings:
        fields.put(document, setting)
    return parse_scenario(document, path)


def parse_scenario(document: Mapping[str, Any], path: Path) -> Scenario:
    """A scenario from its mapping; `path` is where relative traces are looked for, and the default name."""
    root = Section("", document)
    default_slo = _slo(root.section("slo"))
    classes = tuple(_class(n, item, default_slo) for n, item in enumerate(root.sections("classes")))
    classes = classes or (ClassSpec("all", 0, slo=default_slo),)
    if len({c.name for c in classes}) < len(classes):
        raise ScenarioError("classes: two have the same name; give each its own")
    sites = {site.key: _site(site) for site in root.section("sites").children()}
    if shared := root.optional("prices"):
        sites.setdefault(DEFAULT_SITE, _site(shared))
    groups = tuple(_group(item, [c.name for c in classes]) for item in root.sections("fleet"))
    if not groups:
        raise ScenarioError("fleet: missing; give at least one group, like {count: 1, model: ..., gpu: ..., tp: ...}")
    if sites:
        for spec in (spec for group in groups for spec in group.instances):
            if spec.site not in sites:
                raise ScenarioError(f"fleet: site '{spec.site}' is not among sites: {', '.join(sites)}")
    names = [spec.name for group in groups for spec in group.instances]
    if len(set(names)) < len(names):
        raise ScenarioError("fleet: two groups have the same name; give each its own")
    scenario = Scenario(
        name=root.text("name", path.stem),
        seed=root.integer("seed", 1, least=0),
        policy=root.choice("policy", POLICIES, "single_pool"),
        groups=groups,
        workload=_workload(root.section("workload"), path.parent),
        classes=classes,
        sites=sites,
        overload=root.choice("overload", ("refuse", "allow"), "refuse"),
    )
    root.finish()
    return scenario


def _slo(section: Section) -> Slo:
    """Keys in seconds. `tpot_s` is of a request's mean."""
    limits = {
        name: section.number(key, None, above=0.0)
        for name, key in (
            ("ttft_s", "ttft_s"),
            ("tpot_mean_s", "tpot_s"),
            ("itl_p99_s", "itl_p99_s"),
            ("e2e_s", "e2e_s"),
        )
    }
    section.finish()
    return Slo(**limits)


def _class(rank: int, section: Section, default: Slo) -> ClassSpec:
    own = section.optional("slo")
    found = ClassSpec(
        name=section.text("name"),
        rank=rank,
        input_min=section.integer("input_min", 0, least=0),
        input_max=section.maybe_integer("input_max", least=1),
        output_min=section.integer("output_min", 0, least=0),
        output_max=section.maybe_integer("output_max", least=1),
        slo=_slo(own) if own is not None else default,
    )
    section.finish()
    return found


def _site(section: Section) -> SitePrices:
    found = SitePrices(
        pue=section.number("pue", 1.0, above=0.0) or 1.0,
        carbon_g_per_kwh=section.series("carbon_g_per_kwh"),
        usd_per_kwh=section.series("usd_per_kwh"),
    )
    if found.pue < 1.0:
        raise section.error("pue", f"must be at least 1, not {found.pue}")
    section.finish()
    return found


def _group(section: Section, known: Sequence[str]) -> Group:
    costs = section.optional("fixed_costs")
    name = section.text("name", "node")
    count = section.integer("count", 1, least=1, most=100_000)
    classes = section.texts("classes")
    if strange := [item for item in classes if item not in known]:
        raise section.error("classes", f"'{strange[0]}' is not a class; known: {', '.join(known)}")
    try:
        first = _instance(section, name, None if costs is None else _fixed(costs))
    except (SimulationError, UnknownConfiguration) as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(f"{section.path}: {error}") from error
    section.finish()
    return Group(tuple(replace(first, name=f"{name}-{n}") for n in range(count)), classes)


def _instance(section: Section, name: str, costs: FixedCosts | None) -> InstanceSpec:
    model, gpu_name, engine = "fixed", "fixed", "fixed"
    tp, top_mhz = section.integer("tp", 1, least=1), 1.0
    if costs is None:
        model, gpu_name, engine = section.text("model"), section.text("gpu"), section.text("engine", "vllm-v1")
        top_mhz = gpu(gpu_name).f_max
        engine_model(model, gpu_name, tp, engine)
    return InstanceSpec(
        name=name,
        model=model,
        gpu=gpu_name,
        tp=tp,
        mhz=section.number("mhz", top_mhz, above=0.0) or top_mhz,
        engine=engine,
        site=section.text("site", DEFAULT_SITE),
        max_sequences=section.integer("max_sequences", MAX_SEQUENCES, least=1, most=65_536),
        tokens_per_iteration=section.integer("tokens_per_iteration", TOKENS_PER_ITERATION, least=1),
        kv_capacity_tokens=section.maybe_integer("kv_capacity_tokens", least=1),
        costs=costs,
    )


def _fixed(section: Section) -> FixedCosts:
    names = ("base_s", "prefill_token_s", "decode_s", "busy_w", "idle_w", "kv_capacity_tokens")
    given = {name: section.number(name, None, least=0.0) for name in names}
    section.finish()
    return FixedCosts(**{name: value for name, value in given.items() if value is not None})


def _workload(section: Section, folder: Path) -> Workload:
    trace = section.text("trace", "")
    requests = section.maybe_integer("requests", least=1)
    found = Workload(
        trace=folder / trace if trace else None,
        generate=section.choice("generate", GENERATORS, "") or None,
        rate_rps=section.number("rate_rps", 1.0, above=0.0) or 1.0,
        requests=requests,
        duration_s=section.number("duration_s", None, above=0.0),
        prompt_tokens=section.integer("prompt_tokens", 1000, least=1),
        output_tokens=section.integer("output_tokens", 200, least=1),
        lengths=section.choice("lengths", ("fixed", "exponential"), "fixed"),
        rate_scale=section.number("rate_scale", 1.0, above=0.0) or 1.0,
        prefix_hit_ratio=section.number("prefix_hit_ratio", 0.0, least=0.0) or 0.0,
    )
    if found.prefix_hit_ratio > 1.0:
        raise section.error("prefix_hit_ratio", f"must be at most 1, not {found.prefix_hit_ratio}")
    section.finish()
    return found
