"""The compiled predictor of DynaServe's global scheduler: virtual passes over an instance's queue.

A pass is one engine iteration (DynaServe, section 4.1): every decoding sequence gets a token, every admitted prompt at
least one, up to the token budget; requests are admitted first come, first served while a token of budget, a place and
room in the KV cache remain. Its time is the engine model's closed form at the instance's clock, without throttling at
the TDP: the instance's measured scale stands for what the form leaves out.

Passes without a prefill follow each other unchanged until a sequence ends, and their time is linear in the context: an
arithmetic series, so a queue costs one step per completion and per prefill, not one per token.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# fmt: off
COST_COLUMNS = (  # see core.engine.engine_model; `compute`, `bandwidth` and `fixed_s` at the instance's clock
    "flop_per_token", "flop_per_row", "flop_per_attention", "stream_bytes", "expert_bytes", "expert_miss",
    "activation_bytes", "compute", "bandwidth", "p_norm", "eff_attn", "fixed_s", "ar_per_token_s",
    "launch_s", "host_s", "seq_s", "token_budget", "max_sequences", "kv_capacity", "kv_token_s",
)
(
    FLOP_TOKEN, FLOP_ROW, FLOP_ATTENTION, STREAM, EXPERT, EXPERT_MISS,
    ACTIVATION, COMPUTE, BANDWIDTH, P_NORM, EFF_ATTN, FIXED_S, AR_TOKEN,
    LAUNCH, HOST, SEQ, TOKEN_BUDGET, MAX_SEQUENCES, KV_CAPACITY, KV_TOKEN_S,
) = range(len(COST_COLUMNS))
# fmt: on
# Columns of a queue: tokens to prefill, decode passes after them, tokens that are in the KV cache at the start.
PREFILL, DECODE, CACHED = 0, 1, 2
# Counters of a batch. KV: tokens in the cache of its decoding sequences; RESERVED: of all, when they will have ended.
CLOCK, HEAD, DECODING, PREFILLING, KV, RESERVED, COUNTERS = range(7)


class Instance(NamedTuple):
    """An instance and its backlog. The queue has a last row to spare, for the request to be placed."""

    costs: Floats  # (len(COST_COLUMNS),)
    decode_s: Floats  # (max sequences + 1,) GPU time of a pass of so many decodes without context
    ends: Ints  # (A,) passes until each decoding sequence ends, falling
    finals: Ints  # (A,) tokens in its cache then
    queue: Ints  # (Q + 1, 3) in order of admission
    resident: int  # rows of the queue that are in the batch already
    lead_s: float  # until its next pass can begin
    scale: float  # measured over predicted pass times


@compiled
def instance_of(c: Floats, decode_s: Floats, work: Ints, admitted: int, lead_s: float, scale: float) -> Instance:
    """Makes an instance of its costs, of shape (costs,), and of `work`, of shape (n, 3) in order of admission, whose
    first `admitted` rows are in its batch."""
    running = 0
    for row in range(admitted):
        running += work[row, PREFILL] == 0
    ends, finals = np.empty(running, np.int64), np.empty(running, np.int64)
    queue = np.zeros((work.shape[0] - running + 1, 3), np.int64)
    n = waiting = 0
    for row in range(work.shape[0]):
        if row < admitted and work[row, PREFILL] == 0:
            ends[n], finals[n] = work[row, DECODE], work[row, DECODE] + work[row, CACHED]
            n += 1
        else:
            queue[waiting] = work[row]
            waiting += 1
    falling = np.argsort(-ends)
    return Instance(c, decode_s, ends[falling], finals[falling], queue, admitted - running, lead_s, scale)


class Batch(NamedTuple):
    """A batch between two passes; the arrays over places are filled up to DECODING and PREFILLING."""

    counts: Ints
    time_s: Floats  # (1,)
    ends: Ints  # falling, so that who ends next is last
    finals: Ints
    left: Ints  # tokens to prefill
    in_cache: Ints  # tokens in the cache
    after: Ints  # decode passes after the prefill


# -- the time of a pass ----------------------------------------------------------------------------


@compiled
def gpu_s(c: Floats, new: float, cached: float, pairs: float, prefills: float, decodes: float, context: float) -> float:
    """Returns the GPU time of a pass, in s; `c` is of shape (costs,); `pairs` is the sum over prefills of new
    (cached + new / 2), `context` that of the decodes."""
    n = new + decodes
    experts = c[EXPERT] * (1.0 - c[EXPERT_MISS] ** n) if c[EXPERT] > 0.0 else 0.0
    t_c = (c[FLOP_TOKEN] * n + c[FLOP_ROW] * (decodes + prefills)) / c[COMPUTE]
    t_m = (c[STREAM] + experts + c[ACTIVATION] * n) / c[BANDWIDTH]
    return float(
        (t_c ** c[P_NORM] + t_m ** c[P_NORM]) ** (1.0 / c[P_NORM])
        + c[FLOP_ATTENTION] * pairs / (c[COMPUTE] * c[EFF_ATTN])
        + c[KV_TOKEN_S] * (context + n + cached)
        + c[FIXED_S]
        + c[AR_TOKEN] * n
    )


@compiled
def decode_table(c: Floats) -> Floats:
    """Computes `Instance.decode_s`: the seconds of a pass by its decodes, of shape (max_sequences + 1,)."""
    found = np.zeros(int(c[MAX_SEQUENCES]) + 1)
    for decodes in range(1, found.size):
        found[decodes] = gpu_s(c, 0.0, 0.0, 0.0, 0.0, float(decodes), 0.0)
    return found


@compiled
def decodes_s(c: Floats, bare_s: float, decodes: int, kv: int, passes: int) -> float:
    """Returns the seconds of `passes` decode-only passes, `c` of shape (costs,): a series, whose first terms the
    launches of kernels may until_room up."""
    first_s, slope_s = bare_s + c[KV_TOKEN_S] * (kv + decodes), c[KV_TOKEN_S] * decodes
    delayed = 0
    if first_s < c[LAUNCH]:
        delayed = min(passes, math.ceil((c[LAUNCH] - first_s) / slope_s))
    m = passes - delayed
    return float(
        delayed * c[LAUNCH]
        + m * (first_s + slope_s * delayed)
        + slope_s * (m * (m - 1) / 2.0)
        + passes * (c[HOST] + c[SEQ] * decodes)
    )


# -- passes over a queue ---------------------------------------------------------------------------


@compiled
def empty_batch(places: int) -> Batch:
    """Makes a batch without requests that has room for so many."""
    return Batch(
        np.zeros(COUNTERS, np.int64),
        np.zeros(1),
        np.empty(places, np.int64),
        np.empty(places, np.int64),
        np.empty(places, np.int64),
        np.empty(places, np.int64),
        np.empty(places, np.int64),
    )


@compiled
def begin(i: Instance) -> Batch:
    """Returns the batch as it stands now."""
    b = empty_batch(i.ends.size + i.queue.shape[0])
    for p in range(i.ends.size):
        b.ends[p], b.finals[p] = i.ends[p], i.finals[p]
        b.counts[KV] += i.finals[p] - i.ends[p]
        b.counts[RESERVED] += i.finals[p]
    b.counts[DECODING] = i.ends.size
    for row in range(i.resident):
        seat(b, i.queue, row)
    b.counts[HEAD] = i.resident
    return b


@compiled
def seat(b: Batch, queue: Ints, row: int) -> None:
    """Takes a request of the queue, of shape (n, 3), into the batch."""
    prefill, decode, cached = queue[row, PREFILL], queue[row, DECODE], queue[row, CACHED]
    b.counts[RESERVED] += prefill + decode + cached
    if prefill > 0:
        p = b.counts[PREFILLING]
        b.left[p], b.in_cache[p], b.after[p] = prefill, cached, decode
        b.counts[PREFILLING] += 1
    else:
        decodes_until(b, b.counts[CLOCK] + decode, cached, cached + decode)


@compiled
def decodes_until(b: Batch, end: int, in_cache: int, final: int) -> None:
    """Lets a sequence with `in_cache` tokens begin to decode; it ends with the pass that brings CLOCK to `end`."""
    p = b.counts[DECODING]
    while p > 0 and b.ends[p - 1] < end:
        b.ends[p], b.finals[p] = b.ends[p - 1], b.finals[p - 1]
        p -= 1
    b.ends[p], b.finals[p] = end, final
    b.counts[DECODING] += 1
    b.counts[KV] += in_cache


@compiled
def admissible(c: Floats, queue: Ints, rows: int, b: Batch) -> int:
    """Counts the requests of the queue that the next pass takes in. `queue` has shape (n, 3)."""
    active = b.counts[DECODING] + b.counts[PREFILLING]
    budget = int(c[TOKEN_BUDGET]) - b.counts[DECODING]
    for p in range(b.counts[PREFILLING]):
        budget -= min(b.left[p], max(1, budget))
    reserved, taken = b.counts[RESERVED], 0
    for row in range(b.counts[HEAD], rows):
        need = queue[row, PREFILL] + queue[row, DECODE] + queue[row, CACHED]
        full = active >= c[MAX_SEQUENCES] or reserved + need > c[KV_CAPACITY]
        if budget <= 0 or (full and active > 0):  # an empty instance takes anything, or it would never end
            break
        budget -= min(budget, max(1, queue[row, PREFILL]))
        reserved += need
        active += 1
        taken += 1
    return taken


@compiled
def end_decodes(b: Batch, passes: int) -> None:
    """`passes` passes are over for the decoding sequences: those whose last one it was leave."""
    b.counts[CLOCK] += passes
    b.counts[KV] += passes * b.counts[DECODING]
    while b.counts[DECODING] > 0 and b.ends[b.counts[DECODING] - 1] <= b.counts[CLOCK]:
        b.counts[DECODING] -= 1
        b.counts[KV] -= b.finals[b.counts[DECODING]]
        b.counts[RESERVED] -= b.finals[b.counts[DECODING]]


@compiled
def mixed_pass(c: Floats, b: Batch) -> None:
    """Makes one pass with prefills, a chunk of each, by admission; complete ones go on to decode.

    `c` has shape (costs,).
    """
    decodes = b.counts[DECODING]
    budget = int(c[TOKEN_BUDGET]) - decodes
    new, cached, pairs, kept, prefills = 0, 0, 0.0, 0, b.counts[PREFILLING]
    context = b.counts[KV] + decodes
    end_decodes(b, 1)
    for p in range(prefills):
        chunk = min(b.left[p], max(1, budget))
        budget -= chunk
        new += chunk
        cached += b.in_cache[p]
        pairs += chunk * (b.in_cache[p] + chunk / 2.0)
        left, in_cache, after = b.left[p] - chunk, b.in_cache[p] + chunk, b.after[p]
        if left > 0:
            b.left[kept], b.in_cache[kept], b.after[kept] = left, in_cache, after
            kept += 1
        elif after > 0:
            decodes_until(b, b.counts[CLOCK] + after, in_cache, in_cache + after)
        else:
            b.counts[RESERVED] -= in_cache
    b.counts[PREFILLING] = kept
    t_s = gpu_s(c, float(new), float(cached), pairs, float(prefills), float(decodes), float(context))
    b.time_s[0] += max(t_s, c[LAUNCH]) + c[HOST] + c[SEQ] * (decodes + prefills)


@compiled
def drain(i: Instance, b: Batch) -> None:
    """The decoding sequences end one after another, and nobody comes in."""
    clock, kv, time_s = b.counts[CLOCK], b.counts[KV], b.time_s[0]
    for p in range(b.counts[DECODING] - 1, -1, -1):
        m = b.ends[p] - clock
        if m > 0:
            time_s += decodes_s(i.costs, i.decode_s[p + 1], p + 1, kv, m)
            clock += m
            kv += m * (p + 1)
        kv -= b.finals[p]
    b.counts[DECODING], b.time_s[0] = 0, time_s


@compiled
def passes(i: Instance, rows: int, b: Batch, to_first_token: bool) -> None:
    """Runs until all `rows` of the queue have ended; with `to_first_token` only until no prompt is left."""
    c = i.costs
    while True:
        if b.counts[HEAD] == rows and b.counts[PREFILLING] == 0:
            if not to_first_token:
                drain(i, b)
            return
        taken = admissible(c, i.queue, rows, b)
        for row in range(b.counts[HEAD], b.counts[HEAD] + taken):
            seat(b, i.queue, row)
        b.counts[HEAD] += taken
        decodes = b.counts[DECODING]
        if b.counts[PREFILLING] > 0:
            mixed_pass(c, b)
        elif b.counts[HEAD] < rows:  # those that wait find no place before one ends
            m = b.ends[decodes - 1] - b.counts[CLOCK]
            b.time_s[0] += decodes_s(c, i.decode_s[decodes], decodes, b.counts[KV], m)
            end_decodes(b, m)


@compiled
def seconds(i: Instance, prefill: int, decode: int, cached: int, to_first_token: bool) -> float:
    """Returns the seconds until all work is done, or no prompt is left, if a request of that size is added last."""
    b = begin(i)
    rows = i.queue.shape[0] - 1
    if prefill + decode > 0:
        i.queue[rows, PREFILL], i.queue[rows, DECODE], i.queue[rows, CACHED] = prefill, decode, cached
        rows += 1
    passes(i, rows, b, to_first_token)
    return float(i.lead_s + i.scale * b.time_s[0])


@compiled
def seconds_of(
    c: Floats,
    decode_s: Floats,
    work: Ints,
    admitted: int,
    lead_s: float,
    scale: float,
    part: tuple[int, int, int],
    to_first_token: bool,
) -> float:
    """Returns the seconds as `seconds` does, of an instance as of `instance_of`: in one call, since to hand an instance
    over takes as long as its passes. `c` is of shape (costs,), `decode_s` of (max_sequences + 1,), `work` of (n, 3)."""
    return seconds(instance_of(c, decode_s, work, admitted, lead_s, scale), part[0], part[1], part[2], to_first_token)


@compiled
def parts(prompt: int, total: int, split: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Returns the two micro-requests, (to prefill, decode passes, cached) each, of a request cut after `split` tokens.

    The pass that ends a prompt brings the first token, so P + D tokens take D - 1 decode passes.
    """
    if split < prompt:
        second = (prompt - split, total - prompt - 1, split)
        return (split, 0, 0), second
    first_passes = min(split, total - 1) - prompt
    return (prompt, first_passes, 0), (0, total - 1 - prompt - first_passes, split)
