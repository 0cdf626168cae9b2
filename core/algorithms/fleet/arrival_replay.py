"""How few instances keep the TTFT of requests that came: by letting them come again, on 1, 2, 3 ... instances.

A plan by rates keeps what a steady load needs. What breaks a promise on a small fleet is that prompts of very different
lengths come in heaps, which no rate and no mean length tells. Here the arrivals just seen come again, as near to each
other as the load ahead has it, each at the instance whose prompts are done with first, at the top clock. Prompts that
wait there are taken in shortest first, beside the answers of those that came before. A request is late when its first
token would be, or where so many answers are under way that tokens come too slowly. So a burst that came counts for as
long as it is remembered, and nothing is assumed of what bursts are like.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.deadline_clock import SPARE
from core.compiled import compiled
from core.engine.compiled_model import F_MAX, iteration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FLIGHT = np.dtype(  # what an instance is at: from when to when, how long it takes at the top clock, in how many chunks
    [
        ("begun_s", np.float64),
        ("ends_s", np.float64),
        ("top_s", np.float64),
        ("chunks", np.float64),
        ("tokens", np.float64),  # of one prompt by itself; else 0
        ("due_s", np.float64),  # of one prompt by itself that is not late yet; else infinite
        ("waiting", np.float64),  # tokens of prompts that wait
    ]
)
WAITS = np.dtype([("tokens", np.float64), ("due_s", np.float64)])

MOST_SEEN = 8192  # arrivals that are looked at: hours of a small service, a minute of a large one
PEAK_S = 30.0  # over which a load is one: about what a ready server takes to start
LULL_S = 600.0
TOKENS = 2.0 ** np.arange(0.0, 20.5, 0.5)  # at which a prefill is timed, as far as the longest prompt
ANSWERS = 9  # numbers of answers beside it at which it is timed
MOST_WAITING = 512  # prompts at an instance; more are late anyway
PHASE = (5.0**0.5 - 1.0) / 2.0  # of one request after the other in the iteration that is under way: spread evenly


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

    def rps(self, now_s: float) -> float:
        """Returns the requests/s since the first of them."""
        return self.at_s.size / self._known_s(now_s) if self.at_s.size else 0.0

    def _known_s(self, now_s: float) -> float:
        return max(now_s - float(self.at_s[0]), PEAK_S)

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
        lull_s = min(LULL_S, self._known_s(now_s))
        recent = self.at_s.size - int(np.searchsorted(self.at_s, now_s - lull_s))
        return min(1.0, max(recent, 1) / lull_s / self.rps(now_s))


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Names what the replay needs to know of a pool's engines and answers.

    `answer_tokens`: of a request. `context_tokens`: of an answer, in the cache. `chunk_tokens`: of a prompt in an
    iteration at most. `tpot_s`: the time between tokens that an engine keeps while no prompt waits. `ttft_share`: the
    part of a TTFT limit within which clocks have a lone prompt done; 0: as soon as can be.
    """

    answer_tokens: float
    context_tokens: float
    chunk_tokens: int
    tpot_s: float
    ttft_share: float = 0.0


@compiled
def prefill_s(c: Floats, tokens: Floats, chunk: float, decodes: float, context: float) -> Floats:
    """Returns the seconds that prompts of some lengths, rising, (lengths,), take at the top clock beside `decodes`
    answers with `context` tokens in all; `c` has the costs, shape (costs,)."""
    found = np.empty(tokens.size)
    done, before_s = 0.0, 0.0
    for k in range(tokens.size):
        while done + chunk < tokens[k]:
            pairs = chunk * (done + chunk / 2.0)
            before_s += iteration(c, c[F_MAX], chunk, done, pairs, 1.0, decodes, context)[0]
            done += chunk
        take = tokens[k] - done
        found[k] = before_s + iteration(c, c[F_MAX], take, done, take * (done + take / 2.0), 1.0, decodes, context)[0]
    return found


@compiled
def place_of(tokens: float, lengths: int) -> tuple[int, float]:
    """Returns where a prompt lies among the first `lengths` of `TOKENS`: the last that is no longer, and how far it is
    on the way to the next, from 0 to 1 (more beyond them)."""
    half, doublings = math.frexp(max(tokens, 1.0))  # tokens are 2 half 2^(doublings - 1)
    below = min(2 * (doublings - 1) + int(half >= 0.5**0.5), lengths - 2)
    return below, max(0.0, (tokens / TOKENS[below] - 1.0) / (2.0**0.5 - 1.0))


