"""Makes what the agent reports of what one tick saw: states for the gateway and rows for the ingester."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from core.engine.engine_launch import EngineLaunch
from core.engine.gpu_slices import sliced
from core.ports import EngineReading, GpuReading, HostReading, InstanceStatus
from pools.wire import DesiredInstance, GpuSampleRow, HostSampleRow, InstanceSampleRow, InstanceState, NodeFinds

from .reconcile import Trouble


class NodeReport(Protocol):
    """Says what a node has to say of itself, once a tick. Blocks for at most its time-out and raises nothing."""

    def measure_only(self) -> str:
        """Returns why no clock can be set, in words; empty: clocks can be set."""
        ...

    def notices(self) -> tuple[str, ...]:
        """Returns what an operator should know of the node's meters."""
        ...

    def memory_free_bytes(self) -> int | None:
        """Returns what the machine's memory has left for weights of engines that sleep; None: not known."""
        ...

    def finds(self) -> NodeFinds | None:
        """Returns what was found on the machine for engines; None: it starts none, or has not looked yet."""
        ...

    def prepare(self, launches: Sequence[EngineLaunch]) -> None:
        """Begins to fetch what engines here may be started with; returns at once."""
        ...


SILENT_S = 5.0  # a runtime that has not answered for so long is taken for lost
# A GPU's row names one engine: the one whose state is first here, of several one that has requests. The ledger divides
# what a GPU draws among the engines that have slices of it.
_RANK = {"ready": 0, "draining": 1, "starting": 2, "sleeping": 3}  # others may have the GPUs of one that sleeps


@dataclass(slots=True)
class View:
    """The readings of one tick. `statuses` None: the runtime did not answer, nothing is known of the instances.

    `mean_shares`: by instance, its mean clock since the tick before over the one that was read.
    """

    now_s: float
    gpus: tuple[GpuReading, ...] = ()
    statuses: tuple[InstanceStatus, ...] | None = None
    engines: dict[str, EngineReading] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    hosts: tuple[HostReading, ...] = ()
    mean_shares: Mapping[str, float] = field(default_factory=dict)


def slowest(gpus: Sequence[GpuReading]) -> float | None:
    """Returns the lowest SM clock (MHz), which sets a tensor-parallel instance's pace; None where one is not known."""
    clocks = [gpu.sm_clock_mhz for gpu in gpus if gpu.sm_clock_mhz is not None]
    return min(clocks) if clocks and len(clocks) == len(gpus) else None


def instance_state(
    item: DesiredInstance,
    status: InstanceStatus | None,
    trouble: Trouble | None,
    known_gpus: Mapping[str, GpuReading],
    view: View,
) -> InstanceState:
    """Returns the state of one wanted instance.

    `known_gpus`: the last reading of each GPU, for what does not change.
    """
    reading = view.engines.get(item.uid)
    uuids = item.gpu_uuids if status is None else status.gpu_uuids  # on its way to others it serves on those it has
    gpus = [known_gpus[uuid] for uuid in uuids if uuid in known_gpus]
    powers = [gpu.power_w for gpu in gpus if gpu.power_w is not None] if view.gpus else []
    if status is not None and status.state == "sleeping" and _others_on(item, view):
        powers = []  # it is theirs
    if status is not None:
        leaving = item.state in ("draining", "sleeping") and status.state == "ready"  # gateways know before the engine
        state, detail = item.state if leaving else status.state, status.detail
        url = None if status.url is None else status.advertised or status.url
    else:
        state, url, detail = (trouble.state if trouble else "starting"), None, ""
    if trouble is not None:
        detail = f"{detail or trouble.detail} (attempt {trouble.attempts})"
    elif reading is not None and reading.missing:
        detail = f"the engine lacks the metrics {', '.join(reading.missing)}"
    return InstanceState(
        uid=item.uid,
        pool_id=item.pool_id,
        url=url,
        state=state,
        model=item.model,
        engine=item.engine,
        gpu_type=sliced(gpus[0].gpu_type, item.gpu_slices) if gpus else "unknown",
        tp=len(uuids),
        sm_clock_mhz=slowest(gpus) if view.gpus else None,
        min_mhz=max((gpu.min_mhz for gpu in gpus), default=0.0),
        max_mhz=min((gpu.max_mhz for gpu in gpus), default=0.0),
        power_w=sum(powers) / item.gpu_slices if powers and len(powers) == len(uuids) else None,
        running=reading.running if reading else None,
        waiting=reading.waiting if reading else None,
        kv_usage=reading.kv_usage if reading else None,
        ttft_s=reading.ttft_s if reading else None,
        tpot_s=reading.tpot_s if reading else None,
        detail=detail,
        progress=status.progress if status is not None else None,
        engine_limits=status.limits if status is not None else None,
        shadow_of=item.shadow_of,
        laxity=status is not None and status.laxity,
        kv_connector="" if status is None else status.kv_connector,
        start="" if status is None else status.start,
        shape=item.shape,
        engine_key="" if status is None else status.key,
        kv_address="" if status is None else status.kv_address,
        paths=None if status is None or status.paths is None else list(status.paths),
        adapters=[] if status is None else list(status.adapters),
        reshards=status is not None and status.reshards,
        asleep=status is not None and status.state == "sleeping",
    )


