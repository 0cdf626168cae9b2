"""Shares out the GPUs when no carbon loop plans: a fixed partition, and whole units for the classes that lack most.

Nodes are cut into units, each one instance of the largest TP degree allowed. The largest class gets the first, since
load of smaller ones can spill to it; each of the others goes to the class whose capacity is the smallest share of its
need. So DynamoLLM's MultiPool is provisioned (V-A: a pool for each class, at the highest performance), with one class
its SinglePool. `fill: enough` stops when every class is carried, and leaves the rest for shadows (throttLL'eM IV-D).

A fleet that is meant to stand still stays: it is shared out anew when its nodes change, or when another way would carry
the class that is worst off better by more than `min_gain`.

Under a scale loop that moves GPUs between pools (`whole_sites`) the plan is an envelope: each pool may have all the
GPUs of its site's nodes. Where that loop goes by carbon, each epoch says what the sites have and emit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.controllers.fleet.explain import demand_json, gpus_of, profile_json
from core.types import (
    CarbonPlan,
    ChoosePartition,
    Command,
    Effects,
    Mode,
    PartitionOption,
    PoolKey,
    Rationale,
    Reason,
    SetGpuBudget,
)

TP_DEGREES = (8, 4, 2, 1)
_EPS = 1e-9


@dataclass(frozen=True, slots=True)
class NodeView:
    """GPUs that one node offers to the service."""

    site: str
    gpu: str
    gpus: int


@dataclass(frozen=True, slots=True)
class SharedOutObservation:
    """`partition.classes` come smallest first; its profiles are those of usable modes, at the lengths now seen.

    `g_per_kwh`: the mean intensity over the coming epoch, by site, which the scale loop goes by; None: not known.
    Empty: it goes by none.
    """

    now_s: float
    period_s: float
    nodes: tuple[NodeView, ...]
    partition: PartitionOption
    g_per_kwh: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SharedOutConfig:
    """`whole_sites`: every pool's budget is all its site offers, since a faster loop moves GPUs between them."""

    tp: int = 8
    fill: str = "all"
    alpha: float = 1.1
    whole_sites: bool = False
    min_gain: float = 0.25

    def __post_init__(self) -> None:
        if self.tp < 1 or self.fill not in ("all", "enough") or self.alpha < 1.0 or self.min_gain < 0.0:
            raise ValueError("tp is at least 1, fill all or enough, alpha at least 1 and min_gain from 0")


Unit = tuple[str, Mode]  # (site, mode)


def step(
    state: CarbonPlan | None, obs: SharedOutObservation, config: SharedOutConfig
) -> tuple[CarbonPlan | None, Effects]:
    """Decides one epoch: the partition and the budgets of its pools, or nothing when the plan stays."""
    cut = units(obs.nodes, obs.partition, config.tp)
    next_s = obs.now_s + obs.period_s
    inputs = _inputs(obs, config)
    if not cut:
        text = f"No node that reports has GPUs that can serve partition {obs.partition.name}."
        reason = Reason.INFEASIBLE if obs.nodes else Reason.NO_DATA
        return state, Effects((), next_s, Rationale(reason, text, inputs))
    plan = CarbonPlan(obs.partition.name, share_out(cut, obs.partition, config))
    if state is not None and _stays(state, plan, cut, obs.partition, config):
        if not obs.g_per_kwh:
            text = f"Partition {obs.partition.name} and its GPUs stay as they are."
            return state, Effects((), next_s, Rationale(Reason.POLICY, text, inputs))
        text = f"Partition {obs.partition.name} stays, {_envelope(obs)}."
        return state, Effects((), next_s, Rationale(Reason.NO_CHANGE, text, inputs))
    text = f"Partition {plan.partition}, {_given(plan, obs, config)}{_short(plan, obs.partition, config)}."
    return plan, Effects(_commands(plan, obs, config), next_s, Rationale(Reason.POLICY, text, inputs))


def units(nodes: Sequence[NodeView], partition: PartitionOption, tp: int) -> Counter[Unit]:
    """Cuts every node into instances as large as `tp` allows, of modes that can serve some class; the rest in smaller
    ones."""
    able = {mode for (_, mode), profile in partition.profiles.items() if profile.max_rps > 0.0}
    found: Counter[Unit] = Counter()
    for node in nodes:
        left = node.gpus
        for degree in TP_DEGREES:
            mode = Mode(node.gpu, degree)
            if degree <= tp and mode in able:
                count, left = divmod(left, degree)
                found[node.site, mode] += count
    return +found


def share_out(
    cut: Counter[Unit], partition: PartitionOption, config: SharedOutConfig
) -> dict[tuple[str, str, Mode], int]:
    """Gives units to classes, one after another."""
    needs = _needs(partition, config.alpha)
    ranks = {item.name: rank for rank, item in enumerate(partition.classes)}
    largest = partition.classes[-1].name
    free = Counter(cut)
    carried: dict[str, float] = dict.fromkeys(needs, 0.0)
    workers: Counter[tuple[str, str, Mode]] = Counter()

    def lacks(name: str) -> tuple[float, float, int]:
        need = needs[name]
        share = need / carried[name] if carried[name] > 0.0 else float("inf") if need > 0.0 else -1.0
        return share, need, ranks[name]

    open_to_more = set(needs)
    first = True
    while open_to_more and +free:
        name = largest if first else max(open_to_more, key=lacks)
        if config.fill == "enough" and not first and carried[name] >= needs[name] - _EPS:
            open_to_more.discard(name)
            continue
        unit = _best_unit(free, partition, name, config.fill == "enough")
        first = False
        if unit is None:
            open_to_more.discard(name)
            continue
        free[unit] -= 1
        workers[unit[0], name, unit[1]] += 1
        carried[name] += partition.profiles[name, unit[1]].max_rps
    return dict(workers)


