"""What every adapter of HostMeter must do. Add an adapter as a parameter of `meter`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from core.ports import HOST_METHODS, HostMeter
from pools.agent.devices.host.polled_power import DeclaredPowerMeter, PolledPowerMeter
from pools.agent.devices.host.powercap import PowercapMeter
from pools.agent.devices.host.zeusd import ZeusdMeter
from tests.fakes.host_meters import Powercap, unix_listening
from tests.fakes.loopback import QuietHandler
from tests.fakes.simnode import eventually


class Rising(QuietHandler):
    """Answers as zeusd does, with counters that rise."""

    def do_GET(self) -> None:
        uj = time.monotonic_ns() // 1_000
        body = json.dumps({"0": {"cpu_energy_uj": uj, "dram_energy_uj": uj // 4}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(params=["powercap", "zeusd", "polled", "declared"])
def meter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostMeter]:
    with ExitStack() as stack:
        found: HostMeter
        if request.param == "powercap":
            Powercap(tmp_path)
            found = PowercapMeter(tmp_path)
        elif request.param == "zeusd":
            found = ZeusdMeter(stack.enter_context(unix_listening(tmp_path / "zeusd.sock", Rising)))
        elif request.param == "polled":
            found = PolledPowerMeter("ipmi", lambda: 400.0, "by a test", period_s=0.02)
            eventually(lambda: bool(found.read()), 5.0, "first power")
        else:
            found = DeclaredPowerMeter("fans", 120.0)
        yield found
        found.close()


def test_each_domain_is_read_once_with_a_known_method(meter: HostMeter) -> None:
    readings = meter.read()
    assert readings
    assert len({reading.domain for reading in readings}) == len(readings)
    for reading in readings:
        assert reading.method in HOST_METHODS
        assert abs(reading.at_s - time.time()) < 2.0
        assert reading.energy_j is None or reading.energy_j >= 0.0


def test_energy_never_falls_while_a_meter_is_read(meter: HostMeter) -> None:
    last: dict[str, float] = {}
    for _ in range(20):
        for reading in meter.read():
            if reading.energy_j is not None:
                assert reading.energy_j >= last.get(reading.domain, 0.0)
                last[reading.domain] = reading.energy_j
        time.sleep(0.01)


def test_reading_takes_no_longer_than_its_time_out(meter: HostMeter) -> None:
    began_s = time.monotonic()
    meter.read()
    assert time.monotonic() - began_s < 1.0


def test_operator_learns_what_is_metered_and_how(meter: HostMeter) -> None:
    meter.read()
    assert meter.notices()
