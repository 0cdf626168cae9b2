"""One instance as the clock by deadlines sees it: which prompts wait, and how far its answers are ahead.

Importing this loads compiled code for a second or more: see `deadline_clocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.deadline_clock import MOST_PROMPTS, NO_SLACK_S, PROMPT, left_of_limits
from core.controllers.clock import deadline_clock
from core.controllers.clock.deadline_clock import DeadlineConfig, DeadlineObservation, DeadlineState
from core.engine.compiled_model import F_MAX, model_row
from core.engine.corrections import configuration
from core.engine.engine_model import engine_model
from core.engine.measured import Basis, basis
from core.engine.overheads import Overheads, clock_switch_s
from core.observations.clock_given import least_mhz
from core.ports import EngineLimits
from core.types import Effects
from pools.wire import EnginePaces

from ..fleet.instance import Instance
from ..fleet.view import Service
from .own_boards import paces_of
from .shared_boards import PacesElsewhere

_NOTHING = np.zeros(0, PROMPT)


@dataclass(frozen=True, slots=True, eq=False)
class EngineCosts:
    """A configuration's costs of shape (costs,), the tokens that its KV cache holds, and what both rest on."""

    costs: NDArray[np.float64]
    kv_tokens: int
    basis: Basis

    @classmethod
    def of(cls, model: str, gpu: str, tp: int, engine: str) -> EngineCosts:
        """Raises UnknownConfiguration: the engine model does not know it."""
        known = engine_model(model, gpu, tp, engine)
        return cls(model_row(known), int(known.kv_capacity_tokens), basis(configuration(model, gpu, tp, engine)))

    @property
    def top_mhz(self) -> float:
        return float(self.costs[F_MAX])

    def clock(self) -> InstanceClock:
        """Returns the clock of an instance of the configuration."""
        return InstanceClock(self)

    def warm_up(self) -> None:
        """Compiles, or loads from the cache, what a look needs."""
        one = np.array([(100, 0, 1.0)], PROMPT)
        for ahead in (True, False):
            config = DeadlineConfig(self.costs, EngineLimits(), 0.0, 100.0, self.basis, ahead=ahead)
            for prompts, decodes in ((one, 1), (_NOTHING, 1), (_NOTHING, 0)):
                seen = DeadlineObservation(0.0, "warm-up", prompts, decodes, 100 * decodes, 1.0, 0.2)
                deadline_clock.step(None, seen, config)


class InstanceClock:
    """The clock of one instance, by what gateways have there."""

    def __init__(self, costs: EngineCosts) -> None:
        self.costs = costs
        self._state: DeadlineState | None = None
        self._key: tuple[object, ...] = ()
        self._config: DeadlineConfig | None = None
        self._idle_by: DeadlineConfig | None = None  # nothing was there at the last look, which went by this

    @property
    def mhz(self) -> float | None:
        """The clock last asked for; None: none yet."""
        return None if self._state is None else self._state.target_mhz

    def look(
        self, service: Service, instance: Instance, now_s: float, others: Sequence[PacesElsewhere] = ()
    ) -> Effects | None:
        """Makes one look; None: nothing was to be done before, and nothing is now.

        Args:
            now_s: Monotonic.
            others: What other gateways have there.
        """
        config = self._config_of(service, instance)
        if not instance.slots and self._idle_by is config:
            return None
        self._idle_by = None if instance.slots else config
        seen = observe(service, instance, self.costs.kv_tokens, now_s, others)
        self._state, effects = deadline_clock.step(self._state, seen, config)
        return effects

    def _config_of(self, service: Service, instance: Instance) -> DeadlineConfig:
        state, policy = instance.state, service.policy
        floor = policy.clock_floor, policy.clock_floor_mhz
        own = state.gpu_type, state.min_mhz, state.max_mhz
        key = (*own, *floor, policy.tuning.profile_step_mhz, state.engine_limits, policy.iteration)
        if self._config is None or key != self._key:
            self._key, limits = key, state.engine_limits or EngineLimits()
            least = min(least_mhz(*own, *floor), self.costs.top_mhz)
            self._config = DeadlineConfig(
                self.costs.costs,
                limits,
                least,
                policy.tuning.profile_step_mhz,
                self.costs.basis,
                clock_switch_s(Overheads(), state.gpu_type, state.tp),
                ahead=not policy.iteration,
            )
        return self._config


def observe(
    service: Service, instance: Instance, kv_tokens: int, now_s: float, others: Sequence[PacesElsewhere] = ()
) -> DeadlineObservation:
    """Returns what an instance has to do, as far as gateways know.

    What nobody has published is seen in the agent's report alone, as answers without a limit. An instance with nothing
    of this gateway has nothing to do: others ask for theirs. Where cache or batch are nearly full answers are hurried.

    Args:
        kv_tokens: That its cache holds.
        now_s: Monotonic.
        others: What other gateways have there. Their answers may have come no further since that was published.
    """
    own = paces_of(service, instance, now_s)
    prompts, share, known = _prompts(own, 0.0), 1.0, len(instance.slots)
    decodes, context, slack_s, tpot_s = own.decodes, own.context_tokens, own.slack_s, own.tpot_s
    if known:
        for other in others:
            paces = other.paces
            prompts += _prompts(paces, other.offset_s)
            known += paces.decodes + len(paces.sent_s)
            decodes, context = decodes + paces.decodes, context + paces.context_tokens
            slack_s = min(slack_s, paces.slack_s - max(0.0, now_s - other.published_s))
            tpot_s = min(tpot_s, paces.tpot_s)
        state, limits = instance.state, instance.state.engine_limits or EngineLimits()
        reported, used = state.running or 0, state.kv_usage or 0.0
        cache = max(used, (context - decodes) / kv_tokens)
        decodes += max(0, min(reported, reported + (state.waiting or 0) - known))
        context = max(context, int(used * kv_tokens)) if decodes else 0
        share = left_of_limits(cache, decodes / limits.max_num_seqs, decodes)
    slack_s = min(slack_s, NO_SLACK_S)
    return DeadlineObservation(now_s, instance.uid, _rows(prompts), decodes, context, slack_s, tpot_s, share)


_Prompt = tuple[int, float, int, float]  # priority, when it was sent, tokens, when its first token is due


def _prompts(paces: EnginePaces, offset_s: float) -> list[_Prompt]:
    columns = zip(paces.priority, paces.sent_s, paces.prompt_tokens, paces.due_s, strict=True)
    return [(first, sent_s + offset_s, tokens, due_s + offset_s) for first, sent_s, tokens, due_s in columns]


def _rows(prompts: list[_Prompt]) -> NDArray[np.void]:
    """Returns those that the engine takes in first, (prompts,), by priority where they have one, else as they came."""
    if not prompts:
        return _NOTHING
    prompts.sort(key=lambda prompt: prompt[:2])
    return np.array([(tokens, 0, due_s) for _, _, tokens, due_s in prompts[:MOST_PROMPTS]], PROMPT)
