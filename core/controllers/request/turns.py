"""Takes turns among instances or sites, as pools of the simulator's kernel do; the kernel is compiled, and has its own.

Who cannot take a request is left out of its turn: an instance whose KV cache it does not fit into, or one that has as
many requests as it should have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class RoundRobin:
    """One turn each, in the order of their names."""

    def __init__(self) -> None:
        self._last = ""

    def next(self, names: Collection[str]) -> str:
        """Returns the first name (there is one at least) after the last one's, or else the first of all."""
        self._last = min([name for name in names if name > self._last] or names)
        return self._last


class WeightedTurns:
    """Smooth weighted round robin: in any stretch of turns each gets its share, to within one turn."""

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def next(self, weights: Mapping[str, float], others: Collection[str] = ()) -> str:
        """Chooses whose turn it is.

        Args:
            weights: Of those that take part, one at least, above 0; they may change from turn to turn.
            others: Names that are left out of this turn alone: they keep their credit. The rest is forgotten.
        """
        most = max(weights.values())  # in parts of it, so that old credit counts when all weights are others
        credit = {name: own for name, own in self._credit.items() if name in others}
        credit |= {name: self._credit.get(name, 0.0) + weight / most for name, weight in weights.items()}
        name = max(weights, key=credit.__getitem__)
        credit[name] -= sum(weights.values()) / most
        self._credit = credit
        return name
