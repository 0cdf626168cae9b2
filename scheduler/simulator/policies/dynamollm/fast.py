"""DynamoLLM's fast loops: the clock of each instance by profile, and the ladder of emergencies."""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from scheduler.core.controllers import clock_profile, emergency
from scheduler.core.controllers.clock_profile import InstanceLoad
from scheduler.core.engine_model import engine_model, gpu
from scheduler.core.load_profile import LOWEST_MHZ
from scheduler.core.types import Limits, Loop, Reason, ResteerRequests, SetSmClock, SquashRequests
from scheduler.simulator.commands import FleetView, SimCommand
from scheduler.simulator.fleet import InstanceSpec
from scheduler.simulator.policies import loops
from scheduler.simulator.policies.loops import Told

if TYPE_CHECKING:
    from scheduler.simulator.policies.dynamollm.loops import Dynamollm

_CHUNK_TOKENS = 2048  # what a prompt token takes is reckoned with a full iteration
_MEMORY_S = 60.0  # a lull of one period is no smaller load: the mean of about so long counts as well
_SAME_MHZ = 0.5
# What was done by the ladder, the most drastic first.
_RUNGS = (Reason.SQUASHED, Reason.RESTEERED, Reason.RAMPED, Reason.REORDERED, Reason.AT_LIMIT)


@lru_cache(maxsize=65_536)
def prefill_token_s(spec: InstanceSpec, mhz: float) -> float:
    """Seconds for each token of a prompt."""
    engine = engine_model(spec.model, spec.gpu, spec.tp, spec.engine)
    return engine.iteration(mhz, [(_CHUNK_TOKENS, 0)]).t_s / _CHUNK_TOKENS


