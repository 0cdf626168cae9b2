"""The compiled inner loop: instances that jump from event to event in closed form (macro-stepping).

Between two events of an instance (a completion, an admission, a preemption, a clock change) its batch is constant and
the context K grows by the batch B with each iteration. Iteration time and energy are linear in K, so m iterations are
an arithmetic series: the instance jumps over them at once. Iterations with a prefill in them are events themselves;
those that throttle at the TDP are not linear and are walked one by one. The rules are those of `reference.py`, which
walks every token in plain Python; a property test holds the two against each other.

Instances meet only where a request is routed, so there is no heap: arrivals are taken in order, and an instance is
brought to an arrival's time only when its state matters to the router. Ties: iterations end first, then controllers
act, then requests arrive in the order of the trace. A boundary within TIE_S of an arrival counts as before it, in both
modes, since sums of the same numbers in another order differ in their last bits.

Everything compiled is in this one file, because Numba's cache watches a function's own file and not those it calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counts = NDArray[np.int32]
F = TypeVar("F", bound=Callable[..., Any])

TIE_S = 1e-9
NONE = -1

# Events of a request, in the log. At one instant of one instance they are logged in the order they take effect.
ADMITTED, FIRST_TOKEN, PREEMPTED, FINISHED = 0, 1, 2, 3
# States of a request.
AHEAD, IN_FLIGHT, DONE, REJECTED = 0, 1, 2, 3
# Routing within a pool.
ROUND_ROBIN, LEAST_LOADED = 0, 1

# Gaps between tokens are counted in bins of 0.5 %, from 10 us on.
GAP_BINS_PER_E, GAP_MIN_S, GAP_BINS = 200.0, 1e-5, 4200
# Of each request in bins of 2 %, from 1 ms on (to 160 s): it answers for its own p50 and p99.
OWN_BINS_PER_E, OWN_MIN_S, OWN_BINS = 50.0, 1e-3, 600
THROTTLE_BISECTIONS = 20

# Columns of an instance's cost parameters: see scheduler.core.engine_model for what they mean.
# fmt: off
COST_COLUMNS = (
    "fixed", "flop_per_token", "flop_per_row", "flop_per_attention", "dense_bytes", "expert_bytes", "expert_miss",
    "head_bytes", "activation_bytes", "kv_bytes", "compute", "bandwidth", "ar_fixed_s", "ar_per_token_s", "layers_s",
    "launch_s", "host_s", "seq_s", "f_max", "f_min", "f_bw", "p_norm", "eff_attn", "eff_kv", "k_sm", "v_min", "f_v",
    "idle_w", "c_clk", "e_flop_pj", "e_byte0_pj", "e_byte1_pj", "tdp_w", "idle_clk_share", "tp", "base_s",
    "prefill_token_s", "decode_s", "busy_w",
)
(
    FIXED, FLOP_TOKEN, FLOP_ROW, FLOP_ATTENTION, DENSE, EXPERT, EXPERT_MISS,
    HEAD, ACTIVATION, KV_BYTES, COMPUTE, BANDWIDTH, AR_FIXED, AR_TOKEN, LAYERS,
    LAUNCH, HOST, SEQ, F_MAX, F_MIN, F_BW, P_NORM, EFF_ATTN, EFF_KV, K_SM, V_MIN, F_V,
    IDLE_W, C_CLK, E_FLOP, E_BYTE0, E_BYTE1, TDP, IDLE_SHARE, TP, BASE_S,
    PREFILL_TOKEN_S, DECODE_S, BUSY_W,
) = range(len(COST_COLUMNS))
# fmt: on


REQUEST = np.dtype(
    [
        # given
        ("arrival_s", np.float64),
        ("prompt", np.int64),
        ("output", np.int64),
        ("cached", np.int64),  # prompt tokens that the prefix cache has
        ("deadline_s", np.float64),  # tokens up to here are timely
        ("request_class", np.int64),
        # found
        ("status", np.int64),
        ("instance", np.int64),
        ("generated", np.int64),
        ("computed", np.int64),
        ("to_prefill", np.int64),
        ("chunk", np.int64),  # tokens it prefills in the iteration in flight
        ("kv", np.int64),
        ("preemptions", np.int64),
        ("timely", np.int64),
        ("next", np.int64),  # in the queue
        ("row", np.int64),  # its row of `since`
        ("first_token_s", np.float64),
        ("last_token_s", np.float64),
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
        ("capacity", np.int64),  # tokens of KV cache
        ("max_sequences", np.int64),
        ("budget", np.int64),  # tokens of one iteration
        # found
        ("mhz", np.float64),
        ("running", np.int64),
        ("waiting", np.int64),
        ("queue_head", np.int64),
        ("queue_tail", np.int64),
        ("kv_used", np.int64),
        ("idle_since_s", np.float64),
        # the segment in flight: equal iterations, `steps` of them; 0: idle
        ("steps", np.int64),
        ("decodes", np.int64),
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
        ("iterations", np.int64),
        ("free", np.int64),  # free rows of `since`
    ]
)


class State(NamedTuple):
    """A run: few arrays, since each one costs with every call. I instances, P pools, C classes, W the largest batch.

    The kernel writes into them; controllers read them between its calls.
    """

    cost: Floats  # (I, len(COST_COLUMNS))
    req: Any  # (N,) of REQUEST, in order of arrival
    eng: Any  # (I,) of INSTANCE
    active: Ints  # (I, W), in order of admission
    tally: Counts  # (I, OWN_BINS) iterations with decodes by their length, so far
    since: Counts  # (I, W, OWN_BINS) the tally when a sequence began to decode; see `itl_begins`
    rows: Ints  # (I, W) free rows of `since`
    members: Ints  # instances of all pools, one pool after the other
    offsets: Ints  # (P + 1,) where a pool's instances begin
    routing: Ints  # (P,)
    turn: Ints  # (P,) whose turn it is
    class_pool: Ints  # (C,)
    gaps: Ints  # (GAP_BINS,)
    series_j: Floats  # (I, bins)
    bin_s: Floats  # (1,)
    counts: Ints  # (4,): next arrival, in flight, events logged, segments logged
    log: Ints  # (events kept, 3): kind, request, instance
    log_s: Floats  # (events kept,)
    segments: Floats  # (segments kept, 9): see SEGMENT_COLUMNS
    walk: bool  # one iteration at a time: what macro-stepping is measured against


# fmt: off
SEGMENT_COLUMNS = (  # kv_tokens and waiting: at its end
    "instance", "start_s", "end_s", "steps", "decodes", "prefill_tokens", "kv_tokens", "waiting", "energy_j",
)
# fmt: on
NEXT_ARRIVAL, IN_FLIGHT_COUNT, LOGGED, SEGMENTS = 0, 1, 2, 3


def compiled(function: F) -> F:
    return cast(F, njit(cache=True)(function))


# -- the engine model ------------------------------------------------------------------------------


@compiled
def bandwidth_share(f: float, f_bw: float) -> float:
    x = f / f_bw
    return float(x / (1.0 + x**4) ** 0.25)


@compiled
def voltage(c: Floats, f: float) -> float:
    if f <= c[F_V]:
        return float(c[V_MIN])
    return float(c[V_MIN] + (1.0 - c[V_MIN]) * (f - c[F_V]) / (c[F_MAX] - c[F_V]))


@compiled
def idle_watts(c: Floats, mhz: float) -> float:
    """Of the instance, loaded and with nothing to do."""
    if c[FIXED] > 0.0:
        return float(c[IDLE_W])
    f = min(max(mhz, c[F_MIN]), c[F_MAX])
    return float(c[TP] * (c[IDLE_W] + c[IDLE_SHARE] * c[C_CLK] * f / c[F_MAX] * voltage(c, f) ** 2))


@compiled
def at_clock(
    c: Floats, f: float, linear: float, prefill: float, decode: float, stream: float, kv: float, n: float, rows: float
) -> tuple[float, float, bool]:
    """Seconds, watts of each GPU, and whether the CPU's kernel launches set the pace."""
    r = f / c[F_MAX]
    compute = c[COMPUTE] * r
    bandwidth = c[BANDWIDTH] * bandwidth_share(f, c[F_BW])
    t_c = linear / compute
    t_m = stream / bandwidth
    t_gpu = (
        (t_c ** c[P_NORM] + t_m ** c[P_NORM]) ** (1.0 / c[P_NORM])
        + prefill / (compute * c[EFF_ATTN])
        + kv / (bandwidth * c[EFF_KV])
        + c[AR_FIXED]
        + c[AR_TOKEN] * n
        + c[LAYERS] * (c[K_SM] / r + 1.0 - c[K_SM])
    )
    t_s = max(t_gpu, c[LAUNCH]) + c[HOST] + c[SEQ] * rows
    v2 = voltage(c, f) ** 2
    dynamic_j = (v2 * c[E_FLOP] * (linear + prefill + decode) + (c[E_BYTE0] + c[E_BYTE1] * v2) * (stream + kv)) * 1e-12
    return t_s, c[IDLE_W] + c[C_CLK] * f / c[F_MAX] * v2 + dynamic_j / t_s / c[TP], t_gpu < c[LAUNCH]


