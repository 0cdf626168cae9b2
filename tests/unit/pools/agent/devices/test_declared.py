"""A machine without GPUs: declared power, and the agent's command line for engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from core.ports import RetryableError
from pools.agent.devices import declared
from pools.agent.devices.declared import Declaration, DeclaredMeter, NoClocks, inventory
from pools.agent.real_node import RealNode
from pools.agent.systemd_units import agent_unit
from pools.agent.vllm.vllm_options import click_options, vllm_options


class Machine:
    """What Linux tells of one that is busy for so many of a hundred ticks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stat, self.now_s, self.busy, self.whole = folder / "stat", 100.0, 0, 0
        monkeypatch.setattr(declared, "_STAT", self.stat)
        self.work(0.0, 0.0)

    def work(self, seconds: float, share: float) -> None:
        self.now_s += seconds
        self.busy += round(seconds * share * 100)
        self.whole += round(seconds * 100)
        self.stat.write_text(f"cpu  {self.busy} 0 0 {self.whole - self.busy} 0 0 0 0 0 0\ncpu0 1 2 3\n")

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_power_lies_between_idle_and_full_when_the_machine_is_half_busy(machine: Machine) -> None:
    meter = DeclaredMeter("n", Declaration("A100-80GB", 2, 20.0, 60.0), machine.clock)
    first = meter.read()
    assert [reading.uuid for reading in first] == ["CPU-n-0", "CPU-n-1"]
    assert (first[0].energy_j, first[0].utilisation) == (0.0, None)
    machine.work(10.0, 0.5)
    one, other = meter.read()
    assert (one.utilisation, one.power_w, one.energy_j) == (0.5, 20.0, 200.0)
    assert other.energy_j == one.energy_j
    machine.work(5.0, 0.0)
    assert meter.read()[0].energy_j == 250.0
    assert (one.gpu_type, one.sm_clock_mhz, one.max_mhz) == ("A100-80GB", None, 1410.0)


def test_node_says_that_its_power_is_declared_and_that_it_has_no_clocks(machine: Machine) -> None:
    node = RealNode(DeclaredMeter("n", Declaration(), machine.clock), NoClocks())
    (said,) = node.notices()
    assert said.startswith("power and energy are declared, not measured: 20 W idle to 65 W with all processors busy")
    assert "no GPU" in node.measure_only()
    node.close()


def test_reading_is_retryable_when_linux_does_not_tell(machine: Machine) -> None:
    machine.stat.unlink()
    with pytest.raises(RetryableError, match="cannot read"):
        DeclaredMeter("n", Declaration(), machine.clock).read()


def test_declaration_is_refused_when_it_makes_no_sense() -> None:
    assert Declaration.read("H100-SXM-80GB:2", "8:45") == Declaration("H100-SXM-80GB", 2, 8.0, 45.0)
    for devices, power in (("CPU", "1:2"), ("CPU:0", "1:2"), ("CPU:1", "2:1"), ("CPU:1", "x"), (":1", "1:2")):
        with pytest.raises(ValueError, match=r"TYPE:COUNT|at least 1 device"):
            Declaration.read(devices, power)


def test_machine_joins_with_its_memory_and_power_shared_out() -> None:
    found = inventory("laptop", Declaration("A100-80GB", 2, 8.0, 45.0))
    assert [gpu.uuid for gpu in found.gpus] == ["CPU-laptop-0", "CPU-laptop-1"]
    assert found.gpus[0].tdp_w == 22.5
    assert found.gpus[0].memory_bytes > 0
    assert found.gpus[0].catalogued


def parsed(*words: str) -> dict[str, Any]:
    command = click.Command("agent", params=list(click_options()))
    with command.make_context("agent", list(words)) as context:
        return dict(context.params)


def test_engines_are_run_as_the_command_line_says() -> None:
    assert vllm_options(parsed(), by_uuid=True) is None
    words = ("--vllm", "/opt/vllm", "--engines", "/srv/e", "--engine-ports", "100-200", "--vllm-argument=--seed=1")
    words += ("--vllm-env", "A=b=c", "--vllm-offline", "--vllm-scheduler", "greenserve", "--engine-drain-s", "0")
    found = vllm_options(parsed(*words, "--vllm-kv-store", "/dev/shm/kv"), by_uuid=False)
    assert found is not None
    assert (found.program, found.folder, found.ports) == (Path("/opt/vllm"), Path("/srv/e"), (100, 200))
    assert (found.arguments, dict(found.environment)) == (("--seed=1",), {"A": "b=c"})
    assert (found.offline, found.plugin, found.sleep, found.by_uuid) == (True, True, False, False)
    assert (found.drain_within_s, found.kv_store) == (0.0, Path("/dev/shm/kv"))
    assert found.kv_connector == "blocks"
    for wrong in (("--engine-ports", "9-1"), ("--vllm-kv-ports", "x"), ("--vllm-env", "A")):
        with pytest.raises(click.UsageError, match="write it as"):
            vllm_options(parsed("--vllm", "x", *wrong), by_uuid=True)


def test_channel_for_caches_is_not_open_to_strangers() -> None:
    ports = ("--vllm", "x", "--vllm-kv-ports", "200-399", "--vllm-kv-staging-gib", "0.5")
    found = vllm_options(parsed(*ports), by_uuid=True)
    assert found is not None
    assert (found.kv_connector, found.kv_ports, found.kv_staging_bytes) == ("nixl", (200, 399), 1 << 29)
    with pytest.raises(click.UsageError, match=r"engines at 10\.0\.0\.1 would take KV caches of anybody; give --tls-"):
        vllm_options(parsed(*ports, "--engine-host", "10.0.0.1"), by_uuid=True)
    with pytest.raises(click.UsageError, match="give one"):
        vllm_options(parsed(*ports, "--vllm-kv-store", "/dev/shm/kv"), by_uuid=True)


def test_engines_outlive_the_agent_when_systemd_restarts_it(tmp_path: Path) -> None:
    text = agent_unit("box", "me", tmp_path / "e", tmp_path, ("--gpus", "nvml", "--vllm", "/opt/my vllm"))
    assert "KillMode=process" in text
    assert "--node box --gpus nvml --vllm '/opt/my vllm'" in text
