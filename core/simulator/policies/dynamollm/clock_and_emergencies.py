"""DynamoLLM's fast loops: the clock of each instance by profile, and the ladder of emergencies."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from core.controllers.clock import clock_profile
from core.controllers.clock.clock_profile import InstanceLoad
from core.controllers.request import emergency
from core.engine.engine_model import engine_model, gpu
from core.engine.parameter_caches import cached
from core.observations import asking
from core.observations.clock_given import RecentRate, SeenShares, instance_load, least_mhz, shared, taken_in
from core.simulator.kernel.commands import FleetView, SimCommand
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.policies import loops
from core.simulator.policies.dynamollm.config import DynamollmConfig
from core.simulator.policies.dynamollm.demand import ClassDemands
from core.simulator.policies.dynamollm.pool_nodes import Nodes
from core.simulator.policies.dynamollm.pool_profiles import PoolProfiles
from core.simulator.policies.dynamollm.router import DynamoRouter
from core.simulator.policies.loops import Decisions
from core.simulator.policies.view_observations import clock_seen
from core.types import Limits, Loop, Mode, Reason, ReorderQueue, ResteerRequests, SetSmClock, SquashRequests

_CHUNK_TOKENS = 2048  # what a prompt token takes is estimated with a full iteration
# What was done by the ladder, the most drastic first.
_RUNGS = (Reason.SQUASHED, Reason.RESTEERED, Reason.RAMPED, Reason.REORDERED, Reason.AT_LIMIT)


@cached(maxsize=65_536)
def prefill_token_s(spec: InstanceSpec, mhz: float) -> float:
    """Returns the seconds for each token of a prompt."""
    engine = engine_model(spec.model, spec.gpu, spec.tp, spec.engine)
    return engine.iteration(mhz, [(_CHUNK_TOKENS, 0)]).t_s / _CHUNK_TOKENS


class FastLoops:
    """State of the two loops, by place in the view."""

    def __init__(
        self, config: DynamollmConfig, demand: ClassDemands, nodes: Nodes, router: DynamoRouter, profiles: PoolProfiles
    ) -> None:
        self._config, self._demand, self._nodes = config, demand, nodes
        self._router, self._profiles = router, profiles
        knobs, tuned = config.knobs, config.profile
        self._clock_shares = SeenShares(knobs.clock_ttft_share, knobs.clock_tpot_share, tuned.counts_ttft)
        self._clock_floor = knobs.clock_floor, knobs.clock_floor_mhz
        self._emergency_config = config.ladder
        self._rates: dict[int, RecentRate] = {}
        self._worst: dict[int, tuple[float | None, float | None]] = {}  # TTFT and TPOT since the last clock epoch
        self._clock_s = -1.0
        self._rungs: dict[int, emergency.EmergencyState] = {}
        self._again_s: dict[str, float] = {}  # when a squashed request came again, or will

    # -- clock -----------------------------------------------------------------------------------------

    def clock(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        """The present clocks are the state: nothing else is to be remembered from epoch to epoch."""
        self._nodes.sync(view)
        self._profiles.renew_if_old(view)
        self._note_worst(view)
        loads, profiles = [], {}
        placed, self._router.placed = self._router.placed, {}
        for pool, own in enumerate(self._profiles.clocks):
            whole = taken_in(self._demand.full_tokens, self._router.mean_prompt[pool])
            limits = shared(self._demand.pool_limits(pool), self._clock_shares.ttft, self._clock_shares.tpot)
            for slot in self._nodes.serving(pool, view):
                spec = view.instances[slot]
                if (mode := Mode(spec.gpu, spec.tp)) in own:
                    name = f"{pool}/{mode.name}"
                    profiles[name] = own[mode]
                    loads.append(self._load(slot, name, limits, placed.get(slot, 0), whole, view))
        now = {item.instance: float(view.mhz[slot]) for slot, item in loads}
        obs = clock_profile.ProfileClockObservation(view.now_s, tuple(item for _, item in loads), profiles)
        state = clock_profile.ProfileClockState(now)
        _, effects = asking.step(clock_profile.step, state, obs, self._config.clock)
        self._worst, self._clock_s = {}, view.now_s
        commands: list[SimCommand] = [command for command in effects.commands if isinstance(command, SetSmClock)]
        if commands:
            decisions.append(loops.decision(view, Loop.CLOCK, effects.rationale.reason, effects.rationale.summary))
        return commands

    def _load(
        self, slot: int, profile: str, limits: Limits, placed: int, whole: int, view: FleetView
    ) -> tuple[int, InstanceLoad]:
        """Latencies seen have the wait in them that the limits leave room for: they are held against whole limits."""
        own = gpu(view.instances[slot].gpu)
        rate = self._rates.setdefault(slot, RecentRate())
        rps = rate.next_rps(placed, self._config.clock.period_s, self._config.profile.memory_s)
        ramped = slot in self._rungs and self._rungs[slot].ramped
        lowest = least_mhz(own.name, own.f_min, own.f_max, *self._clock_floor)
        seen = clock_seen(view, slot, own.f_max if ramped else lowest, own.f_max, limits)
        ttft_s, tpot_s = self._worst.get(slot, (None, None))
        seen = replace(seen, ttft_s=ttft_s, tpot_s=tpot_s)
        return slot, instance_load(seen, profile, rps, whole, self._clock_shares)

    def _note_worst(self, view: FleetView) -> None:
        """The fastest loop empties what is seen: the clock loop's period may be longer."""
        if view.now_s <= self._clock_s:
            return
        for slot, pair in enumerate(zip(view.ttft_s.tolist(), view.tpot_s.tolist(), strict=True)):
            old = self._worst.get(slot, (None, None))
            self._worst[slot] = (_worse(old[0], pair[0]), _worse(old[1], pair[1]))

    # -- emergencies -----------------------------------------------------------------------------------

    def ladder(self, view: FleetView, decisions: Decisions) -> list[SimCommand]:
        self._nodes.sync(view)
        self._note_worst(view)
        pools = [self._nodes.serving(pool, view) for pool in range(len(self._demand.classes))]
        pressed = {slot for pool in pools for slot in pool if view.waiting[slot] > 0 or slot in self._rungs}
        free_at_s = {slot: self._free_at_s(slot, view) for pool in pools for slot in pool if pressed}
        commands: list[SimCommand] = []
        seen: Counter[Reason] = Counter()
        for pool, mine in enumerate(pools):
            others = [slot for own in pools[pool:] for slot in own]  # larger classes' pools can serve them too
            for slot in [slot for slot in mine if slot in pressed]:
                obs = self._observation(slot, [other for other in others if other != slot], free_at_s, view)
                state, effects = emergency.step(self._rungs.get(slot), obs, self._emergency_config)
                self._rungs[slot] = state
                if state.rung is emergency.Rung.CALM:
                    del self._rungs[slot]
                seen[effects.rationale.reason] += 1
                for command in effects.commands:
                    if isinstance(command, ResteerRequests):
                        _account(command, obs, free_at_s, view)
                    elif isinstance(command, SquashRequests):
                        again_s = view.now_s + command.retry_after_s
                        self._again_s |= dict.fromkeys(command.requests, again_s)
                    if isinstance(command, (SetSmClock, ReorderQueue, ResteerRequests, SquashRequests)):
                        commands.append(command)
        self._router.pressed = {slot for slot, state in self._rungs.items() if state.rung >= emergency.Rung.RESTEER}
        worst = next((reason for reason in _RUNGS if seen[reason]), None)
        if worst is not None and commands:
            words = ", ".join(f"{seen[reason]} {reason.value}" for reason in _RUNGS if seen[reason])
            decisions.append(
                loops.decision(view, Loop.CLOCK, worst, f"Emergency of instances: {words}.{_counted(commands)}")
            )
        return commands

    def _observation(
        self, slot: int, mates: list[int], free_at_s: dict[int, float], view: FleetView
    ) -> emergency.EmergencyObservation:
        """Reads who waits without a token.

        A request that was squashed counts as a new one, as its client's retry does.
        """
        spec = view.instances[slot]
        found = view.sequences(slot)
        mhz, top = float(view.mhz[slot]), gpu(spec.gpu).f_max
        token_s, top_s = prefill_token_s(spec, mhz), prefill_token_s(spec, top)
        first = found.running
        columns = (found.number, found.arrival_s, found.to_prefill_tokens, found.predicted_tokens, found.due_s)
        rows = [
            row
            for row, begun in zip(
                zip(*(column[first:].tolist() for column in columns), strict=True),
                found.generated_tokens[first:].tolist(),
                strict=True,
            )
            if not begun
        ]
        if self._config.knobs.order == "edf":
            rows.sort(key=lambda row: row[4])
        queue = []
        for number, arrival_s, tokens, predicted, _ in rows:
            name = str(number)
            at_s = self._again_s.get(name, arrival_s)
            deadline_s = at_s + self._demand.ttft_s(tokens, predicted)
            queue.append(emergency.Waiting(name, at_s, deadline_s, tokens * token_s, tokens * top_s))
        return emergency.EmergencyObservation(
            now_s=view.now_s,
            instance=spec.name,
            queue=tuple(queue),
            free_at_s=view.now_s + float(found.to_prefill_tokens[:first].sum()) * token_s,
            mhz=mhz,
            top_mhz=top,
            mates=tuple(emergency.Mate(view.instances[other].name, free_at_s[other]) for other in mates),
        )

    def _free_at_s(self, slot: int, view: FleetView) -> float:
        """Returns the time, in s, at which an instance has prefilled all prompts that it has."""
        tokens = float(view.sequences(slot).to_prefill_tokens.sum())
        return view.now_s + tokens * prefill_token_s(view.instances[slot], float(view.mhz[slot]))


def _account(
    command: ResteerRequests, obs: emergency.EmergencyObservation, free_at_s: dict[int, float], view: FleetView
) -> None:
    """What is re-steered to an instance is before what the next one would send there."""
    takes_s = {own.request: own.service_s for own in obs.queue}
    slots = {view.instances[slot].name: slot for slot in free_at_s}
    for request, to in command.moves:
        free_at_s[slots[to]] += takes_s[request]


def _counted(commands: list[SimCommand]) -> str:
    moved = sum(len(command.moves) for command in commands if isinstance(command, ResteerRequests))
    gone = sum(len(command.requests) for command in commands if isinstance(command, SquashRequests))
    return (f" {moved} requests re-steered." if moved else "") + (f" {gone} squashed." if gone else "")


def _worse(old: float | None, new: float) -> float | None:
    return old if math.isnan(new) else new if old is None else max(old, new)
