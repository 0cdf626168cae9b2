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
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
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
        ("count", np.int64),  # of prompts that wait, and their tokens
        ("waiting", np.float64),
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
def table_s(c: Floats, tokens: Floats, chunk: float, answers_per_row: float, context: float) -> Floats:
    """Returns `prefill_s` beside 0, 1, 2 ... times `answers_per_row` answers with `context` tokens each, (answers,
    lengths)."""
    found = np.empty((ANSWERS, tokens.size))
    for row in range(ANSWERS):
        found[row] = prefill_s(c, tokens, chunk, row * answers_per_row, row * answers_per_row * context)
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
def row_of(answers: float, answers_per_row: float, rows: int) -> tuple[int, float]:
    """Returns where so many answers lie among the rows of a table: the last row with no more, and how far they are on
    the way to the next, from 0 to 1 (more beyond them)."""
    y = answers / answers_per_row
    row = min(int(y), rows - 2)
    return row, y - row


@compiled
def in_row(times_s: Floats, row: int, below: int, x: float) -> float:
    """Returns the seconds of a prefill with a `place_of` beside the answers of a row of the table, (answers,
    lengths)."""
    return float(times_s[row, below] * (1.0 - x) + times_s[row, below + 1] * x)


@compiled
def between(times_s: Floats, row: int, y: float, below: int, x: float) -> float:
    """Returns the seconds of a prefill with a `place_of` beside answers with a `row_of`, on lines between those in the
    table, (answers, lengths)."""
    return in_row(times_s, row, below, x) * (1.0 - y) + in_row(times_s, row + 1, below, x) * y


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
def take_in(f: Any, waits: Any, now_s: float, times_s: Floats, row: int, y: float, chunk: float) -> int:
    """Takes in what waits at an instance, round by round, until one ends after `now_s`: the shortest prompt, and as
    many more as make a chunk. Returns how many are late.

    `f` is of FLIGHT; `waits` of WAITS, (most that wait,); `times_s` (answers, lengths), `row` and `y`: of `between`.
    """
    late_ones, count, lengths = 0, f["count"], times_s.shape[1]
    while count > 0 and f["ends_s"] <= now_s:
        round_tokens, before = 0.0, count  # those that it takes in lie behind those that wait
        while count > 0:
            shortest, tokens = 0, waits[0]["tokens"]
            for j in range(1, count):
                if waits[j]["tokens"] < tokens:
                    shortest, tokens = j, waits[j]["tokens"]
            if count < before and round_tokens + tokens > chunk:
                break
            round_tokens += tokens
            due_s = waits[shortest]["due_s"]
            count -= 1
            waits[shortest]["tokens"], waits[shortest]["due_s"] = waits[count]["tokens"], waits[count]["due_s"]
            waits[count]["due_s"] = due_s
        f["waiting"] -= round_tokens
        f["top_s"] = between(times_s, row, y, *place_of(round_tokens, lengths))
        f["begun_s"] = f["ends_s"]
        f["ends_s"] += f["top_s"]
        f["chunks"] = np.ceil(round_tokens / chunk)
        f["tokens"], f["due_s"] = 0.0, np.inf
        for j in range(count, before):
            late_ones += int(f["ends_s"] > waits[j]["due_s"])
        if before - count == 1 and f["ends_s"] <= waits[count]["due_s"]:
            f["tokens"], f["due_s"] = round_tokens, waits[count]["due_s"]
    f["count"] = count
    return late_ones


@compiled
def time_waiting(flights: Any, i: int, waiting_s: Floats, times_s: Floats, row: int) -> None:
    """Notes how long the prompts that wait at an instance take, together, beside the answers of a row of the
    table, and of the next.

    `flights` is of FLIGHT, (instances,); `waiting_s` (2, instances); `times_s` (answers, lengths).
    """
    waiting_s[:, i] = 0.0
    if flights[i]["count"] > 0:
        below, x = place_of(flights[i]["waiting"], times_s.shape[1])
        waiting_s[0, i], waiting_s[1, i] = in_row(times_s, row, below, x), in_row(times_s, row + 1, below, x)


@compiled
def soonest(flights: Any, now_s: float, chunk_s: Floats, ends_s: Floats, waiting_s: Floats, y: float) -> int:
    """Returns the instance that is done first with the prompts that it has, if all hurry.

    `flights` is of FLIGHT; `chunk_s` and `ends_s` have its `hurried_s`, renewed where a chunk has ended; all
    (instances,). `waiting_s`: of `time_waiting`, (2, instances); `y`: of `row_of`.
    """
    best, best_s = 0, np.inf
    for i in range(flights.size):
        if chunk_s[i] <= now_s:
            chunk_s[i], ends_s[i] = hurried_s(flights[i], now_s)
        done_s = ends_s[i] + (waiting_s[0, i] * (1.0 - y) + waiting_s[1, i] * y)
        if done_s < best_s:
            best, best_s = i, done_s
    return best


