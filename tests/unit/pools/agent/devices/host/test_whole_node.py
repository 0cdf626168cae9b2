"""Power of a whole node: a Redfish server on the loopback, an ipmitool that is a script, and the rest of the node."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.ports import AdapterError, GpuReading, HostReading, PermanentError, RetryableError
from pools.agent.devices.host.bmc import IpmiPower, RedfishPower
from pools.agent.devices.host.host_energy import REST, HostEnergy
from pools.agent.devices.host.polled_power import DeclaredPowerMeter, PolledPowerMeter
from tests.fakes.host_meters import Clock, FakeHostMeter
from tests.fakes.loopback import QuietHandler, listening
from tests.fakes.simnode import eventually

CHASSIS = "/redfish/v1/Chassis"


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


class Controller:
    """A baseboard controller: JSON by path. Without a login it answers 401, where one is set."""

    def __init__(self) -> None:
        self.bodies: dict[str, Any] = {}
        self.login: str | None = None
        outer = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                known = outer.login is None or self.headers["Authorization"] == f"Basic {outer.login}"
                status = 401 if not known else 200 if self.path in outer.bodies else 404
                body = json.dumps(outer.bodies.get(self.path, {})).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.handler = Handler

    def add(self, name: str, **parts: str) -> None:
        members = self.bodies.setdefault(CHASSIS, {"Members": []})["Members"]
        members.append(link(f"{CHASSIS}/{name}"))
        self.bodies[f"{CHASSIS}/{name}"] = {part: link(path) for part, path in parts.items()}


@pytest.fixture
def controller() -> Controller:
    made = Controller()
    made.add("1", EnvironmentMetrics=f"{CHASSIS}/1/EnvironmentMetrics", Power=f"{CHASSIS}/1/Power")
    made.bodies[f"{CHASSIS}/1/EnvironmentMetrics"] = {"PowerWatts": {"Reading": 812.5}, "EnergykWh": {"Reading": 91}}
    return made


@pytest.fixture
def url(controller: Controller) -> Iterator[str]:
    with listening(controller.handler) as found:
        yield found


def test_power_is_that_of_the_environment_when_a_chassis_has_both(url: str, controller: Controller) -> None:
    power = RedfishPower(url)
    assert power() == 812.5
    controller.bodies[f"{CHASSIS}/1/EnvironmentMetrics"]["PowerWatts"]["Reading"] = 900
    assert power() == 900.0
    controller.bodies[f"{CHASSIS}/1/EnvironmentMetrics"]["PowerWatts"]["Reading"] = None
    with pytest.raises(RetryableError, match="no power now"):
        power()


def test_power_is_that_of_the_older_resource_when_there_is_no_other(url: str, controller: Controller) -> None:
    controller.bodies[f"{CHASSIS}/1/EnvironmentMetrics"] = {}
    controller.bodies[f"{CHASSIS}/1/Power"] = {"PowerControl": [{"PowerConsumedWatts": 590}]}
    assert RedfishPower(url)() == 590.0


def test_chassis_must_be_named_when_several_tell_a_power(url: str, controller: Controller) -> None:
    controller.add("GPUs", EnvironmentMetrics=f"{CHASSIS}/GPUs/EnvironmentMetrics")
    controller.bodies[f"{CHASSIS}/GPUs/EnvironmentMetrics"] = {"PowerWatts": {"Reading": 700}}
    with pytest.raises(PermanentError, match="2 chassis tell a power"):
        RedfishPower(url)()
    assert RedfishPower(f"{url}{CHASSIS}/1")() == 812.5


def test_login_goes_along_when_the_controller_wants_one(url: str, controller: Controller, tmp_path: Path) -> None:
    controller.login = base64.b64encode(b"reader:secret").decode()
    with pytest.raises(PermanentError, match="401"):
        RedfishPower(url)()
    login = tmp_path / "login"
    login.write_text("reader:secret\n")
    login.chmod(0o644)
    with pytest.raises(PermanentError, match="chmod 600"):
        RedfishPower(url, login)
    login.chmod(0o600)
    assert RedfishPower(url, login)() == 812.5
    login.write_text("no colon")
    with pytest.raises(PermanentError, match="USER:PASSWORD"):
        RedfishPower(url, login)


def test_refusal_says_so_when_no_chassis_has_a_power_or_the_address_is_none(url: str, controller: Controller) -> None:
    controller.bodies[f"{CHASSIS}/1/EnvironmentMetrics"] = {}
    controller.bodies[f"{CHASSIS}/1/Power"] = {"PowerControl": []}
    with pytest.raises(PermanentError, match="no power in"):
        RedfishPower(url)()
    with pytest.raises(ValueError, match="not of the form"):
        RedfishPower("bmc.example")


IPMI = """
    Instantaneous power reading:                   212 Watts
    Minimum during sampling period:                 10 Watts
    Power reading state is:                   {state}
