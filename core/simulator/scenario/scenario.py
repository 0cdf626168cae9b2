"""Scenario files: YAML to services, a fleet, sites and a policy. Every error names the field and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from core import safe_yaml
from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.engine import gpu_types
from core.engine.engine_model import UnknownConfiguration, engine_model, gpu
from core.engine.engine_params import FITTED, split_fault
from core.engine.gpu_type_fields import checked, sheet_of
from core.engine.overheads import Overheads
from core.simulator import fields
from core.simulator.fields import ScenarioError, Section
from core.simulator.kernel.objectives import Slo
from core.simulator.kernel.simulated import (
    MAX_SEQUENCES,
    TOKENS_PER_ITERATION,
    FixedCosts,
    Handover,
    InstanceSpec,
    SimulationError,
)
from core.simulator.policies import PolicyConfig, put_over, read_overheads, read_policy
from core.simulator.scenario.class_cells import Cells, ClassSpec, Partition
from core.simulator.site_series import Site, read_site, read_start
from core.simulator.workload import LengthPredictor, Workload, read_predictor, read_workload
from core.types import Limits, Loop, Mode, ModeProfile, Source

DEFAULT_SITE = "site"
DEFAULT_SERVICE = "default"
FOREKNOWN = "requests"  # as `declared`: what the requests to come are
ROLES = ("first", "second")
_ONE_PASS_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class Group:
    """Instances of one kind. `classes`: what they serve under multi_pool; `services`: whose requests; none: all that
    go with their model. `role`: which part of a request they take under disaggregated. `tps`: TP degrees that a policy
    may choose."""

    instances: tuple[InstanceSpec, ...]
    classes: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    role: str = ROLES[0]
    tps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredLoad:
    """A load that is expected before anything is seen: its peak rate, of requests of about these lengths."""

    rps: float
    prompt_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Service:
    """Requests for one model, with their objectives. The first partition's classes are those of the figures.

    `declared`: what policies expect at first; None: what an operator would who knew the requests to come, the peak rate
    and mean lengths of each cell.
    """

    name: str
    workload: Workload
    partitions: tuple[Partition, ...]
    predictor: LengthPredictor = field(default_factory=LengthPredictor)
    declared: tuple[DeclaredLoad, ...] | None = ()
    model: str | None = None  # None: whatever the fleet runs
    decode: bool = True  # False: a model of one pass, whose only token is its answer
    share: Share = EQUAL  # of the GPUs

    @property
    def classes(self) -> tuple[ClassSpec, ...]:
        return self.partitions[0].classes

    @property
    def cells(self) -> Cells:
        return Cells.of(self.partitions)


@dataclass(frozen=True, slots=True)
class SiteFleet:
    """GPUs that policies may use at a site; empty: those of the groups that stand there. `nodes`: the GPUs of each node
    by type, where they are not alike."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    gpus_per_node: int = 8
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`cut_fleet`: policies without a loop over instances have the sites' GPUs, cut as live ones; else the groups.

    `usual_s`: the periods of loops to which no policy gives one, where the fleet has other ones than usual. `due_s`:
    when an epoch of a loop is due, in s of the run, where that is not at 0.
    """

    name: str
    seed: int
    start: datetime
    policy: PolicyConfig
    policy_keys: Mapping[str, Any]  # what the file says of it
    services: tuple[Service, ...]
    groups: tuple[Group, ...]
    sites: Mapping[str, Site]
    site_fleets: Mapping[str, SiteFleet]
    overheads: Overheads
    handover: Handover | None  # of `first` to `second`; `token_s` is still seconds per byte
    overload: str  # refuse | allow
    cut_fleet: bool = False
    usual_s: Mapping[Loop, float] = field(default_factory=dict)
    due_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def tenants(self) -> tuple[str, ...]:
        """All that any workload names; `default` stands for those that name none."""
        own = [[name for name, _ in service.workload.tenants] for service in self.services]
        names = [name for names in own for name in names]
        return tuple(dict.fromkeys(names if all(own) else [DEFAULT_SERVICE, *names]))


def read_scenario(path: str | Path, settings: Sequence[str] = ()) -> Scenario:
    """Reads a scenario file, with `settings` (each `key.key=value`) put over what it says.

    Raises:
        ScenarioError: The file cannot be read or a field is wrong.
    """
    path = Path(path)
    try:
        document = safe_yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    except safe_yaml.BadYamlError as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from error
    if not isinstance(document, dict):
        raise ScenarioError(f"{path}: a scenario is a mapping with the keys fleet, workload, policy ...")
    for setting in settings:
        fields.put(document, setting)
    return parse_scenario(document, path)


def parse_scenario(document: Mapping[str, Any], path: Path) -> Scenario:
    """Reads a scenario from its mapping; `path` is where relative files are looked for, and the default name.

    GPU types of its own are known to the whole process from then on, in place of declared ones of their names.

    Raises:
        ScenarioError: The fleet is missing, a key is unknown, or a value is out of range.
    """
    root, folder = Section("", document), path.parent
    if own_types := _gpu_types(root.section("gpu_types")):
        gpu_types.declare((*gpu_types.declared(), *own_types))
    start = read_start(root)
    services = _services(root, folder)
    site_fleets, sites = {}, {}
    for section in root.section("sites").children():
        site_fleets[section.key] = own = _site_fleet(section)
        powered = section.flag("empty_gpus_powered", False)
        if powered and not own.gpus:
            raise section.error("empty_gpus_powered", "needs gpus: how many of each type the site has")
        sites[section.key] = replace(read_site(section, folder, start), powered_gpus=own.gpus if powered else {})
    if shared := root.optional("prices"):
        sites.setdefault(DEFAULT_SITE, read_site(shared, folder, start, name=DEFAULT_SITE))
    groups = tuple(_group(item, services) for item in root.sections("fleet"))
    if not groups:
        raise ScenarioError("fleet: missing; give at least one group, like {count: 1, model: ..., gpu: ..., tp: ...}")
    _check_names(groups, services, sites)
    policy = root.section("policy") if root.is_mapping("policy") else None
    policy_keys = {"name": root.text("policy", "single_pool")} if policy is None else policy.values
    usual_s, due_s = _seconds(root.section("periods"), above=0.0), _seconds(root.section("epochs_due"), least=0.0)
    scenario = Scenario(
        name=root.text("name", path.stem),
        seed=root.integer("seed", 1, least=0),
        start=start,
        policy=read_policy(policy_keys, usual_s),
        policy_keys=policy_keys,
        services=services,
        groups=groups,
        sites=sites,
        site_fleets=site_fleets,
        overheads=read_overheads(root.section("overheads")),
        handover=_handover(root.optional("handover")),
        overload=root.choice("overload", ("refuse", "allow"), "refuse"),
        cut_fleet=root.flag("cut_fleet", False),
        usual_s=usual_s,
        due_s={loop.value: at_s for loop, at_s in due_s.items()},
    )
    root.finish()
    return scenario


def policy_of(scenario: Scenario, text: str | None) -> PolicyConfig:
    """Returns the scenario's policy, or another one: NAME or "NAME {key: value, ...}".

    A policy of the scenario's own name keeps the scenario's keys, with the given ones put over them.

    Raises:
        ScenarioError: An unknown name or key, or a value out of range.
    """
    if text is None:
        return scenario.policy
    name, brace, rest = text.partition("{")
    try:
        keys = safe_yaml.load(brace + rest) or {}
    except safe_yaml.BadYamlError as error:
        raise ScenarioError(f"policy '{text}': write NAME or 'NAME {{key: value}}': {error}") from error
    name = name.strip()
    return read_policy(put_over(scenario.policy_keys, keys, name), scenario.usual_s)


def _seconds(section: Section, least: float | None = None, above: float | None = None) -> dict[Loop, float]:
    """Reads seconds by loop, such as `carbon_s`."""
    given = {loop: section.number(f"{loop.value}_s", None, least=least, above=above) for loop in Loop}
    section.finish()
    return {loop: value_s for loop, value_s in given.items() if value_s is not None}


def _check_names(groups: Sequence[Group], services: Sequence[Service], sites: Mapping[str, Site]) -> None:
    specs = [spec for group in groups for spec in group.instances]
    for spec in specs:
        if sites and spec.site not in sites:
            raise ScenarioError(f"fleet: site '{spec.site}' is not among sites: {', '.join(sites)}")
    if len({spec.name for spec in specs}) < len(specs):
        raise ScenarioError("fleet: two groups have the same name; give each its own")
    models = {spec.model for spec in specs}
    for service in services:
        if service.model is not None and service.model not in models:
            raise ScenarioError(f"services.{service.name}: no fleet group runs its model {service.model}")


# -- services --------------------------------------------------------------------------------------


def _services(root: Section, folder: Path) -> tuple[Service, ...]:
    """Reads the services, or the one that the root itself describes.

    Objectives, predictor and declared load of the root hold for those without their own.
    """
    slo, predictor, declared = _slo(root.section("slo")), read_predictor(root), _declared(root)
    sections = list(root.section("services").children())
    if not sections:
        workload = read_workload(root.section("workload"), folder)
        return (Service(DEFAULT_SERVICE, workload, _partitions(root, slo), predictor, declared),)
    found = []
    for section in sections:
        own = section.optional("slo")
        found.append(
            Service(
                name=section.key,
                workload=read_workload(section.section("workload"), folder),
                partitions=_partitions(section, _slo(own) if own is not None else slo),
                predictor=read_predictor(section) if "length_predictor" in section.names() else predictor,
                declared=_declared(section) if "declared" in section.names() else declared,
                model=section.text("model", "") or None,
                decode=section.flag("decode", True),
                share=_share(section),
            )
        )
        section.finish()
    return tuple(found)


def _share(section: Section) -> Share:
    """Reads what an operator says of a service's part of the GPUs: `weight`, `min_gpus`, `max_gpus`."""
    weight = section.number("weight", EQUAL.weight, above=0.0)
    assert weight is not None
    least, most = section.integer("min_gpus", EQUAL.min_gpus, least=0), section.maybe_integer("max_gpus", least=1)
    try:
        return Share(weight, least, most)
    except ValueError as error:
        key, _, words = str(error).partition(": ")
        raise section.error(key, words) from None


