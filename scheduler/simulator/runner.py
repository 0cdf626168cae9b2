"""Runs a scenario: requests from its workload, pools from its policy, figures from its outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.core.classify import classify
from scheduler.core.engine_model import engine_model
from scheduler.core.types import Limits
from scheduler.simulator import kernel, metrics
from scheduler.simulator.fields import ScenarioError
from scheduler.simulator.fleet import FleetSpec, InstanceSpec, Load, PoolSpec, load
from scheduler.simulator.outcome import Floats, Ints, Outcome
from scheduler.simulator.run import simulate
from scheduler.simulator.scenario import POLICIES, ClassSpec, Scenario, Workload
from scheduler.simulator.workload import azure_conv_like, read_azure_trace
from scheduler.simulator.worlds import cost_row

_DEFAULT_REQUESTS = 10_000  # of a generator that says neither how many nor for how long
WINDOW_FACTOR = 1.4  # W = 1.4 x Lat (FREESH C.2)
_SURELY_OVERLOADED = 1.25  # the steady-state estimate is good to about a tenth
_SUSTAINED_S = 300.0  # a shorter burst may well exceed what the fleet can do


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """A workload before it meets a fleet."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A finished (or interrupted) run: its figures, and what they were made from."""

    scenario: Scenario
    fleet: FleetSpec
    outcome: Outcome
    figures: dict[str, Any]

    def request_table(self) -> dict[str, Any]:
        classes = self.scenario.classes
        return metrics.request_table(self.outcome, self.fleet, [c.name for c in classes], [c.slo for c in classes])


def arrivals(workload: Workload, seed: int, trace: Path | None = None) -> Arrivals:
    """The workload's requests; `trace` replaces what it says.

    Raises:
        TraceError: The trace cannot be used.
        ScenarioError: The workload names no source.
    """
    source = trace or workload.trace
    if source is not None:
        rows = read_azure_trace(source)
        if workload.requests is not None:
            rows = rows[: workload.requests]
        if workload.duration_s is not None:
            rows = [row for row in rows if row.at_s <= workload.duration_s]
        return _columns([(r.at_s, r.prompt_tokens, r.output_tokens) for r in rows], workload.rate_scale)
    if workload.generate == "azure-conv-like":
        stream = iter(azure_conv_like(seed, workload.rate_rps))
        if workload.duration_s is not None:
            stream = takewhile(lambda r: r.at_s <= (workload.duration_s or math.inf), stream)
        if workload.requests is not None or workload.duration_s is None:
            stream = islice(stream, workload.requests or _DEFAULT_REQUESTS)
        return _columns([(r.at_s, r.prompt_tokens, r.output_tokens) for r in stream], workload.rate_scale)
    if workload.generate == "poisson":
        return _poisson(workload, seed)
    raise ScenarioError("workload: give trace: FILE (or --trace FILE), or generate: azure-conv-like or poisson")


def _columns(rows: list[tuple[float, int, int]], rate_scale: float) -> Arrivals:
    if not rows:
        raise ScenarioError("workload: no request falls within duration_s; make it longer or the rate higher")
    at, prompt, output = zip(*rows, strict=True)
    return Arrivals(np.array(at) / rate_scale, np.array(prompt, np.int64), np.array(output, np.int64))


def _poisson(workload: Workload, seed: int) -> Arrivals:
    rng = np.random.default_rng(seed)
    rate_rps = workload.rate_rps * workload.rate_scale
    if workload.duration_s is None:
        at = np.cumsum(rng.exponential(1.0 / rate_rps, workload.requests or _DEFAULT_REQUESTS))
    else:  # given their number, Poisson arrivals are uniform
        at = np.sort(rng.uniform(0.0, workload.duration_s, rng.poisson(rate_rps * workload.duration_s)))
        at = at[: workload.requests]
    count = at.size
    if count < 1:
        raise ScenarioError("workload: no request falls within duration_s; make it longer or the rate higher")
    if workload.lengths == "fixed":
        return Arrivals(at, np.full(count, workload.prompt_tokens), np.full(count, workload.output_tokens))
    lengths = [_exponential(rng, mean, count) for mean in (workload.prompt_tokens, workload.output_tokens)]
    return Arrivals(at, *lengths)


