"""Predicts where an answer stands among its service's from the prompt's words and the request's sizes, as it learns.

A linear model of hashed features, learned one request at a time with AdaGrad (Duchi, Hazan and Singer, JMLR 2011). Each
feature counts twice, for all services and for the one that is asked, in one table: what prompts bring is much alike for
all services, and each learns how it differs (Weinberger et al., "Feature hashing for large scale multitask learning",
ICML 2009). Sizes count by their octave and by its quarter, so that any course can be learned.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from core.ports import RequestFeatures

from .boosted_lengths import HOUR, record_of
from .compiled_places import places_of
from .text_features import TextFeatures

BITS = 18  # of the table: 2 MB
RATE = 0.05
_WORDS = 3.0  # length of the vector of words beside that of sizes


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
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns the places of a request's features in the table, and their values, (f,) each."""
        key = self._keys.get(service)
        if key is None:
            key = self._keys[service] = np.uint32(zlib.crc32(service.encode()) | 1)
        record = np.array(record_of(prompt_tokens, request)[:HOUR])  # and neither hour nor tenant
        return places_of(record, features.grams, key, BITS, _WORDS)