class FastLoops:
    """State of the two loops, by place in the view."""

    def __init__(self, policy: Dynamollm) -> None:
        self._policy = policy
        config = policy.config
        self._clock_config = clock_profile.ProfileClockConfig(config.clock_period_s, margin=1.0)
        self._emergency_config = emergency.EmergencyConfig(config.emergency_period_s)
        self._mean_rps: dict[int, float] = {}
        self._worst: dict[int, tuple[float, float]] = {}  # TTFT and TPOT since the last clock epoch
        self._clock_s = -1.0
        self._rungs: dict[int, emergency.EmergencyState] = {}

    # -- clock -----------------------------------------------------------------------------------------

    def clock(self, view: FleetView, told: Told) -> list[SimCommand]:
        """The present clocks are the state: nothing else is to be remembered from epoch to epoch."""
        policy = self._policy
        policy.nodes.sync(view)
        policy.renew_if_old(view)
        self._note_worst(view)
        loads, profiles = [], {}
        placed, policy.router.placed = policy.router.placed, {}
        for pool, own in enumerate(policy.profiles):
            limits = policy.limits(pool)
            for slot in policy.nodes.serving(pool, view):
                spec = view.instances[slot]
                if spec.tp in own:
                    name = f"{pool}/TP{spec.tp}"
                    profiles[name] = own[spec.tp]
                    loads.append(self._load(slot, name, limits, placed.get(slot, 0), view))
        now = {item.instance: float(view.mhz[slot]) for slot, item in loads}
        obs = clock_profile.ProfileClockObservation(view.now_s, tuple(item for _, item in loads), profiles)
        state = clock_profile.ProfileClockState(now)
        _, effects = clock_profile.step(state, obs, self._clock_config)
        self._worst, self._clock_s = {}, view.now_s
        commands: list[SimCommand] = [command for command in effects.commands if isinstance(command, SetSmClock)]
        if commands:
            told.append(loops.decision(view, Loop.CLOCK, effects.rationale.reason, effects.rationale.summary))
        return commands

    def _load(self, slot: int, profile: str, limits: Limits, placed: int, view: FleetView) -> tuple[int, InstanceLoad]:
        """Latencies seen have the wait in them that the limits leave room for: they are held against whole limits."""
        spec, config = view.instances[slot], self._policy.config
        rps = placed / config.clock_period_s
        share = min(1.0, config.clock_period_s / _MEMORY_S)
        mean = self._mean_rps[slot] = self._mean_rps.get(slot, rps) + share * (rps - self._mean_rps.get(slot, rps))
        ttft_s, tpot_s = self._worst.get(slot, (math.nan, math.nan))
        top = gpu(spec.gpu).f_max
        ramped = slot in self._rungs and self._rungs[slot].ramped
        return slot, InstanceLoad(
            instance=spec.name,
            profile=profile,
            load_rps=max(rps, mean),
            waiting=int(view.waiting[slot]),
            min_mhz=top if ramped else max(LOWEST_MHZ, gpu(spec.gpu).f_min),
            max_mhz=top,
            limits=limits,
            ttft_s=None if math.isnan(ttft_s) else ttft_s * config.wait_share * config.margin,
            tpot_s=None if math.isnan(tpot_s) else tpot_s * config.margin,
        )

    def _note_worst(self, view: FleetView) -> None:
        """The fastest loop empties what is seen: the clock loop's period may be longer."""
        if view.now_s <= self._clock_s:
            return
        for slot, pair in enumerate(zip(view.worst_ttft_s.tolist(), view.worst_tpot_s.tolist(), strict=True)):
            old = self._worst.get(slot, (math.nan, math.nan))
            self._worst[slot] = (_worse(old[0], pair[0]), _worse(old[1], pair[1]))

    # -- emergencies -----------------------------------------------------------------------------------

    def ladder(self, view: FleetView, told: Told) -> list[SimCommand]:
        policy = self._policy
        policy.nodes.sync(view)
        self._note_worst(view)
        commands: list[SimCommand] = []
        seen: Counter[Reason] = Counter()
        stuck = 0
        for pool in range(len(policy.demand.classes)):
            mine = policy.nodes.serving(pool, view)
            pressed = [slot for slot in mine if view.waiting[slot] > 0 or slot in self._rungs]
            for slot in pressed:
                obs = self._pressed(slot, mine, view)
                state, effects = emergency.step(self._rungs.get(slot), obs, self._emergency_config)
                self._rungs[slot] = state
                if state.rung is emergency.Rung.CALM:
                    del self._rungs[slot]
                seen[effects.rationale.reason] += 1
                for command in effects.commands:
                    if isinstance(command, SetSmClock):
                        commands.append(command)
                    elif isinstance(command, ResteerRequests):
                        stuck += len(command.moves)
                    elif isinstance(command, SquashRequests):
                        stuck += len(command.requests)
        policy.router.pressed = {slot for slot, state in self._rungs.items() if state.rung >= emergency.Rung.RESTEER}
        worst = next((reason for reason in _RUNGS if seen[reason]), None)
        if worst is not None and (commands or stuck):
            words = ", ".join(f"{seen[reason]} {reason.value}" for reason in _RUNGS if seen[reason])
            kept = f" {stuck} requests stay in their queues: the simulator moves none." if stuck else ""
            told.append(loops.decision(view, Loop.CLOCK, worst, f"Emergency of instances: {words}.{kept}"))
        return commands

    def _pressed(self, slot: int, mates: list[int], view: FleetView) -> emergency.EmergencyObservation:
        spec = view.instances[slot]
        found = view.sequences(slot)
        mhz, top = float(view.mhz[slot]), gpu(spec.gpu).f_max
        token_s, top_s = prefill_token_s(spec, mhz), prefill_token_s(spec, top)
        first = found.running
        rows = zip(
            found.number[first:].tolist(),
            found.arrival_s[first:].tolist(),
            found.to_prefill_tokens[first:].tolist(),
            found.predicted_tokens[first:].tolist(),
            found.due_s[first:].tolist(),
            strict=True,
        )
        ttft_s = self._policy.demand.ttft_s
        ordered = sorted(rows, key=lambda row: row[4]) if self._policy.config.order == "edf" else list(rows)
        return emergency.EmergencyObservation(
            now_s=view.now_s,
            instance=spec.name,
            queue=tuple(
                emergency.Waiting(str(number), at_s, at_s + ttft_s(tokens, predicted), tokens * token_s, tokens * top_s)
                for number, at_s, tokens, predicted, _ in ordered
            ),
            free_at_s=view.now_s + float(found.to_prefill_tokens[:first].sum()) * token_s,
            mhz=mhz,
            top_mhz=top,
            mates=tuple(self._mate(other, view) for other in mates if other != slot),
        )

    def _mate(self, slot: int, view: FleetView) -> emergency.Mate:
        spec = view.instances[slot]
        tokens = float(view.sequences(slot).to_prefill_tokens.sum()) if view.waiting[slot] else 0.0
        return emergency.Mate(spec.name, view.now_s + tokens * prefill_token_s(spec, float(view.mhz[slot])))


def _worse(old: float, new: float) -> float:
    return new if math.isnan(old) else old if math.isnan(new) else max(old, new)
