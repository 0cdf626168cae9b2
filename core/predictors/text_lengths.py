"""Predicts where an answer stands among its service's from the prompt's words and the request's sizes, as it learns.

A linear model of hashed features, learned one request at a time with AdaGrad (Duchi, Hazan and Singer, JMLR 2011). Each
feature counts twice, for all services and for the one that is asked, in one table: what prompts bring is much alike for
all services, and each learns how it differs (Weinberger et al., "Feature hashing for large scale multitask learning",
ICML 2009). Sizes count by their octave and by its quarter, so that any course can be learned.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from core.ports import RequestFeatures

from .boosted_lengths import HOUR, TENANT, record_of
from .text_features import TextFeatures

BITS = 18  # of the table: 2 MB
RATE = 0.05
_WORDS = 3.0  # length of the vector of words beside that of sizes
_SPREAD = np.uint32(0x9E3779B1)
_COLUMNS = tuple(column for column in range(TENANT + 1) if column not in (HOUR, TENANT))


class TextLengths:
    """Normal scores of answers by prompt; see AnswerScale. Bounded: the table's size is fixed."""

    def __init__(self) -> None:
        self._weights = np.zeros(1 << BITS, np.float32)
        self._squares = np.ones(1 << BITS, np.float32)
        self._keys: dict[str, np.uint32] = {}

    def score(self, service: str, features: TextFeatures, prompt_tokens: int, request: RequestFeatures) -> float:
        """Returns the score to expect: 0, the service's median, as long as nothing was learned."""
        places, values = self._inputs(service, features, prompt_tokens, request)
        return float(self._weights[places] @ values)

    def learn(
        self, service: str, features: TextFeatures, prompt_tokens: int, request: RequestFeatures, score: float
    ) -> None:
        """Takes in the score of a request's answer."""
        places, values = self._inputs(service, features, prompt_tokens, request)
        slope = (score - float(self._weights[places] @ values)) * values
        squares = self._squares[places] + slope * slope
        self._squares[places] = squares
        self._weights[places] += RATE * slope / np.sqrt(squares)

    def state(self) -> dict[str, NDArray[np.float32]]:
        return {"weights": self._weights.copy(), "squares": self._squares.copy()}

    def restore(self, state: Mapping[str, NDArray[np.float32]]) -> None:
        """Takes in what `state` gave. Raises ValueError when it is no such thing."""
        for name in ("weights", "squares"):
            found = state.get(name)
            if found is None or found.shape != (1 << BITS,) or found.dtype != np.float32:
                raise ValueError(f"the text model's {name} are {1 << BITS} numbers of 32 bits")
            if not np.isfinite(found).all():
                raise ValueError(f"the text model's {name} are finite")
        if (state["squares"] <= 0.0).any():
            raise ValueError("the text model's squares are positive")
        self._weights, self._squares = state["weights"].copy(), state["squares"].copy()

    def _inputs(
        self, service: str, features: TextFeatures, prompt_tokens: int, request: RequestFeatures
    ) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Returns the places of a request's features in the table, and their values, (f,) each."""
        key = self._keys.get(service)
        if key is None:
            key = self._keys[service] = np.uint32(zlib.crc32(service.encode()) | 1)
        sizes = _sizes(prompt_tokens, request)
        words = features.grams.size
        grams = np.concatenate((np.array(sizes, np.uint32) * _SPREAD, features.grams))
        values = np.ones(grams.size, np.float32)
        if words:
            values[-words:] = _WORDS / math.sqrt(words)
        places = np.concatenate((grams, (grams ^ key) * _SPREAD)) >> np.uint32(32 - BITS)
        return places.astype(np.intp), np.concatenate((values, values))


def _sizes(prompt_tokens: int, request: RequestFeatures) -> list[int]:
    """Returns a number for each size and flag: its column and its octave, and its quarter of an octave."""
    found = [1]  # of the constant
    record = record_of(prompt_tokens, request)
    for column in _COLUMNS:
        value = record[column]
        quarter = -1 if value < 0.0 else int(4.0 * math.log2(1.0 + value))
        found.append((column << 16) + (quarter >> 2 & 0xFF) + 0x100)
        found.append((column << 16) + (quarter & 0xFF) + 0x200)
    return found
