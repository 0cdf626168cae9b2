"""One end of a link that carries KV caches: run by vLLM's Python, which has NIXL; no vLLM is imported.

    python transfer_end.py ADDRESS CERTIFICATE AUTHORITY SLOTS SLOT_BYTES

It reads orders from its input, a line of JSON each, and answers each with one. Moments are of the machine's monotonic
clock, which both ends share.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

import numpy as np

from pools.vllm_scheduler.transfer.arrivals import Arrivals
from pools.vllm_scheduler.transfer.channel import ChannelTls
from pools.vllm_scheduler.transfer.mover import NixlMover, Staging
from pools.vllm_scheduler.transfer.receiver import Receiver
from pools.vllm_scheduler.transfer.sender import Outgoing, Sender

PORT = 18600
_LOOK_S = 0.0005


class End:
    def __init__(self, address: str, tls: ChannelTls, slots: int, slot_bytes: int) -> None:
        self._memories = [np.zeros((slots, slot_bytes), dtype=np.uint8) for _ in range(2)]
        outgoing, incoming = (Staging(memory.ctypes.data, slots, slot_bytes) for memory in self._memories)
        mover = NixlMover(uuid.uuid4().hex, outgoing, incoming)
        self._arrivals = Arrivals(slots)
        self._receiver = Receiver((address, PORT), "test", self._arrivals, mover, incoming, tls)
        self._sender = Sender("test", mover, outgoing, tls)

    def send(self, transfer: str, host: str, done_s: list[float], chunk_blocks: int | None) -> dict[str, Any]:
        """Sends a block at each of `done_s`, in s from now, when its computation would be done."""
        began_s = time.monotonic()
        self._sender.begin(Outgoing(transfer, host, PORT, len(done_s), chunk_blocks))
        for number, at_s in enumerate(done_s):
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            (slot,) = self._sender.take(1)
            self._memories[0][slot] = number % 251
            self._sender.add(transfer, [(str(number), slot)])
        self._sender.end(transfer)
        return {"computed_s": time.monotonic()}

    def take(self, transfer: str, blocks: int) -> dict[str, Any]:
        """Waits for all blocks of a transfer, and says whether they are what was sent."""
        keys = [str(number) for number in range(blocks)]
        while not (look := self._arrivals.look(transfer, keys)).known or not look.settled:
            time.sleep(_LOOK_S)
        arrived_s = time.monotonic()
        right = [bool((self._memories[1][slot] == number % 251).all()) for number, slot in enumerate(look.slots)]
        self._arrivals.release(transfer)
        return {"arrived_s": arrived_s, "right": sum(right)}


def main() -> None:
    address, certificate, authority, slots, slot_bytes = sys.argv[1:]
    end = End(address, ChannelTls(certificate, authority), int(slots), int(slot_bytes))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(end, order.pop("op"))(**order)), flush=True)


if __name__ == "__main__":
    main()
