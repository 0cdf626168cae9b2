"""Says which requests a pool hands on to the next larger class (DynamoLLM IV-B, "fragmentation")."""

from __future__ import annotations

from collections.abc import Sequence

_EPS = 1e-9


class HandOn:
    """Says where requests enter. Of any stretch that comes to a pool its share goes on, to within one request.

    One for each service and router. What it keeps is how far each pool is ahead of its share.
    """

    def __init__(self) -> None:
        self._passed: dict[int, float] = {}

    def enter(self, rank: int, shares: Sequence[float]) -> int:
        """Returns the rank of the pool that the next request of a class enters.

        Args:
            rank: Of its class, from 0, the smallest.
            shares: What each rank's pools hand on of all that comes to them, 0 to 1. The last one hands on nothing.
        """
        last = len(shares) - 1
        while rank < last:
            passed = self._passed.get(rank, 0.0) + shares[rank]
            goes_on = passed >= 1.0 - _EPS
            self._passed[rank] = passed - 1.0 if goes_on else passed
            if not goes_on:
                break
            rank += 1
        return rank
