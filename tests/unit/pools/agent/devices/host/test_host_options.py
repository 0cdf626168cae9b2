"""Which meters follow from the agent's options, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.ports import PermanentError
from pools.agent.devices.host import host_options, powercap, zeusd
from pools.agent.devices.host.host_options import WHOLE, HostOptions, host_energy
from tests.fakes.host_meters import Powercap


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a Zeus daemon, whose sysfs is a folder."""
    monkeypatch.setattr(zeusd, "SOCKETS", (tmp_path / "zeusd.sock",))
    monkeypatch.setattr(zeusd, "listening", lambda: None)
    monkeypatch.setattr(host_options, "PowercapMeter", lambda: powercap.PowercapMeter(tmp_path))
    return tmp_path


def domains(options: HostOptions, gpus: str = "nvml") -> list[str]:
    found = host_energy(options, gpus)
    assert found is not None
    return [reading.domain for reading in found.read(())]


def test_processors_are_metered_by_what_there_is_when_nothing_is_asked_for(machine: Path) -> None:
    Powercap(machine, packages=1)
    assert domains(HostOptions()) == ["package-0", "dram-0"]
    assert domains(HostOptions(overhead="fans:120")) == ["package-0", "dram-0", "fans"]


def test_notice_says_what_is_missing_when_a_machine_has_no_meter(machine: Path) -> None:
    found = host_energy(HostOptions(), "nvml")
    assert found is not None
    assert found.read(()) == ()
    assert found.notices()[0].startswith("energy of the processors is not metered: there is no RAPL counter")
    off = host_energy(HostOptions(processors="none"), "nvml")
    assert off is not None
    assert off.notices() == ("host energy is not metered, since the agent's options say so",)


def test_start_is_refused_when_what_was_asked_for_is_not_there(machine: Path) -> None:
    with pytest.raises(PermanentError, match="no RAPL counter"):
        host_energy(HostOptions(processors="powercap"), "nvml")
    with pytest.raises(ValueError, match="name its socket with --zeusd"):
        host_energy(HostOptions(processors="zeusd"), "nvml")
    with pytest.raises(ValueError, match="NAME:WATTS"):
        host_energy(HostOptions(overhead="fans"), "nvml")
    with pytest.raises(PermanentError, match="cannot be read"):
        host_energy(HostOptions(processors="none", overhead="https://bmc", login=machine / "none"), "nvml")


def test_simulated_node_has_a_host_only_when_one_is_declared(machine: Path) -> None:
    Powercap(machine, packages=1)
    assert host_energy(HostOptions(), "sim") is None
    assert domains(HostOptions(overhead="processors and fans:450"), "sim") == ["processors and fans"]


def test_host_is_refused_when_the_declared_power_has_it(machine: Path) -> None:
    assert host_energy(HostOptions(), "cpu") is None
    for options in (HostOptions(processors="powercap"), HostOptions(overhead="fans:120")):
        with pytest.raises(ValueError, match=WHOLE):
            host_energy(options, "cpu")


def test_options_are_read_by_the_names_that_the_worker_gives_them() -> None:
    names = {option.name for option in host_options.click_options()}
    assert names == {"host_meter", "zeusd", "overhead", "bmc_login", "bmc_trust"}
    values = {"host_meter": "zeusd", "zeusd": "/run/z.sock", "overhead": "ipmi", "bmc_login": "/l", "bmc_trust": None}
    assert HostOptions.of(values) == HostOptions("zeusd", Path("/run/z.sock"), "ipmi", Path("/l"), None)
    assert HostOptions.of({}) == HostOptions()
