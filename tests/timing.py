"""A pytest plugin: what the suite's time went into, and a lint that keeps quick tests quick.

Each slow test says why: `@pytest.mark.slow("three deaths of a database")`. With --times, which `make test` gives, the
run ends with its slowest tests and the sum by kind. It names the tests that are not slow and took longer than their
kind may, and fails where one took four times that: machines differ in speed. What Numba compiles, once on a machine,
does not count. Nor does what a busy machine takes away: times are divided by how much longer than its work the run's
processes took, waiting for a processor; and a test that took too long all the same is timed once more by itself.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from numba.core import event

from tests.services import TEMPLATE

LIMITS_S = {
    "unit": 1.0,
    "contracts": 5.0,
    "integration": 5.0,
    "browser": 5.0,
}  # of the call; whole products may take longer
FAILS_AT = 4.0  # times the limit; CI's machine may be slower, and busier, than that of who wrote the test
SHOWN = 20
_AGAIN = "GREENSERVE_TIMED_AGAIN"
SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass
class Times:
    whole_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # set-up and tear-down with it
    call_s: dict[str, float] = field(default_factory=dict)
    ran_s: float = 0.0
    waited_s: float = 0.0

    @property
    def stretch(self) -> float:
        """How much longer than its own work the run's processes took; 1 on a machine that waits for them."""
        return 1.0 + self.waited_s / self.ran_s if self.ran_s else 1.0

    def too_long(self, times_limit: float = 1.0) -> dict[str, str]:
        """What is to be said of the tests that took longer than so many limits, by test."""
        return {
            name: f"{name}: {took_s / self.stretch:.2f} s, {kind_of(name)} tests may take {limit:g} s"
            for name, took_s in self.call_s.items()
            if (limit := LIMITS_S.get(kind_of(name))) and took_s / self.stretch > limit * times_limit
        }

    def by_kind(self) -> dict[str, tuple[int, float]]:
        found: dict[str, tuple[int, float]] = {}
        for name, took_s in self.whole_s.items():
            count, sum_s = found.get(kind_of(name), (0, 0.0))
            found[kind_of(name)] = (count + 1, sum_s + took_s)
        return found


def kind_of(name: str) -> str:
    """The folder of tests/ that a test is in."""
    return name.split("/")[1] if name.count("/") > 1 else "other"


def processor_s() -> tuple[float, float]:
    """How long this thread has run, and waited to run. Zeros where the system does not tell."""
    try:
        ran_ns, waited_ns, _ = SCHEDSTAT.read_text().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", action="store_true", help="tell the run's times, and fail where a test is too slow")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--times") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Teller(), "teller of times")


def pytest_load_initial_conftests() -> None:
    """What collection makes is kept: to look through it again and again for garbage is a third of its time."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without = [item.nodeid for item in items for mark in item.iter_markers("slow") if not mark.args]
    if without:
        raise pytest.UsageError(f'say why a test is slow, as in pytest.mark.slow("why"): {", ".join(without[:5])}')


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Reports tell what the thread's time went into since the report before."""
    report: Any = yield
    before, now = item.config.stash.get(_SEEN, (0.0, 0.0)), processor_s()
    item.config.stash[_SEEN] = now
    report.ran_s, report.waited_s = now[0] - before[0], now[1] - before[1]
    compiled_s, item.config.stash[_COMPILED] = item.config.stash.get(_COMPILED, 0.0), compiling_s()
    report.compiled_s = item.config.stash[_COMPILED] - compiled_s
    report.slow = item.get_closest_marker("slow") is not None
    return report


_SEEN = pytest.StashKey[tuple[float, float]]()
_COMPILED = pytest.StashKey[float]()
_COMPILING = event.TimingListener()
event.register("numba:compile", _COMPILING)


def compiling_s() -> float:
    """What Numba took so far in this process."""
    return _COMPILING.duration if _COMPILING.done else 0.0


def quick_alone(name: str) -> bool:
    """Whether a test is quick enough by itself: beside others, a disk that stood still may have held it up."""
    servers = ("DATABASE_URL", "REDIS_URL", "GREENSERVE_VAR", TEMPLATE)
    env = {key: value for key, value in os.environ.items() if key not in servers} | {_AGAIN: "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--times", name]
    return subprocess.run(command, env=env, capture_output=True, timeout=300, check=False).returncode == 0


class Teller:
    def __init__(self) -> None:
        self.times = Times()
        self.too_long: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.times.whole_s[report.nodeid] += report.duration
        self.times.ran_s += getattr(report, "ran_s", 0.0)
        self.times.waited_s += getattr(report, "waited_s", 0.0)
        if report.when == "call" and not getattr(report, "slow", False):
            self.times.call_s[report.nodeid] = report.duration - getattr(report, "compiled_s", 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        suspects = self.times.too_long(FAILS_AT)
        if suspects and _AGAIN not in os.environ:
            self.too_long = [line for name, line in suspects.items() if not quick_alone(name)]
        else:
            self.too_long = list(suspects.values())
        if self.too_long and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section(f"slowest {SHOWN} tests, with set-up and tear-down")
        for name, took_s in sorted(self.times.whole_s.items(), key=lambda pair: -pair[1])[:SHOWN]:
            write(f"{took_s:7.1f} s  {name}")
        terminalreporter.section("sum by kind")
        for kind, (count, sum_s) in sorted(self.times.by_kind().items(), key=lambda pair: -pair[1][1]):
            write(f"{sum_s:7.1f} s  {kind} ({count} tests)")
        write(f"processes took {self.times.stretch:.2f} times what they worked: the rest they waited for a processor")
        if near := [line for line in self.times.too_long().values() if line not in self.too_long]:
            terminalreporter.section("slower than tests of their kind should be")
            for line in near:
                write(line)
        if self.too_long:
            terminalreporter.section("too slow: make it quicker, or mark it slow and say why", red=True)
            for line in self.too_long:
                write(line)
