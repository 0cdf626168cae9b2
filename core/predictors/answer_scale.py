"""Says where a length stands among a service's own answers: the common scale on which services are compared.

A length's score is the normal quantile of its rank among the newest answers (van der Waerden's normal score), so that
-0.84, -0.25, 0.25 and 0.84 are the borders of five classes of a fifth each, of whatever service. What is learned of
scores stays right when a service's answers grow longer, and what one service teaches holds for others: a Gaussian
copula over services, each with the distribution of its own lengths.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from core.length_odds import LengthOdds

ANSWERS = 1024  # newest answers that a length is ranked among
LEAST_ANSWERS = 64  # below which borders between fifths mean little
SHARES = (0.2, 0.4, 0.6, 0.8)
_MOST_EDGES = 8  # gateways of one fleet ask for few
_NORMAL = NormalDist()
_Edges = tuple[tuple[int, ...], tuple[float, ...], float, float | None]


class AnswerScale:
    """The newest lengths of one service's answers, in order of length."""

    def __init__(self, lengths: Iterable[int] = ()) -> None:
        self._arrival = deque(lengths, ANSWERS)
        self._ordered = sorted(self._arrival)
        self._edges: dict[tuple[int, ...], _Edges] = {}  # by the borders beside the fifths'

    def __len__(self) -> int:
        return len(self._ordered)

    def add(self, tokens: int) -> None:
        if len(self._arrival) == ANSWERS:
            del self._ordered[bisect_left(self._ordered, self._arrival[0])]
        self._arrival.append(tokens)
        insort(self._ordered, tokens)
        self._edges.clear()

    def by_arrival(self) -> list[int]:
        return list(self._arrival)

    @property
    def ready(self) -> bool:
        return len(self._ordered) >= LEAST_ANSWERS

    def score(self, tokens: float) -> float:
        """Returns a length's normal score; of lengths that are equally long the middle one's."""
        below, upto = bisect_left(self._ordered, tokens), bisect_right(self._ordered, tokens)
        return _NORMAL.inv_cdf((0.5 * (below + upto) + 0.5) / (len(self._ordered) + 1))

    def scores(self, tokens: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns the normal scores of many lengths, (n,) each."""
        ordered = np.array(self._ordered)
        upto = ordered.searchsorted(tokens, "left") + ordered.searchsorted(tokens, "right")
        found: NDArray[np.float64] = ndtri((0.5 * upto + 0.5) / (ordered.size + 1))
        return found

    def odds(self, predictor: str, mean: float, deviation: float, more: tuple[int, ...] = ()) -> LengthOdds:
        """Returns the probabilities of the fifths where the score is expected at `mean`, give or take `deviation`.

        Where many answers are equally long there are fewer classes than five. `more` are further borders between
        classes, in tokens: what is longer than one of them is then as probable as the scale has it, while between
        borders `LengthOdds` can but interpolate. Those that lie beyond all answers are left out.
        """
        borders, scores, tail, head = self._edges_with(more)
        below = [0.0, *(_NORMAL.cdf((score - mean) / deviation) for score in scores), 1.0]
        return LengthOdds(predictor, borders, tuple(high - low for low, high in pairwise(below)), tail, head)

    def base(self, number: int) -> float:
        """Returns the share of answers that are of a class."""
        scores = self._edges_with(())[1]
        below = [0.0, *(_NORMAL.cdf(score) for score in scores), 1.0]
        return below[number + 1] - below[number]

    @property
    def borders(self) -> tuple[int, ...]:
        """Returns the borders between the fifths, in tokens."""
        return self._edges_with(())[0]

    def _edges_with(self, more: tuple[int, ...]) -> _Edges:
        found = self._edges.get(more)
        if found is None:
            if len(self._edges) >= _MOST_EDGES:
                self._edges.clear()
            found = self._edges[more] = self._find_edges(more)
        return found

    def _find_edges(self, more: tuple[int, ...]) -> _Edges:
        """Returns the borders, the scores below which lengths are no longer than each, and the outer medians."""
        ordered, count = self._ordered, len(self._ordered)
        found = *(ordered[max(0, math.ceil(share * count) - 1)] for share in SHARES), *more
        borders = sorted({border for border in found if ordered[0] <= border < ordered[-1]})
        upto = [bisect_right(ordered, border) for border in borders]
        scores = tuple(_NORMAL.inv_cdf((number + 0.5) / (count + 1)) for number in upto)
        longer = ordered[upto[-1] :] if upto else ordered
        head = float(ordered[upto[0] // 2]) if upto else None
        return tuple(borders), scores, float(longer[len(longer) // 2]), head