def _declared(section: Section) -> tuple[DeclaredLoad, ...] | None:
    """Reads `declared`, a load or a list of them: `rps`, `prompt_tokens`, `output_tokens`; or `requests`, which is
    None."""
    if "declared" not in section.names():
        return ()
    if isinstance(section.values["declared"], str):
        section.choice("declared", (FOREKNOWN,), FOREKNOWN)
        return None
    found = []
    for own in section.sections("declared"):
        values = [own.number(key, None, above=0.0) for key in ("rps", "prompt_tokens", "output_tokens")]
        own.finish()
        rps, prompt, output = values
        if rps is None or prompt is None or output is None:
            raise own.error("rps", "missing; a declared load has rps, prompt_tokens and output_tokens")
        found.append(DeclaredLoad(rps, prompt, output))
    return tuple(found)


def _partitions(section: Section, slo: Slo) -> tuple[Partition, ...]:
    """Reads `classes`, and `partitions`, each a name with classes of its own; none: one class of all."""
    found = []
    if classes := _classes(section.sections("classes"), slo):
        found.append(Partition("default", classes))
    for key in section.section("partitions").names():
        own = _classes(section.section("partitions").sections(key), slo)
        if not own:
            raise section.error(f"partitions.{key}", "has no classes; give a list of them")
        found.append(Partition(key, own))
    return tuple(found) or (Partition("default", (ClassSpec("all", 0, slo=slo),)),)


