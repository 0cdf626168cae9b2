"""Energy of processors and memory: powercap against a tree of sysfs, zeusd against answers as its 0.5 gives them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ports import PermanentError, RetryableError
from pools.agent.devices.host.joule_counts import MOST_DOMAIN_W, CounterTally, PowerTally
from pools.agent.devices.host.powercap import PowercapMeter
from pools.agent.devices.host.zeusd import ZeusdMeter, listening
from tests.fakes.host_meters import Clock, Powercap, unix_listening
from tests.fakes.loopback import QuietHandler

J = 1_000_000


def joules(meter: PowercapMeter | ZeusdMeter) -> dict[str, float | None]:
    return {reading.domain: reading.energy_j for reading in meter.read()}


def test_packages_and_memory_are_counted_once_each_when_powercap_is_read(tmp_path: Path) -> None:
    tree, clock = Powercap(tmp_path), Clock()
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:1", "intel-rapl:2"):
        tree.set(zone, 7 * J)  # since the machine started: not the agent's
    meter = PowercapMeter(tmp_path, clock)
    assert joules(meter) == {"dram-0": 0.0, "dram-1": 0.0, "package-0": 0.0, "package-1": 0.0}
    clock.pass_s(1.0)
    tree.set("intel-rapl:0", 57 * J)
    tree.set("intel-rapl:0:0", 40 * J)  # a part of the package
    tree.set("intel-rapl:0:1", 12 * J)
    tree.set("intel-rapl:2", 99 * J)  # the platform, which has them all
    assert joules(meter) == {"dram-0": 5.0, "dram-1": 0.0, "package-0": 50.0, "package-1": 0.0}
    assert {reading.method for reading in meter.read()} == {"rapl-powercap"}


def test_count_goes_on_when_the_counter_wraps(tmp_path: Path) -> None:
    clock = Clock()
    tree = Powercap(tmp_path, packages=1, wraps_uj=10_000 * J)
    tree.set("intel-rapl:0", 9_900 * J)
    meter = PowercapMeter(tmp_path, clock)
    clock.pass_s(1.0)
    tree.set("intel-rapl:0", 50 * J)
    assert joules(meter)["package-0"] == 150.0


def test_count_starts_again_when_the_counter_may_have_wrapped_twice(tmp_path: Path) -> None:
    clock = Clock()
    tree = Powercap(tmp_path, packages=1, wraps_uj=10_000 * J)
    meter = PowercapMeter(tmp_path, clock)
    clock.pass_s(1.0)
    tree.set("intel-rapl:0", 100 * J)
    assert joules(meter)["package-0"] == 100.0
    clock.pass_s(10_000.0 / MOST_DOMAIN_W + 1.0)
    tree.set("intel-rapl:0", 300 * J)
    assert joules(meter)["package-0"] == 0.0


@given(st.lists(st.integers(1, 900), min_size=1, max_size=50), st.integers(0, 999))
def test_tally_has_all_steps_when_the_counter_wraps_at_any_place(steps: list[int], first: int) -> None:
    tally = CounterTally(wraps_j=1_000.0)
    at_s, counter = 0.0, float(first)
    tally.add(at_s, counter)
    for step in steps:
        at_s, counter = at_s + 0.1, (counter + step) % 1_000.0
        tally.add(at_s, counter)
    assert tally.energy_j == sum(steps)


def test_power_is_integrated_by_trapezoids_and_not_over_gaps() -> None:
    tally = PowerTally(longest_gap_s=30.0)
    assert [tally.add(at_s, w) for at_s, w in ((0.0, 100.0), (5.0, 300.0), (10.0, 300.0))] == [0.0, 1000.0, 2500.0]
    assert tally.add(41.0, 300.0) == 0.0  # what came in between is not known
    assert tally.add(42.0, 300.0) == 300.0


def test_remedy_is_named_when_the_counters_are_for_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Powercap(tmp_path, packages=1)
    path = tree.root / "intel-rapl:0" / "energy_uj"
    read_text = Path.read_text

    def refused(self: Path) -> str:  # by hand: root, whom tests may run as, reads all
        if self == path:
            raise PermissionError(13, "Permission denied")
        return read_text(self)

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(PermanentError, match=r"energy_uj cannot be read: only root may read it .*zeusd"):
        PowercapMeter(tmp_path)


def test_refusal_says_what_lacks_when_a_machine_has_no_rapl(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="no RAPL counter"):
        PowercapMeter(tmp_path)


def test_fault_is_retryable_when_a_counter_goes_away_or_holds_no_number(tmp_path: Path) -> None:
    tree = Powercap(tmp_path, packages=1)
    meter = PowercapMeter(tmp_path)
    (tree.root / "intel-rapl:0" / "energy_uj").write_text("n/a")
    with pytest.raises(RetryableError, match="no number"):
        meter.read()
    (tree.root / "intel-rapl:0" / "energy_uj").unlink()
    with pytest.raises(RetryableError, match="cannot be read"):
        meter.read()


class Daemon:
    """Answers as zeusd's `GET /cpu/get_cumulative_energy` does."""

    def __init__(self) -> None:
        self.status = 200
        self.body: object = {}
        self.asked: list[str] = []
        outer = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                body = json.dumps(outer.body).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.handler = Handler


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def socket(tmp_path: Path, daemon: Daemon) -> Iterator[Path]:
    with unix_listening(tmp_path / "zeusd.sock", daemon.handler) as path:
        yield path


def packages(*uj: tuple[int, int | None]) -> dict[str, dict[str, int | None]]:
    return {str(at): {"cpu_energy_uj": cpu, "dram_energy_uj": dram} for at, (cpu, dram) in enumerate(uj)}


def test_packages_and_memory_are_counted_when_zeusd_is_asked(socket: Path, daemon: Daemon) -> None:
    meter = ZeusdMeter(socket)
    daemon.body = packages((5 * J, 1 * J), (6 * J, None))
    assert joules(meter) == {"package-0": 0.0, "dram-0": 0.0, "package-1": 0.0}  # no memory zone: missing, not 0
    daemon.body = packages((15 * J, 3 * J), (6 * J, None))
    assert joules(meter) == {"package-0": 10.0, "dram-0": 2.0, "package-1": 0.0}
    assert daemon.asked[0] == "/cpu/get_cumulative_energy?cpu=true&dram=true"
    daemon.body = packages((1 * J, 1 * J), (1 * J, None))  # zeusd was started again
    assert joules(meter) == {"package-0": 0.0, "dram-0": 0.0, "package-1": 0.0}
    meter.close()


def test_faults_are_translated_when_zeusd_refuses_is_away_or_talks_of_something_else(
    socket: Path, daemon: Daemon, tmp_path: Path
) -> None:
    meter = ZeusdMeter(socket)
    daemon.status, daemon.body = 401, {}
    with pytest.raises(PermanentError, match="cpu-read enabled"):
        meter.read()
    daemon.status, daemon.body = 200, ["no", "map"]
    with pytest.raises(RetryableError, match="cannot be read"):
        meter.read()
    daemon.body = {}
    with pytest.raises(PermanentError, match="no processor"):
        meter.read()
    with pytest.raises(RetryableError, match=r"nobody\.sock"):
        ZeusdMeter(tmp_path / "nobody.sock").read()
    meter.close()


def test_socket_is_found_when_a_daemon_listens_at_one_of_the_usual_places(socket: Path, tmp_path: Path) -> None:
    assert listening((tmp_path / "none.sock", socket)) == socket
    assert listening((tmp_path / "none.sock",)) is None