def _exponential(rng: np.random.Generator, mean: int, count: int) -> Ints:
    """Whole tokens, at least one; a mean of one token is one token always."""
    if mean == 1:
        return np.ones(count, np.int64)
    return np.maximum(1, np.rint(rng.exponential(mean, count))).astype(np.int64)


def classes_of(found: Arrivals, classes: tuple[ClassSpec, ...]) -> Ints:
    """The class of each request by its true lengths, as `classify` says: it is asked where no cell contains both."""
    prompt, output = found.prompt_tokens, found.output_tokens
    result = np.full(prompt.size, kernel.NONE, np.int64)
    for k, c in reversed(list(enumerate(classes))):  # where cells overlap, the first one counts
        inside = (prompt >= c.input_min) & (output >= c.output_min)
        if c.input_max is not None:
            inside &= prompt < c.input_max
        if c.output_max is not None:
            inside &= output < c.output_max
        result[inside] = k
    index = {c.name: k for k, c in enumerate(classes)}
    for r in np.flatnonzero(result == kernel.NONE).tolist():
        result[r] = index[classify(classes, int(prompt[r]), int(output[r]))]
    return result


def alone_s(found: Arrivals, spec: InstanceSpec, prefix_hit_ratio: float) -> Floats:
    """Lat of FREESH C.2: what each request takes alone on an instance, Lat = TTFT + output tokens x TPOT."""
    bare = load(found.arrival_s, found.prompt_tokens, found.output_tokens, prefix_hit_ratio)
    result: Floats = kernel.alone_latencies(
        cost_row(spec), spec.mhz, spec.tokens_per_iteration, bare.prompt_tokens, bare.output_tokens, bare.cached_tokens
    )
    return result


def build_fleet(scenario: Scenario, policy: str, weight: NDArray[Any]) -> FleetSpec:
    """Pools by policy. `weight` is each class's share of the work, used where a group does not say what it serves.

    single_pool: every instance in one pool, by turns. least_loaded: the same, to the one with the fewest requests.
    multi_pool: a pool for each class, to the least loaded in it.
    """
    specs = tuple(spec for group in scenario.groups for spec in group.instances)
    if policy not in POLICIES:
        raise ScenarioError(f"policy: unknown '{policy}'; known: {', '.join(POLICIES)}")
    if policy != "multi_pool":
        routing = "round_robin" if policy == "single_pool" else "least_loaded"
        pool = PoolSpec("all", tuple(range(len(specs))), routing)
        return FleetSpec(specs, (pool,), (0,) * len(scenario.classes))
    if len(scenario.classes) < 2:
        raise ScenarioError("classes: multi_pool needs at least two request classes; give them, or take another policy")
    if any(group.classes for group in scenario.groups):
        return _declared_pools(scenario, specs)
    if len(specs) < len(scenario.classes):
        raise ScenarioError(
            f"fleet: {len(specs)} instances cannot make a pool for each of {len(scenario.classes)} classes; "
            "raise count, or let a group serve several (classes: [...])"
        )
    shares = _share_out(len(specs), weight)
    ends = np.cumsum(shares).tolist()
    pools = tuple(
        PoolSpec(c.name, tuple(range(end - share, end)), "least_loaded")
        for c, end, share in zip(scenario.classes, ends, shares, strict=True)
    )
    return FleetSpec(specs, pools, tuple(range(len(pools))))


def _declared_pools(scenario: Scenario, specs: tuple[InstanceSpec, ...]) -> FleetSpec:
    members: dict[tuple[str, ...], list[int]] = {}
    first = 0
    for group in scenario.groups:
        if not group.classes:
            raise ScenarioError("fleet: under multi_pool each group must say its classes, or none may")
        members.setdefault(group.classes, []).extend(range(first, first + len(group.instances)))
        first += len(group.instances)
    pools = tuple(PoolSpec("+".join(names), tuple(own), "least_loaded") for names, own in members.items())
    serving = []
    for request_class in scenario.classes:
        found = [n for n, names in enumerate(members) if request_class.name in names]
        if len(found) != 1:
            raise ScenarioError(
                f"fleet: class {request_class.name} is served by {len(found)} pools; name it in the classes of groups "
                "that serve exactly the same classes"
            )
        serving.append(found[0])
    return FleetSpec(specs, pools, tuple(serving))


