"""Adapters to a simulated node (`pools.simnode`) through its control API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec

from core.ports import (
    AdapterError,
    EngineLimits,
    GpuReading,
    InstanceSpec,
    InstanceStatus,
    PermanentError,
    RetryableError,
)

from ..http_client import HttpClient

TIMEOUT_S = 1.0

T = TypeVar("T")


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise RetryableError(f"the simulated node gave an answer that cannot be read: {error}") from error


class _Power(msgspec.Struct):
    runs: bool


class SimMachine:
    """The machine that the agent would run on. Where nothing answers it counts as running: the agent says the fault."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def runs(self) -> bool:
        try:
            return _decode(self._client.call("GET", "/power"), _Power).runs
        except AdapterError:
            return True


class SimGpuMeter:
    """`ports.GpuMeter`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def read(self) -> tuple[GpuReading, ...]:
        return _decode(self._client.call("GET", "/gpus"), tuple[GpuReading, ...])


class SimFrequencyActuator:
    """`ports.FrequencyActuator`; the simulated node itself lets a lease lapse."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def lock(self, gpu_uuids: Sequence[str], mhz: float, lease_s: float) -> None:
        order = {"uuids": list(gpu_uuids), "mhz": mhz, "lease_s": lease_s}
        self._client.call("POST", "/gpus/clock", msgspec.json.encode(order))

    def reset(self, gpu_uuids: Sequence[str]) -> None:
        self._client.call("POST", "/gpus/clock/reset", msgspec.json.encode({"uuids": list(gpu_uuids)}))


class SimInstanceRuntime:
    """`ports.InstanceRuntime`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def list(self) -> tuple[InstanceStatus, ...]:
        return _decode(self._client.call("GET", "/instances"), tuple[InstanceStatus, ...])

    def start(self, spec: InstanceSpec) -> None:
        self._client.call("POST", "/instances", msgspec.json.encode(spec))

    def drain(self, uid: str) -> None:
        try:
            self._client.call("POST", f"/instances/{quote(uid, safe='')}/drain", b"")
        except PermanentError:
            # 404: it has ended already, which is what draining is for. Anything else is an error.
            if any(status.uid == uid for status in self.list()):
                raise

    def stop(self, uid: str) -> None:
        self._client.call("DELETE", f"/instances/{quote(uid, safe='')}")


class SimEngineControl:
    """`ports.EngineControl`."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    def tune(self, uid: str, limits: EngineLimits) -> None:
        self._post(uid, "limits", msgspec.json.encode(limits))

    def sleep(self, uid: str, level: int = 1) -> None:
        self._post(uid, "sleep", msgspec.json.encode({"level": level}))

    def wake(self, uid: str) -> None:
        self._post(uid, "wake", b"")

    def reshard(self, uid: str, gpu_uuids: Sequence[str]) -> None:
        self._post(uid, "reshard", msgspec.json.encode({"gpu_uuids": list(gpu_uuids)}))

    def _post(self, uid: str, what: str, body: bytes) -> None:
        self._client.call("POST", f"/instances/{quote(uid, safe='')}/{what}", body)