@compiled
def iteration(
    c: Floats, mhz: float, new: float, cached: float, pairs: float, prefills: float, decodes: float, context: float
) -> tuple[float, float, int]:
    """Seconds and joules of one iteration, and its regime: 0 GPU-bound, 1 launch-bound, 2 throttled at the TDP.

    `pairs` is the sum over prefills of new (cached + new / 2). The same formulas as EngineModel.iteration.
    """
    if c[FIXED] > 0.0:
        t_s = c[BASE_S] + c[PREFILL_TOKEN_S] * new + c[DECODE_S] * decodes
        return t_s, c[BUSY_W] * t_s, 0
    n = new + decodes
    rows = decodes + prefills
    experts = c[EXPERT] * (1.0 - c[EXPERT_MISS] ** n) if c[EXPERT] > 0.0 else 0.0
    linear = c[FLOP_TOKEN] * n + c[FLOP_ROW] * rows
    prefill = c[FLOP_ATTENTION] * pairs
    decode = c[FLOP_ATTENTION] * context
    stream = c[DENSE] + experts + c[HEAD] + c[ACTIVATION] * n
    kv = c[KV_BYTES] * (context + n + cached)
    f = min(max(mhz, c[F_MIN]), c[F_MAX])
    t_s, watts, launch_bound = at_clock(c, f, linear, prefill, decode, stream, kv, n, rows)
    if watts <= c[TDP]:
        return t_s, c[TP] * watts * t_s, 1 if launch_bound else 0
    low, high = c[F_MIN], f
    for _ in range(THROTTLE_BISECTIONS):
        middle = (low + high) / 2.0
        if at_clock(c, middle, linear, prefill, decode, stream, kv, n, rows)[1] > c[TDP]:
            high = middle
        else:
            low = middle
    t_s, watts, _ = at_clock(c, high, linear, prefill, decode, stream, kv, n, rows)
    return t_s, c[TP] * watts * t_s, 2


