"""FREESH's groups of requests of like output length, from a stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.fairness import jain

Ints = NDArray[np.int64]

GROUPS = 4  # FREESH C.2: quartiles
MOST_TOKENS = 1 << 17  # longer outputs count as of this length


class TimelyGroups:
    """Counts requests and timely tokens by class and output length: all that X_k of FREESH C.2 needs.

    The requests, in order of output length, are cut into groups of equal count. Where a border falls among requests of
    one length, they are taken to have that length's mean of timely tokens each, since who of them would come
    first is chance.
    """

    def __init__(self, classes: int) -> None:
        self._count = np.zeros((classes, 1))
        self._timely = np.zeros((classes, 1))

    def add(self, request_class: Ints, output_tokens: Ints, timely_tokens: Ints) -> None:
        if not output_tokens.size:
            return
        length = np.minimum(output_tokens, MOST_TOKENS)
        self._grow_to(int(length.max()))
        shape = self._count.shape
        place = request_class * shape[1] + length
        cells = shape[0] * shape[1]
        self._count += np.bincount(place, minlength=cells).reshape(shape)
        self._timely += np.bincount(place, weights=timely_tokens, minlength=cells).reshape(shape)

    def totals(self, request_class: int) -> list[float]:
        """Returns X_k of a class's groups; empty groups are left out."""
        found = np.flatnonzero(self._count[request_class])
        requests = np.cumsum(self._count[request_class, found])
        if not requests.size:
            return []
        timely = np.cumsum(self._timely[request_class, found])
        count = int(requests[-1])
        sizes = [count // GROUPS + (group < count % GROUPS) for group in range(GROUPS)]  # as array_split cuts
        ends = np.cumsum([0, *(size for size in sizes if size)])
        so_far = np.interp(ends, np.concatenate(([0.0], requests)), np.concatenate(([0.0], timely)))
        return [float(total) for total in np.diff(so_far)]

    def jain(self, *classes: int) -> float | None:
        """Returns FREESH eq. 9 over the groups of these classes together."""
        return jain(total for k in classes for total in self.totals(k))

    def _grow_to(self, length: int) -> None:
        known = self._count.shape[1]
        if length >= known:
            more = ((0, 0), (0, (1 << length.bit_length()) - known))
            self._count, self._timely = np.pad(self._count, more), np.pad(self._timely, more)
