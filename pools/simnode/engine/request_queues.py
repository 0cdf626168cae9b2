"""Keeps the requests of a simulated engine: waiting, waiting for a cache from elsewhere, or in the batch."""

from __future__ import annotations

from collections.abc import Iterator

from core.ports import EngineOptions

from .generation import Generation, WaitingQueue
from .kv import KvCache
from .sim_metrics import EngineCounters


class RequestQueues:
    """The requests of one engine and their shares of its KV cache. Moves them; knows nothing of iterations."""

    def __init__(self, cache: KvCache, options: EngineOptions, counters: EngineCounters) -> None:
        self.cache = cache
        self.waiting = WaitingQueue(options.by_priority)
        self.active: list[Generation] = []  # in order of admission
        self.loading: list[tuple[float, Generation]] = []  # (when its cache will be here, request), holding room
        self._by_priority = options.by_priority
        self._counters = counters
        self._submitted = 0

    def __iter__(self) -> Iterator[Generation]:
        yield from self.active
        yield from (sequence for _, sequence in self.loading)
        yield from self.waiting

    def add(self, sequence: Generation) -> None:
        sequence.to_prefill = sequence.prompt_tokens
        self._submitted += 1
        sequence.rank = (sequence.priority, sequence.arrived_s, self._submitted)
        self.waiting.add(sequence)

    def admit(self, sequence: Generation, at_s: float) -> bool:
        """Gives the head of the queue its room. False: its cache has yet to come, it waits for that now."""
        self.waiting.remove(sequence)
        self.cache.take(sequence, sequence.to_prefill)
        if not sequence.scheduled:
            sequence.scheduled = True
            self._counters.queue_time_s.observe(at_s - sequence.arrived_s)
        if sequence.arriving is not None:
            self.loading.append((self.cache.fetch(sequence.arriving, at_s), sequence))
            return False
        self.active.append(sequence)
        return True

    def loaded(self, at_s: float) -> Generation | None:
        """Takes a request whose cache is here by `at_s` into the batch, first come first served."""
        for entry in self.loading:
            ready_s, sequence = entry
            if ready_s <= at_s and sequence.arriving is not None:
                self.loading.remove(entry)
                sequence.computed = sequence.loaded = sequence.arriving.tokens
                sequence.to_prefill -= sequence.loaded
                self._counters.transferred(sequence.arriving)
                _let_go(sequence)
                self.active.append(sequence)
                return sequence
        return None

    def worst(self) -> Generation:
        """Returns who is preempted first: the newest, or the one of the worst priority."""
        return max(self.active, key=_rank) if self._by_priority else self.active[-1]

    def preempt(self, sequence: Generation) -> None:
        """Puts it back into the queue, to be computed again from its first token."""
        self.active.remove(sequence)
        self._restart(sequence)
        self._counters.preemptions += 1

    def displace(self, at_s: float, max_num_seqs: int, margin_s: float) -> None:
        """Preempts those of worse priority than the head of the queue by more than `margin_s`, if that makes room.

        Priorities are in thousandths of a second, or of whatever else the order goes by.

        vLLM itself lets a request that waits preempt nobody, whatever its priority: this is an option.
        """
        while (head := self.waiting.head) is not None and head.arrived_s <= at_s:
            room = self.cache.free - sum(not sequence.to_prefill for sequence in self.active)
            if len(self.active) < max_num_seqs and head.to_prefill <= room:
                return
            worse = [sequence for sequence in self.active if sequence.priority > head.priority + 1000.0 * margin_s]
            could = room + sum(sequence.kv_tokens + (not sequence.to_prefill) for sequence in worse)
            if not worse or len(self.active) - len(worse) >= max_num_seqs or head.to_prefill > could:
                return
            self.preempt(max(worse, key=_rank))

    def forget(self) -> None:
        """The KV cache is lost, and what was kept in it for other engines. Nothing may be in the batch."""
        assert not self.active
        for _, sequence in reversed(self.loading):
            _let_go(sequence)
            self._restart(sequence)
        self.loading.clear()
        for request_id in list(self.cache.kept):
            self.cache.let_go(request_id)

    def finish(self, sequence: Generation, at_s: float) -> None:
        """Out of the batch at its own end; its cache is kept for another engine if that was asked."""
        sequence.ended = True
        self.active.remove(sequence)
        if sequence.hand_over is not None and sequence.finish == "length":
            self.cache.keep(sequence, at_s)
        else:  # an answer that has come to its end needs no other engine
            sequence.hand_over = None
            self.cache.give_back(sequence)
        self._counters.finished[sequence.finish] += 1

    def drop(self, sequence: Generation) -> None:
        """Removes it from wherever it is, without an end of its own."""
        if sequence in self.active:
            self.active.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self.loading = [entry for entry in self.loading if entry[1] is not sequence]
        sequence.ended = True
        sequence.hand_over = None
        _let_go(sequence)
        self.cache.give_back(sequence)
        self._counters.finished["abort"] += 1

    def _restart(self, sequence: Generation) -> None:
        self.cache.give_back(sequence)
        sequence.computed = 0
        sequence.to_prefill = sequence.prompt_tokens + sequence.generated
        self.waiting.put_back(sequence)


def _let_go(sequence: Generation) -> None:
    if (arriving := sequence.arriving) is not None:
        sequence.arriving = None
        arriving.let_go()


def _rank(sequence: Generation) -> tuple[int, float, int]:
    return sequence.rank