# -- arithmetic series -----------------------------------------------------------------------------


@compiled
def series(first: float, slope: float, m: int) -> float:
    """first + (first + slope) + ... of m terms."""
    return m * first + slope * (m * (m - 1) / 2.0)


@compiled
def terms_within(first: float, slope: float, m: int, total: float) -> int:
    """The largest j up to m for which the series of j terms is at most `total`."""
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
def spread(s: State, i: int, start_s: float, end_s: float, energy_j: float) -> None:
    """Books energy to the time bins it falls into, at its mean power."""
    width = s.bin_s[0]
    last = s.series_j.shape[1] - 1
    low, high = min(last, int(start_s / width)), min(last, int(end_s / width))
    if low == high:
        s.series_j[i, low] += energy_j
        return
    watts = energy_j / (end_s - start_s)
    left = energy_j
    for place in range(low, high):
        part = watts * ((place + 1) * width - max(start_s, place * width))
        s.series_j[i, place] += part
        left -= part
    s.series_j[i, high] += left


@compiled
def note(s: State, kind: int, request: int, instance: int, at_s: float) -> None:
    n = s.counts[LOGGED]
    if n < s.log.shape[0]:
        s.log[n, 0] = kind
        s.log[n, 1] = request
        s.log[n, 2] = instance
        s.log_s[n] = at_s
    s.counts[LOGGED] = n + 1


# -- gaps between a request's tokens ---------------------------------------------------------------
# While a sequence decodes, its gaps are its instance's iterations. So the instance alone keeps a tally of them, and a
# sequence remembers what the tally was when it began: the difference is its own histogram. While it is preempted,
# its row holds minus what it had so far.


@compiled
def itl_begins(s: State, i: int, r: int) -> None:
    """From the first token on. At most as many sequences have begun as were ever active at once: rows suffice."""
    s.eng[i].free -= 1
    s.req[r].row = s.rows[i, s.eng[i].free]
    s.since[i, s.req[r].row] = s.tally[i]


@compiled
def itl_pauses(s: State, i: int, r: int) -> None:
    s.since[i, s.req[r].row] -= s.tally[i]


