"""A node that is no simulation: its meters, its clocks, the engines that it runs, and what it says of all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from core.engine.engine_launch import EngineLaunch
from core.ports import GpuReading, InstanceRuntime, InstanceSpec, InstanceStatus, PermanentError
from pools.wire import NodeFinds

from .devices.actuator_client import SocketFrequencyActuator
from .devices.dcgm import DcgmGpuMeter
from .devices.declared import Declaration, DeclaredMeter, NoClocks, memory_bytes
from .vllm.launch import VllmOptions
from .vllm.node_finder import NodeFinder
from .vllm.runtime import VllmRuntime
from .vllm.weights import WeightCache


class MeasuredNode:
    """`ports.InstanceRuntime` of a node whose GPUs are metered while someone else runs what is on them."""

    def list(self) -> tuple[InstanceStatus, ...]:
        return ()

    def start(self, spec: InstanceSpec) -> None:
        raise PermanentError(
            "this node's agent meters GPUs and starts no engines: give it --vllm, or take the node out of planning"
        )

    def drain(self, uid: str) -> None:
        """Nothing runs that could drain."""

    def stop(self, uid: str) -> None:
        """Nothing runs that could stop."""


class NotingMeter(Protocol):
    """A meter that says what is to be known of it."""

    def read(self) -> tuple[GpuReading, ...]: ...

    def notices(self) -> tuple[str, ...]: ...

    def close(self) -> None: ...


class _Known:
    """`ports.GpuMeter`, which keeps what GPUs the last reading had."""

    def __init__(self, meter: NotingMeter) -> None:
        self._meter = meter
        self.uuids: Collection[str] | None = None

    def read(self) -> tuple[GpuReading, ...]:
        readings = self._meter.read()
        self.uuids = frozenset(reading.uuid for reading in readings)
        return readings


class RealNode:
    """`reports.NodeReport`, with the adapters that it speaks for. `options` None: engines are not started here."""

    def __init__(
        self, meter: NotingMeter, actuator: SocketFrequencyActuator | NoClocks, options: VllmOptions | None = None
    ) -> None:
        """Raises PermanentError: the options do not fit this machine."""
        self._noting = meter
        self.meter = _Known(meter)
        self.actuator = actuator
        self.engines = None if options is None else VllmRuntime(options, lambda: self.meter.uuids)
        self.runtime: InstanceRuntime = self.engines or MeasuredNode()
        self._weights = None if options is None else WeightCache(options)
        self._finder = None if self.engines is None or options is None else NodeFinder(options, self.engines.program)

    def measure_only(self) -> str:
        return self.actuator.refusal()

    def notices(self) -> tuple[str, ...]:
        return (*self._noting.notices(), *self._of_engines())

    def memory_free_bytes(self) -> int | None:
        return memory_bytes("MemAvailable")

    def finds(self) -> NodeFinds | None:
        return None if self._finder is None else self._finder.finds()

    def prepare(self, launches: Sequence[EngineLaunch]) -> None:
        if self._weights is not None:
            self._weights.want(launches)

    def close(self) -> None:
        """Lets go of meters and clocks. Engines run on: the next agent takes them over."""
        if self._weights is not None:
            self._weights.close()
        if self._finder is not None:
            self._finder.close()
        self.actuator.close()
        self._noting.close()

    def _of_engines(self) -> Iterator[str]:
        if self.engines is not None and (found := self.engines.versions()):
            yield f"engines run vLLM {', '.join(found)}"
        if self._weights is not None:
            yield from self._weights.notices()


def nvml_node(actuator_socket: Path, options: VllmOptions | None = None) -> RealNode:
    """Returns a node with NVIDIA GPUs. Raises PermanentError."""
    from .devices.nvml import NvmlGpuMeter  # pynvml is for nodes that have the driver

    return RealNode(NvmlGpuMeter(), SocketFrequencyActuator(actuator_socket), options)


def amd_node(options: VllmOptions | None = None) -> RealNode:
    """Returns a node with AMD GPUs, whose clocks are not set. Raises PermanentError."""
    from .devices.amd import AmdGpuMeter, NoAmdClocks

    return RealNode(AmdGpuMeter(), NoAmdClocks(), options)


def dcgm_node(exporter: str, actuator_socket: Path, options: VllmOptions | None = None) -> RealNode:
    """A node with NVIDIA GPUs, read through its DCGM exporter. Raises PermanentError, ValueError."""
    return RealNode(DcgmGpuMeter(exporter), SocketFrequencyActuator(actuator_socket), options)


def declared_node(node: str, declared: Declaration, options: VllmOptions | None = None) -> RealNode:
    """Returns a machine without GPUs as a node. Raises PermanentError."""
    return RealNode(DeclaredMeter(node, declared), NoClocks(), options)
