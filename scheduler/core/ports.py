"""Ports: the roles that adapters fill. Each has at most six methods and says its units, errors and blocking.

Errors are translated once, at the adapter: `PermanentError` will fail again, `RetryableError` may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class AdapterError(Exception):
    """Anything an adapter could not do, in words an operator understands."""


class PermanentError(AdapterError):
    """Trying again will not help: no permission, no such device, not supported."""


class RetryableError(AdapterError):
    """A passing fault: a time-out, a refused connection, a busy device."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one instant. `energy_j` is the cumulative counter, the meter; `power_w` is the check beside it."""

    uuid: str
    index: int
    gpu_type: str
    at_s: float
    energy_j: float | None
    power_w: float | None
    sm_clock_mhz: float | None
    utilisation: float | None  # 0..1
    memory_used_bytes: int | None
    temperature_c: float | None
    min_mhz: float
    max_mhz: float


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """What an instance is to be. `max_model_len` in tokens."""

    uid: str
    model: str
    engine: str
    gpu_uuids: tuple[str, ...]
    max_model_len: int

    @property
    def tp(self) -> int:
        return len(self.gpu_uuids)


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """An instance on its node. `state`: starting | ready | draining | failed."""

    uid: str
    state: str
    url: str | None
    gpu_uuids: tuple[str, ...]
    started_at_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """An engine's own metrics. Means are over what happened since the previous reading; None: missing or nothing."""

    at_s: float
    running: int | None
    waiting: int | None
    kv_usage: float | None  # 0..1
    prompt_tokens_total: float | None
    generation_tokens_total: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    missing: tuple[str, ...] = ()


class GpuMeter(Protocol):
    """Reads the GPUs of one node. Blocks for at most its time-out; raises AdapterError."""

    def read(self) -> tuple[GpuReading, ...]: ...


class FrequencyActuator(Protocol):
    """Holds SM clocks below the top under a lease: unless renewed within `lease_s` the clock returns to its default.

    Blocks for at most its time-out; raises AdapterError.
    """

    def lock(self, gpu_uuids: Sequence[str], mhz: float, lease_s: float) -> None: ...

    def reset(self, gpu_uuids: Sequence[str]) -> None: ...


class InstanceRuntime(Protocol):
    """Starts and ends engines on one node. Idempotent by uid. `start` returns at once; `list` tells progress.

    `drain` refuses new requests and stops the engine when the last one ends; `stop` aborts what runs.
    Blocks for at most its time-out; raises AdapterError.
    """

    def list(self) -> tuple[InstanceStatus, ...]: ...

    def start(self, spec: InstanceSpec) -> None: ...

    def drain(self, uid: str) -> None: ...

    def stop(self, uid: str) -> None: ...


class EngineMetrics(Protocol):
    """Reads one engine's metrics. Blocks for at most its time-out; raises AdapterError."""

    def scrape(self, uid: str, url: str) -> EngineReading: ...


class OutputLengthPredictor(Protocol):
    """Predicts output tokens before a request runs, and learns from those that ended. Never blocks."""

    def predict(self, service: str, prompt_tokens: int, max_tokens: int | None) -> int: ...

    def observe(self, service: str, prompt_tokens: int, output_tokens: int) -> None: ...


@dataclass(frozen=True, slots=True)
class IntensityPoint:
    """Carbon intensity of one interval [start_s, end_s) in Unix seconds. `value_g_per_kwh` None: the feed has none."""

    zone: str
    start_s: float
    end_s: float
    value_g_per_kwh: float | None
    raw_value: float | None
    raw_unit: str
    signal: str  # average | marginal | price
    factor: str  # direct | lifecycle
    estimated: bool
    issued_at_s: float
    forecast: bool
    provider: str


class CarbonProvider(Protocol):
    """One source of carbon intensity. Blocks for at most its time-out; raises AdapterError."""

    def actuals(self, zone: str, start_s: float, end_s: float) -> tuple[IntensityPoint, ...]: ...

    def forecast(self, zone: str, now_s: float, horizon_s: float) -> tuple[IntensityPoint, ...]: ...