def _others_on(item: DesiredInstance, view: View) -> bool:
    """Says whether others that are awake are on the GPUs of an instance."""
    awake = (one for one in view.statuses or () if one.uid != item.uid and one.state not in ("sleeping", "failed"))
    return any(not set(item.gpu_uuids).isdisjoint(one.gpu_uuids) for one in awake)


def unreachable(state: InstanceState, silent_s: float) -> InstanceState:
    """Returns what is known of an instance whose node's runtime has been silent for so long: nothing of its load.

    At first it may be a time-out on a busy machine, while the engine serves on. After that it is not to be sent
    requests, nor to be taken for ended.
    """
    unmeasured = msgspec.structs.replace(
        state, sm_clock_mhz=None, power_w=None, running=None, waiting=None, kv_usage=None, ttft_s=None, tpot_s=None
    )
    if silent_s < SILENT_S:
        return unmeasured
    return msgspec.structs.replace(
        unmeasured,
        url=None,
        state="draining" if state.state == "draining" else "failed",
        detail="the node's runtime does not answer",
        progress=None,
        engine_limits=None,
    )


def gpu_rows(view: View) -> list[GpuSampleRow]:
    holders: dict[str, InstanceStatus] = {}

    def rank(status: InstanceStatus) -> tuple[int, bool]:
        engine = view.engines.get(status.uid)
        return _RANK.get(status.state, len(_RANK)), not (engine and engine.running)

    for status in sorted(view.statuses or (), key=rank):
        if status.state != "failed":  # a failed engine has let go of its GPUs
            for uuid in status.gpu_uuids:
                holders.setdefault(uuid, status)
            for uuid in status.taking:  # to the ledger: one of a start
                holders.setdefault(uuid, replace(status, state="starting"))
    rows = []
    for gpu in view.gpus:
        holder = holders.get(gpu.uuid)
        engine = view.engines.get(holder.uid) if holder else None
        asleep = holder is not None and holder.state == "sleeping"  # to the ledger: up, with nothing to do
        rows.append(
            GpuSampleRow(
                at_s=gpu.at_s,
                gpu_uuid=gpu.uuid,
                energy_j=gpu.energy_j,
                power_w=gpu.power_w,
                sm_clock_mhz=gpu.sm_clock_mhz,
                utilisation=gpu.utilisation,
                memory_used_bytes=gpu.memory_used_bytes,
                temperature_c=gpu.temperature_c,
                instance_uid=holder.uid if holder else None,
                instance_state="ready" if asleep else holder.state if holder else None,
                running=0 if asleep else engine.running if engine else None,
            )
        )
    return rows


def host_rows(view: View) -> list[HostSampleRow]:
    return [HostSampleRow(one.at_s, one.domain, one.method, one.energy_j, one.power_w) for one in view.hosts]


def instance_rows(view: View, states: Sequence[InstanceState]) -> list[InstanceSampleRow]:
    rows = []
    for state in states:
        engine, mhz = view.engines.get(state.uid), state.sm_clock_mhz
        rows.append(
            InstanceSampleRow(
                at_s=view.now_s,
                instance_uid=state.uid,
                state=state.state,
                running=state.running,
                waiting=state.waiting,
                kv_usage=state.kv_usage,
                prompt_tokens_total=engine.prompt_tokens_total if engine else None,
                generation_tokens_total=engine.generation_tokens_total if engine else None,
                ttft_s=state.ttft_s,
                tpot_s=state.tpot_s,
                sm_clock_mhz=None if mhz is None else mhz * view.mean_shares.get(state.uid, 1.0),
                url=state.url,
                detail=state.detail,
                start=state.start,
                tp=state.tp,
                reshards=state.reshards,
            )
        )
    return rows
