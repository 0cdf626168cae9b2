"""Says of an answer's length how probable each range of lengths is: what learned predictors answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class LengthOdds:
    """The probability of each class of lengths, shortest first (mu-Serve, section 3.3: five ordinal classes).

    Within a class the logarithm of a length is taken as uniform between the class's borders, of the shortest from where
    half of it is shorter than `head_tokens`; beyond the last border lengths fall off as a geometric distribution does,
    half of them beyond `tail_tokens`.

    Args:
        predictor: Which one says so: its name in records and on pages.
        borders: (k - 1,) tokens, ascending; a class holds what is longer than the border below it and not longer than
            the one above.
        probabilities: (k,), their sum is 1.
        tail_tokens: The median of what is longer than the last border.
        head_tokens: The median of what is not longer than the first border; None: not known, lengths begin at 1 token.

    Raises:
        ValueError: The figures are no such thing.
    """

    predictor: str
    borders: tuple[int, ...]
    probabilities: tuple[float, ...]
    tail_tokens: float
    head_tokens: float | None = None

    def __post_init__(self) -> None:
        borders = (0, *self.borders)
        if any(low >= high for low, high in pairwise(borders)):
            raise ValueError(f"borders between classes of lengths ascend from 1 token on, unlike {self.borders}")
        if len(self.probabilities) != len(borders):
            raise ValueError(f"{len(borders)} classes need as many probabilities, not {len(self.probabilities)}")
        if not all(0.0 <= share <= 1.0 for share in self.probabilities):  # false of NaN, too
            raise ValueError(f"probabilities lie between 0 and 1, unlike {self.probabilities}")
        if abs(sum(self.probabilities) - 1.0) > _SUM_TOLERANCE:
            raise ValueError(f"the sum of probabilities is 1, not {sum(self.probabilities):.4f}")
        if not borders[-1] < self.tail_tokens < math.inf:
            raise ValueError(f"the longest class's median lies above {borders[-1]} tokens, unlike {self.tail_tokens}")
        if self.head_tokens is not None and not (self.borders and 1.0 <= self.head_tokens <= self.borders[0]):
            raise ValueError(f"the shortest class's median lies between 1 token and its border, not {self.head_tokens}")

    def class_of(self, tokens: int) -> int:
        """Returns the number of the class that holds a length, 0 for the shortest."""
        return sum(tokens > border for border in self.borders)

    def most_probable(self) -> int:
        """Returns the number of the class with the highest probability; of equal ones the shortest."""
        return max(range(len(self.probabilities)), key=lambda number: (self.probabilities[number], -number))

    def exceeds(self, tokens: float) -> float:
        """Returns the probability that the answer is longer than so many tokens."""
        if tokens < 1.0:
            return 1.0
        number = sum(tokens > border for border in self.borders)
        longer = sum(self.probabilities[number + 1 :])
        return longer + self.probabilities[number] * (1.0 - self._share_within(number, tokens))

    def quantile(self, share: float) -> int:
        """Returns the tokens that an answer exceeds with probability 1 - `share`, at least 1.

        Where an answer taken for too short costs u for each class that it is off, and one taken for too long costs o,
        the quantile u / (u + o) lies in the class that costs least. Raises ValueError unless 0 <= share < 1.
        """
        if not 0.0 <= share < 1.0:
            raise ValueError(f"a quantile lies between 0 and 1, not at {share}")
        left, last = share, len(self.probabilities) - 1
        for number, probability in enumerate(self.probabilities):
            if left < probability or number == last:
                within = min(1.0, left / probability) if probability > 0.0 else 0.0
                return max(1, math.ceil(self._tokens_within(number, within) - 1e-9))
            left -= probability
        raise AssertionError("the last class takes what is left")

    def _bounds(self, number: int) -> tuple[float, float]:
        high = float(self.borders[number])
        low = float(self.borders[number - 1]) if number else (self.head_tokens or 0.0) ** 2 / high
        return max(1.0, low), high

    def _last_border(self) -> float:
        return float((0, *self.borders)[-1])

    def _share_within(self, number: int, tokens: float) -> float:
        """Returns the part of a class that is not longer than `tokens`, which lies in it."""
        if number == len(self.borders):
            low = self._last_border()
            return 1.0 - math.exp2(-(tokens - low) / (self.tail_tokens - low))
        low, high = self._bounds(number)
        return 1.0 if high <= low else max(0.0, math.log(tokens / low) / math.log(high / low))

    def _tokens_within(self, number: int, share: float) -> float:
        if number == len(self.borders):
            low = self._last_border()
            longest = 1.0 - 1e-6  # the tail has no end
            return low - (self.tail_tokens - low) * math.log2(1.0 - min(share, longest))
        low, high = self._bounds(number)
        return low * math.pow(high / low, share)