@compiled
def itl_resumes(s: State, i: int, r: int, gap_s: float) -> None:
    row = s.since[i, s.req[r].row]
    row += s.tally[i]
    row[gap_bin(gap_s, OWN_MIN_S, OWN_BINS_PER_E, OWN_BINS)] -= 1


@compiled
def itl_ends(s: State, i: int, r: int, gaps: int) -> None:
    """p50 and p99 by nearest rank, to the width of a bin."""
    if gaps > 0:
        tally, since, seen = s.tally[i], s.since[i, s.req[r].row], 0
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
    s.rows[i, s.eng[i].free] = s.req[r].row
    s.eng[i].free += 1


# -- one instance ----------------------------------------------------------------------------------


@compiled
def preempt_newest(s: State, i: int, now_s: float) -> bool:
    """Sends the newest sequence back to the head of the queue, to be computed again; whether it was decoding."""
    s.eng[i].running -= 1
    r = s.active[i, s.eng[i].running]
    decoding = s.req[r].to_prefill == 0
    if decoding:
        s.req[r].last_token_s = now_s
        itl_pauses(s, i, r)
    s.eng[i].kv_used -= s.req[r].kv
    s.req[r].kv = 0
    s.req[r].computed = s.req[r].cached
    s.req[r].to_prefill = s.req[r].prompt + s.req[r].generated - s.req[r].cached
    s.req[r].chunk = 0
    s.req[r].preemptions += 1
    s.req[r].next = s.eng[i].queue_head
    s.eng[i].queue_head = r
    if s.eng[i].queue_tail == NONE:
        s.eng[i].queue_tail = r
    s.eng[i].waiting += 1
    note(s, PREEMPTED, r, i, now_s)
    return bool(decoding)


@compiled
def admit(s: State, i: int, decodes: int, budget: int, now_s: float) -> None:
    """Takes requests from the queue in order, while a token of budget, a place and room for the whole prompt remain."""
    while s.eng[i].waiting > 0 and budget > 0 and s.eng[i].running < s.eng[i].max_sequences:
        r = s.eng[i].queue_head
        need = s.req[r].to_prefill + s.req[r].computed
        if s.eng[i].kv_used + decodes + need > s.eng[i].capacity:
            return
        s.eng[i].queue_head = s.req[r].next
        if s.eng[i].queue_head == NONE:
            s.eng[i].queue_tail = NONE
        s.eng[i].waiting -= 1
        s.active[i, s.eng[i].running] = r
        s.eng[i].running += 1
        s.req[r].kv = need
        s.eng[i].kv_used += need
        s.req[r].chunk = min(budget, s.req[r].to_prefill)
        budget -= s.req[r].chunk
        note(s, ADMITTED, r, i, now_s)