def _share_out(count: int, weight: NDArray[Any]) -> list[int]:
    """Whole shares of `count`, at least one each, as near to the weights as can be (largest remainder)."""
    spare = count - weight.size
    total = float(weight.sum())
    exact = spare * weight / total if total > 0.0 else np.full(weight.size, spare / weight.size)
    shares = np.floor(exact).astype(np.int64)
    for k in np.argsort(-(exact - shares), kind="stable")[: spare - int(shares.sum())]:
        shares[k] += 1
    return [int(share) + 1 for share in shares]


def check_load(scenario: Scenario, fleet: FleetSpec, requests: Load) -> None:
    """Refuses a load that the fleet can never serve, unless the scenario allows overload."""
    span_s = float(requests.arrival_s[-1] - requests.arrival_s[0])
    if scenario.overload == "allow" or span_s < _SUSTAINED_S:
        return
    for n, pool in enumerate(fleet.pools):
        mine = np.isin(requests.request_class, [k for k, p in enumerate(fleet.class_pool) if p == n])
        if not mine.any():
            continue
        rate_rps = float(mine.sum()) / span_s
        prompt, output = float(requests.prompt_tokens[mine].mean()), float(requests.output_tokens[mine].mean())
        most_rps = sum(_most_rps(fleet.instances[i], prompt, output) for i in pool.members)
        if rate_rps > _SURELY_OVERLOADED * most_rps:
            raise ScenarioError(
                f"pool {pool.name} can never serve its load: {rate_rps:.3g} requests a second of {prompt:.0f} prompt "
                f"and {output:.0f} output tokens, where its {len(pool.members)} instances do at most about "
                f"{most_rps:.3g}; add instances (fleet.count), lower the rate, or say overload: allow"
            )


def _most_rps(spec: InstanceSpec, prompt: float, output: float) -> float:
    if spec.costs is None:
        model = engine_model(spec.model, spec.gpu, spec.tp, spec.engine)
        return model.max_rps(prompt, output, spec.mhz, Limits())
    costs, batch = spec.costs, spec.max_sequences
    return 1.0 / (costs.prefill_token_s * prompt + (output - 1.0) * costs.decode_s + output * costs.base_s / batch)


def run_scenario(
    scenario: Scenario,
    found: Arrivals,
    policy: str | None = None,
    mode: str = "macro",
    progress: Callable[[float], None] | None = None,
    keep_segments: int = 0,
) -> Run:
    """Simulates the scenario's fleet under a policy (the scenario's own unless given) with requests already at hand.

    `wall_s` among the figures is from here to the figures being ready.
    """
    began = time.perf_counter()
    policy = policy or scenario.policy
    specs = [spec for group in scenario.groups for spec in group.instances]
    hit_ratio = scenario.workload.prefix_hit_ratio
    lat_s = alone_s(found, specs[0], hit_ratio)
    request_class = classes_of(found, scenario.classes)
    weight = np.bincount(request_class, weights=lat_s, minlength=len(scenario.classes))
    fleet = build_fleet(scenario, policy, weight)
    deadline_s = found.arrival_s + WINDOW_FACTOR * lat_s
    requests = load(found.arrival_s, found.prompt_tokens, found.output_tokens, hit_ratio, request_class, deadline_s)
    check_load(scenario, fleet, requests)
    outcome = simulate(fleet, requests, mode=mode, progress=progress, keep_segments=keep_segments)
    classes = scenario.classes
    figures = metrics.summary(
        outcome, fleet, [c.name for c in classes], [c.slo for c in classes], scenario.sites, lat_s
    )
    wall_s = time.perf_counter() - began
    served = int(np.count_nonzero(outcome.status != kernel.AHEAD))
    figures = {"scenario": scenario.name, "policy": policy, "mode": mode, "seed": scenario.seed} | figures
    figures |= {"wall_s": wall_s, "simulated_rps": served / wall_s}
    return Run(replace(scenario, policy=policy), fleet, outcome, figures)


def warm_up(scenario: Scenario) -> None:
    """Compiles the kernel, or loads it from its cache: a second or minute that is no part of a run."""
    tiny = Arrivals(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64))
    calm = replace(scenario, overload="allow", policy="single_pool")
    run_scenario(calm, tiny)
