"""Two processes that send each other caches by NIXL as engines do, in network namespaces with the wire between them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pools.agent.vllm import vllm_control
from tests.fakes.certificates import Authority
from tests.netns.namespaces import Namespaces, namespaces

from .server import PYTHON

HERE, ADDRESSES = "10.79.0.1", ("10.79.0.2", "10.79.0.3")
END = Path(__file__).with_name("transfer_end.py")


class End:
    """A process in the namespace at `address`."""

    def __init__(self, spaces: Namespaces, address: str, folder: Path, authority: Authority, shape: Sequence[int]):
        files = authority.node(address, name=address)
        own = folder / f"{address}.both"
        own.write_bytes(files.read())
        paths = filter(None, (str(vllm_control.import_root(folder)), os.environ.get("GREENSERVE_VLLM_PATH")))
        own_ports = {"UCX_TLS": "tcp", "UCX_TCP_PORT_RANGE": "18610-18619", "NIXL_LOG_LEVEL": "WARN"}
        words = [*spaces.within(address), str(PYTHON), str(END), address, str(own), str(files.authority)]
        self.process = subprocess.Popen(
            [*words, *map(str, shape)],
            env={**os.environ, **own_ports, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # NIXL writes to it as well
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"an end of the link ended: {self.process.wait(20)}")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)  # and closes its pipes


@contextmanager
def two_ends(delay_ms: float, loss: float, blocks: int, block_bytes: int) -> Iterator[list[End]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spaces = stack.enter_context(namespaces(list(ADDRESSES), HERE, delay_ms, loss))
        authority = Authority(folder / "authority")
        ends = []
        for address in ADDRESSES:
            ends.append(End(spaces, address, folder, authority, (2 * blocks, block_bytes)))
            stack.callback(ends[-1].close)
        for end in ends:
            end.answer()
        yield ends


def send(ends: Sequence[End], transfer: str, done_s: list[float], chunk_blocks: int | None) -> tuple[int, float]:
    """Sends a block from the first end to the second at each of `done_s`, in s from now.

    Returns how many came as they were sent, and how long after the last was computed the last one came, in s.
    """
    first, second = ends
    second.order(op="take", transfer=transfer, blocks=len(done_s))
    first.order(op="send", transfer=transfer, host=ADDRESSES[1], done_s=done_s, chunk_blocks=chunk_blocks)
    computed, arrived = first.answer(), second.answer()
    return arrived["right"], arrived["arrived_s"] - computed["computed_s"]
