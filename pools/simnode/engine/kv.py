"""The KV cache of a simulated engine, and how parts of it move to other engines.

An engine that stops a request early may keep its cache for another one (`HandOver`), as vLLM's NIXL connector does: the
other one pulls it when it has room, then lets it go; what nobody fetches is let go after a lease. Or the cache is
pushed in chunks while later ones are computed (DynaServe, section 4.3): then only what is still on the link at the end
delays the other engine. Time is passed in (monotonic seconds, which all processes of a machine share); no I/O here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .generation import Generation
from .hand_over import Arriving, HandOver

LEASE_S = 480.0  # vLLM's VLLM_NIXL_ABORT_REQUEST_TIMEOUT


@dataclass(slots=True, eq=False)
class KvCache:
    """The tokens of a cache and who has how many. `links`: when the outgoing and incoming link are free again."""

    capacity: int
    used: int = 0
    kept: dict[str, HandOver] = field(default_factory=dict)
    expired: int = 0
    _out_free_s: float = 0.0
    _in_free_s: float = 0.0

    @property
    def usage(self) -> float:
        return self.used / self.capacity

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def take(self, sequence: Generation, tokens: int) -> None:
        sequence.kv_tokens += tokens
        self.used += tokens

    def take_one_each(self, sequences: Sequence[Generation]) -> None:
        """Allocates room for the next token of each: it is `take` for the engine's inner loop."""
        for sequence in sequences:
            sequence.kv_tokens += 1
        self.used += len(sequences)

    def give_back(self, sequence: Generation) -> None:
        self.used -= sequence.kv_tokens
        sequence.kv_tokens = 0

    # -- to another engine -------------------------------------------------------------------------

    def push(self, sequence: Generation, at_s: float, *, all_of_it: bool = False) -> None:
        """Sends the whole chunks of what is computed, and the last part too when that is `all_of_it`."""
        leaving = sequence.hand_over
        assert leaving is not None
        if leaving.chunk_tokens is None:
            return
        while (ready := min(leaving.chunk_tokens, sequence.computed - leaving.sent_tokens)) > 0:
            if ready < leaving.chunk_tokens and not all_of_it:
                return
            size_bytes = ready * leaving.bytes_per_token
            self._out_free_s = max(self._out_free_s, at_s) + leaving.link.transfer_s(size_bytes)
            leaving.sent_tokens += ready
            leaving.there_at_s = self._out_free_s

    def keep(self, sequence: Generation, at_s: float) -> None:
        """Keeps the cache of a request that has ended, for another engine."""
        leaving = sequence.hand_over
        assert leaving is not None
        self.push(sequence, at_s, all_of_it=True)
        leaving.tokens, sequence.kv_tokens = sequence.kv_tokens, 0
        leaving.until_s = at_s + LEASE_S
        self.kept[leaving.request_id] = leaving

    def renew(self, request_id: str, at_s: float) -> HandOver | None:
        """Makes the lease new: somebody means to fetch it. Returns None when it is not, or no longer, here."""
        if (leaving := self.kept.get(request_id)) is not None:
            leaving.until_s = at_s + LEASE_S
        return leaving

    def let_go(self, request_id: str) -> bool:
        """Frees what was kept; False: nothing was."""
        leaving = self.kept.pop(request_id, None)
        if leaving is None:
            return False
        self.used -= leaving.tokens
        return True

    @property
    def next_expiry_s(self) -> float | None:
        return min((leaving.until_s for leaving in self.kept.values()), default=None)

    def expire(self, at_s: float) -> None:
        for request_id in [key for key, leaving in self.kept.items() if leaving.until_s <= at_s]:
            self.let_go(request_id)
            self.expired += 1

    # -- from another engine -----------------------------------------------------------------------

    def fetch(self, arriving: Arriving, at_s: float) -> float:
        """Returns when a cache that there is room for from `at_s` on will be here."""
        if arriving.there_at_s is not None:
            return max(arriving.there_at_s, at_s)
        self._in_free_s = max(self._in_free_s, at_s) + arriving.transfer_s
        return self._in_free_s
