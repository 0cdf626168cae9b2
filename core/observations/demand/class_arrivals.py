"""Counts what came of a request class in a window of whole stretches of 5 s."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.observations.mode_profile import Lengths

STRETCH_S = 5.0  # FREESH plans for the peak 5-second rate of a step


@dataclass(frozen=True, slots=True)
class ClassArrivals:
    """Requests of a class in a window of whole stretches.

    `peak_requests`: of the stretch with most. Tokens are sums. `context_tokens`: sum of output x (prompt + output / 2),
    which over the sum of outputs is the mean context of a running request, since long answers run longer; None: that
    was not counted.
    """

    requests: int
    peak_requests: int
    prompt_tokens: float
    output_tokens: float
    context_tokens: float | None

    @property
    def peak_rps(self) -> float:
        return self.peak_requests / STRETCH_S

    def lengths(self) -> Lengths | None:
        """Returns mean lengths; None: nothing came."""
        if not self.requests:
            return None
        output = max(1.0, self.output_tokens / self.requests)
        known = self.context_tokens if self.output_tokens else None
        context = None if known is None else known / self.output_tokens
        return Lengths(self.prompt_tokens / self.requests, output, context)


def counted(came: NDArray[np.int64] | NDArray[np.float64]) -> ClassArrivals:
    """Sums up what came, (stretches, 4): requests, prompt tokens, output tokens and context tokens of each stretch.

    (stretches, 3): without context tokens.
    """
    requests, prompt, output, *context = came.sum(axis=0).tolist()
    peak = round(came[:, 0].max(initial=0))
    return ClassArrivals(round(requests), peak, prompt, output, context[0] if context else None)