def _classes(sections: Sequence[Section], slo: Slo) -> tuple[ClassSpec, ...]:
    found = tuple(_class(rank, item, slo) for rank, item in enumerate(sections))
    if len({c.name for c in found}) < len(found):
        raise ScenarioError("classes: two have the same name; give each its own")
    return found


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
        thresholds=_thresholds(section.section("thresholds")),
        profiles=_profiles(section.section("profiles")),
    )
    section.finish()
    return found


def _thresholds(section: Section) -> Limits:
    """Reads limits in seconds."""
    found = Limits(*(section.number(key, None, above=0.0) for key in ("ttft_s", "tpot_s", "e2e_s")))
    section.finish()
    return found


def _profiles(section: Section) -> dict[Mode, ModeProfile]:
    """Reads profiles by mode, such as `H100-SXM-80GB/TP4`: `max_rps`, `power_w`, latencies in s, and `source`."""
    found = {}
    for own in section.children():
        try:
            mode = Mode.parse(own.key)
            source = Source(own.text("source", Source.PUBLISHED.value))
        except ValueError as error:
            raise section.error(own.key, str(error)) from None
        rps, watts = (own.number(key, None, least=0.0) for key in ("max_rps", "power_w"))
        if rps is None or watts is None:
            raise section.error(own.key, "needs max_rps and power_w")
        ttft_s, tpot_s, e2e_s = (own.number(key, None, above=0.0) for key in ("ttft_s", "tpot_s", "e2e_s"))
        own.finish()
        found[mode] = ModeProfile(rps, watts, ttft_s, tpot_s, e2e_s, source)
    return found


def _slo(section: Section) -> Slo:
    """Reads objectives in seconds. `tpot_s` is of a request's mean."""
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


def _gpu_types(section: Section) -> list[gpu_types.GpuType]:
    """Reads data sheets by the types' names, so that a scenario stands by itself."""
    found = []
    for name in section.names():
        own = section.section(name)
        if name in gpu_types.SHIPPED:
            raise section.error(name, "is a type that is shipped; give yours another name")
        try:
            found.append(checked(sheet_of(name, own.values), FITTED))
        except gpu_types.BadGpuType as error:
            raise own.error(error.field_name, str(error).partition(": ")[2]) from None
    return found


