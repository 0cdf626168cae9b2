"""Bounds how many connections and requests may come without a key: addresses share one bucket of tokens fairly.

An address may hold a third of the tokens that nobody holds (dynamic thresholds, as buffers of switches have; Choudhury
and Hahne 1998). One that pushes alone gets a quarter of all. Of many that push each gets less, and some are always left
for an address that comes new. Tokens come back as time goes by, or when a key comes.
"""

from __future__ import annotations

import math

_OF_THE_REST = 1 / 3
_FORGOTTEN = 0.05  # tokens of an address, below which it is not remembered


class FairArrivals:
    """`most` tokens; `per_s` of them come back each second, in the long run, when all are held."""

    def __init__(self, most: float, per_s: float) -> None:
        self._most, self._decay_s = most, most / per_s
        self._held = 0.0  # by all addresses
        # Tokens at a moment, monotonic. The address that was looked at longest ago comes first.
        self._by_address: dict[bytes, tuple[float, float]] = {}
        self._at_s = 0.0

    def __len__(self) -> int:
        """Returns the number of addresses that are remembered."""
        return len(self._by_address)

    def take(self, address: bytes, now_s: float) -> bool:
        """Takes a token for an address, and says whether it may have one. `now_s` is monotonic."""
        self._held *= math.exp((self._at_s - now_s) / self._decay_s)
        self._at_s = now_s
        self._forget(now_s)
        held = self._tokens(address, now_s)
        if held + 1.0 > (self._most - self._held) * _OF_THE_REST:
            return False
        self._by_address.pop(address, None)
        self._by_address[address] = held + 1.0, now_s
        self._held += 1.0
        return True

    def give_back(self, address: bytes) -> None:
        """Gives a token back before its time."""
        if address in self._by_address:
            held = self._tokens(address, self._at_s)
            back = min(1.0, held)
            self._by_address[address] = held - back, self._at_s
            self._held = max(0.0, self._held - back)

    def _tokens(self, address: bytes, now_s: float) -> float:
        held, at_s = self._by_address.get(address, (0.0, now_s))
        return held * math.exp((at_s - now_s) / self._decay_s)

    def _forget(self, now_s: float) -> None:
        """Looks at two addresses, since each token adds one at most: those that hold nearly nothing are dropped."""
        by_address = self._by_address
        for address in [address for address, _ in zip(by_address, range(2), strict=False)]:
            held = self._tokens(address, now_s)
            del by_address[address]
            if held >= _FORGOTTEN:
                by_address[address] = held, now_s
            else:
                self._held = max(0.0, self._held - held)
