"""Predicts how many tokens a request will generate, from what like requests of its service generated before."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

# Median output of the Azure conversation trace of 2023 (AzurePublicDataset, AzureLLMInferenceTrace_conv, CC-BY; see
# Splitwise, ISCA 2024): the answer until the service has a history of its own.
PRIOR_OUTPUT_TOKENS = 129
RESERVOIR = 512  # newest outputs kept for each bucket
MIN_HISTORY = 8  # outputs a bucket needs before it is trusted over the whole service
# Outputs a service needs before its history is trusted over the prior: the short answers of the first requests end
# before the long ones, so that a younger history would predict too little.
WARM_UP = 64


class _Reservoir:
    """The newest `RESERVOIR` values, kept in order so that a quantile is one look-up."""

    __slots__ = ("_arrival", "_ordered")

    def __init__(self) -> None:
        self._arrival: deque[int] = deque()
        self._ordered: list[int] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def add(self, value: int) -> None:
        if len(self._arrival) == RESERVOIR:
            oldest = self._arrival.popleft()
            del self._ordered[bisect_left(self._ordered, oldest)]
        self._arrival.append(value)
        insort(self._ordered, value)

    def quantile(self, share: float) -> int:
        return self._ordered[min(len(self._ordered) - 1, int(share * len(self._ordered)))]


class HistoryQuantilePredictor:
    """A quantile of the outputs seen for the service's prompts of the same octave of length.

    Fills the port OutputLengthPredictor.
    Deterministic and bounded in memory: at most `RESERVOIR` values per service and octave. A prompt octave with less
    than `MIN_HISTORY` outputs uses the service's whole history; a service with less than `WARM_UP` uses the prior.

    Args:
        quantile: 0.5 predicts the median; higher values err on the long side.
    """

    def __init__(self, quantile: float = 0.5, prior_tokens: int = PRIOR_OUTPUT_TOKENS) -> None:
        if not 0.0 <= quantile <= 1.0:
            raise ValueError(f"a quantile lies between 0 and 1, not at {quantile}")
        self._quantile = quantile
        self._prior = prior_tokens
        self._history: dict[tuple[str, int | None], _Reservoir] = {}

    def predict(self, service: str, prompt_tokens: int, max_tokens: int | None) -> int:
        """Output tokens to expect, at least 1 and at most `max_tokens`."""
        whole = self._history.get((service, None))
        if whole is None or len(whole) < WARM_UP:
            predicted = self._prior
        else:
            like = self._history.get((service, prompt_tokens.bit_length()))
            predicted = (whole if like is None or len(like) < MIN_HISTORY else like).quantile(self._quantile)
        return max(1, predicted if max_tokens is None else min(predicted, max_tokens))

    def observe(self, service: str, prompt_tokens: int, output_tokens: int) -> None:
        """Learn from a request that ended by itself with `output_tokens`."""
        for bucket in (prompt_tokens.bit_length(), None):
            self._history.setdefault((service, bucket), _Reservoir()).add(output_tokens)
