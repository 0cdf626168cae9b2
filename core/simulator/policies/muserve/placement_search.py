"""The simulation that guides mu-Serve's choice of groups (section 3.2, after AlpaServe): how many requests are in time.

Poisson arrivals at the declared rates of the busiest minute with exponential lengths of the declared means, the same in
each call. They go on for some times the longest E2E limit: over a shorter time a queue that grows for ever passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet.gpu_parts import EQUAL, Share
from core.simulator.kernel import kernel
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, Load, PoolSpec, load
from core.simulator.policies.world import CellLoad, ServiceInfo, World
from core.types import Limits

_QUIET_RPS = 0.05  # of a cell of which nothing is declared
_SEED = 2024
_LEAST_SPAN_S, _SPANS = 60.0, 5.0  # times the longest limit
_BELOW_ALL = 1.0 - 1e-9  # what a placement attains at most that leaves a service below the goal


@dataclass(frozen=True, slots=True)
class Needs:
    """A service's requests, all its cells together, and what its operator says of its part of the GPUs."""

    rps: float
    prompt_tokens: float
    output_tokens: float
    share: Share = EQUAL


def cell_loads(world: World, service: ServiceInfo) -> dict[int, CellLoad]:
    """Returns what is declared of each cell, at its rate in the busiest minute; else next to nothing of typical
    lengths."""
    first = service.partitions[0]
    found = {}
    for cell, number in sorted(first.cell_class.items()):
        declared = world.declared[cell] if cell < len(world.declared) else None
        if declared is None:
            found[cell] = CellLoad(_QUIET_RPS, *first.classes[number].typical_tokens)
        else:
            found[cell] = replace(declared, rps=declared.minute_rps or declared.rps)
    return found


def needs(world: World, service: ServiceInfo) -> Needs:
    """Returns what a service needs: its rate in requests/s, and the mean tokens of its requests."""
    own = cell_loads(world, service).values()
    rps = sum(item.rps for item in own)
    return Needs(
        rps,
        sum(item.rps * item.prompt_tokens for item in own) / rps,
        sum(item.rps * item.output_tokens for item in own) / rps,
        service.share,
    )


class Guide:
    """Attainment of replicas. `goal`: of every service, at which it is as good as all. `span_s` None: long enough."""

    def __init__(self, world: World, goal: float, span_s: float | None) -> None:
        self._goal = goal
        self._services = len(world.services)
        self._names = [service.name for service in world.services]
        self._weight = np.array([service.share.weight for service in world.services])
        self._service_of = np.zeros(world.cells, np.int64)
        self._limits = np.full((world.cells, 3), np.inf)
        for n, service in enumerate(world.services):
            first = service.partitions[0]
            for cell, number in first.cell_class.items():
                self._service_of[cell] = n
                self._limits[cell] = _row(first.classes[number].limits)
        longest_s = float(np.max(self._limits[np.isfinite(self._limits)], initial=0.0))
        self._load = _requests(world, max(_LEAST_SPAN_S, _SPANS * longest_s) if span_s is None else span_s)
        self._total = np.bincount(self._service_of[self._load.cell], minlength=self._services)

    def attainment(self, replicas: Sequence[tuple[int, InstanceSpec]]) -> float:
        """Returns the share of requests in time when (service, instance) serve them, each counted by the weight of its
        service; of a service without any instance, all are late.

        1 when every service reaches the goal.
        """
        served = sorted({service for service, _ in replicas})
        mine = np.isin(self._service_of[self._load.cell], served)
        if not mine.any():
            return 0.0
        pools = tuple(
            PoolSpec(self._names[n], tuple(k for k, (own, _) in enumerate(replicas) if own == n), "least_loaded")
            for n in served
        )
        place = {n: k for k, n in enumerate(served)}
        fleet = FleetSpec(
            tuple(spec for _, spec in replicas), pools, tuple(place.get(n, 0) for n in self._service_of.tolist())
        )
        own = self._load
        asked = load(own.arrival_s[mine], own.prompt_tokens[mine], own.output_tokens[mine], cell=own.cell[mine])
        rows = simulate(fleet, asked).rows
        kept = np.bincount(self._service_of[rows["cell"][self._in_time(rows)]], minlength=self._services)
        if (kept >= self._goal * self._total).all():
            return 1.0
        return min(float((kept * self._weight).sum() / (self._total * self._weight).sum()), _BELOW_ALL)

    def _in_time(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        gaps = np.maximum(1, rows["output"] - 1)
        seen = np.stack(
            (
                rows["first_token_s"] - rows["arrival_s"],
                (rows["finish_s"] - rows["first_token_s"]) / gaps,
                rows["finish_s"] - rows["arrival_s"],
            ),
            axis=1,
        )
        found: NDArray[np.bool_] = (rows["status"] == kernel.DONE) & (seen <= self._limits[rows["cell"]]).all(axis=1)
        return found


def _row(limits: Limits) -> tuple[float, ...]:
    return tuple(np.inf if v is None else v for v in (limits.ttft_s, limits.tpot_s, limits.e2e_s))


def _requests(world: World, span_s: float) -> Load:
    parts = []
    for service in world.services:
        for cell, declared in cell_loads(world, service).items():
            rng = np.random.default_rng([_SEED, cell])
            count = max(1, rng.poisson(declared.rps * span_s))
            at_s = np.sort(rng.uniform(0.0, span_s, count))
            prompt, output = (
                np.maximum(1, np.rint(rng.exponential(mean, count))) if mean > 1.0 else np.ones(count)
                for mean in (declared.prompt_tokens, declared.output_tokens)
            )
            parts.append((at_s, prompt, output, np.full(count, cell)))
    at_s, prompt, output, cells = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(at_s, kind="stable")
    return load(at_s[order], prompt[order], output[order], cell=cells[order])
