"""The least energy that requests take on a kind of instance above what it draws idle, in each stretch of time.

Answers come evenly, at the slowest pace that their limits leave, so that as many as can share an iteration; where that
is more than is cheapest, as many as are cheapest. A prompt comes in one chunk or in several, each in an iteration that
brings those answers a token all the same. Each iteration has its own clock, whichever takes least of those at which it
is no longer than the limit.

What an instance does must fit into its time. So its time has a price, in W, and all is made least at that price: energy
less the price of the time that there is cannot be more than what the work takes (Lagrange), whatever the price is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.engine.engine_model import EngineModel
from core.engine.engine_vector import iterations
from core.engine.load_profile import clocks
from core.engine.steady_state import largest_batch
from core.simulator.kernel.outcome import Floats

PRICES_W = np.concatenate([[0.0], np.geomspace(60.0, 8000.0, 15)])
_STEP_S = 0.5
_STEP_MHZ = 30.0
_BATCHES = 40  # at which an iteration's least energy is looked for; it lies on lines between them
_CHUNKS = (1, 2, 4, 8)  # in which a prompt may come
_LENGTHS = 1.05  # times as long as the one before is each length of prompt that is looked at
_FEW = 1.2  # and so many times as many are the answers beside it


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Requests in order of arrival: `prompt` and `output` in tokens, the first one within `ttft_s`, the last one at
    `latest_s`; infinite: whenever. All (requests,)."""

    at_s: Floats
    prompt: Floats
    output: Floats
    ttft_s: Floats
    latest_s: Floats

    def __len__(self) -> int:
        return int(self.at_s.size)

    def part(self, first: int, last: int) -> Work:
        own = slice(first, last)
        return Work(self.at_s[own], self.prompt[own], self.output[own], self.ttft_s[own], self.latest_s[own])

    def until(self, end_s: float) -> Work:
        """Returns the same with all answers whole by `end_s`, or in 1 s if they come later."""
        latest_s = np.minimum(self.latest_s, np.maximum(end_s, self.at_s + 1.0))
        return Work(self.at_s, self.prompt, self.output, self.ttft_s, latest_s)

    @property
    def answers(self) -> Floats:
        """Tokens of each answer after the first, (requests,)."""
        return np.maximum(self.output - 1.0, 0.0)

    @property
    def pace_s(self) -> float:
        """The mean time between tokens at the latest, in s."""
        return float((self.latest_s - self.at_s).sum() / max(1.0, float(self.answers.sum())))

    @property
    def context_tokens(self) -> float:
        """The mean tokens of an answer under way, in the cache."""
        return float(np.average(self.prompt + self.output / 2.0, weights=self.output))


@dataclass(frozen=True, slots=True, eq=False)
class LeastWork:
    """`joules` above idle power at each of PRICES_W, the price of the time included, (prices, stretches of time), and
    the least time that the iterations of each stretch take, `seconds`, (stretches,)."""

    joules: Floats
    seconds: Floats


def idle_w(engine: EngineModel) -> float:
    """Returns what an instance with nothing to do draws, in W, at the lowest clock."""
    return engine.idle_watts(engine.gpu_params.f_min)


def least_work(engine: EngineModel, work: Work, edges_s: Floats) -> LeastWork:
    """Computes what the requests take if instances of this kind do all of it; their times must be finite
    (`Work.until`).

    Args:
        edges_s: Between which the stretches of time are, (edges,); one more than there are stretches.
    """
    ones = np.ones(len(work))
    at_s = np.arange(edges_s[0], edges_s[-1], _STEP_S)
    rate = work.answers / (work.latest_s - work.at_s)
    tokens = np.maximum(0.0, _sums(at_s, at_s, work, rate)) * _STEP_S
    under_way = np.maximum(1.0, _sums(at_s, at_s, work, ones))
    beside = np.maximum(0.0, _sums(work.at_s + work.ttft_s, work.at_s, work, ones) - 1.0)
    decodes, prompts, stretches = _Decodes(engine, work), _Prompts(engine, work, beside), edges_s.size - 1

    def summed(when_s: Floats, values: Floats) -> Floats:
        place = np.clip(np.searchsorted(edges_s, when_s, "right") - 1, 0, stretches - 1)
        found: Floats = np.bincount(place, weights=values, minlength=stretches).astype(np.float64)
        return found

    def of(j: float, s: float) -> Floats:
        """Returns j x energy + s x time of each stretch, at their least."""
        batch, least = decodes.batch, decodes.least(j, s)
        each = tokens * np.interp(under_way, batch, np.minimum.accumulate(least / batch))
        return summed(at_s, each) + summed(work.at_s, prompts.least(j, s, batch, least))

    return LeastWork(np.array([of(1.0, price_w) for price_w in PRICES_W.tolist()]), of(0.0, 1.0))


