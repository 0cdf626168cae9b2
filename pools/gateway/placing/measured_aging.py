"""Measures how fast waiting makes a request shorter, where a policy leaves that to the tail of predicted lengths."""

from __future__ import annotations

from collections import defaultdict

from core.algorithms.queue.ssjf import measured_aging
from core.observations.limits import LONG_ANSWER
from core.predictors.output_length import LONG_SHARE, PRIOR_OUTPUT_TOKENS, WARM_UP, Reservoir

from ..fleet.view import Service

PERIOD_S = 60.0  # for which a tail counts: those that wait are put in order anew whenever it changes


class MeasuredAging:
    """The aging of each service, by the newest requests that came here; at first by the mean that is declared."""

    def __init__(self) -> None:
        self._predicted: dict[str, Reservoir] = defaultdict(Reservoir)
        self._tails: dict[str, tuple[int, float]] = {}  # tokens, and until when they count (monotonic)

    def note(self, service: Service, predicted_tokens: int) -> None:
        """A request has come that is predicted to take so many tokens."""
        self._predicted[service.name].add(predicted_tokens)

    def tokens_per_s(self, service: Service, now_s: float) -> float:
        """Returns the aging in tokens/s. `now_s` is monotonic."""
        limits = list(service.class_limits.values()) or [service.limits]
        return measured_aging(self._tail(service, now_s), limits)

    def _tail(self, service: Service, now_s: float) -> float:
        tail, until_s = self._tails.get(service.name, (0, now_s))
        if now_s >= until_s:
            seen = self._predicted[service.name]
            if len(seen) < WARM_UP:
                return LONG_ANSWER * (service.expected_lengths[1] or PRIOR_OUTPUT_TOKENS)
            tail = seen.quantile(LONG_SHARE)
            self._tails[service.name] = tail, now_s + PERIOD_S
        return tail
