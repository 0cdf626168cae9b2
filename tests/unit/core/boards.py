"""Small engines and batches for the tests of throttLL'eM, and a walk over them that takes one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from core.algorithms.clock.projection import Scoreboard
from core.algorithms.clock.speed_table import EngineShape, Floats, SpeedTable, speed_table

CLOCKS_MHZ = (500.0, 750.0, 1000.0, 1250.0, 1500.0)


class FakeEngine:
    """An iteration takes 10 ms at 1000 MHz, 1 ms more for each row but the first, and 0.1 ms for each KV block; each
    prompt token adds 0.5 ms. All of it goes as 1 / clock."""

    def predict(self, tp: int, batch: Floats, kv_blocks: Floats, mhz: Floats) -> Floats:
        return mhz / 1000.0 / (0.010 + 0.001 * (batch - 1.0) + 0.0001 * kv_blocks)

    def prompt_s(self, tp: int, prompt_tokens: Floats, mhz: Floats) -> Floats:
        return 0.0005 * prompt_tokens * 1000.0 / mhz


def iteration_s(batch: int, kv_blocks: int, prompt_tokens: int, mhz: float) -> float:
    """FakeEngine's, written once more."""
    return (0.010 + 0.001 * (batch - 1) + 0.0001 * kv_blocks + 0.0005 * prompt_tokens) * 1000.0 / mhz


def table(
    kv_blocks: int = 1000,
    block_tokens: int = 4,
    max_sequences: int = 16,
    chunk_tokens: int = 32,
    clocks_mhz: Sequence[float] = CLOCKS_MHZ,
) -> SpeedTable:
    shape = EngineShape(1, kv_blocks, block_tokens, max_sequences, chunk_tokens)
    return speed_table(FakeEngine(), FakeEngine(), shape, clocks_mhz)


@dataclass(frozen=True)
class Row:
    kv: int = 0
    prompt: int = 0
    remaining: int = 1
    deadline_s: float = np.inf
    lost: bool = False


def board(*rows: Row) -> Scoreboard:
    return Scoreboard(
        np.array([row.kv for row in rows], dtype=np.int64),
        np.array([row.prompt for row in rows], dtype=np.int64),
        np.array([row.remaining for row in rows], dtype=np.int64),
        np.array([row.deadline_s for row in rows], dtype=np.float64),
        np.array([row.lost for row in rows], dtype=np.bool_),
    )


@dataclass
class _Live:
    cached: int  # tokens in the KV cache, or that have their place in it
    prompt: int
    remaining: int
    end: int = 0


@dataclass
class Walk:
    """What happened, iteration by iteration."""

    batch: list[int] = field(default_factory=list)
    kv_blocks: list[int] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def seconds(self, mhz: float) -> list[float]:
        """Of each iteration, by FakeEngine."""
        rows = zip(self.batch, self.kv_blocks, self.prompt_tokens, strict=True)
        return [iteration_s(batch, blocks, prompt, mhz) for batch, blocks, prompt in rows]


def walk(rows: Sequence[Row], block_tokens: int, chunk_tokens: int) -> Walk:
    """Runs the rows token by token. A prompt has its place in the cache from the beginning (eq. 1)."""
    found = Walk()
    lives = [_Live(row.kv + row.prompt, row.prompt, row.remaining) for row in rows]
    iteration = 0
    while any(live.remaining for live in lives):
        iteration += 1
        room, taken, blocks, batch = chunk_tokens, 0, 0, 0
        for live in lives:
            if live.remaining == 0:
                continue
            batch += 1
            if live.prompt:
                share = min(live.prompt, room)
                room -= share
                taken += share
                live.prompt -= share
                generates = live.prompt == 0
            else:
                live.cached += 1  # the token generated last comes into the cache as the next one is made
                generates = True
            blocks += -(-live.cached // block_tokens)
            if generates:
                live.remaining -= 1
                if live.remaining == 0:
                    live.end = iteration
        found.batch.append(batch)
        found.kv_blocks.append(blocks)
        found.prompt_tokens.append(taken)
    found.ends = [live.end for live in lives]
    return found


# A request; some have a deadline that some clocks keep and others do not, some are lost.
ROW = st.builds(
    Row,
    kv=st.integers(0, 40),
    prompt=st.integers(0, 70),
    remaining=st.integers(1, 30),
    deadline_s=st.one_of(st.just(np.inf), st.floats(0.05, 2.0)),
    lost=st.booleans(),
)


def rows(max_size: int = 6) -> st.SearchStrategy[list[Row]]:
    return st.lists(ROW, max_size=max_size)
