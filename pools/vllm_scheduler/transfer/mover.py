"""Moves bytes from the staging memory of one engine to that of another: the port, and its adapter to NIXL.

NIXL (nixl 1.5.1) writes from memory to memory over what UCX finds: RDMA, else TCP. It checks nobody, so that UCX's
ports are to be closed to all but nodes (docs/plugin.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

log = logging.getLogger("vllm.greenserve")

_LOOK_S, _IDLE_LOOK_S = 0.0001, 0.05


class MoveFailed(Exception):
    """Bytes did not get there, or nobody knows whether they did."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Memory of `slots` slots of `slot_bytes` each, one after another from `address` on."""

    address: int
    slots: int
    slot_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.slots * self.slot_bytes


class Mover(Protocol):
    """Calls return at once; bytes move meanwhile. For any thread. Those about writes raise MoveFailed."""

    def expect(self, more: int) -> None:
        """Adds to the transfers that come here now; `more` below 0: takes from them."""

    def metadata(self) -> bytes:
        """Returns what another engine's mover has to know to write here."""

    def meet(self, metadata: bytes) -> str:
        """Returns the name by which the engine with this metadata can be written to."""

    def write(self, name: str, slots: Sequence[int], address: int, there: Sequence[int]) -> Any:
        """Begins to write slots of the staging memory to slots of the one at `address` there; returns the write."""

    def done(self, write: Any) -> bool:
        """Returns whether all of it is there."""

    def forget(self, write: Any) -> None:
        """Gives up a write, or what is left of one that is done."""

    def part(self, name: str) -> None:
        """Forgets an engine; it can be met again."""


class NixlMover:
    """Moves by NIXL's UCX backend, from `outgoing` here; others write to `incoming`.

    What comes by TCP lies there only when NIXL looks for it. NIXL's own thread would do so without a pause, and keep a
    processor busy with nothing. The one here looks often while a transfer is open.
    """

    def __init__(self, name: str, outgoing: Staging, incoming: Staging) -> None:
        """Makes both known to NIXL. `name`: unlike those of all other workers.

        Raises ImportError: vLLM's Python has no NIXL.
        """
        try:
            from nixl._api import nixl_agent, nixl_agent_config
        except ImportError as error:
            raise ImportError(
                f"KV caches are sent by NIXL, which vLLM's environment lacks ({error}): install nixl==1.5.1 there, or "
                "start the agent without --vllm-kv-ports"
            ) from error
        self._lock = threading.Lock()  # NIXL's agent is for one thread at a time
        self._outgoing, self._slot_bytes = outgoing, outgoing.slot_bytes
        self._agent = nixl_agent(name, nixl_agent_config(backends=["UCX"], enable_prog_thread=False))
        for memory in (outgoing, incoming):
            self._agent.register_memory([(memory.address, memory.size_bytes, 0, "")], "DRAM")
        self._expected = 0
        self._expecting = threading.Event()
        threading.Thread(target=self._look, name="nixl", daemon=True).start()

    def _look(self) -> None:
        while True:
            if self._expecting.wait(_IDLE_LOOK_S):
                time.sleep(_LOOK_S)
            try:
                self._call(self._agent.get_new_notifs)
            except MoveFailed as error:
                log.warning("NIXL: %s", error)
                time.sleep(_IDLE_LOOK_S)

    def expect(self, more: int) -> None:
        with self._lock:
            self._expected += more
            (self._expecting.set if self._expected > 0 else self._expecting.clear)()

    def metadata(self) -> bytes:
        with self._lock:
            return bytes(self._agent.get_agent_metadata())

    def meet(self, metadata: bytes) -> str:
        found = self._call(self._agent.add_remote_agent, metadata)
        return found.decode() if isinstance(found, bytes) else str(found)

    def write(self, name: str, slots: Sequence[int], address: int, there: Sequence[int]) -> Any:
        own = self._descriptors(self._outgoing.address, slots)
        other = self._descriptors(address, there)
        write = self._call(self._agent.initialize_xfer, "WRITE", own, other, name)
        if self._call(self._agent.transfer, write) == "ERR":
            raise MoveFailed("NIXL could not begin a write")
        return write

    def done(self, write: Any) -> bool:
        state = self._call(self._agent.check_xfer_state, write)
        if state == "ERR":
            raise MoveFailed("NIXL could not write")
        return bool(state == "DONE")

    def forget(self, write: Any) -> None:
        self._call(self._agent.release_xfer_handle, write)

    def part(self, name: str) -> None:
        self._call(self._agent.remove_remote_agent, name)

    def _descriptors(self, address: int, slots: Sequence[int]) -> Any:
        size = self._slot_bytes
        return self._agent.get_xfer_descs([(address + slot * size, size, 0) for slot in slots], "DRAM")

    def _call(self, function: Any, *arguments: Any) -> Any:
        with self._lock:
            try:
                return function(*arguments)
            except Exception as error:  # NIXL's have no class in common
                raise MoveFailed(f"NIXL: {error}") from error