# -- the fleet -------------------------------------------------------------------------------------


def _site_fleet(section: Section) -> SiteFleet:
    """Reads `gpus`, `gpus_per_node` and `nodes` of a site; the rest of the section is `read_site`'s."""
    own = section.section("gpus")
    gpus = {}
    for name in own.names():
        try:
            gpu(name)
        except UnknownConfiguration as error:
            raise own.error(name, str(error)) from None
        gpus[name] = own.integer(name, 0, least=0)
    listed, nodes = section.section("nodes"), {}
    for name in listed.names():
        nodes[name] = tuple(int(size) for size in listed.numbers(name))
        if min(nodes[name], default=0) < 1 or sum(nodes[name]) != gpus.get(name):
            raise listed.error(name, f"must be the GPUs of each node, {gpus.get(name, 0)} together, as gpus has them")
    return SiteFleet(gpus, section.integer("gpus_per_node", 8, least=1), nodes)


def _handover(section: Section | None) -> Handover | None:
    """Reads a hand-over. `at`: prompt, or a share; `link_gb_per_s`, `latency_s`, `chunked`."""
    if section is None:
        return None
    at: float | str = "prompt"
    if "at" in section.names() and section.text("at") != "prompt":
        at = section.number("at", None, above=0.0) or 0.5
        if at >= 1.0:
            raise section.error("at", f"must be prompt, or a share below 1, not {at:g}")
    link = section.number("link_gb_per_s", 50.0, above=0.0) or 50.0
    latency_s = section.number("latency_s", 0.001, least=0.0) or 0.0
    found = Handover(ROLES[1], at, 1.0 / (link * 1e9), latency_s, section.flag("chunked", True))
    section.finish()
    return found


def _group(section: Section, services: Sequence[Service]) -> Group:
    costs = section.optional("fixed_costs")
    name = section.text("name", "node")
    count = section.integer("count", 1, least=1, most=100_000)
    classes, serves = section.texts("classes"), section.texts("services")
    for key, given, known in (
        ("classes", classes, [c.name for service in services for c in service.classes]),
        ("services", serves, [service.name for service in services]),
    ):
        if strange := [item for item in given if item not in known]:
            raise section.error(key, f"'{strange[0]}' is not one of them; known: {', '.join(known)}")
    try:
        first = _instance(section, name, None if costs is None else _fixed(costs), services)
    except (SimulationError, UnknownConfiguration) as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError(f"{section.path}: {error}") from error
    tps = tuple(int(tp) for tp in section.numbers("tp_choices")) if "tp_choices" in section.names() else (first.tp,)
    for tp in tps:
        if costs is None and (fault := split_fault(first.model, first.gpu, tp)):
            raise section.error("tp_choices", fault)
    found = Group(
        instances=tuple(replace(first, name=f"{name}-{n}") for n in range(count)),
        classes=classes,
        services=serves,
        role=section.choice("role", ROLES, ROLES[0]),
        tps=tps,
    )
    section.finish()
    return found


def _instance(section: Section, name: str, costs: FixedCosts | None, services: Sequence[Service]) -> InstanceSpec:
    model, gpu_name, engine = "fixed", "fixed", "fixed"
    tp, top_mhz = section.integer("tp", 1, least=1), 1.0
    if costs is None:
        model, gpu_name, engine = section.text("model"), section.text("gpu"), section.text("engine", "vllm-v1")
        top_mhz = gpu(gpu_name).f_max
        if fault := split_fault(model, gpu_name, tp):
            raise section.error("tp", fault)
        engine_model(model, gpu_name, tp, engine)
    mine = [service for service in services if service.model in (None, model)]
    one_pass = bool(mine) and not any(service.decode for service in mine)
    return InstanceSpec(
        name=name,
        model=model,
        gpu=gpu_name,
        tp=tp,
        mhz=section.number("mhz", top_mhz, above=0.0) or top_mhz,
        engine=engine,
        site=section.text("site", DEFAULT_SITE),
        max_sequences=section.integer("max_sequences", 1 if one_pass else MAX_SEQUENCES, least=1, most=65_536),
        tokens_per_iteration=section.integer(
            "tokens_per_iteration", _ONE_PASS_TOKENS if one_pass else TOKENS_PER_ITERATION, least=1
        ),
        kv_capacity_tokens=section.maybe_integer("kv_capacity_tokens", least=1),
        costs=costs,
    )


def _fixed(section: Section) -> FixedCosts:
    names = ("base_s", "prefill_token_s", "decode_s", "busy_w", "idle_w", "kv_capacity_tokens")
    given = {name: section.number(name, None, least=0.0) for name in names}
    section.finish()
    return FixedCosts(**{name: value for name, value in given.items() if value is not None})
