"""A host's processors and memory through the Zeus daemon (zeusd), which may read RAPL where the agent may not.

Its HTTP API listens at a Unix socket; `GET /cpu/get_cumulative_energy` gives microjoules by package, with the wraps of
RAPL's counters taken out. It needs zeusd 0.4 or newer with the API group `cpu-read`, and no token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from core.ports import HostReading, PermanentError, RetryableError
from core.units import UJ_PER_J

from ...http_client import UnixHttpClient
from .joule_counts import CounterTally

METHOD = "zeusd"
SOCKETS = (Path("/run/zeusd/zeusd.sock"), Path("/var/run/zeusd.sock"))  # of zeusd 0.5 and of those before
TIMEOUT_S = 0.5  # two of them at most: `UnixHttpClient`
_PATH = "/cpu/get_cumulative_energy?cpu=true&dram=true"


class _Package(msgspec.Struct):
    cpu_energy_uj: int | None = None
    dram_energy_uj: int | None = None


class ZeusdMeter:
    """`ports.HostMeter`. Blocks for at most 1 s; not thread-safe. When zeusd starts again, tallies start from 0."""

    def __init__(self, socket: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._socket = socket
        self._client = UnixHttpClient(socket, TIMEOUT_S)
        self._clock = clock
        self._tallies: dict[str, CounterTally] = {}

    def read(self) -> tuple[HostReading, ...]:
        try:
            found = msgspec.json.decode(self._client.call("GET", _PATH), type=dict[str, _Package])
        except PermanentError as error:
            raise PermanentError(f"zeusd: {error}; is its API group cpu-read enabled, and without tokens?") from error
        except msgspec.DecodeError as error:
            raise RetryableError(f"zeusd gave an answer that cannot be read: {error}") from error
        at_s, now_s = time.time(), self._clock()
        readings = []
        for package, energy in sorted(found.items()):
            for domain, uj in (
                (f"package-{package}", energy.cpu_energy_uj),
                (f"dram-{package}", energy.dram_energy_uj),
            ):
                if uj is not None:
                    tally = self._tallies.setdefault(domain, CounterTally())
                    readings.append(HostReading(domain, METHOD, at_s, tally.add(now_s, uj / UJ_PER_J)))
        if not readings:
            raise PermanentError("zeusd tells of no processor's energy on this machine")
        return tuple(readings)

    def notices(self) -> tuple[str, ...]:
        return (f"host energy of {', '.join(self._tallies) or 'the processors'} is metered by zeusd at {self._socket}",)

    def close(self) -> None:
        self._client.close()


def listening(sockets: tuple[Path, ...] = SOCKETS) -> Path | None:
    """Returns the socket at which a Zeus daemon listens by default; None: there is none."""
    return next((path for path in sockets if path.is_socket()), None)
