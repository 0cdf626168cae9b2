"""The classes of lengths that an encoder is trained for: their borders are quantiles of what it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BORDER_SHARES = (0.2, 0.4, 0.6, 0.8)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Classes:
    """The borders between classes (k - 1,) in tokens, and the median beyond the last (LengthOdds)."""

    borders: tuple[int, ...]
    tail_tokens: float

    def of(self, tokens: Ints) -> Ints:
        """Returns the class of each length, 0 for the shortest."""
        return np.searchsorted(np.asarray(self.borders), tokens, side="left").astype(np.int64)


def classes(tokens: Ints, shares: Sequence[float] = BORDER_SHARES) -> Classes:
    """Returns the classes whose borders are these quantiles. Raises ValueError where lengths are too alike for it."""
    borders = tuple(int(border) for border in np.quantile(tokens, shares, method="inverted_cdf"))
    beyond = tokens[tokens > borders[-1]]
    if len(set(borders)) < len(borders) or borders[0] < 1 or not len(beyond):
        raise ValueError(
            f"lengths are too alike for {len(borders) + 1} classes: the quantiles {', '.join(map(str, shares))} "
            f"are {', '.join(map(str, borders))} tokens"
        )
    return Classes(borders, float(np.median(beyond)))