@compiled
def places_of(tokens: Floats, lengths: int) -> tuple[Ints, Floats]:
    """Returns `place_of` of each prompt, both (requests,); `tokens` is (requests,) too."""
    below, x = np.empty(tokens.size, np.int64), np.empty(tokens.size)
    for k in range(tokens.size):
        below[k], x[k] = place_of(tokens[k], lengths)
    return below, x


@compiled
def between(table_s: Floats, answers_per_row: float, answers: float, tokens: float) -> float:
    """Returns the seconds of a prefill of so many tokens beside so many answers, on lines between those in the table,
    (answers, lengths)."""
    return at_place(table_s, answers_per_row, answers, *place_of(tokens, table_s.shape[1]))


@compiled
def at_place(table_s: Floats, answers_per_row: float, answers: float, below: int, x: float) -> float:
    """Returns what `between` does for a prompt whose `place_of` is known; `table_s` is (answers, lengths)."""
    y = answers / answers_per_row
    row = min(int(y), table_s.shape[0] - 2)
    y -= row
    low = table_s[row, below] * (1.0 - x) + table_s[row, below + 1] * x
    high = table_s[row + 1, below] * (1.0 - x) + table_s[row + 1, below + 1] * x
    return float(low * (1.0 - y) + high * y)


@compiled
def hurried_s(flight: Any, now_s: float) -> tuple[float, float]:
    """Returns when the chunk in flight of a prefill, of FLIGHT, ends, and when all of it does if it goes on at the top
    clock."""
    all_s = flight["ends_s"] - flight["begun_s"]
    if flight["chunks"] == 1.0 and now_s >= flight["begun_s"]:  # most of them, without a division
        return flight["begun_s"] + all_s, flight["begun_s"] + all_s
    each_s = all_s / flight["chunks"]
    gone = min(flight["chunks"], np.floor((now_s - flight["begun_s"]) / each_s) + 1.0)
    chunk_s = flight["begun_s"] + gone * each_s
    return chunk_s, chunk_s + (flight["chunks"] - gone) * flight["top_s"] / flight["chunks"]


@compiled
def take_in(
    flight: Any,
    waits: Any,
    count: int,
    now_s: float,
    table_s: Floats,
    answers_per_row: float,
    answers: float,
    chunk: float,
) -> tuple[int, int]:
    """Takes in what waits at an instance, round by round, until one ends after `now_s`: the shortest prompt, and as
    many more as make a chunk. Returns how many wait still, of `count`, and how many are late.

    `flight` is of FLIGHT; `waits` of WAITS, (most that wait,); `table_s` of `between`, (answers, lengths).
    """
    late_ones = 0
    while count > 0 and flight["ends_s"] <= now_s:
        round_tokens, taken, soonest_s = 0.0, 0, np.inf
        while count > 0:
            j = int(np.argmin(waits["tokens"][:count]))
            if taken > 0 and round_tokens + waits[j]["tokens"] > chunk:
                break
            round_tokens += waits[j]["tokens"]
            soonest_s = min(soonest_s, waits[j]["due_s"])
            taken += 1
            count -= 1
            waits[j] = waits[count]
        flight["waiting"] -= round_tokens
        flight["top_s"] = between(table_s, answers_per_row, answers, round_tokens)
        flight["begun_s"] = flight["ends_s"]
        flight["ends_s"] += flight["top_s"]
        flight["chunks"] = np.ceil(round_tokens / chunk)
        flight["tokens"], flight["due_s"] = 0.0, np.inf
        if flight["ends_s"] > soonest_s:
            late_ones += 1
        elif taken == 1:
            flight["tokens"], flight["due_s"] = round_tokens, soonest_s
    return count, late_ones


