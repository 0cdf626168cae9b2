"""A simulated fleet on which services take turns: each has one engine, which sleeps while nobody asks for it.

At first all sleep. Each second the sleep controller (`core.controllers.fleet.sleep`) is asked who wakes and who sleeps:
a GPU has one engine awake at a time. A waking takes a start, or with `level` the time of vLLM's level 1 where the
machines' memory has the service's weights; those that have slept longest give way there, and start the next time.

Energy is that of engines that are awake or start. What empty GPUs draw is not in it, as in all simulated fleets, nor is
the memory of a GPU that a sleeping process keeps counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from core.algorithms.fleet.host_memory import with_one_more
from core.controllers.fleet import sleep
from core.controllers.fleet.sleep import Place, SleepConfig, Sleeper, SleepObservation
from core.engine.overheads import weight_bytes
from core.observations import asking
from core.observations.fleet import sleep_given
from core.policy.presets import Policy
from core.simulator.kernel.commands import OFF, SERVING, STARTING, Answer, Drain, FleetView, SimCommand, Start
from core.simulator.kernel.simulated import InstanceSpec, SimulationError
from core.simulator.policies.loops import decision
from core.simulator.policies.world import Plan, PoolPlan, ServiceInfo, World
from core.types import Loop, Mode, PutToSleep, WakeUp

LOOK_S = 1.0  # as live


@dataclass(slots=True)
class _Turn:
    """A service in the run. `slot`: of its engine; None: it has never been awake. Times are simulated seconds."""

    info: ServiceInfo
    spec: InstanceSpec
    cells: tuple[int, ...]
    slot: int | None = None
    came: int = 0  # requests so far
    busy_s: float = 0.0  # when it last had a request, or started
    asked_s: float | None = None  # since when requests wait for it


class SleepingFleet:
    """The services and their engines, as a Plan and as the control of it."""

    name = str(Loop.SCALE)
    period_s = LOOK_S

    def __init__(self, policy: Policy, routing: str, world: World) -> None:
        """Raises SimulationError: the policy splits requests, or an engine fits on no node."""
        if policy.knobs.split != "none":
            raise SimulationError("policy.sleep: must be off where requests are split: a service has one engine")
        self._policy, self._routing, self._world = policy, routing, world
        self._turns = [_Turn(own, self._spec(own), self._cells(own)) for own in world.services]
        self._gpus: Counter[Place] = Counter()
        for node in world.nodes:
            self._gpus[node.site, node.gpu] += node.gpus
        self._idle_s = policy.tuning.sleep.idle_s
        self._memory = _HostMemory(policy.tuning.sleep.host_memory_gb)
        if policy.knobs.sleep == sleep_given.LEVEL:
            for turn in self._turns:
                self._memory.keep(turn.info.name, weight_bytes(turn.spec.model))

    def _spec(self, service: ServiceInfo) -> InstanceSpec:
        """Returns the smallest engine that a group of the scenario offers."""
        mine = [spec for spec in self._world.templates if spec.model == service.model]
        most = Counter[Place]()
        for node in self._world.nodes:
            most[node.site, node.gpu] = max(most[node.site, node.gpu], node.gpus)
        found = min((s for s in mine if s.tp <= most[s.site, s.gpu]), key=lambda spec: spec.tp, default=None)
        if found is None:
            raise SimulationError(f"sites: no node has room for an engine of {service.name}; give one more GPUs")
        return replace(found, name=service.name, owner=service.name)

    def _cells(self, service: ServiceInfo) -> tuple[int, ...]:
        return tuple(sorted(service.partition(self._policy.knobs.partition).cell_class))

    def begin(self) -> Plan:
        cell_pool = [""] * self._world.cells
        for turn in self._turns:
            for cell in turn.cells:
                cell_pool[cell] = turn.info.name
        pools = tuple(PoolPlan(turn.info.name, self._routing) for turn in self._turns)
        return Plan((), pools, tuple(cell_pool), (self,))

    # -- a look ----------------------------------------------------------------------------------------

    def step(self, view: FleetView) -> Answer:
        slots = {spec.owner: slot for slot, spec in enumerate(view.instances)}
        for turn in self._turns:
            turn.slot = slots.get(turn.info.name)
        came = view.arrived[:, :, 0].sum(axis=1)
        looks = (self._seen(view, n, turn, int(came[list(turn.cells)].sum())) for n, turn in enumerate(self._turns))
        seen = tuple(own for own in looks if own is not None)
        observation = SleepObservation(view.now_s, seen, self._free(view))
        _, effects = asking.step(sleep.step, None, observation, SleepConfig())
        if not effects.commands:
            return Answer()
        by_name = {turn.info.name: turn for turn in self._turns}
        commands: list[SimCommand] = []
        for command in effects.commands:
            if isinstance(command, PutToSleep):
                commands.append(self._put_to_sleep(view, by_name[command.service]))
            elif isinstance(command, WakeUp):
                commands.append(self._wake(view, by_name[command.service]))
        why = effects.rationale
        return Answer(tuple(commands), (decision(view, Loop.SCALE, why.reason, why.summary, len(commands)),))

    def _seen(self, view: FleetView, pool: int, turn: _Turn, came: int) -> Sleeper | None:
        """Returns a service as the controller sees it; None: it sleeps, and nobody waits for it."""
        state = OFF if turn.slot is None else int(view.state[turn.slot])
        waits = int(view.unplaced[pool])
        there = 0 if turn.slot is None else int(view.running[turn.slot] + view.waiting[turn.slot])
        if there or waits or came > turn.came or state == STARTING:
            turn.busy_s = view.now_s
        turn.came = came
        if not waits:
            turn.asked_s = None
        elif turn.asked_s is None:
            turn.asked_s = view.now_s
        if state not in (STARTING, SERVING) and not waits:
            return None
        return sleep_given.sleeper(
            turn.info.name,
            turn.spec.model,
            self._kind(turn),
            {(turn.spec.site, Mode(turn.spec.gpu, turn.spec.tp)): 1},
            self._world.overheads,
            awake=state in (STARTING, SERVING),
            open_requests=there + waits + (state == STARTING),
            quiet_s=view.now_s - turn.busy_s,
            waited_s=0.0 if turn.asked_s is None else view.now_s - turn.asked_s,
            idle_s=self._idle_s,
            at_top=self._policy.knobs.clock == "fixed",
        )

    def _kind(self, turn: _Turn) -> str:
        """Says how it would wake now: from the machines' memory, or by a start."""
        return sleep_given.LEVEL if turn.info.name in self._memory else sleep_given.STOP

    def _free(self, view: FleetView) -> Counter[Place]:
        found = Counter(self._gpus)
        for turn in self._turns:
            if turn.slot is not None and view.state[turn.slot] != OFF:
                found[turn.spec.site, turn.spec.gpu] -= turn.spec.tp
        return found

    def _put_to_sleep(self, view: FleetView, turn: _Turn) -> Drain:
        assert turn.slot is not None
        if self._policy.knobs.sleep == sleep_given.LEVEL:
            self._memory.keep(turn.info.name, weight_bytes(turn.spec.model))
        return Drain(view.instances[turn.slot].name)

    def _wake(self, view: FleetView, turn: _Turn) -> Start:
        kind, tp = self._kind(turn), turn.spec.tp
        overheads, model = self._world.overheads, turn.spec.model
        return Start(turn.spec, turn.info.name, sleep_given.waking_s(kind, overheads, model, tp))


class _HostMemory:
    """The weights of engines that sleep, in the order in which they fell asleep."""

    def __init__(self, size_gb: float | None) -> None:
        self._size_bytes = float("inf") if size_gb is None else size_gb * 1e9
        self._kept: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def keep(self, name: str, size_bytes: float) -> None:
        """Keeps a service's weights, in the place of those that have slept longest; too large ones are not kept."""
        self._kept = with_one_more(self._kept, name, size_bytes, self._size_bytes)
