"""DynamoLLM's knowledge of its load: forecasts by class, what pools hand on, and profiles at the lengths now seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from core.algorithms.fleet.hand_down import ClassLoad
from core.engine.load_profile import LoadProfile
from core.observations import dynamo_given
from core.observations.dynamo_given import ClassAhead, PoolLoad
from core.observations.limits import at_factor, planned, present_limits
from core.observations.mode_profile import Lengths, mode_profile
from core.policy.dynamo_classes import RequestClass
from core.policy.request_classes import classify
from core.predictors.load_template import DAY_S, Forecast, LoadHistory, TemplateConfig, forecast, observe
from core.simulator.kernel.commands import STRETCH_S, FleetView
from core.simulator.policies.dynamollm.config import DynamollmConfig
from core.simulator.policies.view_observations import cells_of, recent
from core.simulator.policies.world import World
from core.types import Limits, PoolKey

# Time 0 is taken as a Monday's midnight, where the generated weeks begin too; Unix time began on a Thursday.
TEMPLATE = TemplateConfig(utc_offset_s=4.0 * DAY_S)
_ENOUGH = 64  # requests whose mean lengths are trusted over declared ones


class ClassDemands:
    """Classes in the scenario's order, smallest first, a pool each. Loads are in prompt tokens a second.

    The paper's cluster is of one kind: the world has one service, one site and one type of GPU (`service_slices`).
    """

    def __init__(self, config: DynamollmConfig, world: World) -> None:
        gpus = {spec.gpu for spec in world.templates}
        self.config, self.world = config, world
        self.service, self.site, self.gpu = world.services[0], world.sites[0], gpus.pop()
        partition = self.service.partitions[0]
        self.classes = partition.classes
        self.class_of_cell = [partition.cell_class[cell] for cell in range(world.cells)]
        self.cells = [cells_of(partition, n) for n in range(len(self.classes))]
        self.keys = tuple(PoolKey(self.site.name, info.name) for info in self.classes)
        self.limits = tuple(at_factor(info.limits, config.slo_factor) for info in self.classes)
        self._bounds = tuple(
            RequestClass(own.name, n, own.input_min, own.input_max, own.output_min, own.output_max, limits)
            for n, (own, limits) in enumerate(zip(self.classes, self.limits, strict=True))
        )
        self._limits_of = {own.name: own.limits for own in self._bounds}
        self.modes = world.modes(self.service)
        self.best = max(self.modes, key=lambda mode: mode.tp)
        self.lengths = tuple(Lengths(*info.typical_tokens) for info in self.classes)
        self.shares = [0.0] * len(self.classes)  # what each pool hands on to the next larger one
        self._history = LoadHistory()
        self._recorded = 0  # stretches that the history knows
        self._declared = tuple(self._declared_load(n) for n in range(len(self.classes)))

    # -- what came and what will come ------------------------------------------------------------------

    def look(self, view: FleetView) -> None:
        """Takes in what came since the last look."""
        now = int(view.now_s / STRETCH_S + 1e-9)
        for n, cells in enumerate(self.cells):
            came = view.arrived[list(cells), self._recorded : now, 1].sum(axis=0)
            start_s = self._recorded * STRETCH_S
            self._history = observe(self._history, self.classes[n].name, start_s, came.tolist(), TEMPLATE)
        self._recorded = now
        self.lengths = tuple(self._lengths(n, view) for n in range(len(self.classes)))

    def forecast(self, n: int, now_s: float, steps: int) -> Forecast:
        """Forecasts the peaks of the coming steps; until a whole window was seen, no less than what is declared."""
        found = forecast(self._history, self.classes[n].name, now_s, steps, TEMPLATE)
        early = now_s < TEMPLATE.recent_steps * TEMPLATE.step_s
        return replace(found, rates=dynamo_given.no_less(found.rates, self._declared[n] if early else None))

    def ahead(self, now_s: float, steps: int) -> list[ClassAhead]:
        """Returns the classes with their forecasts, and what their plans keep."""
        found = []
        for n, info in enumerate(self.classes):
            coming, limits = self.forecast(n, now_s, steps), self.planned(self.limits[n])
            found.append(ClassAhead(info.name, coming.rates, str(coming.basis), self.lengths[n], limits))
        return found

    def class_loads(self, now_s: float, steps: int) -> tuple[ClassLoad, ...]:
        items = enumerate(zip(self.keys, self.ahead(now_s, steps), strict=True))
        return tuple(dynamo_given.class_load(key, own, self._node_rps(n)) for n, (key, own) in items)

    def node_load(self, n: int) -> float:
        """Returns what a node at its best carries of a class, in prompt tokens a second."""
        return self.lengths[n].rounded.prompt_tokens * self._node_rps(n)

    def _node_rps(self, n: int) -> float:
        """Returns the same in requests/s; within no limits where those cannot be kept at all."""
        of = (self.service.model, self.service.engine, self.best, self.lengths[n].rounded)
        return mode_profile(*of, self.planned(self.limits[n])).max_rps or mode_profile(*of, Limits()).max_rps

    def ttft_s(self, prompt_tokens: int, predicted_tokens: int) -> float:
        """Returns a request's own limit, whatever pool it is in; without one it is never late."""
        limit_s = self._limits_of[classify(self._bounds, prompt_tokens, predicted_tokens)].ttft_s
        return math.inf if limit_s is None else limit_s

    def planned(self, limits: Limits) -> Limits:
        """Returns what mean latencies of a steady state are to keep."""
        return planned(limits, self.config.ttft_share, self.config.tpot_share)

    # -- pools, with what is handed on -----------------------------------------------------------------

    def pool_loads(self, now_s: float) -> list[PoolLoad]:
        """Returns what is expected in each pool at the peak of the coming step."""
        return dynamo_given.pool_loads(self.ahead(now_s, 1), self.shares)

    def pool_limits(self, pool: int) -> Limits:
        """Returns the strictest of the classes that are present."""
        names = [own.name for own in self.classes]
        of_classes = list(zip(names, self.limits, strict=True))
        return present_limits(of_classes, dict(zip(names, self.shares, strict=True)))[names[pool]]

    def profiles(self, load: PoolLoad) -> dict[int, LoadProfile]:
        """Returns the profile of one instance of each TP degree that can hold what comes to a pool."""
        degrees = [mode.tp for mode in self.modes]
        return dynamo_given.profiles(self.service.model, self.service.engine, self.gpu, degrees, load.lengths)

    # -- lengths ---------------------------------------------------------------------------------------

    def _declared_load(self, n: int) -> float | None:
        loads = self._declared_cells(n)
        return sum(rps * prompt for rps, prompt, _ in loads) if loads else None

    def _declared_cells(self, n: int) -> list[tuple[float, float, float]]:
        known = [self.world.declared[cell] for cell in self.cells[n] if cell < len(self.world.declared)]
        return [(load.rps, load.prompt_tokens, load.output_tokens) for load in known if load is not None]

    def _lengths(self, n: int, view: FleetView) -> Lengths:
        count, prompt, output = recent(view, self.cells[n], self.config.scale_period_s).sum(axis=0).tolist()
        declared = self._declared_cells(n)
        if count and (count >= _ENOUGH or not declared):
            return Lengths(prompt / count, max(1.0, output / count))
        return _mean(declared) or Lengths(*self.classes[n].typical_tokens)


def _mean(loads: Sequence[tuple[float, float, float]]) -> Lengths | None:
    total = sum(rps for rps, _, _ in loads)
    if total <= 0.0:
        return None
    return Lengths(sum(r * p for r, p, _ in loads) / total, sum(r * o for r, _, o in loads) / total)
