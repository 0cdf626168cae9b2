"""Sends caches to other engines, chunk by chunk as they are computed: a thread for each engine that gets some.

A chunk is written into slots that the other engine granted, and named when all of it is there. Several chunks are under
way at once, so a long round trip does not hold them up. When anything fails, or takes too long, the other engine is
dropped with all that was under way to it: it computes that part again. It is tried anew with the next request.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .channel import Channel, ChannelTls
from .mover import MoveFailed, Mover, Staging

log = logging.getLogger("vllm.greenserve")

_ANSWERS_WITHIN_S = 5.0
_WRITES_WITHIN_S = 15.0
_AVOIDED_S = 10.0  # after an engine could not be reached
_LOOK_S = 0.0001  # between looks at what is under way
_FAULTS = (OSError, ValueError, KeyError, TypeError, MoveFailed)


class Outgoing(NamedTuple):
    """A transfer to an engine whose side channel is at `host` and `port`, of at most `blocks` blocks.

    `chunk_blocks`: sent as soon as there are so many; None: all is sent at the end.
    """

    transfer: str
    host: str
    port: int
    blocks: int
    chunk_blocks: int | None


class Sent(NamedTuple):
    """Figures since they were last taken."""

    bytes: int
    unsent_blocks: int


class Sender:
    """Slots of `staging` are taken for blocks, and given back when those are written."""

    def __init__(self, same: str, mover: Mover, staging: Staging, tls: ChannelTls | None) -> None:
        self._same, self._mover, self._tls = same, mover, tls
        self.slot_bytes = staging.slot_bytes
        self._lock = threading.Lock()
        self._free = deque(range(staging.slots))
        self._bytes = self._unsent = 0
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._to: dict[str, _Peer] = {}  # by transfer

    def begin(self, outgoing: Outgoing) -> None:
        address = outgoing.host, outgoing.port
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer(address, self, self._same, self._mover, self._tls)
        self._to[outgoing.transfer] = peer
        peer.jobs.put(lambda: peer.open(outgoing))

    def take(self, count: int) -> list[int]:
        """Returns free slots for the next blocks: `count`, or as many as there are."""
        with self._lock:
            count = min(count, len(self._free))
            return [self._free.popleft() for _ in range(count)]

    def add(self, transfer: str, blocks: Sequence[tuple[str, int]]) -> None:
        """Hands over the next blocks of a transfer, as (key, slot)."""
        peer = self._to[transfer]
        peer.jobs.put(lambda: peer.add(transfer, blocks))

    def end(self, transfer: str) -> None:
        """Nothing is added any more; what is there is sent."""
        peer = self._to.pop(transfer, None)
        if peer is not None:
            peer.jobs.put(lambda: peer.end(transfer))

    def give_back(self, slots: Sequence[int], sent: bool) -> None:
        with self._lock:
            self._free.extend(slots)
            if sent:
                self._bytes += len(slots) * self.slot_bytes
            else:
                self._unsent += len(slots)

    def unsent(self, blocks: int) -> None:
        """Counts blocks for which there was no slot."""
        with self._lock:
            self._unsent += blocks

    def figures(self) -> Sent:
        with self._lock:
            found = Sent(self._bytes, self._unsent)
            self._bytes = self._unsent = 0
        return found


@dataclass(slots=True)
class _Transfer:
    slots: deque[int]  # granted there, not used yet
    chunk_blocks: int | None
    waiting: list[tuple[str, int]] = field(default_factory=list)
    under_way: int = 0  # writes
    ending: bool = False
    full: bool = False  # there was no room for a block, so that those after it are of no use


class _Write(NamedTuple):
    transfer: str
    handle: Any
    blocks: list[tuple[str, int]]
    there: list[int]
    until_s: float


class _Peer:
    """One engine that gets caches. All but `jobs` belongs to its thread."""

    def __init__(
        self, address: tuple[str, int], sender: Sender, same: str, mover: Mover, tls: ChannelTls | None
    ) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._address, self._sender, self._same, self._mover, self._tls = address, sender, same, mover, tls
        self._channel: Channel | None = None
        self._name = ""
        self._memory = 0
        self._transfers: dict[str, _Transfer] = {}
        self._writes: deque[_Write] = deque()
        self._avoided_until_s = 0.0
        threading.Thread(target=self._run, name=f"kv to {address[0]}:{address[1]}", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                self._look()
                with contextlib.suppress(queue.Empty):
                    self.jobs.get(timeout=_LOOK_S if self._writes else None)()
            except _FAULTS as error:
                log.warning("caches for the engine at %s:%d are not sent: %s", *self._address, error)
                self._drop()

    # -- jobs --------------------------------------------------------------------------------------

    def open(self, outgoing: Outgoing) -> None:
        if self._channel is None and time.monotonic() < self._avoided_until_s:
            return  # said already; its blocks count as not sent
        message = {"op": "open", "transfer": outgoing.transfer, "blocks": outgoing.blocks}
        answer = None
        if self._channel is not None and not self._transfers:  # it may have ended since it was last used
            try:
                answer = self._channel.ask(message)
            except OSError:
                self._drop()
        if answer is None:
            answer = (self._channel or self._connect()).ask(message)
        slots = deque(int(slot) for slot in answer["slots"])
        self._transfers[outgoing.transfer] = _Transfer(slots, outgoing.chunk_blocks)

    def add(self, transfer: str, blocks: Sequence[tuple[str, int]]) -> None:
        found = self._transfers.get(transfer)
        if found is None or found.full:
            self._sender.give_back([slot for _, slot in blocks], sent=False)
            return
        found.waiting += blocks
        while found.chunk_blocks is not None and len(found.waiting) >= found.chunk_blocks:
            self._write(transfer, found, found.chunk_blocks)

    def end(self, transfer: str) -> None:
        found = self._transfers.get(transfer)
        if found is not None:
            found.ending = True
            if found.waiting:
                self._write(transfer, found, len(found.waiting))
            self._close_if_over(transfer, found)

    # ----------------------------------------------------------------------------------------------

    def _connect(self) -> Channel:
        self._avoided_until_s = time.monotonic() + _AVOIDED_S
        channel = Channel.connect(*self._address, self._tls, _ANSWERS_WITHIN_S)
        try:
            answer = channel.ask({"op": "hello", "same": self._same})
            self._memory = int(answer["address"])
            self._name = self._mover.meet(base64.b64decode(answer["agent"]))
        except BaseException:
            channel.close()
            raise
        self._channel, self._avoided_until_s = channel, 0.0
        return channel

    def _write(self, transfer: str, found: _Transfer, count: int) -> None:
        blocks, found.waiting = found.waiting[:count], found.waiting[count:]
        room = min(len(blocks), len(found.slots))
        if room < len(blocks):
            found.full = True
            self._sender.give_back([slot for _, slot in blocks[room:]], sent=False)
            blocks = blocks[:room]
        if not blocks:
            return
        there = [found.slots.popleft() for _ in blocks]
        try:
            handle = self._mover.write(self._name, [slot for _, slot in blocks], self._memory, there)
        except MoveFailed:
            self._sender.give_back([slot for _, slot in blocks], sent=False)
            raise
        found.under_way += 1
        self._writes.append(_Write(transfer, handle, blocks, there, time.monotonic() + _WRITES_WITHIN_S))

    def _look(self) -> None:
        """Names what has got there, in order."""
        while self._writes and self._mover.done(self._writes[0].handle):
            write = self._writes.popleft()
            self._sender.give_back([slot for _, slot in write.blocks], sent=True)
            self._mover.forget(write.handle)
            assert self._channel is not None
            named = [(key, slot) for (key, _), slot in zip(write.blocks, write.there, strict=True)]
            self._channel.send({"op": "written", "transfer": write.transfer, "blocks": named})
            found = self._transfers[write.transfer]
            found.under_way -= 1
            self._close_if_over(write.transfer, found)
        if self._writes and time.monotonic() > self._writes[0].until_s:
            raise MoveFailed(f"a chunk was not there after {_WRITES_WITHIN_S:.0f} s")

    def _close_if_over(self, transfer: str, found: _Transfer) -> None:
        if found.ending and not found.under_way:
            assert self._channel is not None
            self._channel.send({"op": "end", "transfer": transfer})
            del self._transfers[transfer]

    def _drop(self) -> None:
        """Forgets the other engine, and all that was for it."""
        writes, self._writes = self._writes, deque()
        transfers, self._transfers = self._transfers, {}
        slots = [slot for found in transfers.values() for _, slot in found.waiting]
        for write in writes:
            with contextlib.suppress(MoveFailed):
                self._mover.forget(write.handle)
            slots += [slot for _, slot in write.blocks]
        self._sender.give_back(slots, sent=False)
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            with contextlib.suppress(MoveFailed):
                self._mover.part(self._name)
