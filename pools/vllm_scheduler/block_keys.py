"""Names of KV-cache blocks by what was written up to their ends, the same in every engine of a model. Pure."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


class BlockKeys:
    """The block keys of one request, as far as its tokens are known; they only ever get longer."""

    def __init__(self, block_tokens: int, seed: str = "") -> None:
        """Begins without tokens. `seed` is whatever else the cache depends on (an adapter, a salt)."""
        self._block_tokens = block_tokens
        self._last = hashlib.sha256(seed.encode()).digest()
        self.keys: list[str] = []

    def upto(self, tokens: Sequence[int], count: int) -> list[str]:
        """Returns keys of the blocks that the first `count` of `tokens` fill."""
        size = self._block_tokens
        full = min(count, len(tokens)) // size
        for block in range(len(self.keys), full):
            data = array("q", tokens[block * size : (block + 1) * size]).tobytes()
            self._last = hashlib.sha256(self._last + data).digest()
            self.keys.append(self._last.hex())
        return self.keys[:full]