"""


def ipmitool(folder: Path, output: str, status: int = 0) -> str:
    program = folder / "ipmitool"
    program.write_text(
        f"#!/bin/sh\n[ \"$*\" = 'dcmi power reading' ] || exit 9\ncat <<'E'\n{output}\nE\nexit {status}\n"
    )
    program.chmod(0o755)
    return str(program)


def test_power_is_read_when_ipmitool_tells_it(tmp_path: Path) -> None:
    assert IpmiPower(ipmitool(tmp_path, IPMI.format(state="activated")))() == 212.0


def test_refusal_says_why_when_ipmitool_tells_no_power(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="deactivated"):
        IpmiPower(ipmitool(tmp_path, IPMI.format(state="deactivated")))()
    with pytest.raises(PermanentError, match="/dev/ipmi0"):
        IpmiPower(ipmitool(tmp_path, "Could not open device", 1))()
    with pytest.raises(PermanentError, match="install ipmitool"):
        IpmiPower(str(tmp_path / "none"))()


def test_reading_never_waits_and_says_what_failed_when_a_controller_is_polled() -> None:
    answers: list[float | AdapterError] = [100.0]

    def ask() -> float:
        if isinstance(answers[0], AdapterError):
            raise answers[0]
        return answers[0]

    meter = PolledPowerMeter("redfish", ask, "said", period_s=0.02)
    eventually(lambda: bool(meter.read()), 5.0, "first power")
    (reading,) = meter.read()
    assert (reading.power_w, reading.whole_node, reading.method) == (100.0, True, "redfish")
    eventually(lambda: (meter.read()[0].energy_j or 0.0) > 1.0, 5.0, "a joule")
    answers[0] = RetryableError("no answer")

    def failed() -> bool:
        try:
            meter.read()
        except RetryableError:
            return True
        return False

    eventually(failed, 5.0, "the fault")
    meter.close()


def test_declared_power_is_counted_under_its_name_when_it_is_read() -> None:
    clock = Clock()
    meter = DeclaredPowerMeter("fans and NICs", 120.0, clock)
    assert meter.read()[0].energy_j == 0.0
    clock.pass_s(10.0)
    (reading,) = meter.read()
    assert (reading.domain, reading.method, reading.energy_j) == ("fans and NICs", "declared", 1200.0)
    assert meter.notices() == ("host energy of fans and NICs is declared, not measured: 120 W",)
    parsed = DeclaredPowerMeter.parse("fans: all:120")
    assert parsed.read()[0].domain == "fans: all"


@pytest.mark.parametrize(
    "text", ["", "120", "fans", "fans:none", "fans:0", "fans:-3", ":5", "fans:nan", f"{'x' * 41}:5"]
)
def test_declaration_is_refused_when_it_is_no_name_with_watts(text: str) -> None:
    with pytest.raises(ValueError, match="NAME:WATTS"):
        DeclaredPowerMeter.parse(text)


# -- the rest of the node --------------------------------------------------------------------------


def gpu(energy_j: float | None, uuid: str = "GPU-0") -> GpuReading:
    return GpuReading(uuid, 0, "A100-80GB", 1.0, energy_j, None, None, None, None, None, 210.0, 1410.0)


def package(at_s: float, energy_j: float | None) -> HostReading:
    return HostReading("package-0", "rapl-powercap", at_s, energy_j)


def node(at_s: float, energy_j: float) -> HostReading:
    return HostReading("node", "redfish", at_s, energy_j, whole_node=True)


class Node:
    def __init__(self) -> None:
        self.processors, self.supply = FakeHostMeter(), FakeHostMeter()
        self.energy = HostEnergy((self.processors, self.supply))

    def read(self, at_s: float, gpu_j: float | None, package_j: float | None, node_j: float) -> dict[str, float | None]:
        self.processors.answers = (package(at_s, package_j),)
        self.supply.answers = (node(at_s, node_j),)
        return {reading.domain: reading.energy_j for reading in self.energy.read([gpu(gpu_j)])}


def test_rest_is_what_the_supplies_show_beyond_gpus_and_processors() -> None:
    one = Node()
    assert one.read(1.0, 5_000.0, 0.0, 100.0) == {"package-0": 0.0, REST: 0.0}
    assert one.read(2.0, 5_300.0, 80.0, 600.0) == {"package-0": 80.0, REST: 120.0}
    assert one.read(3.0, 5_900.0, 90.0, 1_000.0) == {"package-0": 90.0, REST: 120.0}  # the GPUs' meter is ahead
    assert one.read(4.0, 5_900.0, 100.0, 1_300.0) == {"package-0": 100.0, REST: 200.0}
    assert one.energy.notices() == ()


def test_rest_is_missing_when_a_part_does_not_tell_its_energy() -> None:
    one = Node()
    one.read(1.0, 5_000.0, 0.0, 100.0)
    assert one.read(2.0, None, 80.0, 600.0) == {"package-0": 80.0}
    assert "GPU-0" in one.energy.notices()[-1]
    assert one.read(3.0, 5_600.0, 90.0, 1_000.0) == {"package-0": 90.0, REST: 210.0}


def test_rest_counts_on_when_a_gpus_counter_starts_again() -> None:
    one = Node()
    one.read(1.0, 5_000.0, 0.0, 0.0)
    assert one.read(2.0, 200.0, 0.0, 300.0)[REST] == 100.0


def test_rest_starts_again_when_the_node_was_not_metered_for_a_while() -> None:
    one = Node()
    one.read(1.0, 5_000.0, 0.0, 0.0)
    assert one.read(2.0, 5_200.0, 0.0, 300.0)[REST] == 100.0
    assert one.read(90.0, 9_999.0, 0.0, 0.0)[REST] == 0.0
    assert one.read(91.0, 10_099.0, 0.0, 150.0)[REST] == 50.0


def test_operator_learns_of_it_when_the_parts_show_more_than_the_node() -> None:
    one = Node()
    one.read(1.0, 0.0, 0.0, 0.0)
    assert one.read(2.0, 1_000.0, 0.0, 900.0)[REST] == 0.0
    assert one.energy.notices() == (
        "GPUs and processors show 100 J more than the baseboard controller has of the node",
    )


def test_reading_is_given_once_when_a_slow_meter_has_nothing_new() -> None:
    one = Node()
    one.read(1.0, 0.0, 0.0, 0.0)
    assert one.read(1.0, 10.0, 0.0, 0.0) == {}


def test_last_readings_are_kept_for_a_minute() -> None:
    one = Node()
    one.read(100.0, 0.0, 5.0, 0.0)
    one.processors.answers = RetryableError("away")
    one.energy.read(())
    assert {reading.domain for reading in one.energy.recent(159.0)} == {"package-0", REST}
    assert one.energy.recent(161.0) == ()


def test_other_meters_are_read_when_one_fails() -> None:
    one = Node()
    one.processors.answers = RetryableError("away")
    declared = DeclaredPowerMeter("fans", 10.0)
    energy = HostEnergy((one.processors, declared), lacks=("no controller",))
    assert [reading.domain for reading in energy.read(())] == ["fans"]
    assert energy.errors == ["cannot read the host's energy: away"]
    assert energy.notices() == ("no controller", "host energy of fans is declared, not measured: 10 W")
    energy.close()
    assert one.processors.closed


def test_method_must_be_a_known_one() -> None:
    with pytest.raises(ValueError, match="method is one of"):
        HostReading("package-0", "guess", 1.0, None)


def test_readings_are_new_again_when_the_clock_is_set_back_by_two_hours() -> None:
    meter = FakeHostMeter((HostReading("package-0", "zeusd", 10_000.0, 5.0),))
    energy = HostEnergy([meter])
    assert len(energy.read(())) == 1
    assert energy.read(()) == ()
    meter.answers = (HostReading("package-0", "zeusd", 9_990.0, 6.0),)  # late, not new
    assert energy.read(()) == ()
    meter.answers = (HostReading("package-0", "zeusd", 2_800.0, 7.0),)
    assert [reading.energy_j for reading in energy.read(())] == [7.0]
    assert energy.read(()) == ()
