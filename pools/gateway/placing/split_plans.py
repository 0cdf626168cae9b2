"""Decides where to cut a request in two (DynaServe 4.1). Importing this loads compiled code: see `splitter`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core.algorithms.split.split_point import Backlog, finish_s, pass_costs, split_request
from core.engine.engine_model import engine_model
from core.observations.split_configs import split_config
from pools import wire

from ..fleet.instance import Instance
from ..requests.call import Call
from .slot import slots_at

TOKEN_BUDGET = 2048  # of an engine's iteration


class Cut(NamedTuple):
    """Says where a request goes, and how many of its tokens, prompt and output, to `first`. `second` None: all."""

    first: Instance
    second: Instance | None
    tokens: int
    total: int


def backlog(instance: Instance) -> Backlog:
    """Returns what this gateway has in flight there, as micro-requests. Raises UnknownConfiguration, ValueError."""
    state = instance.state
    model = engine_model(state.model, state.gpu_type, state.tp, state.engine)
    costs = pass_costs(model, state.sm_clock_mhz or state.max_mhz, TOKEN_BUDGET)
    slots = slots_at(instance)
    begun = [slot for slot in slots if slot.begun]
    waiting = [slot for slot in slots if not slot.begun]
    rows = [
        (0, max(1, (slot.call.predicted_tokens or 1) - slot.generated), (slot.call.prompt_tokens or 1) + slot.generated)
        for slot in begun
    ]
    rows += [(slot.call.prompt_tokens or 1, slot.call.predicted_tokens or 1, 0) for slot in waiting]
    return Backlog.of(costs, rows, min(len(begun), costs.decode_s.size - 1))


def best_cut(
    first: Sequence[Instance], second: Sequence[Instance], call: Call, split: str, tuning: wire.RequestTuning
) -> Cut:
    """Cuts a request between each group's instance that is done first, of the few with the fewest requests.

    Raises:
        UnknownConfiguration, ValueError: The engine model does not know an instance, or it has no room for its model.
    """
    (here, one), (there, two) = (_soonest(group, tuning.split_candidates) for group in (first, second))
    config = split_config(split, tuning.split_max_probes, tuning.split_margin_tokens, tuning.split_tolerance)
    found = split_request(call.prompt_tokens or 1, call.predicted_tokens or 1, one, two, config, call.max_tokens)
    if found.whole:
        return Cut(here if found.tokens else there, None, found.total, found.total)
    return Cut(here, there, found.tokens, found.total)


def _soonest(group: Sequence[Instance], candidates: int) -> tuple[Instance, Backlog]:
    """Returns the instance of a group that will be done first with what it has, and that."""
    few = sorted(group, key=lambda i: (i.in_flight, i.uid))[:candidates]
    found = [(i, backlog(i)) for i in few]
    return found[0] if len(found) == 1 else min(found, key=lambda pair: finish_s(pair[1]))


def warm_up(instance: Instance, call: Call) -> None:
    """Compiles, or loads from the cache, what a decision needs."""
    best_cut([instance], [instance], call, "any", wire.RequestTuning())
