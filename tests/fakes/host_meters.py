"""Stand-ins for what a host's energy is read from: a tree of sysfs, and hosts that tests set by hand."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core.ports import AdapterError, HostReading
from tests.fakes.loopback import QuietHandler


class Powercap:
    """A tree as the kernel makes it: packages with `core` and `dram`, and `psys`, which has them in it."""

    def __init__(self, root: Path, packages: int = 2, wraps_uj: int = 262_143_328_850) -> None:
        self.root = root
        for package in range(packages):
            self.zone(f"intel-rapl:{package}", f"package-{package}", wraps_uj)
            self.zone(f"intel-rapl:{package}:0", "core", wraps_uj)
            self.zone(f"intel-rapl:{package}:1", "dram", wraps_uj)
        self.zone(f"intel-rapl:{packages}", "psys", wraps_uj)

    def zone(self, folder: str, name: str, wraps_uj: int) -> None:
        path = self.root / folder
        path.mkdir(parents=True)
        (path / "name").write_text(f"{name}\n")
        (path / "max_energy_range_uj").write_text(f"{wraps_uj}\n")
        self.set(folder, 0)

    def set(self, folder: str, energy_uj: int) -> None:
        (self.root / folder / "energy_uj").write_text(f"{energy_uj}\n")


class Clock:
    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s

    def pass_s(self, seconds: float) -> None:
        self.at_s += seconds


@dataclass
class FakeHostMeter:
    """`ports.HostMeter`: gives what a test puts in, or raises it."""

    answers: tuple[HostReading, ...] | AdapterError = ()
    said: tuple[str, ...] = ()
    closed: bool = field(default=False)

    def read(self) -> tuple[HostReading, ...]:
        if isinstance(self.answers, AdapterError):
            raise self.answers
        return self.answers

    def notices(self) -> tuple[str, ...]:
        return self.said

    def close(self) -> None:
        self.closed = True


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[object, tuple[str, int]]:  # type: ignore[override]
        connection, _ = super().get_request()
        return connection, ("local", 0)


@contextlib.contextmanager
def unix_listening(path: Path, handler: type[QuietHandler]) -> Iterator[Path]:
    server = _UnixServer(str(path), handler)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
