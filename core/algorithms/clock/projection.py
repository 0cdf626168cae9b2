"""throttLL'eM's scoreboard, its projections of batch and KV cache (IV-B, eq. 1 and 2), and the checks that rest on them
(IV-C, eq. 3 and 4; IV-E).

Symbols: k the present iteration, s_i the one that request q_i was scheduled at, |q_i| its prompt, r_i its predicted
output, N tokens of a block, B_j and KV_j batch and blocks at iteration j, T_j iterations a second, T' = 1/T the time
between tokens, T_R their running sum. Here iterations count from the present one, j = 1, 2, ...: a request that
generates has k + 1 - s_i tokens of its output behind it already, which are in its KV cache.

Where the printed text is loose: the result of eq. 2 is the vector KV; the running sum of eq. 3 starts with the
iteration about to run; l of eq. 4 is the last iteration of q_i by prediction, so its time is T_R at l.
Eq. 1 has the whole prompt in the cache from s_i on, and so have we, also while it is taken in chunk by chunk.

Everything compiled is in this one file, because Numba's cache watches a function's own file and not those it calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.speed_table import SpeedTable
from core.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KEPT, TBT, E2E = 0, 1, 2  # what a clock breaks


@dataclass(frozen=True, slots=True, eq=False)
class Scoreboard:
    """What an engine runs: a row for each request, in the order in which prompts are taken in."""

    kv_tokens: Ints  # in the cache now
    prompt_tokens: Ints  # that are not in the cache yet; 0: it generates
    remaining_tokens: Ints  # of output that it will still generate, at least 1
    deadline_s: Floats  # on the clock of `now_s`; infinite: none
    lost: Bools  # left out of the checks of deadlines

    @property
    def size(self) -> int:
        return int(self.kv_tokens.size)

    def rows(self, which: slice | Ints) -> Scoreboard:
        return Scoreboard(
            self.kv_tokens[which],
            self.prompt_tokens[which],
            self.remaining_tokens[which],
            self.deadline_s[which],
            self.lost[which],
        )

    def plus(self, other: Scoreboard) -> Scoreboard:
        """Returns this board with the rows of another behind its own: the 'virtual' scoreboard of IV-B, to keep or to
        forget."""
        return Scoreboard(
            np.concatenate((self.kv_tokens, other.kv_tokens)),
            np.concatenate((self.prompt_tokens, other.prompt_tokens)),
            np.concatenate((self.remaining_tokens, other.remaining_tokens)),
            np.concatenate((self.deadline_s, other.deadline_s)),
            np.concatenate((self.lost, other.lost)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """The coming iterations, as far as the last of the requests goes; nobody joins. Index 0 is iteration 1."""

    batch: Ints  # B, requests scheduled
    kv_blocks: Ints  # KV of eq. 2
    prompt_tokens: Ints  # taken in
    ends: Ints  # of each request: its last iteration, l

    @property
    def peak_kv_blocks(self) -> int:
        return int(self.kv_blocks.max(initial=0))


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """The projection at one clock."""

    mean_tbt_s: float  # mean of T'; 0 when nothing runs
    finish_s: Floats  # of each request: T_R at its end, seconds from now


@dataclass(frozen=True, slots=True)
class Search:
    """The lowest clock that keeps every limit, as an index; None: not even the top one does. `probes` were tried, each
    with what it breaks."""

    clock: int | None
    probes: tuple[tuple[int, int], ...]


def project(board: Scoreboard, block_tokens: int, chunk_tokens: int) -> Projection:
    """Applies eq.

    1 and 2 to all coming iterations. An iteration takes in at most `chunk_tokens` of prompts, row by row.

    Raises:
        ValueError: A count below 0, or a request that has nothing left to generate.
    """
    lowest = min(board.kv_tokens.min(initial=0), board.prompt_tokens.min(initial=0))
    if lowest < 0 or board.remaining_tokens.min(initial=1) < 1 or min(block_tokens, chunk_tokens) < 1:
        raise ValueError("a request has no tokens below 0, and at least one to generate; so have blocks and chunks")
    return Projection(
        *_project(board.kv_tokens, board.prompt_tokens, board.remaining_tokens, block_tokens, chunk_tokens)
    )


def outlook(projection: Projection, table: SpeedTable, clock: int) -> Outlook:
    """Applies eq. 3 at a clock, given by its index."""
    if projection.batch.size == 0:
        return Outlook(0.0, np.zeros(0))
    elapsed_s = _elapsed(clock, projection.batch, projection.kv_blocks, projection.prompt_tokens, *_arrays(table))
    return Outlook(float(elapsed_s[-1] / elapsed_s.size), elapsed_s[projection.ends - 1])


def late(board: Scoreboard, look: Outlook, now_s: float) -> Bools:
    """Says which requests break eq. 4, one entry a row; lost ones never do."""
    found: Bools = ~board.lost & ~(look.finish_s < board.deadline_s - now_s)
    return found


def lowest_clock(
    board: Scoreboard, projection: Projection, table: SpeedTable, now_s: float, tbt_s: float | None
) -> Search:
    """Searches the table's clocks by halving for the lowest that keeps the mean TBT and all deadlines (IV-E).

    As no clock of a table is slower than a lower one, what one keeps all above it keep.
    """
    if projection.batch.size == 0:
        return Search(0, ())
    limit_s = np.inf if tbt_s is None else tbt_s
    left_s = np.where(board.lost, np.inf, board.deadline_s - now_s)
    clock, tried, broke = _lowest(
        table.clocks_mhz.size,
        limit_s,
        left_s,
        projection.ends,
        projection.batch,
        projection.kv_blocks,
        projection.prompt_tokens,
        *_arrays(table),
    )
    probes = tuple(zip(tried.tolist(), broke.tolist(), strict=True))
    return Search(None if clock == table.clocks_mhz.size else int(clock), probes)


def _arrays(table: SpeedTable) -> tuple[Floats, float, Floats, float]:
    """Returns seconds, blocks between KV levels, seconds of prompts, and tokens between their levels."""
    shape = table.shape
    levels, prompt_levels = table.seconds.shape[2], table.prompt_s.shape[1]
    return (
        table.seconds,
        shape.kv_blocks / (levels - 1),
        table.prompt_s,
        shape.chunk_tokens / (prompt_levels - 1),
    )


@compiled
def _project(
    kv: Ints, prompt: Ints, remaining: Ints, block_tokens: int, chunk_tokens: int
) -> tuple[Ints, Ints, Ints, Ints]:
    rows = kv.size
    first = np.zeros(rows, np.int64)  # the iteration that ends the prompt and gives its first token; 0: it is past that
    ends = np.zeros(rows, np.int64)
    prompts = horizon = 0
    for i in range(rows):
        ends[i] = remaining[i]
        if prompt[i] > 0:
            prompts += prompt[i]
            first[i] = (prompts + chunk_tokens - 1) // chunk_tokens
            ends[i] += first[i] - 1
        horizon = max(horizon, ends[i])
    # Changes from one iteration to the next; then their running sums.
    batch = np.zeros(horizon + 2, np.int64)
    blocks = np.zeros(horizon + 2, np.int64)
    taken = np.zeros(horizon, np.int64)
    for i in range(rows):
        # Of tokens(j) = kv + prompt + max(0, j - first) tokens in iteration j; a token is written as it is generated.
        tokens = kv[i] + prompt[i]
        count = (tokens + block_tokens - 1) // block_tokens
        batch[1] += 1
        blocks[1] += count
        j = first[i] + count * block_tokens + 1 - tokens  # the first iteration whose token finds the last block full
        while j <= ends[i]:
            blocks[j] += 1
            count += 1
            j += block_tokens
        batch[ends[i] + 1] -= 1
        blocks[ends[i] + 1] -= count
    for j in range(1, horizon + 1):
        batch[j] += batch[j - 1]
        blocks[j] += blocks[j - 1]
        taken[j - 1] = max(0, min(chunk_tokens, prompts - (j - 1) * chunk_tokens))
    return batch[1 : horizon + 1], blocks[1 : horizon + 1], taken, ends


@compiled
def _elapsed(
    clock: int,
    batch: Ints,
    blocks: Ints,
    prompt: Ints,
    seconds: Floats,
    block_step: float,
    prompt_s: Floats,
    prompt_step: float,
) -> Floats:
    """Returns T_R of eq. 3: the seconds until the end of each iteration, (iterations,)."""
    elapsed = np.empty(batch.size)
    widest, last, last_prompt = seconds.shape[1], seconds.shape[2] - 2, prompt_s.shape[1] - 2
    sum_s = 0.0
    for j in range(batch.size):
        row = min(batch[j], widest) - 1
        place = blocks[j] / block_step
        level = min(int(place), last)  # beyond a full cache, the line goes on
        low, high = seconds[clock, row, level], seconds[clock, row, level + 1]
        sum_s += low + (place - level) * (high - low)
        if prompt[j] > 0:
            place = prompt[j] / prompt_step
            level = min(int(place), last_prompt)
            low, high = prompt_s[clock, level], prompt_s[clock, level + 1]
            sum_s += low + (place - level) * (high - low)
        elapsed[j] = sum_s
    return elapsed


@compiled
def _lowest(
    clocks: int,
    limit_s: float,
    left_s: Floats,
    ends: Ints,
    batch: Ints,
    blocks: Ints,
    prompt: Ints,
    seconds: Floats,
    block_step: float,
    prompt_s: Floats,
    prompt_step: float,
) -> tuple[int, Ints, Ints]:
    """Returns the lowest clock that keeps all, `clocks` when none does; the clocks that were tried, and what each
    breaks."""
    tried = np.empty(64, np.int64)
    broke = np.empty(64, np.int64)
    probes, low, high = 0, 0, clocks
    while low < high:
        middle = (low + high) // 2
        elapsed = _elapsed(middle, batch, blocks, prompt, seconds, block_step, prompt_s, prompt_step)
        breaks = KEPT
        if elapsed[-1] / elapsed.size > limit_s:
            breaks = TBT
        else:
            for i in range(ends.size):
                if not elapsed[ends[i] - 1] < left_s[i]:
                    breaks = E2E
                    break
        tried[probes], broke[probes] = middle, breaks
        probes += 1
        if breaks == KEPT:
            high = middle
        else:
            low = middle + 1
    return low, tried[:probes], broke[:probes]
