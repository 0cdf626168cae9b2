"""The compiled search of DynaServe's global scheduler: what rates two instances sustain, of whole or cut requests.

An instance that sustains a stream of like parts, P tokens to prefill and D decode passes each, has n decodes and
n P / D prompt tokens in each pass: then as many parts end as begin. It sustains n / D over the pass's time, the more,
the larger n is: up to the limit on the gap between tokens, the token budget, the request cap and the KV cache. Passes
without decodes know no limit but the budget; where n is below one, some passes are of that kind.

So n P / D tokens and n decodes a pass are the border of what an instance can do at once. As far as what lies within is
convex, no two different loads on two instances do more than their mean on both: whole requests, shared out evenly, are
best. What juts out is the instance without decodes, since the limit on gaps does not hold it up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from core.algorithms.split.virtual_passes import (
    CACHED,
    COMPUTE,
    DECODE,
    EFF_ATTN,
    FLOP_ATTENTION,
    FLOP_ROW,
    FLOP_TOKEN,
    HOST,
    KV_CAPACITY,
    KV_TOKEN_S,
    LAUNCH,
    MAX_SEQUENCES,
    PREFILL,
    SEQ,
    TOKEN_BUDGET,
    Floats,
    Ints,
    gpu_s,
    parts,
)
from core.compiled import compiled

_BISECTIONS = 20


class Steady(NamedTuple):
    """An instance in a steady state. `limit_s`: of a pass with decodes; 0: none. `scale`: measured over predicted pass
    times. `margin`: how much longer than predicted a pass may take that is composed of prompts beside decodes."""

    costs: Floats  # (len(COST_COLUMNS),), with the whole token budget
    limit_s: float
    scale: float = 1.0
    margin: float = 0.0


@compiled
def pass_s(c: Floats, prefill: int, cached: int, chunk: float, decodes: float, context: float) -> float:
    """Returns the seconds of a pass with `chunk` tokens of prompts of which a part of `prefill` tokens follows `cached`
    ones, half of it done, beside decodes with a mean context. `c` is of shape (costs,)."""
    middle = cached + prefill / 2.0
    prompts = max(1.0, chunk / prefill) if chunk > 0.0 else 0.0
    before = middle if chunk < prefill else float(cached)
    t_s = gpu_s(c, chunk, prompts * before, chunk * middle, prompts, decodes, decodes * (context + 1.0))
    return float(max(t_s, c[LAUNCH]) + c[HOST] + c[SEQ] * (decodes + prompts))


@compiled
def alone_s(c: Floats, prefill: int, cached: int) -> float:
    """Returns the seconds that a prompt token takes in passes without decodes; `c` is of shape (costs,)."""
    return pass_s(c, prefill, cached, c[TOKEN_BUDGET], 0.0, 0.0) / float(c[TOKEN_BUDGET])


@compiled
def way(i: Steady, part: tuple[int, int, int], least: tuple[float, float], most: tuple[float, float]) -> float:
    """Returns how far on the way from one pass, (decodes, prompt tokens), to a longer one passes keep the limit: from 0
    to 1."""
    prefill, decode, cached = part
    context = cached + prefill + decode / 2.0
    limit_s = i.limit_s / (1.0 + i.margin) if prefill > 0 else i.limit_s
    low, high, at = 0.0, 1.0, 1.0
    for _ in range(_BISECTIONS):
        n, chunk = least[0] + at * (most[0] - least[0]), least[1] + at * (most[1] - least[1])
        if i.limit_s == 0.0 or i.scale * pass_s(i.costs, prefill, cached, chunk, n, context) <= limit_s:
            low = at
        else:
            high = at
        if low == 1.0:
            break
        at = (low + high) / 2.0
    return low


@compiled
def rate_of(i: Steady, part: tuple[int, int, int]) -> float:
    """Returns how many parts a second, (to prefill, decode passes, cached) each, an instance sustains; infinite: it has
    nothing to do."""
    prefill, decode, cached = part
    c = i.costs
    if prefill + decode == 0:
        return math.inf
    if decode == 0:
        return 1.0 / (i.scale * prefill * alone_s(c, prefill, cached))
    context, share = cached + prefill + decode / 2.0, prefill / decode
    room = max(1.0, (c[KV_CAPACITY] - cached - prefill) / context)
    most = min(c[MAX_SEQUENCES], c[TOKEN_BUDGET] / (1.0 + share), room)
    n = most * way(i, part, (0.0, 0.0), (most, most * share))
    if n >= 1.0 or n == most:
        return float(n / (i.scale * decode * pass_s(c, prefill, cached, n * share, n, context)))
    if prefill == 0:
        return 0.0  # not even one decode keeps the limit
    beside = (c[TOKEN_BUDGET] - 1.0) * way(i, part, (1.0, 0.0), (1.0, c[TOKEN_BUDGET] - 1.0))
    if beside == 0.0:
        return 0.0
    busy_s = decode * pass_s(c, prefill, cached, beside, 1.0, context)
    return float(1.0 / (i.scale * (busy_s + (prefill - decode * beside) * alone_s(c, prefill, cached))))


@compiled
def best_cut(
    first: Steady, second: Steady, counts: tuple[int, int], prompt: int, total: int, probes: int
) -> tuple[int, float, float, int]:
    """Finds the cut that two groups of so many like instances sustain most of, by bisection on the difference of rates.

    The first probe is the end of the prompt: disaggregation. Returns the best cut, the requests/s that it sustains,
    those that whole requests on all instances do, and the probes made.
    """
    whole = (prompt, total - prompt - 1, 0)
    whole_rps = counts[0] * rate_of(first, whole) + counts[1] * rate_of(second, whole)
    low, high, split = 0, total, prompt
    found, found_rps, made = prompt, 0.0, 0
    while made < probes and low < high:
        one, two = parts(prompt, total, split)
        first_rps, second_rps = counts[0] * rate_of(first, one), counts[1] * rate_of(second, two)
        made += 1
        if min(first_rps, second_rps) > found_rps:
            found, found_rps = split, min(first_rps, second_rps)
        if first_rps > second_rps:
            low = split + 1
        else:
            high = split
        split = (low + high) // 2
    return found, found_rps, whole_rps, made


@compiled
def work_s(c: Floats, rows: Ints) -> float:
    """Returns the seconds that the tokens of parts take of an instance whose passes go on anyway; `c` is of shape
    (costs,), `rows` (parts, 3)."""
    token_s = c[FLOP_TOKEN] / c[COMPUTE] + c[KV_TOKEN_S]
    pair_s = c[FLOP_ATTENTION] / (c[COMPUTE] * c[EFF_ATTN])
    decode_s = token_s + c[FLOP_ROW] / c[COMPUTE] + c[SEQ]
    found_s = 0.0
    for row in range(rows.shape[0]):
        prefill, decode, cached = rows[row, PREFILL], rows[row, DECODE], rows[row, CACHED]
        found_s += prefill * (token_s + pair_s * (cached + prefill / 2.0))
        found_s += decode * (decode_s + c[KV_TOKEN_S] * (cached + prefill + decode / 2.0))
    return float(found_s)
