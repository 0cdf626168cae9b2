"""Requests before they meet a fleet: blocks of columns, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_REQUESTS = 100_000  # a stream's blocks hold at most so many


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Columns of equal length. `service` and `tenant` index the scenario's; arrival_s is in seconds from its start.

    `predicted_tokens`: of output, as they were predicted when the requests were recorded, 0 where they were not; None:
    of none.
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    service: NDArray[np.int64]
    tenant: NDArray[np.int64]
    predicted_tokens: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.arrival_s.size)


Stream = Iterator[Arrivals]
