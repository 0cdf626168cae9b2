"""Predicts a request's output length for policies before it runs: the truth, or the truth with an error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from core.simulator.fields import Section
from core.simulator.workload.columns import Floats, Ints
from core.simulator.workload.generate import Quantity, random_stream

_P95_DEVIATIONS = 1.96  # 95 % of a normal distribution lies within
SIZED_KINDS = ("constant", "gaussian", "misclass", "neighbour", "sd")
_OF_CLASSES = ("misclass", "neighbour")


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts what a classifier of lengths was seen to say: requests by true class (rows) and predicted class (columns).

    Class k is from borders[k-1] up to, but not with, borders[k] tokens.

    Raises:
        ValueError: The figures are no such thing; the message begins with the field.
    """

    borders: tuple[int, ...]
    requests: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.borders or any(low >= high for low, high in pairwise((1, *self.borders))):
            raise ValueError(f"borders: must ascend, from 2 tokens on, unlike {list(self.borders)}")
        classes = len(self.borders) + 1
        if len(self.requests) != classes or any(len(row) != classes for row in self.requests):
            raise ValueError(
                f"requests: {len(self.borders)} borders make {classes} classes: give as many rows of as many"
            )
        if any(not 0.0 <= count < math.inf for row in self.requests for count in row):
            raise ValueError("requests: are counted, and none is below 0")
        if any(sum(row) <= 0.0 for row in self.requests):
            raise ValueError("requests: every true class needs some, else nothing says what is predicted of it")

    def predict(self, output_tokens: Ints, draws: Floats) -> Ints:
        """Returns a typical length of the class that is said of each request; `draws` are uniform from 0 to 1."""
        rows = np.asarray(self.requests)
        upto = np.cumsum(rows, axis=1) / rows.sum(axis=1, keepdims=True)
        true = np.searchsorted(np.asarray(self.borders), output_tokens, side="right")
        said = (draws[:, None] >= upto[true, :-1]).sum(axis=1)
        typical: Ints = typical_lengths(self.borders)[said]
        return typical


@dataclass(frozen=True, slots=True)
class LengthPredictor:
    """The kind of its errors, and how large they are.

    oracle: none. constant: all requests are predicted `size` tokens, so that nothing of a request is known.
    gaussian: relative errors are normal, 95 % of them within +-`size` (throttLL'eM's prediction error). sd: errors are
    normal with a standard deviation of `size` tokens. misclass: at a rate of `size` the prediction is a typical length
    of another output class, drawn uniformly among the others; else the truth. neighbour: of a class next to the true
    one, as most errors of a predictor that learned the order of classes are (mu-Serve, table 2). confusion: a typical
    length of the class that `confusion` says, also where that is the true one.
    """

    kind: str = "oracle"
    size: float = 0.0
    confusion: Confusion | None = None

    def random_stream(self, seed: int, stream: int = 0) -> np.random.Generator:
        """Returns the generator that `predict` draws from, for one stream of requests."""
        return random_stream(seed, stream, Quantity.PREDICTIONS)

    def predict(self, output_tokens: Ints, rng: np.random.Generator, bounds: Sequence[int] = ()) -> Ints:
        """Predicts a block of requests, one entry a request, at least one token each.

        Each request takes the same number of draws. So where blocks come in order, and one `rng` goes through all of
        them, a prediction depends on its request's position only, not on the size of the blocks.

        Args:
            bounds: ascending; output class k is from bounds[k-1] up to, but not with, bounds[k]. Only misclass and
                neighbour ask.

        Raises:
            ValueError: misclass or neighbour without bounds: there is no other class to take it for.
        """
        if self.kind == "oracle":
            return output_tokens
        if self.confusion is not None:
            return self.confusion.predict(output_tokens, rng.random(output_tokens.size))
        if self.kind == "constant":
            return np.full_like(output_tokens, round(self.size))
        if self.kind in _OF_CLASSES:
            return self._misclassed(output_tokens, rng, bounds)
        errors: Floats = rng.standard_normal(output_tokens.size)
        scale = self.size if self.kind == "sd" else output_tokens * (self.size / _P95_DEVIATIONS)
        return np.maximum(1.0, np.rint(output_tokens + scale * errors)).astype(np.int64)

    def _misclassed(self, output_tokens: Ints, rng: np.random.Generator, bounds: Sequence[int]) -> Ints:
        if not bounds:
            raise ValueError(
                f"{self.kind} needs at least two output classes: give classes with output_min and output_max"
            )
        typical = typical_lengths(bounds)
        wrong, which = rng.random((output_tokens.size, 2)).T
        own = np.searchsorted(np.asarray(bounds), output_tokens, side="right")
        if self.kind == "neighbour":
            other = np.where(which < 0.5, own - 1, own + 1)
            other = np.where((other < 0) | (other >= typical.size), 2 * own - other, other)
        else:
            other = (which * (typical.size - 1)).astype(np.int64)
            other += other >= own  # leaves out its own
        return np.where(wrong < self.size, typical[other], output_tokens)


def typical_lengths(bounds: Sequence[int]) -> Ints:
    """Returns one length of each class, (classes,): halfway between its bounds; half as much again as its bound for the
    open last one."""
    edges = [1, *bounds]
    return np.array([(low + high) // 2 for low, high in zip(edges, bounds, strict=False)] + [bounds[-1] * 3 // 2])


def read_predictor(section: Section, key: str = "length_predictor") -> LengthPredictor:
    """Reads `oracle` (the default), or one of `{constant: TOKENS}`, `{gaussian: P95}`, `{misclass: RATE}`, `{neighbour:
    RATE}`, `{sd: TOKENS}` and `{confusion: {borders: [...], requests: [[...], ...]}}`.

    Raises:
        ScenarioError: It is none of these, or a number makes no sense.
    """
    kinds = ("confusion", *SIZED_KINDS)
    if not section.is_mapping(key):
        if section.text(key, "oracle") != "oracle":
            words = (
                "{constant: TOKENS}, {gaussian: P95}, {misclass: RATE}, {neighbour: RATE}, {sd: TOKENS} or "
                "{confusion: {borders: ..., requests: ...}}"
            )
            raise section.error(key, f"must be oracle, {words}")
        return LengthPredictor()
    own = section.section(key)
    sizes = {kind: own.number(kind, None, least=1.0 if kind == "constant" else 0.0) for kind in SIZED_KINDS}
    confusion = own.optional("confusion")
    own.finish()
    given = [(kind, size) for kind, size in sizes.items() if size is not None]
    if len(given) + (confusion is not None) != 1:
        raise section.error(key, f"must have one of {', '.join(kinds)}, not {len(given) + (confusion is not None)}")
    if confusion is not None:
        return LengthPredictor("confusion", confusion=_confusion(confusion))
    kind, size = given[0]
    if kind in _OF_CLASSES and size > 1.0:
        raise own.error(kind, f"is a share of requests, at most 1, not {size}")
    return LengthPredictor(kind, size)


def _confusion(section: Section) -> Confusion:
    borders = tuple(round(border) for border in section.numbers("borders"))
    rows = section.rows("requests")
    section.finish()
    try:
        return Confusion(borders, rows)
    except ValueError as error:
        field, _, words = str(error).partition(": ")
        raise section.error(field, words) from None