def _sums(until_s: Floats, from_s: Floats, work: Work, weights: Floats) -> Floats:
    """Returns the sum of the weights of those that came until a time and were not done before another, for each."""
    came = np.concatenate([[0.0], np.cumsum(weights)])
    order = np.argsort(work.latest_s, kind="stable")
    done = np.concatenate([[0.0], np.cumsum(weights[order])])
    later = done[np.searchsorted(work.latest_s[order], from_s, "right")]
    found: Floats = came[np.searchsorted(work.at_s, until_s, "right")] - later
    return found


class _Decodes:
    """Iterations without a prompt, by batch."""

    def __init__(self, engine: EngineModel, work: Work) -> None:
        context = work.context_tokens
        self.batch = np.geomspace(1.0, max(1.0, largest_batch(engine, context, 0.0, context)), _BATCHES)
        self._costs = _costs(engine, 0.0, 0.0, self.batch, context)
        self._within_s = work.pace_s

    def least(self, j: float, s: float) -> Floats:
        return _least(*self._costs, self._within_s, j, s)


class _Prompts:
    """Iterations with a part of a prompt, over and above those of the answers beside it."""

    def __init__(self, engine: EngineModel, work: Work, beside: Floats) -> None:
        length = np.rint(np.log(np.maximum(work.prompt, 1.0)) / np.log(_LENGTHS))
        few = np.where(beside < 1.0, -1.0, np.rint(np.log(np.maximum(beside, 1.0)) / np.log(_FEW)))
        keys, self._back = np.unique(np.stack([length, few, work.ttft_s]), axis=1, return_inverse=True)
        tokens, self._within_s = _LENGTHS ** keys[0], keys[2]
        self._beside = np.where(keys[1] < 0.0, 0.0, _FEW ** keys[1])
        context = work.context_tokens
        self._beside = np.minimum(self._beside, max(1.0, largest_batch(engine, context, 0.0, context)))
        parts = [(count, tokens / count) for count in _CHUNKS]
        self._costs = [
            (count, _costs(engine, own, (tokens - own) / 2.0, self._beside, context)) for count, own in parts
        ]

    def least(self, j: float, s: float, batch: Floats, decodes: Floats) -> Floats:
        """Returns the least of each request, (requests,)."""
        without = np.where(self._beside >= 1.0, np.interp(self._beside, batch, decodes), 0.0)
        each = [
            count * np.maximum(0.0, _least(*costs, self._within_s / count, j, s) - without)
            for count, costs in self._costs
        ]
        found: Floats = np.min(each, axis=0)[self._back.ravel()]
        return found


def _costs(
    engine: EngineModel, prefill_tokens: Floats | float, cached: Floats | float, decodes: Floats, context: float
) -> tuple[Floats, Floats]:
    """Returns energy above idle power and time of iterations, by clock, both (clocks, iterations)."""
    found = iterations(
        engine,
        clocks(engine.gpu_params, _STEP_MHZ, engine.gpu_params.f_min)[:, None],
        prefill_tokens=prefill_tokens,
        prefill_context=cached,
        decodes=decodes,
        context_tokens=decodes * context,
    )
    return found.energy_j - idle_w(engine) * found.t_s, found.t_s


def _least(extra_j: Floats, t_s: Floats, within_s: Floats | float, j: float, s: float) -> Floats:
    """Returns the least of each column, of the clocks at which it is short enough; where none is, of all."""
    weighed = j * extra_j + s * t_s
    timely: Floats = np.where(t_s <= within_s, weighed, np.inf).min(axis=0)
    found: Floats = np.where(np.isfinite(timely), timely, weighed.min(axis=0))
    return found
