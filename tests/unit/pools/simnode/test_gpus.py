"""Simulated GPUs: energy, leases, counters on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine.engine_model import closed_form, gpu
from core.ports import LONGEST_LEASE_S
from pools.simnode import node as node_module
from pools.simnode.__main__ import _HOUSEKEEPING_S as HOUSEKEEPING_S
from pools.simnode.gpu_group import GpuGroup
from pools.simnode.gpus import CounterFileError, GpuBank, SimGpu, parse_gpu_group
from pools.simnode.node import SimNode
from pools.wire import ClockPolicy


def a100() -> SimGpu:
    return SimGpu("SIM-n-0", 0, gpu("A100-80GB"), 0.0, 0.0)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 700.0)), max_size=50))
def test_energy_is_the_integral_of_power_when_power_changes(steps: list[tuple[float, float]]) -> None:
    device = a100()
    device.hold("i", 0.0, lambda _: None)
    at_s, expected_j, power_w = 0.0, 0.0, device.power_w
    for wait_s, next_w in steps:
        expected_j += power_w * wait_s
        at_s += wait_s
        before_j = device.energy_j
        device.draw("i", at_s, next_w)
        power_w = next_w
        assert device.energy_j >= before_j
    assert device.energy_j == pytest.approx(expected_j, rel=1e-9, abs=1e-6)


def test_unassigned_gpu_draws_its_idle_power_when_nothing_is_loaded() -> None:
    device = a100()
    device.advance(10.0)
    assert device.energy_j == pytest.approx(10.0 * gpu("A100-80GB").idle_w)


def test_utilisation_is_the_busy_share_of_the_last_window_when_work_alternates() -> None:
    device = a100()
    device.hold("i", 0.0, lambda _: None)
    device.draw("i", 0.0, 300.0, busy=True)
    device.draw("i", 0.25, 80.0)
    assert device.reading(0.0).utilisation is None  # not yet known
    device.advance(1.0)
    assert device.reading(0.0).utilisation == pytest.approx(0.25)


def test_clock_returns_to_the_top_when_its_lease_lapses() -> None:
    device = a100()
    changes: list[float] = []
    device.hold("i", 0.0, changes.append)
    device.lock(600.0, until_s=10.0, now_s=0.0)
    device.lock(600.0, until_s=12.0, now_s=2.0)  # renewed: no change
    device.lapse(11.0)
    assert device.clock_mhz == 600.0
    device.lapse(12.0)
    assert device.clock_mhz == gpu("A100-80GB").f_max
    assert changes == [0.0, 12.0]


@pytest.mark.parametrize("asked_s", [ClockPolicy().lease_s, 3600.0])
def test_clocks_of_a_node_are_back_within_ten_seconds_when_its_agent_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_s: float
) -> None:
    """The agent has just renewed; the node looks at its leases each housekeeping period, at the latest."""
    now_s = 100.0
    monkeypatch.setattr(node_module.time, "monotonic", lambda: now_s)
    bank = GpuBank("n", [("A100-80GB", 1)], tmp_path / "n.json", now_s)
    node = SimNode(bank, 1.0)
    node.lock_clock(["SIM-n-0"], 600.0, asked_s)
    now_s += LONGEST_LEASE_S - 0.1
    node.advance()
    assert bank.gpus["SIM-n-0"].clock_mhz == 600.0, "a healthy agent may miss renewals"
    now_s = 110.0 - HOUSEKEEPING_S
    node.advance()
    assert bank.gpus["SIM-n-0"].clock_mhz == gpu("A100-80GB").f_max


def test_node_goes_on_when_its_counters_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "n.json"
    node = SimNode(GpuBank("n", [("A100-80GB", 1)], path, 0.0), 1.0)
    (before,) = node.read_gpus()

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        node.save_counters()
        node.save_counters()
        with pytest.raises(OSError, match="No space left"):
            node.read_gpus()  # a reading that is not on disk could be set back
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert json.loads(path.read_text())["energy_j"] == {"SIM-n-0": before.energy_j}
    node.save_counters()
    assert caplog.messages[-1] == "the energy counters are saved again"
    assert json.loads(path.read_text())["energy_j"]["SIM-n-0"] > before.energy_j


def test_counters_go_on_when_the_node_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    first = GpuBank("n", [("A100-80GB", 1), ("H100-SXM-80GB", 1)], path, 0.0)
    first.advance(100.0)
    read = first.read(1.0)
    assert [(r.uuid, r.index, r.gpu_type) for r in read] == [
        ("SIM-n-0", 0, "A100-80GB"),
        ("SIM-n-1", 1, "H100-SXM-80GB"),
    ]
    again = GpuBank("n", [("A100-80GB", 1)], path, 5000.0)
    assert again.read(2.0)[0].energy_j == read[0].energy_j
    # A GPU that was taken out keeps its counter on disk.
    assert json.loads(path.read_text())["energy_j"]["SIM-n-1"] == read[1].energy_j


def test_reading_is_on_disk_when_it_is_returned(tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    bank = GpuBank("n", [("A100-80GB", 1)], path, 0.0)
    for second in (1.0, 2.5, 7.25):
        bank.advance(second)
        reading = bank.read(second)[0]
        assert json.loads(path.read_text())["energy_j"] == {"SIM-n-0": reading.energy_j}


@pytest.mark.parametrize("content", ["", "{", '{"energy_j": {"SIM-n-0": "many"}}', "[]"])
def test_counters_are_not_reset_silently_when_their_file_is_broken(tmp_path: Path, content: str) -> None:
    path = tmp_path / "n.json"
    path.write_text(content)
    with pytest.raises(CounterFileError, match=r"n\.json does not hold energy counters.*move it away"):
        GpuBank("n", [("A100-80GB", 1)], path, 0.0)


def test_gpu_group_is_read_when_it_is_well_formed() -> None:
    assert parse_gpu_group("H100-SXM-80GB:8") == ("H100-SXM-80GB", 8)


@pytest.mark.parametrize("text", ["A100-80GB", "A100-80GB:0", "A100-80GB:x", "A100-80GB:-1", "B9:2", ":4", ""])
def test_gpu_group_is_refused_when_it_is_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"TYPE:COUNT|unknown gpu"):
        parse_gpu_group(text)


def test_engines_on_slices_add_up_to_the_gpu_and_share_its_clock() -> None:
    device, heard = a100(), []
    device.hold("a", 0.0, lambda at_s: heard.append(("a", at_s)), slices=2)
    assert device.power_w == pytest.approx(device.params.idle_w)  # its half and the one that nobody has
    assert not device.full_for(2)
    assert device.full_for(1)
    assert device.full_for(3), "it is cut otherwise"
    device.hold("b", 0.0, lambda at_s: heard.append(("b", at_s)), slices=2)
    assert device.full_for(2)
    device.draw("a", 0.0, 120.0, busy=True)
    device.draw("b", 0.0, 60.0)
    device.advance(10.0)
    assert device.energy_j == pytest.approx(1800.0)
    device.lock(900.0, 100.0, 10.0)
    assert heard == [("a", 10.0), ("b", 10.0)]
    device.let_go("a", 10.0)
    assert device.power_w == pytest.approx(60.0 + device.params.idle_w / 2.0)


def test_half_a_gpu_draws_half_of_what_it_all_does() -> None:
    device = a100()
    model = closed_form("Llama3-8B", "A100-80GB/2", 1)
    groups = [GpuGroup([device], model) for _ in range(2)]
    for name, group in zip("ab", groups, strict=True):
        group.allocate(name, 0.0, group.idle, 2)
        group.loaded(0.0)
    whole = closed_form("Llama3-8B", "A100-80GB", 1).idle_gpu_watts(device.params.f_max)
    assert device.power_w == pytest.approx(whole, rel=0.02)
    groups[0].release(1.0)
    assert device.power_w == pytest.approx((whole + device.params.idle_w) / 2.0, rel=0.02)
