"""Distributions of prompt and output lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from core.compiled import compiled
from core.simulator.kernel.arrivals import Arrivals
from core.simulator.workload.columns import Floats, Ints

# Quantiles of the lengths in AzureLLMInferenceTrace_conv (19,366 requests of one hour in November 2023;
# AzurePublicDataset, CC-BY; cite Splitwise, ISCA 2024). Computed from the trace; linear in between.
QUANTILE_SHARES = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
PROMPT_QUANTILES = (2, 29, 181, 207, 396, 1020, 1189, 2735, 4083, 4142, 14050)
OUTPUT_QUANTILES = (7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1000)


@compiled
def _below(normal: Floats) -> Floats:
    """The standard normal distribution function: what share of draws lies below each."""
    shares = np.empty_like(normal)
    for k in range(normal.size):
        shares[k] = 0.5 * math.erfc(-normal[k] / math.sqrt(2.0))
    return shares


# Each distribution turns standard normal draws into lengths of the same rank, so that two of them can be correlated.


@dataclass(frozen=True, slots=True)
class Fixed:
    tokens: float

    def lengths(self, normal: Floats) -> Floats:
        return np.full(normal.size, self.tokens)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Rounded to whole tokens, at least one. A mean of one is one token always."""

    mean_tokens: float

    def lengths(self, normal: Floats) -> Floats:
        if self.mean_tokens == 1.0:
            return np.ones(normal.size)
        found: Floats = -self.mean_tokens * np.log(_below(-normal))
        return found


@dataclass(frozen=True, slots=True)
class Lognormal:
    """`mean_tokens` is the mean of the lengths, `sigma` the standard deviation of their logarithm."""

    mean_tokens: float
    sigma: float

    def lengths(self, normal: Floats) -> Floats:
        found: Floats = self.mean_tokens * np.exp(self.sigma * normal - 0.5 * self.sigma**2)
        return found


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A share `shares[k]` of the lengths is at most `tokens[k]`; linear in between."""

    shares: tuple[float, ...]
    tokens: tuple[float, ...]

    def lengths(self, normal: Floats) -> Floats:
        return np.interp(_below(normal), self.shares, self.tokens)


Distribution = Fixed | Exponential | Lognormal | Quantiles


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output lengths. Their ranks are correlated through a Gaussian copula.

    `correlation` is that of the two normal draws; the rank correlation of the lengths is 6/pi asin(correlation/2).
    """

    prompt: Distribution
    output: Distribution
    correlation: float = 0.0

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
        """Draws whole tokens, (count,) each, at least one.

        Takes two normal draws a request, however many are asked for at once.
        """
        first, second = np.ascontiguousarray(rng.standard_normal((count, 2)).T)
        if self.correlation:
            second = self.correlation * first + math.sqrt(1.0 - self.correlation**2) * second
        return _whole(self.prompt.lengths(first)), _whole(self.output.lengths(second))


AZURE_CONV = Lengths(
    Quantiles(QUANTILE_SHARES, tuple(map(float, PROMPT_QUANTILES))),
    Quantiles(QUANTILE_SHARES, tuple(map(float, OUTPUT_QUANTILES))),
)


def _whole(tokens: Floats) -> Ints:
    return np.maximum(1.0, np.rint(tokens)).astype(np.int64)


def quantile_table(blocks: Iterable[Arrivals], shares: Sequence[float] = QUANTILE_SHARES) -> Lengths:
    """Makes quantile tables of a trace's lengths, to generate requests like it (uncorrelated).

    Holds a count per length.

    Raises:
        ValueError: There is no request.
    """
    prompt, output = _Counts(), _Counts()
    for block in blocks:
        prompt.add(block.prompt_tokens)
        output.add(block.output_tokens)
    return Lengths(prompt.quantiles(shares), output.quantiles(shares))


class _Counts:
    """Counts how often each length occurs: as exact as keeping all of them."""

    def __init__(self) -> None:
        self._tokens = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def add(self, tokens: Ints) -> None:
        own, counts = np.unique(tokens, return_counts=True)
        merged, where = np.unique(np.concatenate([self._tokens, own]), return_inverse=True)
        self._counts = np.bincount(where, np.concatenate([self._counts, counts]), merged.size).astype(np.int64)
        self._tokens = merged

    def quantiles(self, shares: Sequence[float]) -> Quantiles:
        if not self._tokens.size:
            raise ValueError("a table needs at least one request")
        ends = np.cumsum(self._counts)
        rank = np.asarray(shares, np.float64) * (ends[-1] - 1)  # between two requests, as numpy.quantile's default
        below, above = (self._tokens[np.searchsorted(ends, r, side="right")] for r in (np.floor(rank), np.ceil(rank)))
        found = below + (above - below) * (rank - np.floor(rank))
        return Quantiles(tuple(map(float, shares)), tuple(found.tolist()))
