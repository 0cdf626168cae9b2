"""The agent's `/metrics`: what its GPUs and engines do, as it read them last, and how its loop fares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import start_http_server
from prometheus_client.registry import Collector, CollectorRegistry

from core.ports import GpuReading, HostReading
from pools.wire import InstanceState

PREFIX = "greenserve_"
HZ_PER_MHZ = 1e6
STATES = ("starting", "ready", "sleeping", "draining", "failed")
Labels = tuple[str, ...]
F = TypeVar("F", bound=GaugeMetricFamily | CounterMetricFamily)


@dataclass(frozen=True, slots=True)
class Picture:
    """A record of what one tick saw and did. It is replaced whole, so that a scrape never sees half of two ticks.

    `dropped_batches` are lost for good, `waiting_batches` are on their way; `clock_changes` since the agent's start.
    """

    at_s: float
    took_s: float
    ticks: int
    gpus: Sequence[GpuReading] = ()
    hosts: Sequence[HostReading] = ()
    instances: Sequence[InstanceState] = ()
    allocated: Mapping[str, str] | None = None  # GPU uuid -> uid of the instance that it is allocated to
    waiting_batches: int = 0
    dropped_batches: int = 0
    link_up: bool = True
    troubled: bool = False


class Board:
    """The place where the loop puts its picture and scrapes find it. `url`: of the page, once it is served."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.picture: Picture | None = None
        self.url: str | None = None


class AgentCollector(Collector):
    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        picture, node = self._board.picture, self._board.node
        yield from _gpus(picture, node)
        yield from _hosts(picture, node)
        yield from _instances(picture, node)
        yield from _loop(picture, node)


def serve(board: Board, host: str, port: int) -> Callable[[], None]:
    """Listens for Prometheus in a thread of its own; port 0 is any free one. Returns what ends it.

    Raises OSError when it cannot listen there.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AgentCollector(board))
    server, thread = start_http_server(port, host, registry)
    where = f"[{host}]" if ":" in host else host
    board.url = f"http://{where}:{server.server_port}/metrics"

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)

    return end


def _gpus(picture: Picture | None, node: str) -> Iterator[Metric]:
    gpus = picture.gpus if picture else ()
    allocated = (picture.allocated if picture else None) or {}
    columns = (
        ("gpu_power_watts", "Power.", [(g, g.power_w) for g in gpus]),
        ("gpu_sm_clock_hertz", "SM clock.", [(g, _times(g.sm_clock_mhz, HZ_PER_MHZ)) for g in gpus]),
        ("gpu_utilisation_ratio", "Share of time in which a kernel ran.", [(g, g.utilisation) for g in gpus]),
        ("gpu_memory_used_bytes", "Memory in use.", [(g, g.memory_used_bytes) for g in gpus]),
        ("gpu_temperature_celsius", "Temperature.", [(g, g.temperature_c) for g in gpus]),
        ("gpu_memory_clock_hertz", "Memory clock.", [(g, _times(g.memory_clock_mhz, HZ_PER_MHZ)) for g in gpus]),
        ("gpu_ecc_errors", "Uncorrected memory errors since the driver was loaded.", [(g, g.ecc_errors) for g in gpus]),
        ("gpu_throttled", "Whether heat or power keep its clock down.", [(g, _throttled(g)) for g in gpus]),
    )
    for name, text, values in columns:
        yield _filled(_gauge(name, text, "gpu", "gpu_type"), node, (((g.uuid, g.gpu_type), v) for g, v in values))
    energy = ((g.uuid, g.gpu_type) for g in gpus)
    counters = zip(energy, (g.energy_j for g in gpus), strict=True)
    yield _filled(_counter("gpu_energy_joules", "The GPU's own meter.", "gpu", "gpu_type"), node, counters)
    text = "Which instance the GPU is allocated to; 1."
    yield _filled(
        _gauge("gpu_held_info", text, "gpu", "instance_uid"), node, ((pair, 1.0) for pair in allocated.items())
    )


def _hosts(picture: Picture | None, node: str) -> Iterator[Metric]:
    found = [((one.domain, one.method), one.energy_j) for one in (picture.hosts if picture else ())]
    text = "What a part of the host used since the agent's start."
    yield _filled(_counter("host_energy_joules", text, "domain", "method"), node, found)


def _instances(picture: Picture | None, node: str) -> Iterator[Metric]:
    found = picture.instances if picture else ()
    states = (((i.uid, state), float(i.state == state)) for i in found for state in STATES)
    yield _filled(_gauge("instance_state", "1 for the state that it is in.", "instance_uid", "state"), node, states)
    columns = (
        ("instance_power_watts", "Power of its GPUs.", [(i, i.power_w) for i in found]),
        ("instance_running_requests", "Requests in its batch.", [(i, i.running) for i in found]),
        ("instance_waiting_requests", "Requests in its queue.", [(i, i.waiting) for i in found]),
        ("instance_kv_usage_ratio", "KV cache in use.", [(i, i.kv_usage) for i in found]),
        ("instance_sm_clock_hertz", "Its slowest GPU.", [(i, _times(i.sm_clock_mhz, HZ_PER_MHZ)) for i in found]),
    )
    for name, text, values in columns:
        yield _filled(_gauge(name, text, "instance_uid", "model"), node, (((i.uid, i.model), v) for i, v in values))


def _loop(picture: Picture | None, node: str) -> Iterator[Metric]:
    def of(value: Callable[[Picture], float]) -> list[tuple[Labels, float | None]]:
        return [] if picture is None else [((), float(value(picture)))]

    gauges: tuple[tuple[str, str, Callable[[Picture], float]], ...] = (
        ("agent_tick_duration_seconds", "What the last round took.", lambda p: p.took_s),
        ("agent_tick_time_seconds", "When the last round was, Unix time.", lambda p: p.at_s),
        ("agent_link_up", "Whether Redis took the last report.", lambda p: p.link_up),
        ("agent_trouble", "Whether something could not be read or done.", lambda p: p.troubled),
        ("agent_waiting_batches", "Batches of samples not yet sent.", lambda p: p.waiting_batches),
    )
    for name, text, value in gauges:
        yield _filled(_gauge(name, text), node, of(value))
    yield _filled(
        _counter(
            "agent_ticks",
            "Rounds of the loop.",
        ),
        node,
        of(lambda p: p.ticks),
    )
    text = "Batches of samples lost for good."
    yield _filled(_counter("agent_dropped_batches", text), node, of(lambda p: p.dropped_batches))


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=("node", *labels))


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, labels=("node", *labels))


def _filled(family: F, node: str, samples: Iterable[tuple[Labels, float | None]]) -> F:
    """What is not known is left out, never 0."""
    for own, value in samples:
        if value is not None:
            family.add_metric((node, *own), value)
    return family


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _throttled(gpu: GpuReading) -> float | None:
    return None if gpu.throttle_reasons is None else float(bool(gpu.throttle_reasons))
