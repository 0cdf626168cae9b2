"""Builds what DynaServe's global decision is given: what an instance has to do, how its passes go; and takes it.

Importing this loads compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from core.algorithms.split import step_fit
from core.algorithms.split.request_mix import RequestMix
from core.algorithms.split.split_point import (
    WHOLE,
    Backlog,
    Cut,
    PassCosts,
    SplitConfig,
    best_cut,
    burden_s,
    pass_costs,
)
from core.algorithms.split.step_times import LEAST_PROMPT_TOKENS
from core.algorithms.split.sustained_rates import Steady, pass_s
from core.algorithms.split.virtual_passes import KV_CAPACITY, TOKEN_BUDGET
from core.engine.compiled_model import model_row
from core.engine.engine_model import EngineModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Row = tuple[int, int, int]  # tokens to prefill, decode passes after them, tokens in the cache
T = TypeVar("T")


class EnginePasses:
    """The costs of an engine's passes, with the token budget that its batches are composed with.

    `itl_s`: the limit that they are composed for; 0: none.
    """

    def __init__(self, model: EngineModel, token_budget: int, max_sequences: int, itl_s: float) -> None:
        self._model, self._budget, self._most, self._itl_s = model, token_budget, max_sequences, itl_s
        self._fits: dict[float, Floats] = {}

    def costs(self, mhz: float, batch: Ints) -> PassCosts:
        """Returns the costs of a pass of these requests, as `work` has them, of shape (requests, 3).

        Raises:
            ValueError: The model does not fit its GPUs.
        """
        found = pass_costs(self._model, mhz, self._budget, self._most)
        decoding = batch[batch[:, 0] == 0, 2]
        if self._itl_s == 0.0 or not decoding.size:
            return found
        under_way, n = batch[batch[:, 0] > 0], decoding.size
        cached = int(under_way[0, 2] + under_way[0, 0] / 2) if len(under_way) else 0  # while half of it is done
        room = step_fit.prompt_budget(self._fit(mhz), n, int(decoding.sum()), cached, self._itl_s, self._budget - n)
        return found.with_budget(min(self._budget, n + max(LEAST_PROMPT_TOKENS, room)))

    def steady(self, mhz: float, scale: float = 1.0) -> Steady:
        """Returns the engine in a steady state, with the whole budget. Raises ValueError as `costs` does.

        `scale`: measured over predicted time of its passes.
        """
        margin = float(self._fit(mhz)[step_fit.MARGIN]) if self._itl_s > 0.0 else 0.0
        return Steady(pass_costs(self._model, mhz, self._budget, self._most).values, self._itl_s, float(scale), margin)

    def mean_pass_s(self, mhz: float, kv_usage: float, decodes: int, prompt_tokens: float, prompt: float) -> float:
        """Predicts the passes of an engine whose cache is full to a share: so many decodes, and prompt tokens on the
        mean, of prompts of a mean length. Raises ValueError as `costs` does."""
        costs = self.steady(mhz).costs
        context, chunk = kv_usage * float(costs[KV_CAPACITY]) / decodes, min(prompt_tokens, float(costs[TOKEN_BUDGET]))
        return float(pass_s(costs, max(1, round(prompt)), 0, chunk, float(decodes), context))

    def _fit(self, mhz: float) -> Floats:
        if mhz not in self._fits:
            room = int(self._model.kv_capacity_tokens)
            self._fits[mhz] = step_fit.fit_of(model_row(self._model), mhz, self._budget, self._most, room, self._itl_s)
        return self._fits[mhz]


@lru_cache(maxsize=64)
def engine_passes(model: EngineModel, token_budget: int, max_sequences: int, itl_s: float) -> EnginePasses:
    """Returns the passes of all engines of one kind."""
    return EnginePasses(model, token_budget, max_sequences, itl_s)


def work(prompt: Ints, total: Ints, cut: Ints, to_prefill: Ints, generated: Ints, in_cache: Ints) -> Ints:
    """Returns the micro-requests that are on an instance as rows of a backlog, of shape (requests, 3).

    Args:
        prompt: Tokens of each request's prompt. All arguments are of shape (requests,).
        total: With the predicted output and its margin.
        cut: The token at which the instance's part ends; `total` where it does the rest.
        to_prefill: Tokens of the part's prompt that are still to be computed.
        generated: Tokens of the answer so far, wherever.
        in_cache: Of those whose prompt is done; others' follow from what is to be computed.
    """
    goal = np.where(cut < prompt, cut, prompt + generated)  # where a prefill brings the cache to
    cached = np.where(to_prefill > 0, goal - to_prefill, in_cache)
    output = total - prompt - generated  # that is still to come
    decodes = np.where(
        to_prefill > 0,
        np.where(cut <= prompt, 0, np.minimum(cut - goal, output - 1)),
        np.maximum(1, np.minimum(cut - cached, output)),  # one that goes on beyond its prediction is about to end
    )
    return np.stack((to_prefill, np.maximum(0, decodes), cached), axis=1)


def backlog(
    passes: EnginePasses, mhz: float, there: Ints, running: int, due: Sequence[Row] = (), scale: float = 1.0
) -> Backlog:
    """Returns all that an instance has to do, the parts to come last.

    Args:
        there: What `work` returns of what is there, of shape (requests, 3).
        running: How many of these are in its batch, which come first.
        due: Second parts whose first is under way elsewhere.
        scale: Measured over predicted time of its passes.

    Raises:
        ValueError: The model does not fit its GPUs.
    """
    rows = np.concatenate((there, np.array(due, dtype=np.int64))) if due else there
    costs, steady = passes.costs(mhz, there[:running]), passes.steady(mhz, scale)
    return Backlog.of(costs, rows, running, scale=scale, steady=steady)


@dataclass(frozen=True, slots=True)
class Looks(Generic[T]):
    """Looks at instances. `room_tokens`: of a KV cache; `requests`: the micro-requests there; `backlog`: all
    that one has to do, which takes the longest to tell."""

    room_tokens: Callable[[T], int]
    requests: Callable[[T], int]
    backlog: Callable[[T], Backlog]


class Place(NamedTuple, Generic[T]):
    """Tokens 1..`tokens` of `total`, prompt and output, are done by `first`, the rest by `second`; None: all by
    `first`."""

    first: T
    second: T | None
    tokens: int
    total: int
    cut: Cut


def place(
    groups: tuple[Sequence[T], Sequence[T]],
    looks: Looks[T],
    prompt_tokens: int,
    total_tokens: int,
    mix: RequestMix,
    config: SplitConfig,
    candidates: int,
) -> Place[T] | None:
    """Chooses a request's instances, and where it is cut; None: it fits nowhere.

    Args:
        groups: The instances that do first parts, and those that do second parts; a whole request goes to either.
        looks: How they are looked at.
        prompt_tokens: Without those that are in a cache.
        total_tokens: With the predicted output and its margin.
        mix: The mean request, this one included.
        config: How requests are cut.
        candidates: How many of each group are looked at, those with the fewest requests.
    """
    firsts, seconds = (_seen(group, looks, total_tokens, candidates) for group in groups)
    if not firsts and not seconds:
        return None
    cut = WHOLE
    if firsts and seconds:
        counts = len(groups[0]), len(groups[1])
        cut = best_cut(firsts[0][1].steady, seconds[0][1].steady, counts, mix, config)
    tokens = cut.tokens(prompt_tokens, total_tokens)
    if not 0 < tokens < total_tokens - 1:
        return Place(_best((*firsts, *seconds), prompt_tokens), None, total_tokens, total_tokens, cut)
    return Place(_best(firsts, prompt_tokens), _best(seconds, prompt_tokens), tokens, total_tokens, cut)


def _seen(group: Sequence[T], looks: Looks[T], need_tokens: int, candidates: int) -> list[tuple[T, Backlog]]:
    fits = [one for one in group if need_tokens <= looks.room_tokens(one)]
    if len(fits) > candidates:
        fits.sort(key=looks.requests)
    return [(one, looks.backlog(one)) for one in fits[:candidates]]


def _best(seen: Sequence[tuple[T, Backlog]], prompt_tokens: int) -> T:
    if len(seen) == 1:
        return seen[0][0]
    return min(seen, key=lambda item: burden_s(item[1], prompt_tokens))[0]
