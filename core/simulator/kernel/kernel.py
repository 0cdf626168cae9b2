"""The compiled inner loop: instances that jump from event to event in closed form (macro-stepping).

Between two events of an instance (a completion, an admission, a preemption, a clock change) its batch is constant and
the context K grows by the batch B with each iteration. Iteration time and energy are linear in K, so m iterations are
an arithmetic series: the instance jumps over them at once. Iterations with a prefill in them are events themselves;
those that throttle at the TDP are not linear and are walked one by one. The rules are those of the tests' oracle, which
walks every token in plain Python (`tests/oracles/token_by_token.py`); a property test holds the two against each other.

Instances meet only where a request is routed, so there is no heap: arrivals are taken in order, and an instance is
brought to an arrival's time only when its state matters to the router. While requests are about to move from one
instance to another (`COUPLED`), all are brought forward together, in order of time. Ties: iterations end first, then
controllers act, then handed-over requests land, then requests arrive in the order of the trace. A boundary within TIE_S
of an arrival counts as before it, in both steppings, since sums of the same numbers in another order differ in their
last bits.

The requests of a run pass through a window (`req`): the driver appends a block of them, and takes out those that ended.

The engine model is `core.engine.compiled_model`, the clock by deadlines `core.algorithms.clock.deadline_clock`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.deadline_clock import (
    CATCH_UP,
    MOST_PROMPTS,
    NO_SLACK_S,
    hurried_mhz,
    left_of_limits,
    lowest_after_switch,
    next_iteration_mhz,
)
from core.algorithms.split.step_fit import MHZ, fit_of, prompt_budget
from core.algorithms.split.step_times import LEAST_PROMPT_TOKENS
from core.compiled import compiled
from core.engine.compiled_model import idle_watts, iteration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counts = NDArray[np.int32]

TIE_S = 1e-9
NONE = -1

# Events of a request, in the log. At one instant of one instance they are logged in the order they take effect.
ADMITTED, FIRST_TOKEN, PREEMPTED, FINISHED, HANDED_OVER = 0, 1, 2, 3, 4
# States of a request.
AHEAD, IN_FLIGHT, DONE, REJECTED = 0, 1, 2, 3
# States of an instance. Starting: its GPUs are in transition, be it a cold start or a halt for a re-shard.
OFF, STARTING, SERVING, DRAINING = 0, 1, 2, 3
# Routing within a pool.
ROUND_ROBIN, LEAST_LOADED, WEIGHTED, LEAST_BACKLOG, LEAST_ENERGY = range(5)
ALIKE_S = 0.02  # backlogs below this are equal
ALIKE_SHARE = 0.25  # of a TTFT limit: backlogs below it are equal, however long
# Order of an instance's queue.
FCFS, SJF, SRTF, EDF, LLF = 0, 1, 2, 3, 4
# Where a pool hands its requests over: nowhere, after the prompt, at a share of all (predicted) tokens.
WHOLE, AT_PROMPT, AT_RATIO = 0, 1, 2
MAX_SUCCESSORS = 8  # instances that one instance can be re-sharded into
STRETCH_S = 5.0  # arrivals are counted in stretches of this length
MOST_J = 1e9  # no answer adds so much to an iteration
LOOK_S = 0.1  # how often a clock by deadlines is looked at, beside each arrival

# Gaps between tokens are counted in bins of 0.5 %, from 10 us on.
GAP_BINS_PER_E, GAP_MIN_S, GAP_BINS = 200.0, 1e-5, 4200
# Of each request in bins of 2 %, from 1 ms on (to 160 s): it answers for its own p50 and p99.
OWN_BINS_PER_E, OWN_MIN_S, OWN_BINS = 50.0, 1e-3, 600

REQUEST = np.dtype(
    [
        # given
        ("number", np.int64),  # in order of arrival
        ("arrival_s", np.float64),
        ("prompt", np.int64),
        ("output", np.int64),
        ("cached", np.int64),  # prompt tokens that the prefix cache has
        ("predicted", np.int64),  # output tokens, as far as policies know
        ("deadline_s", np.float64),  # tokens up to here are timely
        ("due_s", np.float64),  # what queues go by that know deadlines
        ("lat_s", np.float64),  # what it takes alone
        ("request_class", np.int64),
        ("cell", np.int64),  # what it is routed by
        ("service", np.int64),
        ("tenant", np.int64),
        # found
        ("status", np.int64),
        ("pool", np.int64),
        ("instance", np.int64),
        ("generated", np.int64),
        ("computed", np.int64),
        ("to_prefill", np.int64),
        ("chunk", np.int64),  # tokens it prefills in the iteration in flight
        ("kv", np.int64),
        ("preemptions", np.int64),
        ("retries", np.int64),  # how often it was given back and came again
        ("timely", np.int64),
        ("next", np.int64),  # in the queue, among the unplaced, or among those handed over
        ("before", np.int64),  # in the queue
        ("row", np.int64),  # its row of `own`
        ("split", np.int64),  # tokens in its cache at which it is handed over; 0: not any more
        ("handed", np.int64),  # it has been handed over, or will be
        ("sent", np.int64),  # tokens of its cache that are on their way to the next instance
        ("sent_s", np.float64),  # when they will be there
        ("lands_s", np.float64),
        ("target", np.int64),  # the instance it lands on; NONE: one of the pool `pool`
        ("first_token_s", np.float64),
        ("last_token_s", np.float64),  # before the pause that it is in; NaN: it is in none
        ("finish_s", np.float64),
        ("itl_max_s", np.float64),
        ("itl_p50_s", np.float64),
        ("itl_p99_s", np.float64),
        ("energy_j", np.float64),
    ]
)
INSTANCE = np.dtype(
    [
        # given
        ("whole", np.int64),  # tokens of KV cache
        ("capacity", np.int64),  # of which may be used now
        ("max_sequences", np.int64),
        ("budget", np.int64),  # tokens of one iteration
        ("chunk_tokens", np.int64),  # of these, for one prompt at the most
        ("weight", np.float64),
        ("order", np.int64),
        ("aging", np.float64),  # tokens a second, of SJF
        ("token_s", np.float64),  # what a token to decode, and to prefill, is estimated to take
        ("prefill_token_s", np.float64),
        ("preempts_s", np.float64),  # how often running requests may have to give way; 0: never
        ("margin", np.float64),  # by how much they must come behind
        ("itl_limit_s", np.float64),  # prefills are cut so that iterations with decodes take no longer; 0: not
        ("floor_mhz", np.float64),  # the lowest clock by deadlines; 0: the clock is set from outside
        ("step_mhz", np.float64),  # the distance of these clocks
        ("switch_s", np.float64),  # from asking for one of them until it is there
        ("ahead", np.bool_),  # it looks ahead of the next iteration
        ("prompt_token_s", np.float64),  # what a prompt token takes at the top clock, in a full iteration
        ("gpu", np.int64),  # which GPU it has a slice of, among all that are cut; NONE: it has whole ones
        # found
        ("state", np.int64),
        ("mhz", np.float64),
        ("running", np.int64),
        ("waiting", np.int64),
        ("landed", np.int64),  # of those that wait: with their cache, to go on decoding
        ("queue_head", np.int64),
        ("queue_tail", np.int64),
        ("first_lax", np.int64),  # under LLF: the first that waits with laxity left; before it come those that are late
        ("kv_used", np.int64),
        ("credit", np.float64),  # under routing by weights
        ("idle_since_s", np.float64),
        ("on_since_s", np.float64),  # or since its clock changed
        ("on_s", np.float64),
        ("mhz_s", np.float64),  # its clock over that time
        ("successors", np.int64),  # how many; above 0: it hands over everything when the iteration in flight ends
        ("successors_ready_s", np.float64),
        ("looked", np.int64),  # the last stretch of `preempts_s` in which somebody may have given way
        # when the clock by deadlines is looked at again: at a time while prompts wait, else at an iteration, and with
        # another number of answers under way
        ("look_s", np.float64),
        ("look_iteration", np.int64),
        ("look_decodes", np.int64),
        ("wanted_mhz", np.float64),  # the clock by deadlines last asked for
        ("own_mhz", np.float64),  # the clock that it would have on a GPU of its own
        ("coming_mhz", np.float64),  # that of the switch under way, and when it is there; infinite: none is under way
        ("comes_s", np.float64),
        # sums and counts of latencies so far, as engines count them: TTFT, gaps between tokens, E2E
        ("ttft_s", np.float64),
        ("ttfts", np.int64),
        ("gap_s", np.float64),
        ("gaps", np.int64),
        ("e2e_s", np.float64),
        ("e2es", np.int64),
        # the segment in flight: equal iterations, `steps` of them; 0: idle
        ("steps", np.int64),
        ("decodes", np.int64),
        ("resumed", np.int64),  # of these: the first time on this instance
        ("prefills", np.int64),
        ("prefill_tokens", np.int64),
        ("start_s", np.float64),
        ("end_s", np.float64),
        ("first_s", np.float64),  # of its first iteration, and how much longer each next one takes
        ("slope_s", np.float64),
        ("first_j", np.float64),
        ("slope_j", np.float64),
        ("prefill_j", np.float64),  # the prefills' part of its energy
        # so far
        ("spent_prefill_j", np.float64),
        ("spent_decode_j", np.float64),
        ("spent_idle_j", np.float64),
        ("spent_transition_j", np.float64),
        ("iterations", np.int64),
    ]
)
POOL = np.dtype(
    [
        ("routing", np.int64),
        ("size", np.int64),
        ("turn", np.int64),  # whose turn it is
        ("most_unstarted", np.int64),  # requests without a first token that an instance should have; 0: any number
        ("unplaced", np.int64),  # requests that wait for an instance to serve
        ("unplaced_head", np.int64),
        ("unplaced_tail", np.int64),
        # where it hands its requests over
        ("then", np.int64),
        ("split", np.int64),
        ("split_ratio", np.float64),
        ("token_s", np.float64),  # to send one token's KV cache
        ("latency_s", np.float64),
        ("chunked", np.int64),  # whether chunks are sent as they are computed
    ]
)


class FleetArrays(NamedTuple):
    """A run: few arrays, since each one costs with every call. I instances, P pools, C cells, W the largest batch.

    The kernel writes into them; the driver reads and changes them between its calls.
    """

    cost: Floats  # (I, COSTS)
    fit: Floats  # (I, FIT): step times that batches with a limit are composed by, at the clock that they were last at
    req: Any  # (N,) of REQUEST, in order of arrival
    eng: Any  # (I,) of INSTANCE
    pool: Any  # (P,) of POOL
    active: Ints  # (I, W), in order of admission
    tally: Counts  # (I, OWN_BINS) iterations with decodes by their length, so far
    own: Counts  # (R, OWN_BINS) the tally when a sequence began to decode; see `itl_begins`
    rows: Ints  # (R,) free rows of `own`
    members: Ints  # (P, I) instances of each pool
    spills: Ints  # (P, pools): those that take a pool's requests when its own instances cannot, in order; NONE: no more
    successors: Ints  # (I, MAX_SUCCESSORS)
    cell_pool: Ints  # (C,)
    cell_limit: Floats  # (C, 2): TTFT and TPOT that clocks by deadlines keep
    prompts: Any  # (MOST_PROMPTS,) of deadline_clock.PROMPT: what it is given
    seen: Ints  # (C, stretches, 3): requests, prompt tokens, predicted output tokens
    came: Floats  # (MOST_SEEN, 3), in turns: of requests that came when they did, their prompt tokens and their cell
    gaps: Ints  # (GAP_BINS,)
    series_j: Floats  # (I, bins)
    series_on_s: Floats  # (I, bins): how long each was not off
    bin_s: Floats  # (1,)
    counts: Ints  # see below
    log: Ints  # (events kept, 3): kind, request, instance
    log_s: Floats  # (events kept,)
    segments: Floats  # (segments kept, 9): see SEGMENT_COLUMNS
    walk: bool  # one iteration at a time: what macro-stepping is measured against


# fmt: off
SEGMENT_COLUMNS = (  # kv_tokens and waiting: at its end
    "instance", "start_s", "end_s", "steps", "decodes", "prefill_tokens", "kv_tokens", "waiting", "energy_j",
)
# fmt: on
# Entries of `counts`. COUPLED: requests that are to be handed over or are on their way, and instances that will leave.
# SEATS: places in the batches of instances that are on. HANDED_COUNT: requests in flight with `handed`.
(
    *(NEXT_ARRIVAL, IN_FLIGHT_COUNT, LOGGED, SEGMENTS, COUPLED, SEATS, HANDED_COUNT, FREE_ROWS, FLIGHTS, CAME),
    COUNTS,
) = range(11)


# -- arithmetic series -----------------------------------------------------------------------------


@compiled
def series(first: float, slope: float, m: int) -> float:
    """Returns first + (first + slope) + ... of m terms."""
    return m * first + slope * (m * (m - 1) / 2.0)


@compiled
def terms_within(first: float, slope: float, m: int, total: float) -> int:
    """Returns the largest j up to m for which the series of j terms is at most `total`."""
    if total < first:
        return 0
    b = first - slope / 2.0
    root = math.sqrt(max(0.0, b * b + 2.0 * slope * total))
    j = min(m, max(0, int(2.0 * total / (b + root))))
    while j < m and series(first, slope, j + 1) <= total:
        j += 1
    while j > 0 and series(first, slope, j) > total:
        j -= 1
    return j


@compiled
def gap_bin(gap_s: float, least_s: float, per_e: float, bins: int) -> int:
    """Returns the logarithmic bin that a gap between tokens falls into, `per_e` bins for a factor of e."""
    return min(bins - 1, int(per_e * math.log(max(gap_s, least_s) / least_s)))


@compiled
def count_gaps(
    bins: Any, least_s: float, per_e: float, first: float, slope: float, m: int, weight: int
) -> None:  # bins: Ints or Counts
    """Counts m gaps between tokens, each of `weight` sequences."""
    done, size = 0, bins.shape[0]
    while done < m:
        gap = first + slope * done
        place = gap_bin(gap, least_s, per_e, size)
        count = m - done
        if slope > 0.0 and place < size - 1:
            edge = least_s * math.exp((place + 1) / per_e)
            count = min(count, max(1, int((edge - gap) / slope) + 1))
        bins[place] += count * weight
        done += count


@compiled
def spread(series: Floats, width: float, i: int, start_s: float, end_s: float, amount: float) -> None:
    """Adds an amount to those of the bins (I, bins) of so many seconds that [start_s, end_s] falls into, evenly."""
    last = series.shape[1] - 1
    low, high = min(last, int(start_s / width)), min(last, int(end_s / width))
    if low == high:
        series[i, low] += amount
        return
    rate = amount / (end_s - start_s)
    left = amount
    for place in range(low, high):
        part = rate * ((place + 1) * width - max(start_s, place * width))
        series[i, place] += part
        left -= part
    series[i, high] += left


@compiled
def note(s: FleetArrays, kind: int, request: int, instance: int, at_s: float) -> None:
    """Appends an event to the log, while there is room."""
    n = s.counts[LOGGED]
    if n < s.log.shape[0]:
        s.log[n, 0] = kind
        s.log[n, 1] = s.req[request].number
        s.log[n, 2] = instance
        s.log_s[n] = at_s
    s.counts[LOGGED] = n + 1


# -- gaps between a request's tokens ---------------------------------------------------------------
# While a sequence decodes, its gaps are its instance's iterations. So the instance alone keeps a tally of them, and a
# sequence remembers what the tally was when it began: the difference is its own histogram. While it is preempted or
# moves, its row holds minus what it had so far.


@compiled
def itl_begins(s: FleetArrays, i: int, r: int) -> None:
    """Begins to count a request's gaps, from its first token on. `run_until` sees to it that there is a free row."""
    s.counts[FREE_ROWS] -= 1
    s.req[r].row = s.rows[s.counts[FREE_ROWS]]
    s.own[s.req[r].row] = s.tally[i]