@compiled
def late(
    at_s: Floats,
    tokens: Floats,
    below: Ints,
    x: Floats,
    phase: Floats,
    limit_s: Floats,
    before: Ints,
    times_s: Floats,
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
        phase: How far the iteration is that is under way when each comes, from 0 to 1, (requests,).
        before: Requests before each one whose answers are under way then, at the limit on the time between their
            tokens; (requests,).
        times_s: Of `between`, (answers, lengths); `answers_per_row` more in each row.
        tpot_s: The limit on the time between tokens; the longest iteration that is under way when a request comes.
        largest: Answers that an engine has under way at most; where more come it must be done with them sooner.
        chunk: Tokens of a prompt in an iteration at most.
    """
    flights, waits = np.zeros(instances, FLIGHT), np.empty((instances, MOST_WAITING), WAITS)
    # Of `hurried_s`; the ends hold until the chunks have ended.
    chunk_s, hurried_ends_s = np.full(instances, -np.inf), np.empty(instances)
    waiting_s = np.zeros((2, instances))
    late_ones, holding, rows = 0, 0, times_s.shape[0]  # holding: instances at which prompts wait
    row, y = 0, 0.0
    for k in range(at_s.size):
        now_s, came = at_s[k], before[k] / instances
        share = min(1.0, 1.0 / (SPARE + came / largest)) if ttft_share > 0.0 else 1.0
        answers = min(came * share, largest)
        row_before = row
        row, y = row_of(answers, answers_per_row, rows)
        best = instances  # the first that has no prompts; else the one that is done with its own first
        for i in range(instances):
            if chunk_s[i] <= now_s and flights[i]["ends_s"] <= now_s:
                if flights[i]["count"] > 0:
                    late_ones += take_in(flights[i], waits[i], now_s, times_s, row, y, chunk)
                    time_waiting(flights, i, waiting_s, times_s, row)
                    holding -= flights[i]["count"] == 0
                if flights[i]["ends_s"] <= now_s:
                    best = min(best, i)
                    if holding == 0:
                        break
        if row != row_before:
            for i in range(instances if holding > 0 else 0):
                time_waiting(flights, i, waiting_s, times_s, row)
        if best == instances:
            best = soonest(flights, now_s, chunk_s, hurried_ends_s, waiting_s, y)
        most_answers = min(came, largest)
        each_s = tpot_s * most_answers / came if came > 0.0 else tpot_s
        due_s = now_s + limit_s[k]
        if between(times_s, *row_of(most_answers, answers_per_row, rows), 0, 0.0) > each_s:
            late_ones += 1
            due_s = np.inf  # it is late once
        f = flights[best]
        own_s = between(times_s, row, y, below[k], x[k])
        if f["ends_s"] <= now_s:  # nothing to take in
            f["begun_s"] = now_s + (tpot_s * share * phase[k] if answers > 0.0 else 0.0)
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
            f["begun_s"], f["ends_s"] = hurried_ends_s[best] - f["top_s"], hurried_ends_s[best]
            count = f["count"]
            if count == 0 and tokens[k] < f["tokens"] * (f["ends_s"] - chunk_s[best]) / f["top_s"]:
                f["begun_s"] += own_s
                f["ends_s"] += own_s
                late_ones += int(chunk_s[best] + own_s > due_s)
                if f["ends_s"] > f["due_s"]:
                    f["due_s"] = np.inf
                    late_ones += 1
            elif count == MOST_WAITING:
                late_ones += 1
            else:
                waits[best, count]["tokens"], waits[best, count]["due_s"] = tokens[k], due_s
                holding += count == 0
                f["count"] = count + 1
                f["waiting"] += tokens[k]
                time_waiting(flights, best, waiting_s, times_s, row)
        chunk_s[best] = -np.inf
        if late_ones > most:
            return late_ones
    for i in range(instances):
        late_ones += take_in(flights[i], waits[i], np.inf, times_s, row, y, chunk)
    return late_ones


@compiled
def under_way(at_s: Floats, span_s: float) -> Ints:
    """Returns how many requests came no longer than `span_s` before each one, both (requests,), in order."""
    found, first = np.empty(at_s.size, np.int64), 0
    for k in range(at_s.size):
        while at_s[first] < at_s[k] - span_s:
            first += 1
        found[k] = k - first
    return found


@compiled
def alone_at(tokens_s: Floats, below: Ints, x: Floats) -> Floats:
    """Returns the least seconds that prompts, by themselves, take on any of some kinds of instance, (requests,).

    `tokens_s`: of a prompt of each of `TOKENS`, (kinds, lengths); `below`, `x`: `places_of` the prompts.
    """
    found = np.full(below.size, np.inf)
    for kind in range(tokens_s.shape[0]):
        for k in range(below.size):
            found[k] = min(found[k], in_row(tokens_s, kind, below[k], x[k]))
    return found


def alone_s(c: Floats, prompt_tokens: Floats, chunk_tokens: int) -> Floats:
    """Returns the seconds of each prompt by itself at the top clock, both (requests,), in chunks of at most
    `chunk_tokens`; `c` has the costs, (costs,)."""
    lengths = _lengths(prompt_tokens)
    places = places_of(prompt_tokens, lengths.size)
    return alone_at(prefill_s(c, lengths, float(chunk_tokens), 0.0, 0.0)[None], *places)


def _lengths(prompt_tokens: Floats) -> Floats:
    """Returns those of `TOKENS` that the prompts, (requests,), lie between."""
    return TOKENS[: 2 + int(np.searchsorted(TOKENS, float(prompt_tokens.max(initial=1.0))))]


@lru_cache(maxsize=32)
def _phases(requests: int) -> Floats:
    """Returns how far the iteration under way is as each request comes, from 0 to 1, (requests,)."""
    return np.mod(np.arange(requests, dtype=np.float64) * PHASE, 1.0)


class Again:
    """The requests that came, as they come again on whatever kind of instance.

    A request that is late on all of them, by itself, is not counted. `hopeless_share`: of such requests.

    Args:
        nearer: How many times as fast the requests are to come.
        kinds: The costs of each kind of instance (`core.engine.compiled_model`), each (costs,).
    """

    def __init__(self, seen: Arrivals, load: EngineLoad, nearer: float, kinds: Iterable[Floats]) -> None:
        at_s = (seen.at_s - seen.at_s[0]) / nearer
        before = under_way(at_s, load.answer_tokens * load.tpot_s)
        self.load, self.lengths, self.most_before = load, _lengths(seen.prompt_tokens), float(before.max())
        places = places_of(seen.prompt_tokens, self.lengths.size)
        alone = np.array([prefill_s(c, self.lengths, float(load.chunk_tokens), 0.0, 0.0) for c in kinds])
        hopeless = alone_at(alone, *places) > seen.limit_s
        limit_s = np.where(hopeless, np.inf, seen.limit_s)
        self.hopeless_share = float(hopeless.mean())
        phases = _phases(1 << at_s.size.bit_length())[: at_s.size]
        self.requests = (at_s, seen.prompt_tokens, *places, phases, limit_s, before)  # as `late` takes them


class Replay:
    """Requests that come again on instances of a kind.

    Args:
        c: Costs of an instance (`core.engine.compiled_model`), (costs,).
        largest: Answers under way at most.
    """

    def __init__(self, c: Floats, again: Again, largest: float) -> None:
        load, chunk = again.load, float(again.load.chunk_tokens)
        each = max(1.0, min(again.most_before, largest) / (ANSWERS - 1))
        times_s = table_s(c, again.lengths, chunk, each, load.context_tokens)
        _, tokens, below, x, _, limit_s, _ = again.requests
        # Longer than a chunk they are taken in by themselves, so that each of these is late on any number of instances.
        self.always_late = int(np.count_nonzero((alone_at(times_s[:1], below, x) > limit_s) & (tokens > chunk)))
        self._given = (*again.requests, times_s, each, load.tpot_s, largest, chunk, load.ttft_share)

    def late_on(self, instances: int, most: float = math.inf) -> int:
        """Returns how many requests are late, or some number above `most`."""
        return late(*self._given, instances, most)

    def fewest(self, most: int, allowed: float, near: int | None = None) -> int | None:
        """Returns the fewest instances, of `most`, on which no more requests are late than are allowed; None: on all
        of them more are.

        Late requests do not always become fewer with each more instance. Where all are too few, or `near` is not known,
        the answer is that of a bisection; else the nearest to `near` that is enough where one fewer is not.

        Args:
            near: Where to look first: three replays tell that the last answer is still right.
        """

        def enough(instances: int) -> bool:
            return self.late_on(instances, allowed) <= allowed

        if self.always_late > allowed:
            return None
        low, high = 1, most + 1
        if near is not None and near <= most and enough(most):
            if enough(near):
                while near > 1 and enough(near - 1):
                    near -= 1
                return near
            low, step = near + 1, 1
            while low + step <= most and not enough(low + step - 1):
                low, step = low + step, 2 * step
            high = min(low + step - 1, most)
        found = low + bisect_left(range(low, high), True, key=enough)
        return found if found <= most else None


def allowed_late(requests: int, late_share: float, long: bool) -> float:
    """Returns how many requests may be late for a share of them.

    What counts is (late + 1) / (requests + 2), the mean of what the share may be (Laplace): of few requests nobody may
    be late. But of those of a `long` time one may, however few they are: else a second instance would stand for it.
    """
    return max(1.0 if long else 0.0, late_share * (requests + 2) - 1.0)
