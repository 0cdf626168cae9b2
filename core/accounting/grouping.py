"""Sums by key over arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows of arrays that belong together, in the order of their keys (the first key first)."""

    order: NDArray[np.int64]
    first: NDArray[np.int64]  # where each group begins in that order

    @classmethod
    def by(cls, *keys: NDArray[Any]) -> Groups:
        order = np.lexsort(tuple(reversed(keys)))
        new = np.zeros(max(0, len(order) - 1), dtype=np.bool_)
        for key in keys:
            new |= np.diff(key[order]) != 0
        first = np.concatenate([[0], np.flatnonzero(new) + 1]) if len(order) else np.zeros(0, dtype=np.int64)
        return cls(order, first.astype(np.int64))

    def __len__(self) -> int:
        return len(self.first)

    def key(self, key: NDArray[Any]) -> NDArray[Any]:
        return key[self.order[self.first]]

    def sum(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.add.reduceat(values[self.order], self.first) if len(self.first) else values[:0]

    def min(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.minimum.reduceat(values[self.order], self.first) if len(self.first) else values[:0]

    def max(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.maximum.reduceat(values[self.order], self.first) if len(self.first) else values[:0]
