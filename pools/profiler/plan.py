"""Decides what a profiling run measures, and in which order. Pure.

Three kinds of steps. `decode`: a batch of equal requests, kept at its size (throttLL'eM, section IV-B: batch sizes up
to a full KV cache, in random order of clocks). `prefill`: prompts one after the other, without output. `load`: a
class's lengths at rising rates until saturation (DynamoLLM, section IV-A).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from core.policy.request_classes import ClassBounds

DECODE, PREFILL, LOAD = "decode", "prefill", "load"
CONTEXT_PROMPTS = (32, 1024)  # of the sweep: time is linear in the context, so two lengths tell the line
PREFILL_SIZES = (128, 512, 2048)
SWEEP_OUTPUT_TOKENS = 192
MOST_SEQUENCES = 256  # vLLM's max_num_seqs
TOKEN_BUDGET = 2048  # of an iteration, vLLM's: a longer prompt would take several
_LONGER_OUTPUTS = 8
_OPEN_ENDED = 2.0  # a length without upper bound stands for so many times its lower one


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to measure. `batch`: decoding sequences of a sweep. `name`: the class of a load.

    `longest_output`: a sweep may make its outputs so long, where requests come in too slowly for shorter ones.
    """

    kind: str
    mhz: float
    prompt_tokens: int
    output_tokens: int
    batch: int = 0
    name: str = ""
    longest_output: int = 0

    @property
    def key(self) -> str:
        """The name that the journal knows the step by."""
        return f"{self.kind} {self.name} {self.mhz:g} {self.prompt_tokens} {self.output_tokens} {self.batch}"

    @property
    def words(self) -> str:
        """The step in words, for people."""
        if self.kind == LOAD:
            return f"load {self.name} ({self.prompt_tokens} in, {self.output_tokens} out) at {self.mhz:g} MHz"
        if self.kind == PREFILL:
            return f"prefill {self.prompt_tokens} at {self.mhz:g} MHz"
        return f"batch {self.batch}, prompts of {self.prompt_tokens} at {self.mhz:g} MHz"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of an engine. `kv_tokens` None: not known."""

    max_model_len: int
    kv_tokens: int | None

    def room(self, sequences: int) -> int:
        """Returns the longest that so many sequences can be, all at once."""
        return self.max_model_len if self.kv_tokens is None else min(self.max_model_len, self.kv_tokens // sequences)

    def fits(self, sequences: int, tokens: int) -> bool:
        return tokens <= self.room(sequences)


def sweep(
    bounds: Bounds,
    clocks_mhz: Sequence[float],
    batches: Sequence[int] | None,
    seed: int,
    most: int = MOST_SEQUENCES,
    lengths: tuple[int, int] = CONTEXT_PROMPTS,
    output_tokens: int = SWEEP_OUTPUT_TOKENS,
) -> tuple[Step, ...]:
    """Returns decode and prefill steps, in random order, so that a drift of the machine is no clock's or batch's.

    Every clock has every batch: what a profile needs. `batches` None: 1, 4, 16 ... up to a full KV cache.
    """
    output = max(8, min(output_tokens, bounds.max_model_len // 4))
    long = min(lengths[-1], bounds.max_model_len - output - 1)
    prompts = sorted({min(lengths[0], long), long})
    steps: list[Step] = []
    for mhz in clocks_mhz:
        for batch in batches or _doublings(bounds, prompts[0] + output, most):
            for prompt in prompts:
                if (room := bounds.room(batch) - prompt) >= output:
                    longest = min(room, output * _LONGER_OUTPUTS)
                    steps.append(Step(DECODE, mhz, prompt, output, batch, longest_output=longest))
        sizes = sorted({min(size, bounds.max_model_len - 1, TOKEN_BUDGET) for size in PREFILL_SIZES})
        steps += [Step(PREFILL, mhz, size, 1) for size in sizes if bounds.fits(2, size + 1)]
    random.Random(seed).shuffle(steps)
    return tuple(steps)


def _doublings(bounds: Bounds, tokens: int, most: int) -> Iterator[int]:
    """Yields 1, 4, 16 ... and the largest batch that fits."""
    full = most if bounds.kv_tokens is None else min(most, bounds.kv_tokens // tokens)
    batch = 1
    while batch < full:
        yield batch
        batch *= 4
    if full >= 1:
        yield full


def loads(classes: Sequence[ClassBounds], bounds: Bounds, clocks_mhz: Sequence[float]) -> tuple[Step, ...]:
    """Returns a step for each class and clock, at lengths in the middle of the class.

    Classes that do not fit are out.
    """
    found = []
    for request_class in classes:
        prompt = _middle(request_class.input_min, request_class.input_max)
        output = _middle(request_class.output_min, request_class.output_max)
        if bounds.fits(1, prompt + output):
            found += [Step(LOAD, mhz, prompt, output, name=request_class.name) for mhz in clocks_mhz]
    return tuple(found)


def _middle(low: int, below: int | None) -> int:
    """Returns the geometric middle of a range of lengths; of one from 0 its half."""
    if below is None:
        return int(low * _OPEN_ENDED)
    return below // 2 if low == 0 else round((low * below) ** 0.5)


@dataclass(slots=True)
class RateSearch:
    """Doubles a rate until it saturates, then halves the gap to the last that did not, `bisections` times."""

    first_rps: float
    bisections: int = 2
    doublings: int = 12
    low_rps: float = 0.0  # the highest that did not saturate
    high_rps: float | None = None  # the lowest that did
    _tried: int = field(default=0)

    def next(self) -> float | None:
        """Returns the rate to try; None: done."""
        if self.high_rps is None:
            return self.first_rps * 2.0**self._tried if self._tried < self.doublings else None
        if self.bisections <= 0:
            return None
        return (self.low_rps + self.high_rps) / 2.0

    def tell(self, rps: float, saturated: bool) -> None:
        """Takes what came of `rps`."""
        self._tried += 1
        if self.high_rps is not None:
            self.bisections -= 1
        if saturated:
            self.high_rps = rps
        else:
            self.low_rps = rps