@compiled
def soonest(flights: Any, now_s: float, table_s: Floats, answers_per_row: float, answers: float) -> int:
    """Returns the instance that is done first with the prompts that it has; the first that has none, if there is one.

    `flights` is of FLIGHT, (instances,); `table_s` of `between`, (answers, lengths).
    """
    for i in range(flights.size):
        if flights[i]["ends_s"] <= now_s:
            return i
    best, best_s = 0, np.inf
    for i in range(flights.size):
        free_s = hurried_s(flights[i], now_s)[1]
        if flights[i]["waiting"] > 0.0:
            free_s += between(table_s, answers_per_row, answers, flights[i]["waiting"])
        if free_s < best_s:
            best, best_s = i, free_s
    return best


@compiled
def late(
    at_s: Floats,
    tokens: Floats,
    below: Ints,
    x: Floats,
    limit_s: Floats,
    before: Ints,
    table_s: Floats,
    answers_per_row: float,
    tpot_s: float,
    largest: float,
    chunk: float,
    ttft_share: float,
    instances: int,
    most: float,
) -> int:
    """Counts the requests that are late on some instances, and ends where they are more than `most`.

    Prompts that wait are taken in shortest first, as many at a time as make a chunk; a shorter one also comes between
    the chunks of the one that an instance is at. Where clocks go by deadlines (`ttft_share` above 0), a prompt that
    comes to an instance without any ends after this share of its limit, sooner where answers are under way that it
    would hold up, and where another one comes. Answers take what `left_of_limits` leaves them of their time, which
    settles where the room that they take at a pace gives just this pace.

    Args:
        at_s, tokens, limit_s: Of each request, in order: when it comes, its prompt, the limit of its TTFT; (requests,).
        below, x: `places_of` the prompts, (requests,).
        before: Requests before each one whose answers are under way then, at the limit on the time between their
            tokens; (requests,).
        table_s: Of `between`, (answers, lengths); `answers_per_row` more in each row.
        tpot_s: The limit on the time between tokens; the longest iteration that is under way when a request comes.
        largest: Answers that an engine has under way at most; where more come it must be done with them sooner.
        chunk: Tokens of a prompt in an iteration at most.
    """
    flights, waits = np.zeros(instances, FLIGHT), np.zeros((instances, MOST_WAITING), WAITS)
    counts = np.zeros(instances, np.int64)
    late_ones, holding, answers = 0, 0, 0.0  # holding: instances at which prompts wait
    for k in range(at_s.size):
        now_s, came = at_s[k], before[k] / instances
        share = min(1.0, 1.0 / (SPARE + came / largest)) if ttft_share > 0.0 else 1.0
        answers = min(came * share, largest)
        for i in range(instances if holding > 0 else 0):
            if counts[i] > 0:
                counts[i], more = take_in(
                    flights[i], waits[i], counts[i], now_s, table_s, answers_per_row, answers, chunk
                )
                late_ones += more
                holding -= counts[i] == 0
        best = soonest(flights, now_s, table_s, answers_per_row, answers)
        most_answers = min(came, largest)
        each_s = tpot_s * most_answers / came if came > 0.0 else tpot_s
        due_s = now_s + limit_s[k]
        if at_place(table_s, answers_per_row, most_answers, 0, 0.0) > each_s:
            late_ones += 1
            due_s = np.inf  # it is late once
        f = flights[best]
        own_s = at_place(table_s, answers_per_row, answers, below[k], x[k])
        if f["ends_s"] <= now_s:  # nothing to take in
            f["begun_s"] = now_s + (tpot_s * share * ((k * PHASE) % 1.0) if answers > 0.0 else 0.0)
            f["top_s"], f["chunks"], f["tokens"], f["due_s"] = own_s, np.ceil(tokens[k] / chunk), tokens[k], due_s
            f["ends_s"] = f["begun_s"] + own_s
            if f["ends_s"] > due_s:
                f["due_s"] = np.inf
                late_ones += 1
            elif due_s < np.inf:
                paced_s = now_s + ttft_share * limit_s[k]
                if answers >= 1.0:  # each chunk is a token of theirs
                    paced_s = min(paced_s, f["begun_s"] + f["chunks"] * tpot_s * share)
                f["ends_s"] = max(f["ends_s"], paced_s)
        else:
            chunk_s, ends_s = hurried_s(f, now_s)
            f["begun_s"], f["ends_s"] = ends_s - f["top_s"], ends_s
            if counts[best] == 0 and tokens[k] < f["tokens"] * (ends_s - chunk_s) / f["top_s"]:
                f["begun_s"] += own_s
                f["ends_s"] += own_s
                late_ones += int(chunk_s + own_s > due_s)
                if f["ends_s"] > f["due_s"]:
                    f["due_s"] = np.inf
                    late_ones += 1
            elif counts[best] == MOST_WAITING:
                late_ones += 1
            else:
                waits[best, counts[best]]["tokens"], waits[best, counts[best]]["due_s"] = tokens[k], due_s
                holding += counts[best] == 0
                counts[best] += 1
                f["waiting"] += tokens[k]
        if late_ones > most:
            return late_ones
    for i in range(instances):
        late_ones += take_in(flights[i], waits[i], counts[i], np.inf, table_s, answers_per_row, answers, chunk)[1]
    return late_ones


