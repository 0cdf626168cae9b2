"""The fit of step times (`step_times`) to an engine model at a clock: what an engine has learned that ran all kinds of
steps.

Importing this loads compiled code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.algorithms.split.step_times import ENOUGH_STEPS, LATE, LEAST_MARGIN, SCALES, nonnegative, prompt_tokens_within
from core.compiled import compiled
from core.engine.compiled_model import iteration

Floats = NDArray[np.float64]

# Columns of a fit: c0 to c4, how much longer than that slow steps take (as a share), and the clock that it is of.
MARGIN, MHZ, FIT = 5, 6, 7
_TERMS = 5
_SWEEPS = 2000
_SHORTEST_PROMPT, _SHORTEST_CONTEXT, _LONGEST_CONTEXT = 16, 64, 16_384  # tokens
_CACHED = (0, 1024, 8192)  # tokens of a prompt that were computed before: without them pairs and tokens go together
_LATE, _LEAST_MARGIN, _ENOUGH_STEPS = LATE, LEAST_MARGIN, ENOUGH_STEPS
_NEAR = 2.0  # steps that take so many times longer or shorter than the limit are not composed to it
_OF_TERM = np.array(SCALES)

solve = compiled(nonnegative)
within = compiled(prompt_tokens_within)


@compiled
def fit_of(
    c: Floats, mhz: float, token_budget: int, max_sequences: int, capacity_tokens: int, limit_s: float
) -> Floats:
    """Fits the steps of an engine at a clock that take between half of a limit and twice as long, of shape (FIT,).

    Prompts up to its token budget, new and under way, beside decodes up to its request cap, with contexts that its KV
    cache has room for. Where few steps take about as long as the limit, all count.

    Args:
        c: A row of the engine model, of shape (costs,).
    """
    rows, times = np.zeros((4096, _TERMS)), np.zeros(4096)
    n, decodes = 0, 1
    while decodes <= max_sequences:
        context = _SHORTEST_CONTEXT
        while context <= _LONGEST_CONTEXT and (decodes * context <= capacity_tokens or context == _SHORTEST_CONTEXT):
            prompt = _SHORTEST_PROMPT
            while prompt <= max(_SHORTEST_PROMPT, token_budget) and n + len(_CACHED) <= times.size:
                total = float(decodes * context)
                for cached in _CACHED:
                    pairs = prompt * (cached + prompt / 2.0)
                    t_s = iteration(c, mhz, float(prompt), float(cached), pairs, 1.0, float(decodes), total)[0]
                    rows[n, 0], rows[n, 1], rows[n, 2] = 1.0, prompt, pairs
                    rows[n, 3], rows[n, 4] = decodes, total
                    times[n] = t_s
                    n += 1
                prompt *= 2
            context *= 4
        decodes *= 2
    about = (times[:n] >= limit_s / _NEAR) & (times[:n] <= limit_s * _NEAR)
    if about.sum() < _ENOUGH_STEPS:
        about[:] = True
    return _fitted(rows[:n][about], times[:n][about], mhz)


@compiled
def _fitted(rows: Floats, times: Floats, mhz: float) -> Floats:
    """Fits steps of shapes (n, terms) and (n,), each by its relative error."""
    products, targets, found = np.zeros((_TERMS, _TERMS)), np.zeros(_TERMS), np.zeros(_TERMS)
    for n in range(times.size):
        for i in range(_TERMS):
            own = rows[n, i] * _OF_TERM[i] / times[n]
            targets[i] += own
            for j in range(_TERMS):
                products[i, j] += own * rows[n, j] * _OF_TERM[j] / times[n]
    solve(products, targets, found, _SWEEPS)
    fit, late = np.zeros(FIT), np.zeros(times.size)
    fit[:_TERMS] = found * _OF_TERM
    for n in range(times.size):
        predicted_s = 0.0
        for i in range(_TERMS):
            predicted_s += fit[i] * rows[n, i]
        late[n] = times[n] / predicted_s - 1.0
    late.sort()
    fit[MARGIN], fit[MHZ] = max(_LEAST_MARGIN, late[int(_LATE * (late.size - 1))]), mhz
    return fit


@compiled
def prompt_budget(fit: Floats, decodes: int, context_tokens: int, cached_tokens: int, limit_s: float, most: int) -> int:
    """Returns prompt tokens up to `most` with which a step keeps a limit less its margin; `fit` has shape (FIT,)."""
    within_s = limit_s / (1.0 + fit[MARGIN])
    return within(fit, float(decodes), float(context_tokens), float(cached_tokens), within_s, most)