def _best_unit(free: Counter[Unit], partition: PartitionOption, name: str, leave_room: bool) -> Unit | None:
    """Returns the fastest unit that is free; to leave room for shadows, one where most GPUs of its kind are left."""
    rooms: Counter[tuple[str, str]] = Counter()
    for (site, mode), count in free.items():
        rooms[site, mode.gpu] += mode.tp * count

    def order(unit: Unit) -> tuple[float, float, Unit]:
        room = rooms[unit[0], unit[1].gpu] if leave_room else 0
        return -float(room), -partition.profiles[name, unit[1]].max_rps, unit

    able = [
        unit
        for unit, count in free.items()
        if count > 0 and (name, unit[1]) in partition.profiles and partition.profiles[name, unit[1]].max_rps > 0.0
    ]
    return min(able, key=order, default=None)


def _needs(partition: PartitionOption, alpha: float) -> dict[str, float]:
    return {item.name: alpha * max(item.demand_rps, default=0.0) for item in partition.classes}


def _worst(plan: CarbonPlan, partition: PartitionOption, config: SharedOutConfig) -> float:
    """Returns the share of its need that the worst-off class carries with its own units; at most 1."""
    needs = _needs(partition, config.alpha)
    carried = dict.fromkeys(needs, 0.0)
    for (_, name, mode), count in plan.workers.items():
        profile = partition.profiles.get((name, mode))
        if profile is not None:
            carried[name] += count * profile.max_rps
    return min((min(1.0, carried[name] / need) for name, need in needs.items() if need > 0.0), default=1.0)


def _stays(
    state: CarbonPlan, plan: CarbonPlan, cut: Counter[Unit], partition: PartitionOption, config: SharedOutConfig
) -> bool:
    if state.partition != plan.partition:
        return False
    owned: Counter[Unit] = Counter()
    for (site, _, mode), count in state.workers.items():
        owned[site, mode] += count
    if not owned or not owned <= cut or (config.fill == "all" and owned != _used(plan)):
        return False
    return _worst(plan, partition, config) <= (1.0 + config.min_gain) * _worst(state, partition, config)


def _used(plan: CarbonPlan) -> Counter[Unit]:
    found: Counter[Unit] = Counter()
    for (site, _, mode), count in plan.workers.items():
        found[site, mode] += count
    return found


def _commands(plan: CarbonPlan, obs: SharedOutObservation, config: SharedOutConfig) -> tuple[Command, ...]:
    budgets: dict[PoolKey, dict[str, int]] = {}
    if config.whole_sites:
        offered = _offered(obs.nodes)
        budgets = {PoolKey(site, item.name): gpus for site, gpus in offered.items() for item in obs.partition.classes}
    else:
        pools: dict[PoolKey, dict[Mode, int]] = {}
        for (site, name, mode), count in plan.workers.items():
            pools.setdefault(PoolKey(site, name), {})[mode] = count
        budgets = {key: gpus_of(workers) for key, workers in pools.items()}
    return (ChoosePartition(plan.partition), *(SetGpuBudget(key, gpus) for key, gpus in sorted(budgets.items())))


def _offered(nodes: Sequence[NodeView]) -> dict[str, dict[str, int]]:
    """Counts the GPUs at each site by their type."""
    found: dict[str, dict[str, int]] = {}
    for node in nodes:
        here = found.setdefault(node.site, {})
        here[node.gpu] = here.get(node.gpu, 0) + node.gpus
    return found


def _given(plan: CarbonPlan, obs: SharedOutObservation, config: SharedOutConfig) -> str:
    if config.whole_sites:
        return _envelope(obs)
    counts = Counter[str]()
    for (_, name, _), count in plan.workers.items():
        counts[name] += count
    shares = ", ".join(f"{count} for {name}" for name, count in sorted(counts.items()))
    return f"instances shared out by load: {shares}"


def _envelope(obs: SharedOutObservation) -> str:
    """Says what scale may choose among at each site, and what a kWh there emits over the coming epoch."""
    texts = []
    for site, gpus in sorted(_offered(obs.nodes).items()):
        own = " + ".join(f"{count} {gpu}" for gpu, count in sorted(gpus.items()))
        if site not in obs.g_per_kwh:
            texts.append(f"{own} at {site}")
            continue
        carbon = obs.g_per_kwh[site]
        texts.append(f"{own} at {site} ({'carbon not known' if carbon is None else f'{carbon:.0f} g/kWh ahead'})")
    return f"scale chooses among {', '.join(texts)}"


def _short(plan: CarbonPlan, partition: PartitionOption, config: SharedOutConfig) -> str:
    worst = _worst(plan, partition, config)
    return "" if worst >= 1.0 else f"; the class that is worst off has capacity for {worst:.0%} of its need"


def _inputs(obs: SharedOutObservation, config: SharedOutConfig) -> dict[str, Any]:
    profiles: Mapping[tuple[str, Mode], Any] = obs.partition.profiles
    return {
        "tp": config.tp,
        "fill": config.fill,
        "alpha": config.alpha,
        "nodes": [{"site": node.site, "gpu": node.gpu, "gpus": node.gpus} for node in obs.nodes],
        "partition": obs.partition.name,
        **({"g_per_kwh": dict(obs.g_per_kwh)} if obs.g_per_kwh else {}),
        "classes": [{"name": item.name, **demand_json(item)} for item in obs.partition.classes],
        "profiles": {f"{name} {mode.name}": profile_json(own) for (name, mode), own in sorted(profiles.items())},
    }