def alone_s(c: Floats, prompt_tokens: Floats, chunk_tokens: int) -> Floats:
    """Returns the seconds of each prompt by itself at the top clock, both (requests,), in chunks of at most
    `chunk_tokens`; `c` has the costs, (costs,)."""
    lengths = _lengths(prompt_tokens)
    found: Floats = np.interp(prompt_tokens, lengths, prefill_s(c, lengths, float(chunk_tokens), 0.0, 0.0))
    return found


def _lengths(prompt_tokens: Floats) -> Floats:
    """Returns those of `TOKENS` that the prompts, (requests,), lie between."""
    return TOKENS[: 2 + int(np.searchsorted(TOKENS, float(prompt_tokens.max(initial=1.0))))]


class Again:
    """The requests that came, as they come again on whatever kind of instance.

    A request that is late on all of them, by itself, is not counted.

    Args:
        nearer: How many times as fast the requests are to come.
        least_s: What each prompt takes by itself on the fastest kind of instance (`alone_s`), (requests,).
    """

    def __init__(self, seen: Arrivals, load: EngineLoad, nearer: float, least_s: Floats) -> None:
        at_s = (seen.at_s - seen.at_s[0]) / nearer
        before = np.arange(at_s.size) - np.searchsorted(at_s, at_s - load.answer_tokens * load.tpot_s)
        limit_s = np.where(least_s > seen.limit_s, np.inf, seen.limit_s)
        self.load, self.lengths, self.most_before = load, _lengths(seen.prompt_tokens), float(before.max())
        places = places_of(seen.prompt_tokens, self.lengths.size)
        self.requests = (at_s, seen.prompt_tokens, *places, limit_s, before)  # as `late` takes them


class Replay:
    """Requests that come again on instances of a kind.

    Args:
        c: Costs of an instance (`core.engine.compiled_model`), (costs,).
        largest: Answers under way at most.
    """

    def __init__(self, c: Floats, again: Again, largest: float) -> None:
        load, chunk = again.load, float(again.load.chunk_tokens)
        each = max(1.0, min(again.most_before, largest) / (ANSWERS - 1))
        beside = np.arange(ANSWERS) * each
        table_s = np.array([prefill_s(c, again.lengths, chunk, n, n * load.context_tokens) for n in beside])
        self._given = (*again.requests, table_s, each, load.tpot_s, largest, chunk, load.ttft_share)

    def late_on(self, instances: int, most: float = math.inf) -> int:
        """Returns how many requests are late, or some number above `most`."""
        return late(*self._given, instances, most)

    def fewest(self, most: int, allowed: float) -> int | None:
        """Returns the fewest instances, of `most`, on which no more requests are late than are allowed; None: on all
        of them more are."""
        low, high = 1, most + 1
        while low < high:
            middle = (low + high) // 2
            if self.late_on(middle, allowed) <= allowed:
                high = middle
            else:
                low = middle + 1
        return low if low <= most else None


def allowed_late(requests: int, late_share: float, long: bool) -> float:
    """Returns how many requests may be late for a share of them.

    What counts is (late + 1) / (requests + 2), the mean of what the share may be (Laplace): of few requests nobody may
    be late. But of those of a `long` time one may, however few they are: else a second instance would stand for it.
    """
    return max(1.0 if long else 0.0, late_share * (requests + 2) - 1.0)
