"""What every adapter of GpuMeter and FrequencyActuator must do. Add an adapter as a parameter of `gpus`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from core.ports import FrequencyActuator, GpuMeter, GpuReading, PermanentError, RetryableError
from pools.agent.devices.actuator_client import SocketFrequencyActuator
from pools.agent.devices.nvml import NvmlGpuMeter
from pools.agent.devices.sim import SimFrequencyActuator, SimGpuMeter
from pools.agent.http_client import HttpClient
from tests.fakes.actuator import ActuatorProcess
from tests.fakes.nvml import Boards
from tests.fakes.simnode import eventually
from tests.ports import free_port

LEASE_S = 1.0


@dataclass
class Gpus:
    meter: GpuMeter
    actuator: FrequencyActuator
    dead_meter: GpuMeter  # one whose device does not answer

    def one(self, uuid: str) -> GpuReading:
        return next(reading for reading in self.meter.read() if reading.uuid == uuid)


@pytest.fixture(params=["sim", "nvml"])
def gpus(request: pytest.FixtureRequest) -> Iterator[Gpus]:
    if request.param == "nvml":
        yield from _nvml(request.getfixturevalue("boards"), request.getfixturevalue("actuator"))
        return
    client = HttpClient(request.getfixturevalue("simnode").url, 5.0)
    dead = HttpClient(f"http://127.0.0.1:{free_port()}", 1.0)
    yield Gpus(SimGpuMeter(client), SimFrequencyActuator(client), SimGpuMeter(dead))
    client.close()


def _nvml(boards: Boards, process: ActuatorProcess) -> Iterator[Gpus]:
    """NVML with a compiled stand-in, and clocks through the real actuator process. The dead one hangs in the driver."""
    meter, actuator, dead = NvmlGpuMeter(5.0), SocketFrequencyActuator(process.socket, 5.0), NvmlGpuMeter(0.2)

    class HungMeter:
        def read(self) -> tuple[GpuReading, ...]:
            boards.slow(0, "energy", 10.0)
            try:
                return dead.read()
            finally:
                boards.slow(0, "energy", 0.0)

    yield Gpus(meter, actuator, HungMeter())
    actuator.close()
    meter.close()
    dead.close()


def test_readings_name_every_gpu_once_when_read(gpus: Gpus) -> None:
    readings = gpus.meter.read()
    assert len(readings) >= 1
    assert len({reading.uuid for reading in readings}) == len(readings)
    assert sorted(reading.index for reading in readings) == list(range(len(readings)))
    for reading in readings:
        assert abs(reading.at_s - time.time()) < 2.0
        assert 0.0 < reading.min_mhz < reading.max_mhz
        assert reading.utilisation is None or 0.0 <= reading.utilisation <= 1.0
        assert reading.memory_used_bytes is None or reading.memory_used_bytes >= 0


def test_energy_counter_never_goes_back_when_read_often(gpus: Gpus) -> None:
    last: dict[str, float] = {}
    for _ in range(50):
        for reading in gpus.meter.read():
            if reading.energy_j is not None:
                assert reading.energy_j >= last.get(reading.uuid, 0.0)
                last[reading.uuid] = reading.energy_j


def test_energy_agrees_with_power_when_the_gpu_is_left_alone(gpus: Gpus) -> None:
    first = gpus.meter.read()
    time.sleep(0.5)
    for before, after in zip(first, gpus.meter.read(), strict=True):
        if before.energy_j is None or after.energy_j is None or before.power_w is None or after.power_w is None:
            continue
        mean_w = (after.energy_j - before.energy_j) / (after.at_s - before.at_s)
        assert mean_w == pytest.approx((before.power_w + after.power_w) / 2, rel=0.1)


def test_clock_is_held_while_the_lease_is_renewed_and_returns_when_it_is_not(gpus: Gpus) -> None:
    free = gpus.meter.read()[0]
    target_mhz = (free.min_mhz + free.max_mhz) / 2
    for _ in range(4):  # longer than a lease, all in all
        locked_s = time.monotonic()
        gpus.actuator.lock([free.uuid], target_mhz, lease_s=LEASE_S)
        time.sleep(LEASE_S / 3)
        read_mhz = gpus.one(free.uuid).sm_clock_mhz
        if time.monotonic() - locked_s < LEASE_S:  # else the machine was busy with other things
            assert read_mhz == pytest.approx(target_mhz, rel=0.02)
    eventually(lambda: gpus.one(free.uuid).sm_clock_mhz == free.max_mhz, 10.0, "return to the top clock")


def test_clock_returns_at_once_when_it_is_reset(gpus: Gpus) -> None:
    free = gpus.meter.read()[0]
    gpus.actuator.lock([free.uuid], free.min_mhz, lease_s=30.0)
    gpus.actuator.reset([free.uuid])
    gpus.actuator.reset([free.uuid])  # twice does no harm
    assert gpus.one(free.uuid).sm_clock_mhz == free.max_mhz


def test_only_the_named_gpus_are_touched_when_a_clock_is_locked(gpus: Gpus) -> None:
    readings = gpus.meter.read()
    if len(readings) < 2:
        pytest.skip("needs two GPUs")
    gpus.actuator.lock([readings[0].uuid], readings[0].min_mhz, lease_s=30.0)
    assert gpus.one(readings[1].uuid).sm_clock_mhz == readings[1].sm_clock_mhz
    gpus.actuator.reset([readings[0].uuid])


def test_lock_is_refused_for_good_when_it_makes_no_sense(gpus: Gpus) -> None:
    reading = gpus.meter.read()[0]
    for uuids, mhz in (
        ([reading.uuid], reading.max_mhz * 10),
        ([reading.uuid], -1.0),
        (["no-such-gpu"], reading.max_mhz),
        ([], reading.max_mhz),
    ):
        with pytest.raises(PermanentError):
            gpus.actuator.lock(uuids, mhz, lease_s=10.0)
    with pytest.raises(PermanentError):
        gpus.actuator.lock([reading.uuid], reading.max_mhz, lease_s=0.0)
    with pytest.raises(PermanentError):
        gpus.actuator.reset(["no-such-gpu"])


def test_fault_is_retryable_when_the_device_does_not_answer(gpus: Gpus) -> None:
    with pytest.raises(RetryableError):
        gpus.dead_meter.read()
