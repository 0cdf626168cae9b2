"""Predicts a request's output length for policies before it runs: the truth, or the truth with an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.simulator.fields import Section
from core.simulator.workload.columns import Floats, Ints
from core.simulator.workload.generate import Quantity, random_stream

_P95_DEVIATIONS = 1.96  # 95 % of a normal distribution lies within
KINDS = ("oracle", "gaussian", "misclass", "neighbour", "sd")
_OF_CLASSES = ("misclass", "neighbour")


@dataclass(frozen=True, slots=True)
class LengthPredictor:
    """The kind of its errors, and how large they are.

    oracle: none. gaussian: relative errors are normal, 95 % of them within +-`size` (throttLL'eM's prediction error).
    sd: errors are normal with a standard deviation of `size` tokens. misclass: at a rate of `size` the prediction is a
    typical length of another output class, drawn uniformly among the others; else the truth. neighbour: of a class next
    to the true one, as most errors of a predictor that learned the order of classes are (mu-Serve, table 2).
    """

    kind: str = "oracle"
    size: float = 0.0

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
    """Reads `oracle` (the default), or one of `{gaussian: P95}`, `{misclass: RATE}`, `{neighbour: RATE}`, `{sd:
    TOKENS}`.

    Raises:
        ScenarioError: It is none of these, or the number makes no sense.
    """
    if not section.is_mapping(key):
        if section.text(key, "oracle") != "oracle":
            words = "{gaussian: P95}, {misclass: RATE}, {neighbour: RATE} or {sd: TOKENS}"
            raise section.error(key, f"must be oracle, {words}")
        return LengthPredictor()
    own = section.section(key)
    sizes = {kind: own.number(kind, None, least=0.0) for kind in KINDS[1:]}
    own.finish()
    given = [(kind, size) for kind, size in sizes.items() if size is not None]
    if len(given) != 1:
        raise section.error(key, f"must have one of {', '.join(KINDS[1:])}, not {len(given)}")
    kind, size = given[0]
    if kind in _OF_CLASSES and size > 1.0:
        raise own.error(kind, f"is a share of requests, at most 1, not {size}")
    return LengthPredictor(kind, size)
