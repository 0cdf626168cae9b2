"""Decides where to cut a request in two (DynaServe 4.1). Importing this loads compiled code: see `splitter`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from core.algorithms.split.request_mix import RequestMix
from core.algorithms.split.split_point import Backlog, SplitConfig, calibrated, total_tokens
from core.algorithms.split.virtual_passes import parts
from core.engine.engine_model import EngineModel, engine_model
from core.observations.limits import planned
from core.observations.request import split_given
from core.observations.request.phase_share import PhaseRates, phase_rates
from core.observations.request.request_configs import ITL_S
from core.observations.request.split_configs import split_config
from core.observations.request.split_given import EnginePasses, Looks, engine_passes
from core.ports import EngineLimits
from core.types import Limits
from pools import wire

from ..fleet.instance import Instance
from ..requests.call import Call
from .slot import Slot, due_at, slots_at


class Cut(NamedTuple):
    """Says where a request goes, and how many of its tokens, prompt and output, to `first`. `second` None: all."""

    first: Instance
    second: Instance | None
    tokens: int
    total: int


def backlog(instance: Instance, config: SplitConfig, tuning: wire.RequestTuning) -> Backlog:
    """Returns what this gateway has in flight there, as micro-requests. Raises UnknownConfiguration, ValueError."""
    state, limits = instance.state, _limits(instance)
    passes = engine_passes(
        _model(instance), limits.max_num_batched_tokens, limits.max_num_seqs, limits.itl_limit_s or 0.0
    )
    mhz = state.sm_clock_mhz or state.max_mhz
    _correct(instance, passes, mhz, tuning)
    slots = sorted([*slots_at(instance), *due_at(instance)], key=lambda slot: not slot.begun)
    there = [slot for slot in slots if not _is_due(slot)]
    rows = np.array([_seen(slot, config) for slot in there], dtype=np.int64).reshape(-1, 6)
    running = min(sum(slot.begun for slot in there), limits.max_num_seqs)
    due = [parts(slot.call.prompt_tokens or 1, *_cut(slot, config))[1] for slot in slots if _is_due(slot)]
    return split_given.backlog(passes, mhz, split_given.work(*rows.T), running, due, instance.scale)


def _correct(instance: Instance, passes: EnginePasses, mhz: float, tuning: wire.RequestTuning) -> None:
    """Holds what the agent's last report says of steps against what was predicted of them, once a report."""
    seen, instance.steps = instance.steps, None
    period_s = tuning.split_calibrate_s
    if seen is None or period_s <= 0.0 or 0.0 <= seen.at_s - instance.scaled_at_s < period_s:
        return
    prompt = seen.prompt_tokens / seen.prompts if seen.prompts else 0.0
    predicted_s = passes.mean_pass_s(mhz, seen.kv_usage, seen.running, seen.prompt_tokens * seen.step_s, prompt)
    instance.scale = calibrated(instance.scale, predicted_s, seen.step_s, tuning.split_gain)
    instance.scaled_at_s = seen.at_s


def _is_due(slot: Slot) -> bool:
    """Says whether it is a second part whose first is under way elsewhere, as far as can be seen from here."""
    return slot.part is not None and slot.part.second and not slot.begun


def _seen(slot: Slot, config: SplitConfig) -> tuple[int, ...]:
    """Returns what `split_given.work` is to know of a request: of a prompt under way nobody tells how much is done."""
    prompt, (total, cut) = slot.call.prompt_tokens or 1, _cut(slot, config)
    if slot.part is not None and slot.part.second:
        cut = total
    if not slot.begun:
        return prompt, total, cut, min(prompt, cut), 0, 0
    return prompt, total, cut, 0, slot.generated, prompt + max(0, slot.generated - 1)


def _cut(slot: Slot, config: SplitConfig) -> tuple[int, int]:
    """Returns the tokens of a slot's request, and after how many of them it is cut."""
    if slot.part is not None:
        return slot.part.total_tokens, slot.part.cut_tokens
    call = slot.call
    total = total_tokens(call.prompt_tokens or 1, call.predicted_tokens or 1, config, call.max_tokens)
    return total, total


def _limits(instance: Instance) -> EngineLimits:
    return instance.state.engine_limits or EngineLimits()


def _model(instance: Instance) -> EngineModel:
    state = instance.state
    return engine_model(state.engine_model_name, state.gpu_type, state.tp, state.engine)


def best_cut(
    first: Sequence[Instance],
    second: Sequence[Instance],
    call: Call,
    split: str,
    tuning: wire.RequestTuning,
    mix: RequestMix,
) -> Cut:
    """Places a request on instances of two groups, and cuts it where requests like those that came last are best cut.

    Raises:
        UnknownConfiguration, ValueError: The engine model does not know an instance, or it has no room for its model.
    """
    config = split_config(split, tuning.split_max_probes, tuning.split_margin_tokens, tuning.split_tolerance)
    prompt = call.prompt_tokens or 1
    total = total_tokens(prompt, call.predicted_tokens or 1, config, call.max_tokens)
    looks = Looks(_room_tokens, lambda instance: instance.parts, lambda instance: backlog(instance, config, tuning))
    found = split_given.place((first, second), looks, prompt, total, mix, config, tuning.split_candidates)
    if found is None:
        raise ValueError(f"no instance has room for its {total} tokens")
    return Cut(found.first, found.second, found.tokens, found.total)


def by_rates(
    instances: Sequence[Instance], limits: Limits, mix: RequestMix, policy: wire.RequestPolicy
) -> tuple[list[Instance], float]:
    """Returns the instances, those that lean most to prompts first, and the share that is to do prompts alone.

    The share is BiScale's first tier.

    Args:
        instances: At least one; those that lean as much stay in their order.
        limits: Of the call; clocks keep the policy's shares of them.

    Raises:
        UnknownConfiguration, ValueError: As `best_cut`.
    """
    kept = planned(limits, policy.clock_ttft_share, policy.clock_tpot_share)
    known: dict[tuple[object, ...], PhaseRates] = {}

    def rates(instance: Instance) -> PhaseRates:
        state, limits = instance.state, _limits(instance)
        kind = state.engine_model_name, state.gpu_type, state.tp, state.engine, limits
        if kind not in known:
            known[kind] = phase_rates(_model(instance), limits, mix, kept)
        return known[kind]

    found = sorted(instances, key=lambda instance: -rates(instance).leaning)
    return found, rates(found[0]).first_share


def _room_tokens(instance: Instance) -> int:
    return int(_model(instance).kv_capacity_tokens)


def warm_up(instance: Instance, call: Call) -> None:
    """Compiles, or loads from the cache, what a decision needs."""
    mix = RequestMix().after(call.prompt_tokens or 1, call.predicted_tokens or 1)
    for split in ("any", "none"):
        best_cut([instance], [instance], call, split, wire.RequestTuning(), mix)
    by_rates([instance], Limits(1.0, 0.1), mix, wire.RequestPolicy())
    limits = _limits(instance)
    passes = EnginePasses(_model(instance), limits.max_num_batched_tokens, limits.max_num_seqs, ITL_S)
    passes.costs(instance.state.max_mhz, np.array([[0, 1, 1]]))
    passes.mean_pass_s(instance.state.max_mhz, 0.5, 1, 1.0, 1.0)
