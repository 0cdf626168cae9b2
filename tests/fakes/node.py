"""Doubles of the ports that an agent works through. Each can be made to fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core.ports import AdapterError, EngineLimits, EngineReading, GpuReading, InstanceSpec, InstanceStatus
from pools import wire


def gpu_reading(uuid: str, index: int = 0, **changes: object) -> GpuReading:
    values: dict[str, object] = {
        "gpu_type": "A100-80GB",
        "at_s": 100.0,
        "energy_j": 5000.0,
        "power_w": 80.0,
        "sm_clock_mhz": 1410.0,
        "utilisation": 0.0,
        "memory_used_bytes": 0,
        "temperature_c": None,
        "min_mhz": 210.0,
        "max_mhz": 1410.0,
    }
    return GpuReading(uuid=uuid, index=index, **{**values, **changes})  # type: ignore[arg-type]


def engine_reading(**changes: object) -> EngineReading:
    values: dict[str, object] = {
        "at_s": 100.0,
        "running": 0,
        "waiting": 0,
        "kv_usage": 0.0,
        "prompt_tokens_total": 0.0,
        "generation_tokens_total": 0.0,
        "ttft_s": None,
        "tpot_s": None,
        "e2e_s": None,
    }
    return EngineReading(**{**values, **changes})  # type: ignore[arg-type]


def desired_instance(
    uid: str, gpus: Sequence[str] = ("G0",), state: str = "running", **more: Any
) -> wire.DesiredInstance:
    limits = wire.LatencyLimits(ttft_s=0.6, tpot_s=0.15, e2e_s=30.0)
    return wire.DesiredInstance(uid, 7, "Llama3-70B", "vllm-v1", list(gpus), 16384, state, limits, **more)


def desired_node(*instances: wire.DesiredInstance, version: int = 1, **clock: object) -> wire.DesiredNode:
    return wire.DesiredNode("n1", version, 100.0, list(instances), wire.ClockPolicy(**clock))  # type: ignore[arg-type]


class FakeGpuMeter:
    def __init__(self, uuids: Sequence[str]) -> None:
        self.readings = tuple(gpu_reading(uuid, index) for index, uuid in enumerate(uuids))
        self.error: AdapterError | None = None

    def read(self) -> tuple[GpuReading, ...]:
        if self.error:
            raise self.error
        return self.readings


class FakeFrequencyActuator:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.error: AdapterError | None = None

    def lock(self, gpu_uuids: Sequence[str], mhz: float, lease_s: float) -> None:
        if self.error:
            raise self.error
        self.calls.append(("lock", tuple(gpu_uuids), mhz, lease_s))

    def reset(self, gpu_uuids: Sequence[str]) -> None:
        if self.error:
            raise self.error
        self.calls.append(("reset", tuple(gpu_uuids)))


class FakeInstanceRuntime:
    """Engines that are `starting` until `become` says otherwise."""

    def __init__(self) -> None:
        self.statuses: dict[str, InstanceStatus] = {}
        self.calls: list[tuple[str, str]] = []
        self.start_errors: list[AdapterError] = []  # raised by the next starts, one each
        self.list_error: AdapterError | None = None

    def become(self, uid: str, state: str, detail: str = "") -> None:
        old = self.statuses[uid]
        url = "http://127.0.0.1:1" if state in ("ready", "sleeping", "draining") else None
        self.statuses[uid] = replace(old, state=state, url=url, detail=detail)

    def list(self) -> tuple[InstanceStatus, ...]:
        if self.list_error:
            raise self.list_error
        return tuple(self.statuses.values())

    def start(self, spec: InstanceSpec) -> None:
        self.calls.append(("start", spec.uid))
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.statuses[spec.uid] = InstanceStatus(
            spec.uid, "starting", None, spec.gpu_uuids, 0.0, limits=spec.limits, shadow_of=spec.shadow_of
        )

    def drain(self, uid: str) -> None:
        self.calls.append(("drain", uid))
        self.become(uid, "draining")

    def stop(self, uid: str) -> None:
        self.calls.append(("stop", uid))
        self.statuses.pop(uid, None)


class FakeEngineControl:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.error: AdapterError | None = None
        self.asked = 0  # calls, those that failed included

    def tune(self, uid: str, limits: EngineLimits) -> None:
        self._note("tune", uid, limits)

    def sleep(self, uid: str, level: int = 1) -> None:
        self._note("sleep", uid, level)

    def wake(self, uid: str) -> None:
        self._note("wake", uid)

    def reshard(self, uid: str, gpu_uuids: Sequence[str]) -> None:
        self._note("reshard", uid, tuple(gpu_uuids))

    def _note(self, *call: object) -> None:
        self.asked += 1
        if self.error:
            raise self.error
        self.calls.append(call)


class FakeEngineMetrics:
    def __init__(self) -> None:
        self.readings: dict[str, EngineReading] = {}
        self.error: AdapterError | None = None

    def scrape(self, uid: str, url: str) -> EngineReading:
        if self.error:
            raise self.error
        return self.readings.get(uid, engine_reading())


class FakeLink:
    """Redis in memory: what was sent, and errors to raise."""

    def __init__(self, desired: wire.DesiredNode | None = None) -> None:
        self.desired_node = desired
        self.desired_error: Exception | None = None
        self.send_error: Exception | None = None
        self.sends = 0
        self.room = 10_000  # batches that the stream takes
        self.offered: list[int] = []
        self.states: list[wire.AgentState] = []
        self.heartbeats: list[wire.Heartbeat] = []
        self.batches: list[wire.AgentBatch] = []

    def desired(self) -> wire.DesiredNode | None:
        if self.desired_error:
            raise self.desired_error
        return self.desired_node

    def send(self, state: wire.AgentState, heartbeat: wire.Heartbeat, batches: Sequence[wire.AgentBatch]) -> int:
        self.sends += 1
        if self.send_error:
            raise self.send_error
        self.states.append(state)
        self.heartbeats.append(heartbeat)
        self.offered.append(len(batches))
        accepted = min(self.room, len(batches))
        self.room -= accepted
        self.batches += batches[:accepted]
        return accepted
