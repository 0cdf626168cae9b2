"""DynamoLLM's knowledge of its load: forecasts by class, what pools hand on, and profiles at the lengths now seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from core.algorithms.fleet.hand_down import ClassLoad
from core.engine.load_profile import LoadProfile
from core.observations.clock_given import ProfileClocks, full_tokens
from core.observations.demand.class_view import ClassView
from core.observations.fleet import dynamo_given
from core.observations.fleet.dynamo_given import ClassAhead, PoolLoad, ServerKind
from core.observations.limits import class_limits, planned, present_limits
from core.observations.load_profiles import full_load_profile
from core.observations.mode_profile import Lengths
from core.policy.dynamo_classes import RequestClass
from core.policy.request_classes import classify
from core.predictors import load_template
from core.predictors.load_template import DAY_S, LoadHistory, TemplateConfig
from core.simulator.kernel.commands import STRETCH_S, FleetView
from core.simulator.policies.dynamollm.config import DynamollmConfig
from core.simulator.policies.view_observations import cells_of, class_view, declared_load, first_view
from core.simulator.policies.world import World
from core.types import Limits, Mode

# Time 0 is taken as a Monday's midnight, where the generated weeks begin too; Unix time began on a Thursday.
TEMPLATE = TemplateConfig(utc_offset_s=4.0 * DAY_S)


class ClassDemands:
    """Classes in the scenario's order, smallest first, a pool each. Loads are in prompt tokens a second.

    The world has one service (`service_lots`).
    """

    def __init__(self, config: DynamollmConfig, world: World) -> None:
        self.config, self.world, self.service = config, world, world.services[0]
        self.partition = self.service.partition(config.knobs.partition)
        self.classes = self.partition.classes
        self.names = tuple(info.name for info in self.classes)
        self.class_of_cell = [self.partition.cell_class[cell] for cell in range(world.cells)]
        self.cells = [cells_of(self.partition, n) for n in range(len(self.classes))]
        self.limits = tuple(class_limits(info.limits, info.thresholds, config.knobs) for info in self.classes)
        self._bounds = tuple(
            RequestClass(own.name, n, own.input_min, own.input_max, own.output_min, own.output_max, limits)
            for n, (own, limits) in enumerate(zip(self.classes, self.limits, strict=True))
        )
        self._limits_of = {own.name: own.limits for own in self._bounds}
        self.modes = world.modes(self.service)
        self.full_tokens = full_tokens(0) if config.profile.full_iteration else None  # of an iteration that counts
        self._shares = config.knobs.plan_ttft_share, config.knobs.plan_tpot_share
        self.shares = [0.0] * len(self.classes)  # what each pool hands on to the next larger one
        self._history = LoadHistory()
        self._recorded = 0  # stretches that the history knows
        self._seen: tuple[ClassView, ...] = ()  # at the last look
        self.look(first_view(world))

    # -- what came and what will come ------------------------------------------------------------------

    def look(self, view: FleetView) -> None:
        """Takes in what came since the last look."""
        now = int(view.now_s / STRETCH_S + 1e-9)
        for name, cells in zip(self.names, self.cells, strict=True):
            came = view.arrived[list(cells), self._recorded : now, 1].sum(axis=0)
            start_s = self._recorded * STRETCH_S
            self._history = load_template.observe(self._history, name, start_s, came.tolist(), TEMPLATE)
        self._recorded = now
        self._seen = self.class_views(view, self.config.scale.epoch_s)

    def class_views(self, view: FleetView, period_s: float) -> tuple[ClassView, ...]:
        """Observes the classes over the window of a loop of that period, with what their plans keep."""
        infos = [replace(info, limits=self.planned(own)) for info, own in zip(self.classes, self.limits, strict=True)]
        return tuple(
            class_view(self.world, self.service, info, cells, view, period_s, 1, self.modes)
            for info, cells in zip(infos, self.cells, strict=True)
        )

    @property
    def seen(self) -> tuple[ClassView, ...]:
        """The classes at the last look, with what scale's plan keeps."""
        return self._seen

    @property
    def lengths(self) -> tuple[Lengths, ...]:
        """The mean lengths of each class at the last look."""
        return tuple(own.lengths for own in self._seen)

    def ahead(self, now_s: float, steps: int) -> list[ClassAhead]:
        """Returns the classes with their forecasts, and what their plans keep; until what is recent was seen, the load
        is no less than what is declared.
        """
        early, found = now_s < TEMPLATE.recent_s, []
        for own, limits, cells in zip(self._seen, self.limits, self.cells, strict=True):
            coming = load_template.forecast(self._history, own.demand.name, now_s, steps, TEMPLATE)
            declared = declared_load(self.world, cells, counts=early)
            basis = str(coming.basis)
            found.append(dynamo_given.class_ahead(own, self.planned(limits), coming.rates, basis, declared))
        return found

    def class_loads(self, now_s: float, steps: int, servers: ServerKind) -> tuple[ClassLoad, ...]:
        """Returns the classes as scale sizes them."""
        return tuple(
            dynamo_given.class_load(own, dynamo_given.server_rps(servers, seen))
            for own, seen in zip(self.ahead(now_s, steps), self._seen, strict=True)
        )

    def ttft_s(self, prompt_tokens: int, predicted_tokens: int) -> float:
        """Returns a request's own limit, whatever pool it is in; without one it is never late."""
        limit_s = self._limits_of[classify(self._bounds, prompt_tokens, predicted_tokens)].ttft_s
        return math.inf if limit_s is None else limit_s

    def planned(self, limits: Limits) -> Limits:
        """Returns what mean latencies of a steady state are to keep."""
        return planned(limits, *self._shares)

    # -- pools, with what is handed on -----------------------------------------------------------------

    def pool_loads(self, now_s: float) -> list[PoolLoad]:
        """Returns what is expected in each pool at the peak of the coming step."""
        return dynamo_given.pool_loads(self.ahead(now_s, 1), self.shares)

    def pool_limits(self, pool: int) -> Limits:
        """Returns the strictest of the classes that are present."""
        of_classes = list(zip(self.names, self.limits, strict=True))
        return present_limits(of_classes, dict(zip(self.names, self.shares, strict=True)))[self.names[pool]]

    def clock_profiles(self, load: PoolLoad, modes: Sequence[Mode]) -> dict[Mode, LoadProfile]:
        """Returns the same at the clocks that the clock loop chooses from, with the TTFT that it goes by."""
        knobs, tuned, service = self.config.knobs, self.config.profile, self.service
        mhz = ProfileClocks(tuned.step_mhz, knobs.clock_floor, knobs.clock_floor_mhz)
        found = {
            mode: full_load_profile(service.model, service.engine, mode, load.lengths.rounded, self.full_tokens, mhz)
            for mode in modes
        }
        return {mode: profile for mode, profile in found.items() if profile is not None}

    def profiles(self, load: PoolLoad, modes: Sequence[Mode]) -> dict[Mode, LoadProfile]:
        """Returns the profile of one instance of each mode that can hold what comes to a pool."""
        return dynamo_given.profiles(self.service.model, self.service.engine, modes, load.lengths)
