"""throttLL'eM's autoscaler over the simulated fleet: TP degrees by shadow instances, where nodes have room for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.controllers.fleet import autoscale
from core.controllers.fleet.autoscale import AutoscaleConfig, AutoscaleState
from core.observations import asking
from core.observations.fleet.autoscale_given import observation
from core.simulator.kernel.commands import OFF, SERVING, STRETCH_S, Answer, Decision, Drain, FleetView, Start
from core.simulator.policies.change_round import WarmServers
from core.simulator.policies.node_occupancy import InstanceShape, NodeOccupancy, shape_of
from core.simulator.policies.throttllem.config import ThrottllemConfig
from core.simulator.policies.throttllem.engines import ServiceEngines
from core.simulator.policies.throttllem.router import ThrottleRouter
from core.simulator.policies.world import World
from core.types import CancelShadow, Effects, Mode, Reason, StartShadow

AUTOSCALE = "autoscale"


@dataclass(slots=True, eq=False)
class EngineSlot:
    """One engine, whatever instance it is at the moment. Instances are known by their place in the view."""

    name: str
    serving: int
    site: str
    service: ServiceEngines
    shadow: int | None = None  # the instance that warms up to replace it
    asked: tuple[InstanceShape, int] | None = None  # a shadow that no view has shown yet, and its node
    state: AutoscaleState | None = None


class Autoscaler:
    """A Control. It also tells what the router has decided since, as a router keeps no log.

    An engine takes over from another only where its GPUs are free beside those of the old one, of what still drains
    and of other engines; else it is tried again a period later.
    """

    def __init__(
        self, config: ThrottllemConfig, world: World, engines: Sequence[EngineSlot], router: ThrottleRouter | None
    ) -> None:
        self._config, self._engines, self._router = config, engines, router
        self._templates = {shape_of(spec): spec for spec in reversed(world.templates)}
        self._occupancy = NodeOccupancy(world.sites)
        self._warm = WarmServers(world.overheads, config.starting)
        self._short: set[str] = set()  # engines that wait for GPUs
        self._said = False  # which limits are out of reach

    @property
    def name(self) -> str:
        return AUTOSCALE if self._config.autoscale else "clock"

    @property
    def period_s(self) -> float:
        return self._config.period_s

    def step(self, view: FleetView) -> Answer:
        decisions = [] if self._router is None else self._router.take_decisions(view.now_s)
        decisions += self._unkept(view)
        if not self._config.autoscale:
            return Answer((), tuple(decisions))
        self._note(view)
        cancelled: list[Drain] = []
        wanted: list[tuple[EngineSlot, Mode, Decision]] = []
        sizes = {service.pool: service.sizes(view) for service in {own.service: None for own in self._engines}}
        for engine in self._engines:
            mode = _mode(view, engine.serving)
            own = sizes[engine.service.pool].get((engine.site, mode.gpu))
            if own is None or all(size.mode != mode for size in own.sizes):
                continue  # a smaller one carries as much
            effects = self._decide(engine, view, own)
            why = effects.rationale
            decision = Decision(view.now_s, AUTOSCALE, str(why.reason), why.summary, len(effects.commands))
            modes = [command.mode for command in effects.commands if isinstance(command, StartShadow)]
            if any(isinstance(command, CancelShadow) for command in effects.commands) and engine.shadow is not None:
                cancelled.append(Drain(view.instances[engine.shadow].name))
                view = _without(view, engine.shadow)
                engine.shadow = None
            wanted += [(engine, mode, decision) for mode in modes]
            decisions += [decision] if effects.commands and not modes else []
        self._note(view)  # the GPUs of those that were called off are free at once
        starts = [start for item in wanted if (start := self._start(*item, view, decisions)) is not None]
        return Answer((*cancelled, *starts), tuple(decisions))

    def _unkept(self, view: FleetView) -> list[Decision]:
        """Says once which limits no size of engine keeps."""
        if self._said:
            return []
        self._said = True
        faults = [own.first_view.input_faults for own in {own.service: None for own in self._engines}]
        return [Decision(view.now_s, AUTOSCALE, str(Reason.INFEASIBLE), words, 0) for words in faults if words]

    # -- what there is ---------------------------------------------------------------------------------

    def _note(self, view: FleetView) -> None:
        """Learns which instance is which engine's by now, and where GPUs are free."""

        def claim(slot: int) -> int | None:
            for engine in self._engines:
                if engine.asked is not None and engine.asked[0] == shape_of(view.instances[slot]):
                    node = engine.asked[1]
                    engine.shadow, engine.asked = slot, None
                    return node
            return None

        self._occupancy.sync(view, (), claim)
        for engine in self._engines:
            if engine.shadow is not None and view.state[engine.shadow] == SERVING:
                engine.serving, engine.shadow = engine.shadow, None

    def _decide(self, engine: EngineSlot, view: FleetView, sizes: AutoscaleConfig) -> Effects:
        shadow = None if engine.shadow is None else _mode(view, engine.shadow)
        mode = _mode(view, engine.serving)
        alike = sum(other.service is engine.service for other in self._engines)
        obs = observation(view.now_s, engine.name, mode, shadow, self._came_rps(engine, view), alike)
        engine.state, effects = asking.step(autoscale.step, engine.state, obs, sizes)
        return effects

    def _came_rps(self, engine: EngineSlot, view: FleetView) -> float | None:
        """Returns the rate of what came for the engine and its like in the last period; None: there was no whole one
        yet."""
        now = int(view.now_s / STRETCH_S + 1e-9)
        stretches = int(self._config.period_s / STRETCH_S)
        if now < stretches:
            return None
        came = int(view.arrived[list(engine.service.cells), now - stretches : now, 0].sum())
        return came / self._config.period_s

    # -- what is done ----------------------------------------------------------------------------------

    def _start(
        self, engine: EngineSlot, mode: Mode, decision: Decision, view: FleetView, decisions: list[Decision]
    ) -> Start | None:
        old = view.instances[engine.serving]
        kind = shape_of(old)._replace(gpu=mode.gpu, tp=mode.tp)
        node = self._occupancy.find(kind)
        if node is None:
            if engine.name not in self._short:  # logged once, not each period
                short = f"{decision.summary} No node of {kind.site} has {mode.tp} GPUs free for it yet."
                decisions.append(replace(decision, reason=str(Reason.AT_LIMIT), summary=short, commands=0))
            self._short.add(engine.name)
            return None
        self._short.discard(engine.name)
        self._occupancy.take(node, mode.tp)
        engine.asked = (kind, node)
        decisions.append(decision)
        return Start(self._templates[kind], engine.service.pool, self._warm.ready_in_s(kind, view.now_s), (old.name,))


def _mode(view: FleetView, slot: int) -> Mode:
    spec = view.instances[slot]
    return Mode(spec.gpu, spec.tp)


def _without(view: FleetView, slot: int) -> FleetView:
    state = view.state.copy()
    state[slot] = OFF
    return replace(view, state=state)