@compiled
def begin(s: State, i: int, now_s: float) -> None:
    """Composes the next iteration (or as many equal ones as follow each other), or lets the instance idle."""
    decodes = 0
    for p in range(s.eng[i].running):
        if s.req[s.active[i, p]].to_prefill == 0:
            decodes += 1
    preempted = False
    while decodes > 0 and s.eng[i].kv_used + decodes > s.eng[i].capacity:
        if preempt_newest(s, i, now_s):
            decodes -= 1
        preempted = True
    budget = s.eng[i].budget - decodes
    context, shortest = 0, 0
    for p in range(s.eng[i].running):
        r = s.active[i, p]
        if s.req[r].to_prefill > 0:
            s.req[r].chunk = min(max(budget, 0), s.req[r].to_prefill)
            budget -= s.req[r].chunk
        else:
            context += s.req[r].kv + 1
            left = s.req[r].output - s.req[r].generated
            shortest = left if shortest == 0 else min(shortest, left)
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
        s.eng[i].steps = 0
        s.eng[i].idle_since_s = now_s
        return
    if prefills > 0:
        one_iteration(s, i, float(new), float(cached), pairs, float(prefills), float(decodes), float(context))
        return
    steps = min(shortest, (s.eng[i].capacity - s.eng[i].kv_used) // decodes)
    many_iterations(s, i, 1 if preempted or s.walk else steps, decodes, context)


@compiled
def one_iteration(
    s: State, i: int, new: float, cached: float, pairs: float, prefills: float, decodes: float, context: float
) -> None:
    """An iteration with prefills: the decoding sequences pay what they would have cost alone, the prefills the rest."""
    t_s, energy_j, _ = iteration(s.cost[i], s.eng[i].mhz, new, cached, pairs, prefills, decodes, context)
    alone_j = 0.0
    if decodes > 0.0:
        alone_j = iteration(s.cost[i], s.eng[i].mhz, 0.0, 0.0, 0.0, 0.0, decodes, context)[1]
    s.eng[i].steps, s.eng[i].first_s, s.eng[i].slope_s, s.eng[i].first_j, s.eng[i].slope_j = 1, t_s, 0.0, energy_j, 0.0
    s.eng[i].prefill_j = max(0.0, energy_j - alone_j)
    s.eng[i].end_s = s.eng[i].start_s + t_s


@compiled
def many_iterations(s: State, i: int, steps: int, decodes: int, context: int) -> None:
    """Up to `steps` decode-only iterations of one regime: time and energy rise by the same amount with each."""
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
    s.eng[i].end_s = s.eng[i].start_s + series(first_s, s.eng[i].slope_s, steps)


@compiled
def cut(s: State, i: int, at_s: float) -> None:
    """Ends a jump with the iteration that is in flight at `at_s`: something has changed."""
    if s.eng[i].steps > 1:
        gone = terms_within(s.eng[i].first_s, s.eng[i].slope_s, s.eng[i].steps, at_s + TIE_S - s.eng[i].start_s)
        s.eng[i].steps = min(s.eng[i].steps, gone + 1)
        s.eng[i].end_s = s.eng[i].start_s + series(s.eng[i].first_s, s.eng[i].slope_s, s.eng[i].steps)


@compiled
def complete(s: State, i: int) -> None:
    """Books the segment in flight: tokens, times, energy; sequences that are done leave."""
    m, end_s, n = s.eng[i].steps, s.eng[i].end_s, s.eng[i].running
    energy_j = series(s.eng[i].first_j, s.eng[i].slope_j, m)
    decode_j = energy_j - s.eng[i].prefill_j
    s.eng[i].spent_decode_j += decode_j
    s.eng[i].spent_prefill_j += s.eng[i].prefill_j
    s.eng[i].iterations += m
    spread(s, i, s.eng[i].start_s, end_s, energy_j)
    if s.eng[i].decodes > 0:
        count_gaps(s.gaps, GAP_MIN_S, GAP_BINS_PER_E, s.eng[i].first_s, s.eng[i].slope_s, m, s.eng[i].decodes)
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
            s.req[r].itl_max_s = max(s.req[r].itl_max_s, longest_s)
            if end_s <= s.req[r].deadline_s + TIE_S:
                s.req[r].timely += m
            elif s.eng[i].start_s < s.req[r].deadline_s:
                limit_s = s.req[r].deadline_s + TIE_S - s.eng[i].start_s
                s.req[r].timely += terms_within(s.eng[i].first_s, s.eng[i].slope_s, m, limit_s)
            if s.req[r].generated == s.req[r].output:
                finish(s, r, i, end_s)
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
        if s.req[r].status == IN_FLIGHT:
            s.active[i, kept] = r
            kept += 1
        else:
            s.eng[i].kv_used -= s.req[r].kv
            s.req[r].kv = 0
    s.eng[i].running = kept


@compiled
def prefilled(s: State, i: int, r: int, at_s: float, per_token_j: float) -> None:
    """A chunk is done; with the last one comes a token."""
    s.req[r].energy_j += per_token_j * s.req[r].chunk
    s.req[r].computed += s.req[r].chunk
    s.req[r].to_prefill -= s.req[r].chunk
    s.req[r].chunk = 0
    if s.req[r].to_prefill > 0:
        return
    if s.req[r].generated == 0:
        s.req[r].first_token_s = at_s
        itl_begins(s, i, r)
        note(s, FIRST_TOKEN, r, i, at_s)
    else:  # computed again after a preemption
        gap_s = at_s - s.req[r].last_token_s
        s.req[r].itl_max_s = max(s.req[r].itl_max_s, gap_s)
        count_gaps(s.gaps, GAP_MIN_S, GAP_BINS_PER_E, gap_s, 0.0, 1, 1)
        itl_resumes(s, i, r, gap_s)
    s.req[r].generated += 1
    if at_s <= s.req[r].deadline_s + TIE_S:
        s.req[r].timely += 1
    if s.req[r].generated == s.req[r].output:
        finish(s, r, i, at_s)


@compiled
def finish(s: State, r: int, i: int, at_s: float) -> None:
    s.req[r].finish_s = at_s
    s.req[r].status = DONE
    itl_ends(s, i, r, s.req[r].generated - 1)
    s.counts[IN_FLIGHT_COUNT] -= 1
    note(s, FINISHED, r, i, at_s)


@compiled
def log_segment(s: State, i: int, energy_j: float) -> None:
    n = s.counts[SEGMENTS]
    if n < s.segments.shape[0]:
        row = s.segments[n]
        row[0], row[1], row[2], row[3] = i, s.eng[i].start_s, s.eng[i].end_s, s.eng[i].steps
        row[4], row[5], row[6] = s.eng[i].decodes, s.eng[i].prefill_tokens, s.eng[i].kv_used
        row[7], row[8] = s.eng[i].waiting, energy_j
    s.counts[SEGMENTS] = n + 1


@compiled
def advance(s: State, i: int, to_s: float) -> None:
    """Lives through every iteration of an instance that ends by `to_s`."""
    while s.eng[i].steps > 0 and s.eng[i].end_s <= to_s + TIE_S:
        end_s = s.eng[i].end_s
        complete(s, i)
        begin(s, i, end_s)


@compiled
def settle_idle(s: State, i: int, now_s: float) -> None:
    """Books idle energy up to now."""
    if s.eng[i].steps == 0 and now_s > s.eng[i].idle_since_s:
        energy_j = idle_watts(s.cost[i], s.eng[i].mhz) * (now_s - s.eng[i].idle_since_s)
        s.eng[i].spent_idle_j += energy_j
        spread(s, i, s.eng[i].idle_since_s, now_s, energy_j)
        s.eng[i].idle_since_s = now_s


# -- the fleet -------------------------------------------------------------------------------------


@compiled
def choose(s: State, r: int) -> int:
    """The instance for a request among those of its class's pool that it fits into; NONE: it never fits."""
    pool = s.class_pool[s.req[r].request_class]
    low, high = s.offsets[pool], s.offsets[pool + 1]
    need = s.req[r].prompt + s.req[r].output
    best, least = NONE, 0
    for k in range(high - low):
        turn = (s.turn[pool] + k) % (high - low) if s.routing[pool] == ROUND_ROBIN else k
        i = s.members[low + turn]
        if need > s.eng[i].capacity:
            continue
        if s.routing[pool] == ROUND_ROBIN:
            s.turn[pool] = turn + 1
            return int(i)
        advance(s, i, s.req[r].arrival_s)
        load = s.eng[i].running + s.eng[i].waiting
        if best == NONE or load < least:
            best, least = i, load
    return int(best)


@compiled
def submit(s: State, r: int, i: int) -> None:
    now_s = s.req[r].arrival_s
    advance(s, i, now_s)
    s.req[r].instance = i
    s.req[r].status = IN_FLIGHT
    s.counts[IN_FLIGHT_COUNT] += 1
    s.req[r].computed = s.req[r].cached
    s.req[r].to_prefill = s.req[r].prompt - s.req[r].cached
    s.req[r].next = NONE
    alone = s.eng[i].waiting == 0
    if alone:
        s.eng[i].queue_head = r
    else:
        s.req[s.eng[i].queue_tail].next = r
    s.eng[i].queue_tail = r
    s.eng[i].waiting += 1
    if s.eng[i].steps == 0:
        settle_idle(s, i, now_s)
        begin(s, i, now_s)
    elif alone:  # behind one that cannot be admitted before the jump ends, nothing changes
        cut(s, i, now_s)


@compiled
def run_until(s: State, to_s: float) -> None:
    """All arrivals before `to_s`, then every iteration that ends by it."""
    r = s.counts[NEXT_ARRIVAL]
    while r < s.req.shape[0] and s.req[r].arrival_s < to_s:
        i = choose(s, r)
        if i == NONE:
            s.req[r].status = REJECTED
        else:
            submit(s, r, i)
        r += 1
    s.counts[NEXT_ARRIVAL] = r
    for i in range(s.eng.shape[0]):
        advance(s, i, to_s)


@compiled
def set_clock(s: State, i: int, mhz: float, now_s: float) -> None:
    """From now on when idle, from the next iteration on when busy. The instance must have been advanced to now."""
    if mhz != s.eng[i].mhz:
        settle_idle(s, i, now_s)
        s.eng[i].mhz = mhz
        cut(s, i, now_s)


# -- one request alone -----------------------------------------------------------------------------


@compiled
def alone_latencies(c: Floats, mhz: float, budget: int, prompt: Ints, output: Ints, cached: Ints) -> Floats:
    """Seconds that each request takes on an idle instance: its chunks, then output - 1 tokens at their mean pace."""
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