@compiled
def itl_pauses(s: FleetArrays, i: int, r: int) -> None:
    """Sets the gaps counted so far apart from the tally, until `itl_resumes`."""
    s.own[s.req[r].row] -= s.tally[i]


@compiled
def itl_resumes(s: FleetArrays, i: int, r: int, gap_s: float) -> None:
    """Counts gaps by the tally again, and adds the long gap that the pause made."""
    row = s.own[s.req[r].row]
    row += s.tally[i]
    row[gap_bin(gap_s, OWN_MIN_S, OWN_BINS_PER_E, OWN_BINS)] -= 1


@compiled
def itl_ends(s: FleetArrays, i: int, r: int, gaps: int) -> None:
    """Sets a request's p50 and p99 by nearest rank, to the width of a bin."""
    if gaps > 0:
        tally, since, seen = s.tally[i], s.own[s.req[r].row], 0
        middle, high = (gaps + 1) // 2, (99 * gaps + 99) // 100
        for place in range(OWN_BINS):
            count = tally[place] - since[place]
            if count == 0:
                continue
            gap_s = OWN_MIN_S * math.exp((place + 0.5) / OWN_BINS_PER_E)
            if seen < middle:
                s.req[r].itl_p50_s = gap_s
            if seen < high:
                s.req[r].itl_p99_s = min(gap_s, s.req[r].itl_max_s)
            else:
                break
            seen += count
    s.rows[s.counts[FREE_ROWS]] = s.req[r].row
    s.counts[FREE_ROWS] += 1


# -- one instance ----------------------------------------------------------------------------------


@compiled
def to_compute(s: FleetArrays, r: int) -> int:
    """Returns the tokens to prefill before the next token, or before the prompt's first part is done."""
    if 0 < s.req[r].split < s.req[r].prompt:
        return int(s.req[r].split - s.req[r].computed)
    return int(s.req[r].prompt + s.req[r].generated - s.req[r].computed)


@compiled
def rank(s: FleetArrays, i: int, r: int) -> float:
    """Returns the key of the queue's order, the smallest first. What is common to all is left out."""
    return rank_with(s, i, r, int(s.req[r].to_prefill))


@compiled
def rank_with(s: FleetArrays, i: int, r: int, to_prefill: int) -> float:
    """Returns the rank of a request if so many tokens were left to prefill; under LLF: when it has to begin."""
    order = s.eng[i].order
    if order == EDF:
        return float(s.req[r].due_s)
    if order == SJF:  # predicted - aging x wait
        return float(s.req[r].predicted + s.eng[i].aging * s.req[r].arrival_s)
    work_s = left_s(s, i, r, to_prefill)
    return float(s.req[r].due_s - work_s) if order == LLF else work_s


@compiled
def left_s(s: FleetArrays, i: int, r: int, to_prefill: int) -> float:
    """Returns the estimated time of the rest of a request if so many tokens were left to prefill (T_remain)."""
    left = max(1, s.req[r].predicted - s.req[r].generated)
    return float(left * s.eng[i].token_s + to_prefill * s.eng[i].prefill_token_s)


@compiled
def to_prefill_again(s: FleetArrays, r: int) -> int:
    """Returns the tokens that a running request has to prefill once it has lost its cache."""
    return int(to_compute(s, r) + s.req[r].computed - s.req[r].cached)


@compiled
def is_late(s: FleetArrays, i: int, r: int, now_s: float) -> bool:
    """Says whether a request has less than no laxity: it cannot be in time any more (LLF)."""
    return bool(s.eng[i].order == LLF and rank(s, i, r) + TIE_S < now_s)


@compiled
def comes_before(s: FleetArrays, i: int, a: int, b: int, now_s: float) -> bool:
    """Says whether request `a` goes before `b` in the queue's order; of equals the smaller number does.

    Laxity below 0 counts as 0 (`queueing`): those that are late come first, the shortest of them before all.
    """
    late = is_late(s, i, a, now_s)
    if late != is_late(s, i, b, now_s):
        return late
    if late:
        first, second = left_s(s, i, a, int(s.req[a].to_prefill)), left_s(s, i, b, int(s.req[b].to_prefill))
    else:
        first, second = rank(s, i, a), rank(s, i, b)
    return first < second or (first == second and bool(s.req[a].number < s.req[b].number))


