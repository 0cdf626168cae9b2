"""How few instances keep the TTFT of requests that came: by letting them come again, on 1, 2, 3 ... instances.

A plan by rates keeps what a steady load needs. What breaks a promise on a small fleet is that prompts of very different
lengths come in heaps, which no rate and no mean length tells. Here the arrivals just seen come again, as near to each
other as the load ahead has it, each at the instance whose prompts are done with first; one after the other, at the top
clock. A request is late when its first token would be. So a burst that came counts for as long as it is remembered, and
nothing is assumed of what bursts are like.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled
from core.engine.compiled_model import F_MAX, iteration

Floats = NDArray[np.float64]

MOST_SEEN = 8192  # arrivals that are looked at: hours of a small service, a minute of a large one
PEAK_S = 30.0  # over which a load is one: about what a ready server takes to start
LULL_S = 600.0
GRID_PER_E = 4.0  # prompt lengths at which the prefill is timed, for a factor of e


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests that came, in order: each at `at_s`, with `prompt_tokens`, its first token due after `limit_s`
    (infinite: whenever). All (requests,)."""

    at_s: Floats
    prompt_tokens: Floats
    limit_s: Floats

    def since(self, from_s: float, least: int) -> Arrivals:
        """Returns those from a time on, or the last `least`, whichever are more."""
        first = min(int(np.searchsorted(self.at_s, from_s)), max(0, self.at_s.size - least))
        return Arrivals(self.at_s[first:], self.prompt_tokens[first:], self.limit_s[first:])

    def nearer(self, now_s: float, ahead_rps: float) -> float:
        """Returns how many times as fast as they came the requests are to come again.

        Above 1: a load is ahead that was at no time seen. Below 1: the last minutes had less than the mean, and a
        lull of less than `LULL_S` is none.
        """
        if not self.at_s.size:
            return 1.0
        starts = np.arange(self.at_s[0], max(now_s - PEAK_S, self.at_s[0]) + PEAK_S / 2.0, PEAK_S / 2.0)
        counts = np.searchsorted(self.at_s, starts + PEAK_S) - np.searchsorted(self.at_s, starts)
        peak_rps = float(counts.max()) / PEAK_S
        if ahead_rps > peak_rps:
            return ahead_rps / peak_rps
        known_s = max(now_s - float(self.at_s[0]), PEAK_S)
        lull_s = min(LULL_S, known_s)
        recent = self.at_s.size - int(np.searchsorted(self.at_s, now_s - lull_s))
        return min(1.0, max(recent, 1) / lull_s / (self.at_s.size / known_s))


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of a pool beside its prompts, on all its instances together.

    `decodes`: answers under way. `context_tokens`: of each, in the cache. `chunk_tokens`: of one prompt in an iteration
    at most. `iteration_s`: the longest that is under way when a request comes.
    """

    decodes: float
    context_tokens: float
    chunk_tokens: int
    iteration_s: float


@compiled
def prefill_s(c: Floats, tokens: Floats, chunk: float, decodes: float, context: float) -> Floats:
    """Returns the seconds that prompts of some lengths, (lengths,), take at the top clock beside `decodes` answers with
    `context` tokens in all; `c` has the costs, shape (costs,)."""
    found = np.empty(tokens.size)
    for k in range(tokens.size):
        left, done, total_s = tokens[k], 0.0, 0.0
        while left > 0.0:
            take = min(left, chunk)
            pairs = take * (done + take / 2.0)
            total_s += iteration(c, c[F_MAX], take, done, pairs, 1.0, decodes, context)[0]
            left -= take
            done += take
        found[k] = total_s
    return found


@compiled
def late(at_s: Floats, takes_s: Floats, limit_s: Floats, instances: int, most: float) -> int:
    """Counts the requests, (requests,) in order, whose first token comes after its limit on some instances, and ends
    where they are more than `most`."""
    free_s = np.zeros(instances)
    count = 0
    for k in range(at_s.size):
        best = 0
        for i in range(1, instances):
            if free_s[i] < free_s[best]:
                best = i
        free_s[best] = max(free_s[best], at_s[k]) + takes_s[k]
        if free_s[best] - at_s[k] > limit_s[k]:
            count += 1
            if count > most:
                break
    return count


def fewest(c: Floats, seen: Arrivals, load: EngineLoad, nearer: float, most: int, late_share: float) -> int:
    """Returns the fewest instances on which no more than `late_share` of the requests are late.

    The share that counts is (late + 1) / (requests + 2), the mean of what it may be (Laplace): of few requests nobody
    may be late. A request that is late on any number of instances is not counted.

    Args:
        c: Costs of an instance (`core.engine.compiled_model`), (costs,).
        nearer: How many times as fast the requests are to come.
        most: Instances, at most.
    """
    if not seen.at_s.size or most < 1:
        return min(1, most)
    at_s = (seen.at_s - seen.at_s[0]) / nearer
    limit_s = seen.limit_s - load.iteration_s

    def late_on(instances: int) -> int:
        decodes = max(1.0, load.decodes / instances)
        alone = _takes_s(c, seen.prompt_tokens, load, decodes)
        hopeless = alone > limit_s
        return late(at_s, alone, np.where(hopeless, np.inf, limit_s), instances, allowed)

    allowed = max(0.0, late_share * (at_s.size + 2) - 1.0)
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if late_on(middle) <= allowed:
            high = middle
        else:
            low = middle + 1
    return low


def _takes_s(c: Floats, prompt_tokens: Floats, load: EngineLoad, decodes: float) -> Floats:
    """Returns the seconds of each prefill, on lines between the lengths that are timed."""
    longest = math.log(max(2.0, float(prompt_tokens.max())))
    grid = np.exp(np.linspace(0.0, longest, 2 + int(longest * GRID_PER_E)))
    timed = prefill_s(c, grid, float(load.chunk_tokens), decodes, decodes * load.context_tokens)
    found: Floats = np.interp(prompt_tokens, grid, timed)
    return found
