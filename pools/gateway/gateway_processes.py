"""Gateways that share a port: each a process of its own, with its own counts, and one page of metrics for them all.

The kernel gives a new connection to any of them (SO_REUSEPORT), so `/metrics` may reach any. That one asks the others,
and joins the pages: every sample has the label `gateway`. They are asked over abstract Unix sockets, whose names follow
from the port: there is nothing to clean up after a process that was killed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .accounts.gateway_metrics import PREFIX

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
MAX_PAGE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class PortShare:
    """This is gateway `number` of the `of` that listen on a port; they count from 1."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(f"gateway {self.number} of {self.of}: numbers go from 1 to the number of gateways")

    def name(self, base: str, number: int | None = None) -> str:
        """Returns the name of this process, or of another by its number."""
        return f"{base}.{self.number if number is None else number}"


class GatewayProcesses:
    """This gateway's page for the others, and theirs. Make and use it inside a running event loop.

    Args:
        page: This gateway's own, with the label `gateway` on all samples.
    """

    def __init__(self, share: PortShare, base: str, host: str, port: int, page: Callable[[], bytes]) -> None:
        self._share, self._base, self._page = share, base, page
        self._where = f"\0greenserve-gateway-{host}-{port}-"
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises OSError when there is such a gateway already."""
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(self._where + str(self._share.number))
        except OSError as error:
            listening.close()
            raise OSError(error.errno, f"{self._share.name(self._base)} of this port runs already") from error
        self._server = await asyncio.start_unix_server(self._serve, sock=listening)

    async def page(self) -> bytes:
        """Returns all gateways' metrics; those that do not answer are said to be down."""
        numbers = [n for n in range(1, self._share.of + 1) if n != self._share.number]
        others = await asyncio.gather(*(self._ask(n) for n in numbers))
        up = {self._share.name(self._base): True}
        up |= {self._share.name(self._base, n): bool(page) for n, page in zip(numbers, others, strict=True)}
        return joined([self._page(), *others, _up_page(up)])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Whoever connects gets the page, and nothing is read."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(self._page())
                await writer.drain()
        except (OSError, TimeoutError) as error:
            log.debug("a page of metrics was not taken: %r", error)
        finally:
            writer.close()

    async def _ask(self, number: int) -> bytes:
        """Returns another's page; empty: no answer in time."""
        asking = socket.socket(socket.AF_UNIX)
        asking.setblocking(False)
        writer = None
        try:
            asking.connect(self._where + str(number))  # at once, or refused
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(sock=asking)
                found = bytearray()
                while data := await reader.read(1 << 16):
                    found += data
                    if len(found) > MAX_PAGE_BYTES:
                        raise OSError("the page has no end")
        except (OSError, TimeoutError) as error:
            log.debug("gateway %d does not show its metrics: %r", number, error)
            return b""
        else:
            return bytes(found)
        finally:
            if writer is not None:
                writer.close()
            else:
                asking.close()


def joined(pages: Iterable[bytes]) -> bytes:
    """One page of several: the samples of a family stand together, under its first words."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for page in pages:
        family = ""
        for line in page.decode().splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                if family not in samples:
                    heads[family], samples[family] = [], []
                if line not in heads[family]:
                    heads[family].append(line)
            else:
                samples[family].append(line)
    return "".join(f"{line}\n" for family in samples for line in (*heads[family], *samples[family])).encode()


def _up_page(up: dict[str, bool]) -> bytes:
    lines = [f"# HELP {PREFIX}up Whether a gateway of this port answers.", f"# TYPE {PREFIX}up gauge"]
    lines += [f'{PREFIX}up{{gateway="{name}"}} {int(answers)}' for name, answers in up.items()]
    return ("\n".join(lines) + "\n").encode()