@compiled
def goes_on(s: FleetArrays, r: int) -> bool:
    """Whether one that waits has landed with the cache of all but its last token: it has only to decode."""
    return bool(s.req[r].generated > 0 and s.req[r].to_prefill == 1 and s.req[r].computed > s.req[r].cached)


@compiled
def place_in_queue(s: FleetArrays, i: int, r: int, now_s: float) -> int:
    """Returns the request behind which another comes in the queue; NONE: it is the next.

    Seeks from both ends at once.
    """
    front, back = int(s.eng[i].queue_head), int(s.eng[i].queue_tail)
    while back != NONE:
        if not comes_before(s, i, r, back, now_s):
            return back
        if comes_before(s, i, r, front, now_s):
            return int(s.req[front].before)
        front, back = int(s.req[front].next), int(s.req[back].before)
    return NONE


@compiled
def put_in(s: FleetArrays, i: int, r: int, before: int, now_s: float) -> None:
    """Lets a request wait behind another, or as the next."""
    after = s.eng[i].queue_head if before == NONE else s.req[before].next
    if s.eng[i].order == LLF and after == s.eng[i].first_lax and not is_late(s, i, r, now_s):
        s.eng[i].first_lax = r
    link(s, i, before, r)
    link(s, i, r, after)
    s.eng[i].waiting += 1


@compiled
def take_out(s: FleetArrays, i: int, r: int) -> None:
    """Removes a request from the queue."""
    if s.eng[i].landed > 0:
        s.eng[i].landed -= goes_on(s, r)
    if s.eng[i].first_lax == r:
        s.eng[i].first_lax = s.req[r].next
    link(s, i, s.req[r].before, s.req[r].next)
    s.req[r].before = NONE
    s.eng[i].waiting -= 1


@compiled
def last_shorter(s: FleetArrays, i: int, r: int) -> int:
    """Returns the last of the late requests before `r` in the queue that has less work left, or came first with as
    much; NONE: there is none. Seeks from both ends at once."""
    own_s, number = left_s(s, i, r, int(s.req[r].to_prefill)), s.req[r].number
    front, back = int(s.eng[i].queue_head), int(s.req[r].before)
    while back != NONE:
        back_s = left_s(s, i, back, int(s.req[back].to_prefill))
        if back_s < own_s or (back_s == own_s and s.req[back].number < number):
            return back
        front_s = left_s(s, i, front, int(s.req[front].to_prefill))
        if front_s > own_s or (front_s == own_s and s.req[front].number > number):
            return int(s.req[front].before)
        front, back = int(s.req[front].next), int(s.req[back].before)
    return NONE


@compiled
def let_late_ones_pass(s: FleetArrays, i: int, now_s: float) -> None:
    """Gives requests that wait, and have become late, their places among those that are (LLF)."""
    if s.eng[i].order != LLF:
        return
    r = int(s.eng[i].first_lax)
    while r != NONE and is_late(s, i, r, now_s):
        last, after = int(s.req[r].before), int(s.req[r].next)
        before = last_shorter(s, i, r)
        if before != last:
            link(s, i, last, after)
            link(s, i, r, int(s.eng[i].queue_head if before == NONE else s.req[before].next))
            link(s, i, before, r)
        s.eng[i].first_lax = after
        r = after


@compiled
def link(s: FleetArrays, i: int, before: int, after: int) -> None:
    """Makes two requests neighbours in the queue; NONE: its end."""
    if before == NONE:
        s.eng[i].queue_head = after
    else:
        s.req[before].next = after
    if after == NONE:
        s.eng[i].queue_tail = before
    else:
        s.req[after].before = before


@compiled
def last_running(s: FleetArrays, i: int, now_s: float) -> int:
    """Returns the place of who gives way first: the newest, or the last in an order that preempts."""
    place = s.eng[i].running - 1
    if s.eng[i].order != FCFS and s.eng[i].preempts_s > 0.0:
        for p in range(s.eng[i].running - 1):
            if comes_before(s, i, s.active[i, place], s.active[i, p], now_s):
                place = p
    return int(place)


@compiled
def preempt(s: FleetArrays, i: int, place: int, now_s: float) -> bool:
    """Sends a sequence back to the queue (its head, without an order) to be computed again; whether it was decoding."""
    r = s.active[i, place]
    s.eng[i].running -= 1
    for p in range(place, s.eng[i].running):
        s.active[i, p] = s.active[i, p + 1]
    decoding = s.req[r].to_prefill == 0
    if decoding:
        s.req[r].last_token_s = now_s
        itl_pauses(s, i, r)
    s.eng[i].kv_used -= s.req[r].kv
    s.req[r].kv = 0
    s.req[r].computed = s.req[r].cached
    s.req[r].to_prefill = to_compute(s, r)
    s.req[r].chunk = 0
    s.req[r].preemptions += 1
    put_in(s, i, r, NONE if s.eng[i].order == FCFS else place_in_queue(s, i, r, now_s), now_s)
    note(s, PREEMPTED, r, i, now_s)
    return bool(decoding)


@compiled
def would_give_way(s: FleetArrays, i: int, r: int, first: int, now_s: float) -> bool:
    """Says whether a running request gives way to one that waits, which is ahead by more than the margin.

    The running one's own work counts as it is then, with what it would compute again: else two might take the place
    from each other for ever. Under LLF it must be able to afford it (`queueing.gives_way`).
    """
    again = to_prefill_again(s, r)
    ahead, behind = rank(s, i, first), min(rank(s, i, r), rank_with(s, i, r, again))
    if s.eng[i].order == LLF:
        other_s = left_s(s, i, first, int(s.req[first].to_prefill))
        own_s = left_s(s, i, r, int(s.req[r].to_prefill))
        lost_s = max(0.0, left_s(s, i, r, again) - own_s)
        if other_s + lost_s >= own_s:
            return False
        ahead = max(ahead, now_s) + other_s
    return bool(ahead + s.eng[i].margin < behind)


@compiled
def give_way(s: FleetArrays, i: int, decodes: int, now_s: float) -> int:
    """Once in each stretch of `preempts_s`: running requests make room for waiting ones that come well before them.

    The last in the order go first, and nobody in vain: only if the next request then gets in.

    Returns how many decode after that.
    """
    stretch = int((now_s + TIE_S) / s.eng[i].preempts_s)
    if s.eng[i].waiting == 0 or stretch == s.eng[i].looked:
        return decodes
    s.eng[i].looked = stretch
    while s.eng[i].waiting > 0 and s.eng[i].running > 0:
        first = s.eng[i].queue_head
        need = s.req[first].to_prefill + s.req[first].computed
        free = s.eng[i].capacity - s.eng[i].kv_used - decodes
        seat = s.eng[i].running < s.eng[i].max_sequences
        if seat and need <= free:
            break
        place = NONE
        for p in range(s.eng[i].running):
            r = s.active[i, p]
            if would_give_way(s, i, r, first, now_s):
                free += s.req[r].kv + int(s.req[r].to_prefill == 0)
                if place == NONE or comes_before(s, i, s.active[i, place], r, now_s):
                    place = p
        if place == NONE or need > free:
            break
        decodes -= preempt(s, i, place, now_s)
    return decodes


@compiled
def resume(s: FleetArrays, i: int, decodes: int, now_s: float) -> int:
    """Takes requests that landed to go on decoding into the batch while there is a place and room for their next token.

    Returns how many decode after that.
    """
    r = s.eng[i].queue_head
    while s.eng[i].landed > 0 and s.eng[i].running < s.eng[i].max_sequences and r != NONE:
        after = s.req[r].next
        if goes_on(s, r):
            if s.eng[i].kv_used + decodes + s.req[r].computed + 1 > s.eng[i].capacity:
                return decodes
            take_out(s, i, r)
            s.active[i, s.eng[i].running] = r
            s.eng[i].running += 1
            s.eng[i].resumed += 1
            decodes += 1
            s.req[r].kv = s.req[r].computed
            s.eng[i].kv_used += s.req[r].kv
            s.req[r].to_prefill = 0
            note(s, ADMITTED, r, i, now_s)
        r = after
    return decodes


@compiled
def admit(s: FleetArrays, i: int, decodes: int, budget: int, now_s: float) -> None:
    """Takes requests from the queue in order, while a token of budget, a place and room for the whole prompt remain."""
    while s.eng[i].waiting > 0 and budget > 0 and s.eng[i].running < s.eng[i].max_sequences:
        r = s.eng[i].queue_head
        need = s.req[r].to_prefill + s.req[r].computed
        if s.eng[i].kv_used + decodes + need > s.eng[i].capacity:
            return
        take_out(s, i, r)
        s.active[i, s.eng[i].running] = r
        s.eng[i].running += 1
        s.req[r].kv = need
        s.eng[i].kv_used += need
        s.req[r].chunk = min(budget, s.eng[i].chunk_tokens, s.req[r].to_prefill)
        budget -= s.req[r].chunk
        note(s, ADMITTED, r, i, now_s)


@compiled
def within_limit(s: FleetArrays, i: int, budget: int, decodes: int, context: int) -> int:
    """Returns the tokens to prefill so that the iteration keeps `itl_limit_s` by the fit of its times, as vLLM with the
    plug-in learns them, as if they were one prompt's.

    That prompt is the first under way, or the next in the queue: its tokens in the cache count.
    """
    first = NONE
    for p in range(s.eng[i].running):
        if s.req[s.active[i, p]].to_prefill > 0:
            first = s.active[i, p]
            break
    if first == NONE:
        first = s.eng[i].queue_head
    if first == NONE or budget <= 0:
        return budget
    if s.fit[i, MHZ] != s.eng[i].mhz:
        bounds = s.eng[i].budget, s.eng[i].max_sequences, s.eng[i].whole
        s.fit[i] = fit_of(s.cost[i], s.eng[i].mhz, *bounds, s.eng[i].itl_limit_s)
    room = prompt_budget(s.fit[i], decodes, context, s.req[first].computed, s.eng[i].itl_limit_s, budget)
    return min(budget, max(LEAST_PROMPT_TOKENS, room))


