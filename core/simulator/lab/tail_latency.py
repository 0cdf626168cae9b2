"""Finds what an instance of a pool carries when 99 of 100 requests are to keep their limits, queues and bursts
included.

The clairvoyant bound keeps limits in the mean. Here a pool of like instances is simulated at a constant rate (Poisson
arrivals, the load's own lengths, requests to the least loaded, shortest prompt first as `greenserve` has it), and the
largest rate that still holds is found by bisection, at each clock: a ceiling for plans that is physical.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.engine.engine_model import engine_model
from core.engine.load_profile import LoadProfile, clocks, modelled
from core.observations.mode_profile import Lengths
from core.simulator.kernel.arrivals import Arrivals
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.objectives import Judge
from core.simulator.kernel.outcome import Floats
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, Load, PoolSpec
from core.simulator.policies.greenserve import GreenserveConfig
from core.simulator.runs.runner import Loader
from core.simulator.scenario.layout import world_of
from core.simulator.scenario.scenario import Scenario
from core.types import Mode

GOAL = 0.99
_STEP_MHZ = 130.0
_REQUESTS = 6000
_WARM_UP = 0.2  # of these, which do not count: the pool begins empty
_GPUS = 48
_BISECTIONS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Ceiling:
    """The largest requests/s of one instance at each clock (rising), as a share of what its profile ends at."""

    mhz: Floats
    share: Floats

    def cut(self, profile: LoadProfile) -> LoadProfile:
        """Cuts `profile`, of the same clocks, at these loads."""
        return profile.up_to(profile.rps[:, -1] * self.share)


def ceilings(scenario: Scenario, blocks: Sequence[Arrivals], goal: float = GOAL) -> dict[Mode, Ceiling]:
    """Finds the ceiling of each mode that a scenario's only service may run in, for a scenario with a known bound."""
    trial = _Trial(scenario, blocks, goal)
    return {mode: found for mode in trial.modes if (found := trial.ceiling(mode)) is not None}


class _Trial:
    def __init__(self, scenario: Scenario, blocks: Sequence[Arrivals], goal: float) -> None:
        self._world = world_of(scenario)
        self._service = self._world.services[0]
        self._goal = goal
        self._judge = Judge([c.slo for service in scenario.services for c in service.classes])
        loader = Loader(scenario, [self._world.templates[0]] * len(scenario.services))
        loads = [loader.load(block) for block in blocks]
        whole = Load(*(np.concatenate(parts) for parts in zip(*(load.columns for load in loads), strict=True)))
        rng = np.random.default_rng(scenario.seed)
        picked = np.sort(rng.choice(len(whole), min(_REQUESTS, len(whole)), replace=False))
        self._load = Load(*(column[picked] for column in whole.columns))
        self._gaps = rng.exponential(1.0, len(self._load))  # at one request a second
        self._lengths = Lengths(float(self._load.prompt_tokens.mean()), float(self._load.output_tokens.mean())).rounded

    @property
    def modes(self) -> tuple[Mode, ...]:
        return self._world.modes(self._service)

    def ceiling(self, mode: Mode) -> Ceiling | None:
        """None: not even one such request fits its KV cache."""
        worker = engine_model(self._service.model, mode.gpu, mode.tp, self._service.engine)
        mhz = clocks(worker.gpu_params, _STEP_MHZ, max(worker.gpu_params.f_v, worker.gpu_params.f_min))
        profile = modelled(worker, self._lengths.prompt_tokens, self._lengths.output_tokens, mhz)
        if profile is None:
            return None
        room = {site.name: site.gpus.get(mode.gpu, 0) for site in self._world.sites}
        specs = [spec for site in room if (spec := self._world.template(self._service, site, mode)) is not None]
        spec = max(specs, key=lambda spec: room[spec.site])
        count = max(1, min(_GPUS, room[spec.site]) // mode.tp)
        most = [self._most(spec, count, *at) for at in zip(mhz.tolist(), profile.rps[:, -1].tolist(), strict=True)]
        return Ceiling(mhz, np.array(most) / profile.rps[:, -1])

    def _most(self, spec: InstanceSpec, count: int, mhz: float, end_rps: float) -> float:
        low, high = 0.0, end_rps
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self._keeps(spec, count, mhz, middle) else (low, middle)
        return low

    def _keeps(self, spec: InstanceSpec, count: int, mhz: float, rps: float) -> bool:
        at_s = np.cumsum(self._gaps) / (rps * count)
        later_s = at_s - self._load.arrival_s
        load = replace(
            self._load,
            arrival_s=at_s,
            deadline_s=self._load.deadline_s + later_s,
            due_s=self._load.due_s + later_s,
        )
        rules = GreenserveConfig().scheduling
        specs = tuple(replace(spec, name=f"{spec.name}-{n}", mhz=mhz, scheduling=rules) for n in range(count))
        pool = PoolSpec("all", tuple(range(count)), "least_loaded")
        rows = simulate(FleetSpec(specs, (pool,), (0,) * self._world.cells), load).rows
        return float(self._judge(rows).met[int(_WARM_UP * len(rows)) :].mean()) >= self._goal
