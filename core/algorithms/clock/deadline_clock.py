"""The lowest clock at which the requests of one engine still keep their limits, for the engine's next iterations.

A rule by profile sets the clock that a steady load needs, and an engine with four requests a second has no steady
load. This one looks at the requests that are there. At a clock it walks through the iterations that the waiting
prompts still need, chunk by chunk, and asks of each: does every prompt give its first token in time, does every answer
keep its mean time between tokens, and do answers that begin on the way survive the chunks of those behind them? Where
no prompt waits it asks for one iteration of what runs. No load, no profile and no length of an answer comes in.

throttLL'eM (IV-E) projects likewise, token by token to the end of each predicted answer; it has no limit on TTFT.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled
from core.engine.compiled_model import F_MAX, F_V, iteration

Floats = NDArray[np.float64]

MOST_PROMPTS = 64  # that are looked at: those behind them wait for longer than until the next look
MOST_ITERATIONS = 512  # that are walked through: beyond, the top clock it is
CATCH_UP = 8  # tokens within which answers that are behind are to be back in time
SPARE = 0.6  # share of a cache, or of the places in a batch, that is free, below which answers are hurried
DEVIATIONS = 2.33  # as core.engine.steady_state.SPARE_DEVIATIONS; compiled code has its own
NO_SLACK_S = 1e9  # where no answer is under way

PROMPT = np.dtype(
    [
        ("left", np.int64),  # tokens to prefill
        ("done", np.int64),  # tokens in the cache
        ("due_s", np.float64),  # when its first token is; infinite: it has no limit, or has had its first token
    ]
)


@compiled
def left_of_limits(cache: float, seats: float, answers: int) -> float:
    """Returns the share of its limits that an answer may use where shares `cache` of the cache and `seats` of the
    places in the batch are taken, by so many answers.

    Slower answers stay for longer, so that the slowest pace that a limit allows fills a cache or a batch. Where less
    than `SPARE` is free the pace goes up, to the top clock where no more is free than chance takes: the number of
    answers under way varies by its root, and plans leave `DEVIATIONS` times that.
    """
    taken = max(cache, seats) * (1.0 + DEVIATIONS / np.sqrt(max(1.0, float(answers))))
    return float(min(1.0, max(0.0, (1.0 - taken) / SPARE)))


@compiled
def in_time(
    c: Floats,
    mhz: float,
    prompts: Any,
    decodes: int,
    context: int,
    slack_s: float,
    tpot_s: float,
    now_s: float,
    budget: int,
    chunk: int,
    seats: int,
) -> bool:
    """Says whether at a clock all waiting prompts, (prompts,), and all answers keep their limits; see `lowest_mhz`."""
    n = prompts.shape[0]
    left, done = prompts["left"].copy(), prompts["done"].copy()
    first, batch, kv, fresh, at_s = 0, decodes, context, 0, 0.0
    for walked in range(1, MOST_ITERATIONS + 1):
        room = budget - batch
        new, cached, pairs, prefills = 0, 0, 0.0, 0
        last = first
        for p in range(first, n):
            if room <= 0 or prefills + batch >= seats:
                break
            last = p + 1
            if left[p] > 0:
                take = min(room, chunk, left[p])
                room -= take
                new += take
                cached += done[p]
                pairs += take * (done[p] + take / 2.0)
                prefills += 1
                left[p] -= take
                done[p] += take
        if prefills == 0:  # no seat, or no budget, until an answer ends: when that is nobody knows
            return batch == 0
        t_s = iteration(c, mhz, float(new), float(cached), pairs, float(prefills), float(batch), float(kv))[0]
        at_s += t_s
        if decodes > 0 and at_s > slack_s + tpot_s * walked:
            return False
        if fresh > 0 and t_s > tpot_s:
            return False
        for p in range(first, last):
            if left[p] == 0:
                if now_s + at_s > prompts[p]["due_s"]:
                    return False
                left[p] = -1
                batch += 1
                fresh += 1
                kv += done[p]
        while first < n and left[first] < 0:
            first += 1
        if first == n:
            return True
    return False


@compiled
def answers_in_time(c: Floats, mhz: float, decodes: int, context: int, slack_s: float, tpot_s: float) -> bool:
    """Says whether answers keep their mean where no prompt waits; those behind it catch up within `CATCH_UP` tokens.

    `c` has the costs, shape (costs,).
    """
    behind_s = min(0.0, slack_s) / CATCH_UP
    ahead = float(context + decodes * CATCH_UP)
    return bool(iteration(c, mhz, 0.0, 0.0, 0.0, 0.0, float(decodes), ahead)[0] <= tpot_s + behind_s)


@compiled
def lowest_mhz(
    c: Floats,
    floor_mhz: float,
    step_mhz: float,
    prompts: Any,
    decodes: int,
    context: int,
    slack_s: float,
    tpot_s: float,
    now_s: float,
    budget: int,
    chunk: int,
    seats: int,
) -> float:
    """Returns the lowest clock, in MHz, that keeps the limits; the top one where none does, the floor where nothing
    is to be done.

    Args:
        c: Of `core.engine.compiled_model`, (costs,).
        floor_mhz, step_mhz: The clocks looked at: the floor, and those `step_mhz` apart below the top.
        prompts: Of PROMPT, (prompts,): in the order in which the engine takes them in, up to `MOST_PROMPTS`.
        decodes: Answers under way.
        context: The sum of their tokens in the cache.
        slack_s: The least time by which one of them is ahead of its limit; below 0: behind it.
        tpot_s: The strictest limit on the time between tokens of all of them.
        budget, chunk, seats: Tokens of an iteration, those of one prompt, and requests at a time, at most.
    """
    if decodes + prompts.shape[0] == 0:
        return float(floor_mhz)
    top = c[F_MAX]
    steps = int(np.ceil((top - floor_mhz) / step_mhz - 1e-9))
    low, high = 0, steps
    while low < high:
        middle = (low + high) // 2
        mhz = max(floor_mhz, top - (steps - middle) * step_mhz)
        if prompts.shape[0] > 0:
            kept = in_time(c, mhz, prompts, decodes, context, slack_s, tpot_s, now_s, budget, chunk, seats)
        else:
            kept = answers_in_time(c, mhz, decodes, context, slack_s, tpot_s)
        if kept:
            high = middle
        else:
            low = middle + 1
    return float(max(floor_mhz, top - (steps - low) * step_mhz))


@compiled
def hurried_mhz(
    c: Floats,
    mhz: float,
    floor_mhz: float,
    step_mhz: float,
    prompts: Any,
    decodes: int,
    context: int,
    slack_s: float,
    tpot_s: float,
    now_s: float,
    budget: int,
    chunk: int,
    seats: int,
    share: float,
) -> float:
    """Returns the clock, in MHz, where answers may use a share of their limits (`left_of_limits`), for one that is
    needed anyway.

    Answers are hurried as far as clocks cost next to nothing, which is up to where the voltage begins to rise: an
    answer that takes less time there also leaves room sooner. Only where nothing is left of the limits it is the top.

    Args:
        mhz: The clock that the whole limits need (`lowest_mhz`, which has the other arguments: costs of shape (costs,)
            and prompts of shape (prompts,) among them).
    """
    if share >= 1.0 or decodes == 0:
        return float(mhz)
    top = c[F_MAX]
    if share <= 0.0:
        return float(top)
    knee = max(floor_mhz, top - np.ceil(max(0.0, top - c[F_V]) / step_mhz - 1e-9) * step_mhz)
    if mhz >= knee:
        return float(mhz)
    least_s, pace_s = min(slack_s, share * slack_s), share * tpot_s
    wanted = lowest_mhz(c, floor_mhz, step_mhz, prompts, decodes, context, least_s, pace_s, now_s, budget, chunk, seats)
    return float(max(mhz, min(wanted, knee)))


@compiled
def lowest_after_switch(
    c: Floats,
    present_mhz: float,
    switch_s: float,
    floor_mhz: float,
    step_mhz: float,
    prompts: Any,
    decodes: int,
    context: int,
    slack_s: float,
    tpot_s: float,
    now_s: float,
    budget: int,
    chunk: int,
    seats: int,
) -> float:
    """Returns the lowest clock, in MHz, where another than the present takes time to come. Until a higher one is there
    work goes on at the present: what is lost of that time goes with how much lower it is. A lower one may come late.

    Args:
        present_mhz: The clock last asked for.
        switch_s: From asking for a clock until it is there.
        floor_mhz: As of `lowest_mhz`, which has the other arguments too: costs of shape (costs,) and prompts of shape
            (prompts,) among them.
    """
    now = lowest_mhz(c, floor_mhz, step_mhz, prompts, decodes, context, slack_s, tpot_s, now_s, budget, chunk, seats)
    if switch_s <= 0.0 or now <= present_mhz:
        return now
    lost_s = switch_s * (1.0 - present_mhz / now)
    left_s, from_s = slack_s - lost_s, now_s + lost_s
    return lowest_mhz(c, floor_mhz, step_mhz, prompts, decodes, context, left_s, tpot_s, from_s, budget, chunk, seats)


@compiled
def next_iteration_mhz(
    c: Floats,
    floor_mhz: float,
    step_mhz: float,
    prompts: Any,
    decodes: int,
    context: int,
    tpot_s: float,
    now_s: float,
    budget: int,
    chunk: int,
    seats: int,
) -> float:
    """Returns the lowest clock, in MHz, at which the next iteration keeps the limits, and the top one while a prompt
    waits behind it (VoltanaLLM's EcoFreq).

    An iteration with answers is to take no longer than `tpot_s`: how far they are ahead does not count. How long a
    prompt has waited does. The arguments are those of `lowest_mhz`: costs of shape (costs,) and prompts of shape
    (prompts,) among them.
    """
    room = budget - decodes
    for p in range(prompts.shape[0]):
        left = prompts[p]["left"]
        if left > min(room, chunk) or decodes + p >= seats:
            return float(c[F_MAX])
        room -= left
    return lowest_mhz(c, floor_mhz, step_mhz, prompts, decodes, context, 0.0, tpot_s, now_s, budget, chunk, seats)