@compiled
def paced_mhz(s: FleetArrays, i: int, decodes: int, context: int, now_s: float) -> float:
    """Returns the clock by deadlines for what an instance has now."""
    slack_s, tpot_s, n = NO_SLACK_S, np.inf, 0
    for p in range(s.eng[i].running):
        r = s.active[i, p]
        limit_s = s.cell_limit[s.req[r].cell, 1]
        tpot_s = min(tpot_s, limit_s)
        if s.req[r].to_prefill > 0:
            n = prompt_ahead(s, r, n)
        else:
            ahead_s = limit_s * (s.req[r].generated - 1) - (now_s - s.req[r].first_token_s)
            slack_s = min(slack_s, ahead_s)
    r = s.eng[i].queue_head
    while r != NONE and n < MOST_PROMPTS:
        tpot_s = min(tpot_s, s.cell_limit[s.req[r].cell, 1])
        n = prompt_ahead(s, r, n)
        r = s.req[r].next
    c, floor_mhz, step_mhz, prompts = s.cost[i], s.eng[i].floor_mhz, s.eng[i].step_mhz, s.prompts[:n]
    bounds = s.eng[i].budget, s.eng[i].chunk_tokens, s.eng[i].max_sequences
    if not s.eng[i].ahead:
        return next_iteration_mhz(c, floor_mhz, step_mhz, prompts, decodes, context, tpot_s, now_s, *bounds)
    cache, seats = s.eng[i].kv_used / s.eng[i].capacity, s.eng[i].running / s.eng[i].max_sequences
    share = left_of_limits(cache, seats, s.eng[i].running)
    asked = s.eng[i].wanted_mhz, s.eng[i].switch_s
    mhz = lowest_after_switch(
        c, *asked, floor_mhz, step_mhz, prompts, decodes, context, slack_s, tpot_s, now_s, *bounds
    )
    return hurried_mhz(c, mhz, floor_mhz, step_mhz, prompts, decodes, context, slack_s, tpot_s, now_s, *bounds, share)


@compiled
def prompt_ahead(s: FleetArrays, r: int, n: int) -> int:
    """Adds the n-th of the prompts that the clock by deadlines is given; returns how many there are then."""
    if n < MOST_PROMPTS:
        due_s = np.inf
        if s.req[r].generated == 0:
            due_s = s.req[r].arrival_s + s.cell_limit[s.req[r].cell, 0]
        s.prompts[n].left, s.prompts[n].done, s.prompts[n].due_s = s.req[r].to_prefill, s.req[r].computed, due_s
        n += 1
    return n


@compiled
def looks(s: FleetArrays, i: int, decodes: int, now_s: float) -> bool:
    """Says whether it is time to look at the clock by deadlines: the same moments, however time goes on."""
    if s.eng[i].waiting > 0 or s.eng[i].running > decodes:
        return bool(now_s >= s.eng[i].look_s - TIE_S)
    return bool(s.eng[i].iterations >= s.eng[i].look_iteration or s.eng[i].look_decodes != decodes)


@compiled
def ask_clock(s: FleetArrays, i: int, mhz: float, now_s: float) -> None:
    """Asks for another clock by deadlines. One switch follows another: what is asked for meanwhile waits its turn."""
    s.eng[i].wanted_mhz = mhz
    if s.eng[i].switch_s <= 0.0:
        take_clock(s, i, mhz, now_s)
    elif s.eng[i].comes_s == np.inf and mhz != s.eng[i].own_mhz:
        s.eng[i].coming_mhz, s.eng[i].comes_s = mhz, now_s + s.eng[i].switch_s


@compiled
def take_clock(s: FleetArrays, i: int, mhz: float, now_s: float) -> None:
    """Lets an instance go on at another clock."""
    mhz = clock_of_gpu(s, i, mhz, now_s)
    if mhz != s.eng[i].mhz:
        account_time(s, i, max(now_s, s.eng[i].on_since_s))
        s.eng[i].mhz = mhz


@compiled
def clock_of_gpu(s: FleetArrays, i: int, mhz: float, now_s: float) -> float:
    """Returns the clock that an instance gets which would have `mhz`: on a slice the highest that anyone on the GPU
    would have, which the others there get with it."""
    s.eng[i].own_mhz = mhz
    return mhz if s.eng[i].gpu == NONE else share_clock(s, i, now_s)


@compiled
def share_clock(s: FleetArrays, i: int, now_s: float) -> float:
    """Returns the clock of the GPU that an instance has a slice of, and gives it to the others there."""
    mhz = 0.0
    for j in range(s.eng.size):
        if s.eng[j].gpu == s.eng[i].gpu and s.eng[j].state != OFF:
            mhz = max(mhz, s.eng[j].own_mhz)
    for j in range(s.eng.size):
        if j == i or s.eng[j].gpu != s.eng[i].gpu or s.eng[j].state == OFF or s.eng[j].mhz == mhz:
            continue
        if s.eng[j].steps == 0:
            idle_up_to(s, j, now_s)
        account_time(s, j, max(now_s, s.eng[j].on_since_s))
        s.eng[j].mhz = mhz
        cut(s, j, now_s)
    return mhz


@compiled
def take_switches(s: FleetArrays, i: int, now_s: float) -> None:
    """Takes the clocks that are there by now."""
    while s.eng[i].comes_s <= now_s + TIE_S:
        comes_s = s.eng[i].comes_s
        take_clock(s, i, s.eng[i].coming_mhz, comes_s)
        s.eng[i].comes_s = np.inf
        ask_clock(s, i, s.eng[i].wanted_mhz, comes_s)


@compiled
def begin(s: FleetArrays, i: int, now_s: float) -> None:
    """Composes the next iteration (or as many equal ones as follow each other), or lets the instance idle."""
    take_switches(s, i, now_s)
    if s.eng[i].successors > 0:
        leave(s, i, now_s)
        return
    decodes = 0
    for p in range(s.eng[i].running):
        if s.req[s.active[i, p]].to_prefill == 0:
            decodes += 1
    let_late_ones_pass(s, i, now_s)
    if s.eng[i].preempts_s > 0.0:
        decodes = give_way(s, i, decodes, now_s)
    preempted = False
    while decodes > 0 and s.eng[i].kv_used + decodes > s.eng[i].capacity:
        if preempt(s, i, last_running(s, i, now_s), now_s):
            decodes -= 1
        preempted = True
    s.eng[i].resumed = 0
    if s.eng[i].landed > 0 and not preempted:
        decodes = resume(s, i, decodes, now_s)
    context, shortest = 0, 0
    for p in range(s.eng[i].running):
        r = s.active[i, p]
        if s.req[r].to_prefill == 0:
            context += s.req[r].kv + 1
            left = s.req[r].output - s.req[r].generated
            if s.req[r].split > 0:
                left = min(left, s.req[r].split - s.req[r].kv)
            shortest = left if shortest == 0 else min(shortest, left)
    if s.eng[i].floor_mhz > 0.0 and looks(s, i, decodes, now_s):
        ask_clock(s, i, paced_mhz(s, i, decodes, context, now_s), now_s)
        s.eng[i].look_s = now_s + LOOK_S if s.eng[i].ahead else now_s
        s.eng[i].look_iteration, s.eng[i].look_decodes = s.eng[i].iterations + CATCH_UP, decodes
    budget = s.eng[i].budget - decodes
    if s.eng[i].itl_limit_s > 0.0 and decodes > 0:
        budget = within_limit(s, i, budget, decodes, context)
    for p in range(s.eng[i].running):
        r = s.active[i, p]
        if s.req[r].to_prefill > 0:
            s.req[r].chunk = min(max(budget, 0), s.eng[i].chunk_tokens, s.req[r].to_prefill)
            budget -= s.req[r].chunk
    if not preempted:  # the cache is short: admitting now would only preempt again
        admit(s, i, decodes, budget, now_s)
    new, cached, pairs, prefills = 0, 0, 0.0, 0
    for p in range(s.eng[i].running):
        r = s.active[i, p]
        if s.req[r].chunk > 0:
            prefills += 1
            new += s.req[r].chunk
            cached += s.req[r].computed
            pairs += s.req[r].chunk * (s.req[r].computed + s.req[r].chunk / 2.0)
    s.eng[i].decodes, s.eng[i].prefills, s.eng[i].prefill_tokens, s.eng[i].start_s = decodes, prefills, new, now_s
    if decodes + prefills == 0:
        rest(s, i, now_s)
        return
    if prefills > 0:
        one_iteration(s, i, float(new), float(cached), pairs, float(prefills), float(decodes), float(context))
        return
    steps = min(shortest, (s.eng[i].capacity - s.eng[i].kv_used) // decodes)
    if s.eng[i].floor_mhz > 0.0:
        steps = min(steps, s.eng[i].look_iteration - s.eng[i].iterations)
    single = preempted or s.walk or s.eng[i].resumed > 0  # the gap before a resumed one's token is its own
    many_iterations(s, i, 1 if single else steps, decodes, context)
    if s.eng[i].preempts_s > 0.0 and s.eng[i].waiting > 0:  # look again with the first iteration of the next stretch
        cut(s, i, s.eng[i].preempts_s * (s.eng[i].looked + 1) - 2.0 * TIE_S)
    if s.eng[i].first_lax != NONE:  # and when the next request becomes late
        cut(s, i, rank(s, i, int(s.eng[i].first_lax)))


@compiled
def rest(s: FleetArrays, i: int, now_s: float) -> None:
    """Nothing to do. A draining instance is off now."""
    s.eng[i].steps = 0
    s.eng[i].idle_since_s = now_s
    if s.eng[i].floor_mhz > 0.0:
        ask_clock(s, i, s.eng[i].floor_mhz, now_s)
    if s.eng[i].state == DRAINING and s.eng[i].waiting == 0:
        switch_off(s, i, now_s)


@compiled
def switching_iteration(
    s: FleetArrays, i: int, new: float, cached: float, pairs: float, prefills: float, decodes: float, context: float
) -> tuple[float, float, float]:
    """Returns the seconds and joules of an iteration, and the joules of its decodes alone, through the clocks that come
    while it runs: at each of them its share of the work."""
    took_s, energy_j, alone_j, left = 0.0, 0.0, 0.0, 1.0
    mhz, coming_mhz, in_s = s.eng[i].mhz, s.eng[i].coming_mhz, s.eng[i].comes_s - s.eng[i].start_s
    if s.eng[i].gpu != NONE:  # whether it gets the clock that comes depends on others: from the next iteration on
        in_s = np.inf
    while True:
        t_s, own_j, _ = iteration(s.cost[i], mhz, new, cached, pairs, prefills, decodes, context)
        ends = took_s + left * t_s <= in_s
        part = left if ends else max(0.0, in_s - took_s) / t_s
        energy_j += part * own_j
        if prefills > 0.0 and decodes > 0.0:
            alone_j += part * iteration(s.cost[i], mhz, 0.0, 0.0, 0.0, 0.0, decodes, context)[1]
        if ends:
            return took_s + left * t_s, energy_j, alone_j
        took_s, left = in_s, left - part
        mhz, coming_mhz = coming_mhz, s.eng[i].wanted_mhz
        in_s = np.inf if coming_mhz == mhz else in_s + s.eng[i].switch_s


@compiled
def one_iteration(
    s: FleetArrays, i: int, new: float, cached: float, pairs: float, prefills: float, decodes: float, context: float
) -> None:
    """Begins an iteration with prefills: the decoding sequences pay what they would have cost alone, the prefills the
    rest."""
    t_s, energy_j, alone_j = switching_iteration(s, i, new, cached, pairs, prefills, decodes, context)
    s.eng[i].steps, s.eng[i].first_s, s.eng[i].slope_s, s.eng[i].first_j, s.eng[i].slope_j = 1, t_s, 0.0, energy_j, 0.0
    s.eng[i].prefill_j = max(0.0, energy_j - alone_j)
    s.eng[i].end_s = s.eng[i].start_s + t_s


@compiled
def many_iterations(s: FleetArrays, i: int, steps: int, decodes: int, context: int) -> None:
    """Begins up to `steps` decode-only iterations of one regime: time and energy rise by the same amount with each."""
    c, mhz, b = s.cost[i], s.eng[i].mhz, float(decodes)
    first_s, first_j, regime = iteration(c, mhz, 0.0, 0.0, 0.0, 0.0, b, float(context))
    last_s, last_j = first_s, first_j
    if regime == 2:
        steps = 1
    if steps > 1:
        last_s, last_j, other = iteration(c, mhz, 0.0, 0.0, 0.0, 0.0, b, context + b * (steps - 1))
        if other != regime:  # both borders are crossed at most once, since time and power are monotone in K
            low, high = 1, steps
            while high - low > 1:
                middle = (low + high) // 2
                same = iteration(c, mhz, 0.0, 0.0, 0.0, 0.0, b, context + b * (middle - 1))[2] == regime
                low, high = (middle, high) if same else (low, middle)
            steps = low
            last_s, last_j, _ = iteration(c, mhz, 0.0, 0.0, 0.0, 0.0, b, context + b * (steps - 1))
    s.eng[i].steps, s.eng[i].first_s, s.eng[i].first_j, s.eng[i].prefill_j = steps, first_s, first_j, 0.0
    s.eng[i].slope_s = (last_s - first_s) / (steps - 1) if steps > 1 else 0.0
    s.eng[i].slope_j = (last_j - first_j) / (steps - 1) if steps > 1 else 0.0
    in_s = s.eng[i].comes_s - s.eng[i].start_s
    if in_s < series(first_s, s.eng[i].slope_s, steps):  # up to the iteration in which another clock comes
        steps = terms_within(first_s, s.eng[i].slope_s, steps, in_s)
        if steps == 0:
            steps, s.eng[i].slope_s, s.eng[i].slope_j = 1, 0.0, 0.0
            s.eng[i].first_s, s.eng[i].first_j, _ = switching_iteration(s, i, 0.0, 0.0, 0.0, 0.0, b, float(context))
        s.eng[i].steps = steps
    s.eng[i].end_s = s.eng[i].start_s + series(s.eng[i].first_s, s.eng[i].slope_s, steps)


@compiled
def cut(s: FleetArrays, i: int, at_s: float) -> None:
    """Ends a jump with the iteration that is in flight at `at_s`: something has changed."""
    if s.eng[i].steps > 1:
        gone = terms_within(s.eng[i].first_s, s.eng[i].slope_s, s.eng[i].steps, at_s + TIE_S - s.eng[i].start_s)
        s.eng[i].steps = min(s.eng[i].steps, gone + 1)
        s.eng[i].end_s = s.eng[i].start_s + series(s.eng[i].first_s, s.eng[i].slope_s, s.eng[i].steps)


@compiled
def complete(s: FleetArrays, i: int) -> None:
    """Completes the segment in flight, and records its tokens, times, energy; sequences that are done leave."""
    m, end_s, n = s.eng[i].steps, s.eng[i].end_s, s.eng[i].running
    energy_j = series(s.eng[i].first_j, s.eng[i].slope_j, m)
    decode_j = energy_j - s.eng[i].prefill_j
    s.eng[i].spent_decode_j += decode_j
    s.eng[i].spent_prefill_j += s.eng[i].prefill_j
    s.eng[i].iterations += m
    spread(s.series_j, s.bin_s[0], i, s.eng[i].start_s, end_s, energy_j)
    if s.eng[i].decodes > 0:
        resumed = s.eng[i].resumed
        steady = s.eng[i].decodes - resumed
        s.eng[i].gap_s += steady * (end_s - s.eng[i].start_s)
        s.eng[i].gaps += steady * m
        count_gaps(s.gaps, GAP_MIN_S, GAP_BINS_PER_E, s.eng[i].first_s, s.eng[i].slope_s, m, steady)
        count_gaps(s.tally[i], OWN_MIN_S, OWN_BINS_PER_E, s.eng[i].first_s, s.eng[i].slope_s, m, 1)
        longest_s = s.eng[i].first_s + s.eng[i].slope_s * (m - 1)
        share_j = decode_j / s.eng[i].decodes
        for p in range(n):
            r = s.active[i, p]
            if s.req[r].to_prefill > 0:
                continue
            s.req[r].kv += m
            s.req[r].generated += m
            s.req[r].energy_j += share_j
            if resumed > 0 and not math.isnan(s.req[r].last_token_s):
                pause_ends(s, i, r, end_s)
            else:
                s.req[r].itl_max_s = max(s.req[r].itl_max_s, longest_s)
            if end_s <= s.req[r].deadline_s + TIE_S:
                s.req[r].timely += m
            elif s.eng[i].start_s < s.req[r].deadline_s:
                limit_s = s.req[r].deadline_s + TIE_S - s.eng[i].start_s
                s.req[r].timely += terms_within(s.eng[i].first_s, s.eng[i].slope_s, m, limit_s)
            if s.req[r].generated == s.req[r].output:
                finish(s, r, i, end_s)
            elif s.req[r].split > 0 and s.req[r].kv >= s.req[r].split:
                hand_over(s, r, i, end_s)
        s.eng[i].kv_used += m * s.eng[i].decodes
    if s.eng[i].prefills > 0:
        per_token_j = s.eng[i].prefill_j / s.eng[i].prefill_tokens
        for p in range(n):
            r = s.active[i, p]
            if s.req[r].chunk > 0:
                prefilled(s, i, r, end_s, per_token_j)
    if s.segments.shape[0] > 0:
        log_segment(s, i, energy_j)
    kept = 0
    for p in range(n):
        r = s.active[i, p]
        if s.req[r].status == IN_FLIGHT and s.req[r].instance == i:
            s.active[i, kept] = r
            kept += 1
        else:
            s.eng[i].kv_used -= s.req[r].kv
            s.req[r].kv = 0
    s.eng[i].running = kept


@compiled
def prefilled(s: FleetArrays, i: int, r: int, at_s: float, per_token_j: float) -> None:
    """A chunk is done; with the prompt's last one comes a token."""
    s.req[r].energy_j += per_token_j * s.req[r].chunk
    s.req[r].computed += s.req[r].chunk
    s.req[r].to_prefill -= s.req[r].chunk
    s.req[r].chunk = 0
    if s.req[r].split > 0 and s.pool[s.req[r].pool].chunked != 0:
        send(s, r, s.req[r].computed, at_s)
    if s.req[r].to_prefill > 0:
        return
    if s.req[r].computed < s.req[r].prompt:  # its first part ends within the prompt
        hand_over(s, r, i, at_s)
        return
    if s.req[r].generated == 0:
        s.req[r].first_token_s = at_s
        s.eng[i].ttft_s += at_s - s.req[r].arrival_s
        s.eng[i].ttfts += 1
        itl_begins(s, i, r)
        note(s, FIRST_TOKEN, r, i, at_s)
    else:  # computed again after a preemption
        pause_ends(s, i, r, at_s)
    s.req[r].generated += 1
    if at_s <= s.req[r].deadline_s + TIE_S:
        s.req[r].timely += 1
    if s.req[r].generated == s.req[r].output:
        finish(s, r, i, at_s)
    elif s.req[r].split > 0 and s.req[r].kv >= s.req[r].split:
        hand_over(s, r, i, at_s)


@compiled
def pause_ends(s: FleetArrays, i: int, r: int, at_s: float) -> None:
    """Records the next token after a preemption, or on another instance. The tally has this iteration already."""
    gap_s = at_s - s.req[r].last_token_s
    s.req[r].last_token_s = math.nan
    s.req[r].itl_max_s = max(s.req[r].itl_max_s, gap_s)
    s.eng[i].gap_s += gap_s
    s.eng[i].gaps += 1
    count_gaps(s.gaps, GAP_MIN_S, GAP_BINS_PER_E, gap_s, 0.0, 1, 1)
    itl_resumes(s, i, r, gap_s)


@compiled
def finish(s: FleetArrays, r: int, i: int, at_s: float) -> None:
    """Ends a request, and counts its E2E latency with its instance."""
    s.req[r].finish_s = at_s
    s.req[r].status = DONE
    gaps = s.req[r].generated - 1
    itl_ends(s, i, r, gaps)
    s.eng[i].e2e_s += at_s - s.req[r].arrival_s
    s.eng[i].e2es += 1
    s.counts[IN_FLIGHT_COUNT] -= 1
    if s.req[r].split > 0:  # it ended before it was to be handed over
        s.counts[COUPLED] -= 1
    s.counts[HANDED_COUNT] -= s.req[r].handed
    note(s, FINISHED, r, i, at_s)


# -- from one instance to another ------------------------------------------------------------------


@compiled
def send(s: FleetArrays, r: int, tokens: int, now_s: float) -> None:
    """Puts the KV cache of tokens not sent yet on the link, behind what is on it already."""
    if tokens > s.req[r].sent:
        s.req[r].sent_s = max(s.req[r].sent_s, now_s) + (tokens - s.req[r].sent) * s.pool[s.req[r].pool].token_s
        s.req[r].sent = tokens


@compiled
def hand_over(s: FleetArrays, r: int, i: int, now_s: float) -> None:
    """Ends a request's part on this instance; its cache goes to an instance of the next pool."""
    send(s, r, s.req[r].computed if s.req[r].generated == 0 else s.req[r].kv, now_s)
    pool = s.req[r].pool
    s.req[r].split = 0
    s.req[r].pool = s.pool[pool].then
    move(s, r, i, now_s, max(now_s, s.req[r].sent_s) + s.pool[pool].latency_s, s.req[r].target)


@compiled
def move(s: FleetArrays, r: int, i: int, now_s: float, lands_s: float, target: int) -> None:
    """Takes a request out of an instance, its KV cache with it; it lands later. The caller frees the cache."""
    if s.req[r].generated > 0 and s.req[r].to_prefill == 0:
        s.req[r].computed = s.req[r].kv
        s.req[r].last_token_s = now_s
        itl_pauses(s, i, r)
    s.req[r].to_prefill = to_compute(s, r)
    s.req[r].chunk = 0
    s.req[r].instance = NONE
    s.req[r].lands_s = lands_s
    s.req[r].target = target
    note(s, HANDED_OVER, r, i, now_s)
    before, after = NONE, s.counts[FLIGHTS]
    while after != NONE and lands_before(s, after, r):
        before, after = after, s.req[after].next
    s.req[r].next = after
    if before == NONE:
        s.counts[FLIGHTS] = r
    else:
        s.req[before].next = r


@compiled
def lands_before(s: FleetArrays, a: int, b: int) -> bool:
    """Says whether `a` lands before `b`; who lands within TIE_S of another one goes by number."""
    if abs(s.req[a].lands_s - s.req[b].lands_s) <= TIE_S:
        return bool(s.req[a].number < s.req[b].number)
    return bool(s.req[a].lands_s < s.req[b].lands_s)


@compiled
def land(s: FleetArrays) -> None:
    """The first of those on their way joins its instance, or one of its pool when that has gone."""
    r = s.counts[FLIGHTS]
    s.counts[FLIGHTS] = s.req[r].next
    s.counts[COUPLED] -= 1
    now_s, target, need = s.req[r].lands_s, s.req[r].target, s.req[r].prompt + s.req[r].output
    s.req[r].target = NONE
    if (
        target != NONE
        and s.eng[target].state >= SERVING
        and s.eng[target].successors == 0
        and need <= s.eng[target].whole
    ):
        s.req[r].instance = target
        enqueue(s, r, target, now_s)
    else:
        dispatch(s, r, now_s)


@compiled
def leave(s: FleetArrays, i: int, now_s: float) -> None:
    """Everything this instance has goes to its successors by turns, the running ones first."""
    lands_s = max(now_s, s.eng[i].successors_ready_s)
    count = 0
    for p in range(s.eng[i].running):
        r = s.active[i, p]
        move(s, r, i, now_s, lands_s, s.successors[i, count % s.eng[i].successors])
        s.req[r].kv = 0
        count += 1
    r = s.eng[i].queue_head
    while r != NONE:
        after = s.req[r].next
        s.req[r].before = NONE
        move(s, r, i, now_s, lands_s, s.successors[i, count % s.eng[i].successors])
        count += 1
        r = after
    s.counts[COUPLED] += count - 1
    s.eng[i].running = s.eng[i].waiting = s.eng[i].landed = s.eng[i].kv_used = s.eng[i].successors = s.eng[i].steps = 0
    s.eng[i].queue_head = s.eng[i].queue_tail = s.eng[i].first_lax = NONE
    s.eng[i].idle_since_s = now_s
    if now_s < s.eng[i].successors_ready_s:
        s.eng[i].state = STARTING
    else:
        switch_off(s, i, now_s)


@compiled
def log_segment(s: FleetArrays, i: int, energy_j: float) -> None:
    """Appends the segment in flight to the segments kept, while there is room."""
    n = s.counts[SEGMENTS]
    if n < s.segments.shape[0]:
        row = s.segments[n]
        row[0], row[1], row[2], row[3] = i, s.eng[i].start_s, s.eng[i].end_s, s.eng[i].steps
        row[4], row[5], row[6] = s.eng[i].decodes, s.eng[i].prefill_tokens, s.eng[i].kv_used
        row[7], row[8] = s.eng[i].waiting, energy_j
    s.counts[SEGMENTS] = n + 1


@compiled
def advance(s: FleetArrays, i: int, to_s: float) -> None:
    """Lives through every iteration of an instance that ends by `to_s`."""
    while s.eng[i].steps > 0 and s.eng[i].end_s <= to_s + TIE_S:
        end_s = s.eng[i].end_s
        complete(s, i)
        begin(s, i, end_s)


@compiled
def settle_idle(s: FleetArrays, i: int, now_s: float) -> None:
    """Adds the energy of doing nothing up to now, at the clocks of that time."""
    if s.eng[i].steps > 0:
        return
    while s.eng[i].comes_s <= now_s:
        comes_s = s.eng[i].comes_s
        idle_up_to(s, i, comes_s)
        take_switches(s, i, comes_s)
    idle_up_to(s, i, now_s)


@compiled
def idle_up_to(s: FleetArrays, i: int, now_s: float) -> None:
    """Adds the energy of doing nothing up to now, at the clock that it has."""
    if now_s <= s.eng[i].idle_since_s:
        return
    if s.eng[i].state != OFF:
        energy_j = idle_watts(s.cost[i], s.eng[i].mhz) * (now_s - s.eng[i].idle_since_s)
        if s.eng[i].state == STARTING:
            s.eng[i].spent_transition_j += energy_j
        else:
            s.eng[i].spent_idle_j += energy_j
        spread(s.series_j, s.bin_s[0], i, s.eng[i].idle_since_s, now_s, energy_j)
    s.eng[i].idle_since_s = now_s


# -- life of an instance; the driver calls these when the instance has been advanced to now ---------


@compiled
def switch_on(s: FleetArrays, i: int, mhz: float, now_s: float) -> None:
    """Begins an instance's start; its time on counts from now."""
    s.eng[i].state = STARTING
    s.eng[i].mhz = s.eng[i].wanted_mhz = s.eng[i].own_mhz = mhz
    s.eng[i].comes_s = np.inf
    s.eng[i].idle_since_s = s.eng[i].on_since_s = now_s
    s.counts[SEATS] += s.eng[i].max_sequences


@compiled
def account_time(s: FleetArrays, i: int, now_s: float) -> None:
    """Adds the time that it has been on, and the clock over that time."""
    if s.eng[i].state != OFF:
        took_s = now_s - s.eng[i].on_since_s
        s.eng[i].on_s += took_s
        s.eng[i].mhz_s += s.eng[i].mhz * took_s
        spread(s.series_on_s, s.bin_s[0], i, s.eng[i].on_since_s, now_s, took_s)
        s.eng[i].on_since_s = now_s


@compiled
def switch_off(s: FleetArrays, i: int, now_s: float) -> None:
    """Ends an instance, with its idle energy and its time accounted for."""
    settle_idle(s, i, now_s)
    account_time(s, i, now_s)
    s.eng[i].state = OFF
    if s.eng[i].gpu != NONE:
        share_clock(s, i, now_s)
    s.counts[SEATS] -= s.eng[i].max_sequences


@compiled
def serve(s: FleetArrays, i: int, pool: int, now_s: float) -> None:
    """Joins its pool; requests that waited for somebody are dispatched."""
    settle_idle(s, i, now_s)
    s.eng[i].state = SERVING
    if s.eng[i].floor_mhz > 0.0:  # nothing is to be done yet, and it may have had the clock while it started
        s.eng[i].wanted_mhz = s.eng[i].floor_mhz
        take_clock(s, i, s.eng[i].floor_mhz, now_s)
    s.eng[i].capacity = s.eng[i].whole
    s.members[pool, s.pool[pool].size] = i
    s.pool[pool].size += 1
    r = s.pool[pool].unplaced_head
    s.pool[pool].unplaced_head = s.pool[pool].unplaced_tail = NONE
    s.pool[pool].unplaced = 0
    while r != NONE:
        after = s.req[r].next
        dispatch(s, r, now_s)
        r = after


@compiled
def withdraw(s: FleetArrays, i: int, pool: int) -> None:
    """Leaves its pool: no new requests. What it has stays."""
    kept = 0
    for k in range(s.pool[pool].size):
        if s.members[pool, k] != i:
            s.members[pool, kept] = s.members[pool, k]
            kept += 1
    s.pool[pool].size = kept


@compiled
def drain(s: FleetArrays, i: int, now_s: float) -> None:
    """Switches an instance off as soon as its last request has ended. It must have left its pool."""
    if s.eng[i].state == STARTING:
        switch_off(s, i, now_s)
        return
    s.eng[i].state = DRAINING
    if s.eng[i].steps == 0 and s.eng[i].waiting == 0:
        switch_off(s, i, now_s)


@compiled
def retire(s: FleetArrays, i: int, successors: Ints, ready_s: float, now_s: float) -> None:
    """Hands everything over to `successors`, (n,), with the end of the iteration in flight; they begin at `ready_s`."""
    for k in range(successors.shape[0]):
        s.successors[i, k] = successors[k]
    s.eng[i].successors, s.eng[i].successors_ready_s = successors.shape[0], ready_s
    s.counts[COUPLED] += 1
    for p in range(s.eng[i].running):
        will_be_handed(s, s.active[i, p])
    r = s.eng[i].queue_head
    while r != NONE:
        will_be_handed(s, r)
        r = s.req[r].next
    if s.eng[i].steps == 0:
        settle_idle(s, i, now_s)
        leave(s, i, now_s)
    else:
        cut(s, i, now_s)


@compiled
def will_be_handed(s: FleetArrays, r: int) -> None:
    """Counts a request, once, among those that are handed over."""
    s.counts[HANDED_COUNT] += 1 - s.req[r].handed
    s.req[r].handed = 1


@compiled
def set_clock(s: FleetArrays, i: int, mhz: float, now_s: float) -> None:
    """Sets a clock that holds from now on when idle, from the next iteration on when busy."""
    mhz = clock_of_gpu(s, i, mhz, now_s)
    if mhz != s.eng[i].mhz:
        settle_idle(s, i, now_s)
        account_time(s, i, now_s)
        s.eng[i].mhz = mhz
        cut(s, i, now_s)


@compiled
def set_capacity(s: FleetArrays, i: int, tokens: int, now_s: float) -> None:
    """Sets how much of its KV cache an instance may use, from the next iteration on."""
    s.eng[i].capacity = tokens
    cut(s, i, now_s)


# -- the fleet -------------------------------------------------------------------------------------


@compiled
def is_full(s: FleetArrays, i: int, most: int, now_s: float) -> bool:
    """Says whether an instance has as many requests without a first token as it should have; `most` 0: it never has."""
    if most == 0:
        return False
    advance(s, i, now_s)
    unstarted = s.eng[i].waiting
    if unstarted + s.eng[i].running < most:
        return False
    for p in range(s.eng[i].running):
        unstarted += s.req[s.active[i, p]].to_prefill > 0
    return bool(unstarted >= most)


@compiled
def choose(s: FleetArrays, r: int, now_s: float) -> int:
    """Chooses the instance for a request; NONE: it never fits any of its own pool.

    Where its own pool's are all full, those of other pools are asked, and where all are, it waits at its own.
    """
    pool = s.req[r].pool
    i = choose_of(s, r, pool, s.pool[pool].most_unstarted, now_s)
    if i == NONE and s.pool[pool].most_unstarted > 0:
        i = spilled(s, r, s.pool[pool].most_unstarted, now_s)
        if i == NONE:
            i = choose_of(s, r, pool, 0, now_s)
    return i


@compiled
def spilled(s: FleetArrays, r: int, most: int, now_s: float) -> int:
    """Chooses an instance of another pool that may take the request, as `most` has it; NONE: there is none."""
    for k in range(s.spills.shape[1]):
        other = s.spills[s.req[r].pool, k]
        if other == NONE:
            break
        i = choose_of(s, r, other, most, now_s)
        if i != NONE:
            return i
    return NONE


@compiled
def choose_of(s: FleetArrays, r: int, pool: int, most: int, now_s: float) -> int:
    """Chooses among the instances of a pool that a request fits into and that are not full; NONE: there is none."""
    routing, size = s.pool[pool].routing, s.pool[pool].size
    need = s.req[r].prompt + s.req[r].output
    best, least, total = NONE, 0.0, 0.0
    for k in range(size):
        turn = (s.pool[pool].turn + k) % size if routing == ROUND_ROBIN else k
        i = s.members[pool, turn]
        if need > s.eng[i].whole or is_full(s, i, most, now_s):
            continue
        if routing == ROUND_ROBIN:
            s.pool[pool].turn = turn + 1
            return int(i)
        if routing in (LEAST_LOADED, LEAST_BACKLOG, LEAST_ENERGY):
            advance(s, i, now_s)
            score = (s.eng[i].running + s.eng[i].waiting + 1) / s.eng[i].weight
            if routing == LEAST_BACKLOG:
                score = backlog_score(s, i, r, score)
            elif routing == LEAST_ENERGY:
                score = energy_score(s, i, r, score)
        else:
            total += s.eng[i].weight
            s.eng[i].credit += s.eng[i].weight
            score = -s.eng[i].credit
        if best == NONE or score < least:
            best, least = i, score
    if best != NONE and routing == WEIGHTED:
        s.eng[best].credit -= total
    return int(best)


@compiled
def backlog_score(s: FleetArrays, i: int, r: int, load: float) -> float:
    """Returns what routing by backlog compares.

    Below 0 where a prompt is done with in good time and there is room: the most loaded of such instances takes it, and
    others may idle.
    """
    behind_s, alike_s = backlog_s(s, i, r), ALIKE_SHARE * s.cell_limit[s.req[r].cell, 0]
    if behind_s <= alike_s and np.isfinite(alike_s):
        count = s.eng[i].running + s.eng[i].waiting
        if left_of_limits(s.eng[i].kv_used / s.eng[i].capacity, count / s.eng[i].max_sequences, count) >= 1.0:
            return -load
    return max(ALIKE_S, behind_s) + ALIKE_S / 100.0 * load


@compiled
def energy_score(s: FleetArrays, i: int, r: int, load: float) -> float:
    """Returns what routing by energy compares: the joules that an answer more adds to an iteration, at the clock that
    the instance has asked for. Where iterations would no longer keep the limit at it, or room runs short, it is the
    load, behind all others.
    """
    decodes, context = 0, 0
    for p in range(s.eng[i].running):
        if s.req[s.active[i, p]].to_prefill == 0:
            decodes += 1
            context += s.req[s.active[i, p]].kv + 1
    other = s.eng[i].queue_head
    while other != NONE:
        decodes += 1
        context += s.req[other].computed + s.req[other].to_prefill + 1
        other = s.req[other].next
    count = s.eng[i].running + s.eng[i].waiting
    room = left_of_limits(s.eng[i].kv_used / s.eng[i].capacity, count / s.eng[i].max_sequences, count)
    mhz = s.eng[i].wanted_mhz if s.eng[i].floor_mhz > 0.0 else s.eng[i].mhz
    with_it = context + s.req[r].computed + s.req[r].to_prefill + 1
    t_s, with_j, _ = iteration(s.cost[i], mhz, 0.0, 0.0, 0.0, 0.0, float(decodes + 1), float(with_it))
    if t_s > s.cell_limit[s.req[r].cell, 1] or room < 1.0:
        return MOST_J + load
    if decodes == 0:
        return with_j - float(idle_watts(s.cost[i], mhz)) * t_s
    return with_j - iteration(s.cost[i], mhz, 0.0, 0.0, 0.0, 0.0, float(decodes), float(context))[1]


@compiled
def backlog_s(s: FleetArrays, i: int, r: int) -> float:
    """Returns what the prompts of an instance and of one request more take at the top clock."""
    tokens = s.req[r].to_prefill
    for p in range(s.eng[i].running):
        tokens += s.req[s.active[i, p]].to_prefill
    other = s.eng[i].queue_head
    while other != NONE:
        tokens += s.req[other].to_prefill
        other = s.req[other].next
    return float(tokens * s.eng[i].prompt_token_s)


@compiled
def dispatch(s: FleetArrays, r: int, now_s: float) -> None:
    """Sends a request to an instance: it stays unplaced while none serves, and is rejected if none of its pool fits."""
    pool = s.req[r].pool
    if s.pool[pool].size > 0:
        i = choose(s, r, now_s)
    else:
        i = spilled(s, r, s.pool[pool].most_unstarted, now_s)
        if i == NONE:
            i = spilled(s, r, 0, now_s)
    if s.pool[pool].size == 0 and i == NONE:
        s.req[r].next = NONE
        if s.pool[pool].unplaced_tail == NONE:
            s.pool[pool].unplaced_head = r
        else:
            s.req[s.pool[pool].unplaced_tail].next = r
        s.pool[pool].unplaced_tail = r
        s.pool[pool].unplaced += 1
        return
    if i == NONE:
        reject(s, r)
    else:
        s.req[r].instance = i
        enqueue(s, r, i, now_s)


@compiled
def reject(s: FleetArrays, r: int) -> None:
    """Ends a request that nobody can serve, and takes it out of the counts."""
    s.req[r].status = REJECTED
    s.counts[IN_FLIGHT_COUNT] -= 1
    if s.req[r].split > 0:
        s.counts[COUPLED] -= 1
    s.counts[HANDED_COUNT] -= s.req[r].handed
    if s.req[r].row != NONE:  # begun elsewhere
        s.rows[s.counts[FREE_ROWS]] = s.req[r].row
        s.counts[FREE_ROWS] += 1


@compiled
def reject_unplaced(s: FleetArrays) -> None:
    """Nobody will come for them."""
    for pool in range(s.pool.shape[0]):
        r = s.pool[pool].unplaced_head
        while r != NONE:
            after = s.req[r].next
            reject(s, r)
            r = after
        s.pool[pool].unplaced_head = s.pool[pool].unplaced_tail = NONE
        s.pool[pool].unplaced = 0


@compiled
def enqueue(s: FleetArrays, r: int, i: int, now_s: float) -> None:
    """Puts a request in its place in the queue: its end without an order; with its cache, before all without one."""
    advance(s, i, now_s)
    landed = s.req[r].computed > s.req[r].cached
    before = int(s.eng[i].queue_tail)
    if s.eng[i].order != FCFS:
        let_late_ones_pass(s, i, now_s)
        before = place_in_queue(s, i, r, now_s)
    elif landed:
        before, after = NONE, int(s.eng[i].queue_head)
        while after != NONE and s.req[after].computed > s.req[after].cached:
            before, after = after, int(s.req[after].next)
    if landed:
        s.eng[i].landed += goes_on(s, r)
    put_in(s, i, r, before, now_s)
    s.eng[i].look_s = now_s
    # Behind one that cannot be admitted before the jump ends, nothing changes.
    if s.eng[i].steps == 0:
        settle_idle(s, i, now_s)
        begin(s, i, now_s)
    elif before == NONE or landed:
        cut(s, i, now_s)
    elif s.eng[i].first_lax == r:
        cut(s, i, rank(s, i, r))


@compiled
def stir(s: FleetArrays, i: int, now_s: float) -> None:
    """A queue has changed: what comes of it begins with the next iteration, at once when idle."""
    if s.eng[i].steps == 0:
        settle_idle(s, i, now_s)
        begin(s, i, now_s)
    else:
        cut(s, i, now_s)


@compiled
def receive(s: FleetArrays, r: int) -> None:
    """A request arrives; where it goes is another's business."""
    cell, stretch = s.req[r].cell, int(s.req[r].arrival_s / STRETCH_S)
    s.seen[cell, stretch, 0] += 1
    s.seen[cell, stretch, 1] += s.req[r].prompt
    s.seen[cell, stretch, 2] += s.req[r].predicted
    turn = s.counts[CAME] % s.came.shape[0]
    s.came[turn, 0], s.came[turn, 1], s.came[turn, 2] = s.req[r].arrival_s, s.req[r].prompt, cell
    s.counts[CAME] += 1
    s.req[r].pool = s.cell_pool[cell]
    s.req[r].status = IN_FLIGHT
    s.counts[IN_FLIGHT_COUNT] += 1
    s.req[r].computed = s.req[r].cached
    s.req[r].to_prefill = to_compute(s, r)


@compiled
def split_at(s: FleetArrays, r: int, tokens: int) -> None:
    """It is to be handed over when its cache holds so many tokens."""
    s.req[r].split = tokens
    s.req[r].to_prefill = to_compute(s, r)
    s.counts[COUPLED] += 1
    will_be_handed(s, r)


@compiled
def arrive(s: FleetArrays, r: int) -> None:
    """Receives a request, splits it where its pool does so, and sends it to an instance."""
    receive(s, r)
    if s.pool[s.req[r].pool].split != WHOLE:
        split_by_pool(s, r)
    dispatch(s, r, s.req[r].arrival_s)


@compiled
def split_by_pool(s: FleetArrays, r: int) -> None:
    """Sets the token at which its pool hands a request over."""
    pool = s.req[r].pool
    if s.pool[pool].split == AT_PROMPT:
        split_at(s, r, s.req[r].prompt)
    elif s.pool[pool].split == AT_RATIO:
        share = int(s.pool[pool].split_ratio * (s.req[r].prompt + s.req[r].predicted))
        split_at(s, r, max(s.req[r].cached + 1, share))


@compiled
def place(s: FleetArrays, r: int, i: int, tokens: int, second: int, now_s: float) -> None:
    """Puts a received request into the queue of an instance, and what is beyond `tokens` (0: nothing) on a second."""
    s.req[r].instance = i
    if tokens > 0:
        s.req[r].target = second
        split_at(s, r, max(s.req[r].cached + 1, tokens))
    enqueue(s, r, i, now_s)


# -- emergencies: the driver calls these for requests that wait, when all instances have been advanced to now --


@compiled
def set_order(s: FleetArrays, i: int, rows: Ints, now_s: float) -> None:
    """Gives a queue that is served first come first served another order: `rows`, (n,), are all that wait."""
    link(s, i, NONE, rows[0])
    for k in range(rows.size):
        link(s, i, rows[k], rows[k + 1] if k + 1 < rows.size else NONE)
    stir(s, i, now_s)


@compiled
def call_back(s: FleetArrays, r: int, now_s: float) -> None:
    """Takes a request out of the queue that it waits in."""
    i = s.req[r].instance
    take_out(s, i, r)
    s.req[r].instance = NONE
    stir(s, i, now_s)


@compiled
def resteer(s: FleetArrays, r: int, i: int, pool: int, now_s: float) -> None:
    """Moves a request to the end of the queue of another instance, which is in `pool`."""
    call_back(s, r, now_s)
    s.req[r].pool = pool
    s.req[r].instance = i
    enqueue(s, r, i, now_s)


@compiled
def squash(s: FleetArrays, r: int, now_s: float) -> None:
    """Gives a request that has no token yet back to who asked: what was done for it is lost. It is nowhere now."""
    call_back(s, r, now_s)
    if s.req[r].split > 0:
        s.counts[COUPLED] -= 1
    s.req[r].split = s.req[r].sent = 0
    s.req[r].sent_s = 0.0
    s.req[r].target = NONE
    s.req[r].computed = s.req[r].cached
    s.req[r].to_prefill = to_compute(s, r)
    s.req[r].retries += 1


@compiled
def enter(s: FleetArrays, r: int, now_s: float) -> None:
    """A squashed request comes again, to its pool."""
    split_by_pool(s, r)
    dispatch(s, r, now_s)


@compiled
def done_in_jump(s: FleetArrays, i: int, now_s: float) -> int:
    """Returns the iterations of the jump in flight that have ended: each decoding sequence's tokens not yet counted."""
    if s.eng[i].steps < 2 or s.eng[i].decodes == 0:
        return 0
    return terms_within(s.eng[i].first_s, s.eng[i].slope_s, s.eng[i].steps, now_s + TIE_S - s.eng[i].start_s)


@compiled
def kv_now(s: FleetArrays, now_s: float) -> Ints:
    """Returns the tokens in the cache of each instance, (instances,)."""
    kv = np.empty(s.eng.shape[0], np.int64)
    for i in range(s.eng.shape[0]):
        kv[i] = s.eng[i].kv_used + done_in_jump(s, i, now_s) * s.eng[i].decodes
    return kv


@compiled
def latencies(s: FleetArrays, now_s: float) -> Floats:
    """Returns (instances, 3, 2) of TTFT, gaps between tokens, E2E: their sum so far and their number."""
    found = np.empty((s.eng.shape[0], 3, 2))
    for i in range(s.eng.shape[0]):
        found[i, 0, 0], found[i, 0, 1] = s.eng[i].ttft_s, s.eng[i].ttfts
        found[i, 1, 0], found[i, 1, 1] = s.eng[i].gap_s, s.eng[i].gaps
        found[i, 2, 0], found[i, 2, 1] = s.eng[i].e2e_s, s.eng[i].e2es
        done = done_in_jump(s, i, now_s)
        found[i, 1, 0] += s.eng[i].decodes * series(s.eng[i].first_s, s.eng[i].slope_s, done)
        found[i, 1, 1] += s.eng[i].decodes * done
    return found


@compiled
def sequences(s: FleetArrays, i: int, now_s: float) -> Ints:
    """Returns (n, 4) of running, then waiting ones: row of `req`, tokens in the cache, generated, to prefill."""
    found = np.empty((s.eng[i].running + s.eng[i].waiting, 4), np.int64)
    done = done_in_jump(s, i, now_s)
    for p in range(s.eng[i].running):
        r = s.active[i, p]
        more = done if s.req[r].to_prefill == 0 else 0
        found[p, 0] = r
        found[p, 1], found[p, 2] = s.req[r].kv + more, s.req[r].generated + more
        found[p, 3] = s.req[r].to_prefill
    r = s.eng[i].queue_head
    for p in range(s.eng[i].running, found.shape[0]):
        found[p, 0], found[p, 1], found[p, 2] = r, 0, s.req[r].generated
        found[p, 3] = s.req[r].to_prefill
        r = s.req[r].next
    return found


@compiled
def settle(s: FleetArrays, to_s: float, landings_too: bool) -> None:
    """Brings all instances forward together; landings before `to_s`, or also those at it."""
    while True:
        best, earliest_s = NONE, to_s + TIE_S
        for i in range(s.eng.shape[0]):
            if s.eng[i].steps > 0 and (s.eng[i].end_s < earliest_s or (best == NONE and s.eng[i].end_s <= earliest_s)):
                best, earliest_s = i, s.eng[i].end_s
        first = s.counts[FLIGHTS]
        due = first != NONE and (s.req[first].lands_s < to_s or (landings_too and s.req[first].lands_s <= to_s))
        if best != NONE and not (due and s.req[first].lands_s + TIE_S < earliest_s):
            complete(s, best)
            begin(s, best, earliest_s)
        elif due:
            land(s)
        else:
            return


@compiled
def rows_needed(s: FleetArrays) -> int:
    """Counts the rows of `own` that may be in use before the next arrival, less one.

    Sequences that began are at most as many as requests in flight, and as there are places in batches and requests
    that change their place.
    """
    return int(min(s.counts[IN_FLIGHT_COUNT], s.counts[SEATS] + s.counts[HANDED_COUNT]))


@compiled
def run_until(s: FleetArrays, to_s: float) -> bool:
    """Runs all arrivals and landings before `to_s`, then every iteration that ends by it.

    False: more rows are needed.
    """
    r = s.counts[NEXT_ARRIVAL]
    while r < s.req.shape[0] and s.req[r].arrival_s < to_s:
        if s.own.shape[0] <= rows_needed(s):
            s.counts[NEXT_ARRIVAL] = r
            return False
        if s.counts[COUPLED] > 0:
            settle(s, s.req[r].arrival_s, True)
        arrive(s, r)
        r += 1
    s.counts[NEXT_ARRIVAL] = r
    if s.counts[COUPLED] > 0:
        settle(s, to_s, False)
    for i in range(s.eng.shape[0]):
        advance(s, i, to_s)
    return True


# -- one request alone -----------------------------------------------------------------------------


@compiled
def alone_latencies(c: Floats, mhz: float, budget: int, prompt: Ints, output: Ints, cached: Ints) -> Floats:
    """Returns the seconds that each request takes on an idle instance: its chunks, then output - 1 tokens at their mean
    pace."""
    result = np.empty(prompt.shape[0])
    for r in range(prompt.shape[0]):
        total, computed = 0.0, cached[r]
        while computed < prompt[r]:
            chunk = min(budget, prompt[r] - computed)
            pairs = chunk * (computed + chunk / 2.0)
            total += iteration(c, mhz, float(chunk), float(computed), pairs, 1.0, 0.0, 0.0)[0]
            computed += chunk
        if output[r] > 1:
            first = iteration(c, mhz, 0.0, 0.0, 0.0, 0.0, 1.0, prompt[r] + 1.0)[0]
            last = iteration(c, mhz, 0.0, 0.0, 0.0, 0.0, 1.0, prompt[r] + output[r] - 1.0)[0]
            total += (output[r] - 1) * (first + last) / 2.0
        result[r] = total
    return result
