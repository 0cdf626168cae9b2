"""The two worlds behind `simulate`: the compiled kernel's arrays, and the reference's objects."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from scheduler.core.engine_model import EngineModel
from scheduler.simulator import kernel
from scheduler.simulator.fleet import ROUTINGS, FixedCosts, FleetSpec, InstanceSpec, Load
from scheduler.simulator.outcome import FleetView, Floats, Ints, Outcome
from scheduler.simulator.reference import ReferenceFleet


def cost_row(spec: InstanceSpec) -> Floats:
    """An instance's cost parameters in the kernel's order."""
    costs = spec.engine_costs
    values: dict[str, float] = dict.fromkeys(kernel.COST_COLUMNS, 0.0)
    if isinstance(costs, FixedCosts):
        values |= {name: getattr(costs, name) for name in ("base_s", "prefill_token_s", "decode_s", "busy_w", "idle_w")}
        values["fixed"] = 1.0
    elif isinstance(costs, EngineModel):
        gpu = {item.name: getattr(costs.gpu_params, item.name) for item in fields(costs.gpu_params)}
        constants = {item.name: getattr(costs._k, item.name) for item in fields(costs._k)}
        values |= {name: value for name, value in (gpu | constants).items() if name in values}
        values["tp"] = spec.tp
    else:
        raise TypeError(f"{spec.name}: the kernel has no form for {type(costs).__name__}")
    return np.array([values[name] for name in kernel.COST_COLUMNS])


def _state(
    fleet: FleetSpec, load: Load, bin_s: float, walk: bool, keep_events: int, keep_segments: int
) -> kernel.State:
    n = len(fleet.instances)
    width = max(min(spec.max_sequences, len(load)) for spec in fleet.instances)
    offsets = np.cumsum([0] + [len(pool.members) for pool in fleet.pools])
    return kernel.State(
        cost=np.array([cost_row(spec) for spec in fleet.instances]),
        req=_requests(load),
        eng=_instances(fleet, width),
        active=np.zeros((n, width), np.int64),
        tally=np.zeros((n, kernel.OWN_BINS), np.int32),
        since=np.zeros((n, width, kernel.OWN_BINS), np.int32),
        rows=np.tile(np.arange(width), (n, 1)),
        members=np.array([i for pool in fleet.pools for i in pool.members], np.int64),
        offsets=offsets.astype(np.int64),
        routing=np.array([ROUTINGS.index(pool.routing) for pool in fleet.pools], np.int64),
        turn=np.zeros(len(fleet.pools), np.int64),
        class_pool=np.array(fleet.class_pool, np.int64),
        gaps=np.zeros(kernel.GAP_BINS, np.int64),
        series_j=np.zeros((n, 1)),
        bin_s=np.array([bin_s]),
        counts=np.zeros(4, np.int64),
        log=np.zeros((keep_events, 3), np.int64),
        log_s=np.zeros(keep_events),
        segments=np.zeros((keep_segments, len(kernel.SEGMENT_COLUMNS))),
        walk=walk,
    )


def _requests(load: Load) -> NDArray[np.void]:
    rows = np.zeros(len(load), kernel.REQUEST)
    rows["arrival_s"], rows["deadline_s"] = load.arrival_s, load.deadline_s
    rows["prompt"], rows["output"], rows["cached"] = load.prompt_tokens, load.output_tokens, load.cached_tokens
    rows["request_class"] = load.request_class
    for name in ("instance", "next", "row"):
        rows[name] = kernel.NONE
    for name in ("first_token_s", "last_token_s", "finish_s"):
        rows[name] = np.nan
    return rows


def _instances(fleet: FleetSpec, width: int) -> NDArray[np.void]:
    rows = np.zeros(len(fleet.instances), kernel.INSTANCE)
    rows["capacity"] = [spec.kv_capacity for spec in fleet.instances]
    rows["max_sequences"] = [spec.max_sequences for spec in fleet.instances]
    rows["budget"] = [spec.tokens_per_iteration for spec in fleet.instances]
    rows["mhz"] = [spec.mhz for spec in fleet.instances]
    rows["queue_head"] = rows["queue_tail"] = kernel.NONE
    rows["free"] = width
    return rows


class CompiledWorld:
    """The kernel and its arrays."""

    def __init__(
        self, fleet: FleetSpec, load: Load, bin_s: float, walk: bool, keep_events: int, keep_segments: int
    ) -> None:
        self._spec = fleet
        self._load = load
        self._state = _state(fleet, load, bin_s, walk, keep_events, keep_segments)

    @property
    def arrived(self) -> int:
        return int(self._state.counts[kernel.NEXT_ARRIVAL])

    @property
    def pending(self) -> bool:
        return self.arrived < len(self._load) or bool(self._state.counts[kernel.IN_FLIGHT_COUNT])

    def run_until(self, to_s: float) -> None:
        self._reserve(to_s)
        kernel.run_until(self._state, to_s)

    def view(self, now_s: float) -> FleetView:
        rows = self._state.eng
        mhz, running, waiting, kv_used = (rows[c].tolist() for c in ("mhz", "running", "waiting", "kv_used"))
        names = tuple(spec.name for spec in self._spec.instances)
        return FleetView(now_s, names, tuple(mhz), tuple(running), tuple(waiting), tuple(kv_used))

    def set_clock(self, instance: int, mhz: float, now_s: float) -> None:
        kernel.set_clock(self._state, instance, mhz, now_s)

    def outcome(self, end_s: float | None, partial: bool) -> Outcome:
        s = self._state
        if end_s is None:
            last_s = np.nanmax(s.req["finish_s"]) if self._any_finished() else 0.0
            end_s = max(float(last_s), float(self._load.arrival_s[-1]))
        self._reserve(end_s)
        s = self._state
        for i in range(s.eng.size):
            kernel.settle_idle(s, i, end_s)
        kept = min(int(s.counts[kernel.LOGGED]), s.log.shape[0])
        events = tuple((*row, at) for row, at in zip(s.log[:kept].tolist(), s.log_s[:kept].tolist(), strict=True))
        segments = s.segments[: min(int(s.counts[kernel.SEGMENTS]), s.segments.shape[0])]
        return Outcome(
            load=self._load,
            status=s.req["status"].copy(),
            instance=s.req["instance"].copy(),
            generated=s.req["generated"].copy(),
            first_token_s=s.req["first_token_s"].copy(),
            finish_s=s.req["finish_s"].copy(),
            itl_max_s=s.req["itl_max_s"].copy(),
            itl_p50_s=s.req["itl_p50_s"].copy(),
            itl_p99_s=s.req["itl_p99_s"].copy(),
            preemptions=s.req["preemptions"].copy(),
            timely_tokens=s.req["timely"].copy(),
            energy_j=s.req["energy_j"].copy(),
            spent_j={kind: s.eng[f"spent_{kind}_j"].copy() for kind in ("prefill", "decode", "idle")},
            series_j=s.series_j,
            bin_s=float(s.bin_s[0]),
            gaps=s.gaps,
            end_s=end_s,
            iterations=int(s.eng["iterations"].sum()),
            partial=partial,
            events=events,
            segments=segments,
        )

    def _any_finished(self) -> bool:
        return bool((self._state.req["status"] == kernel.DONE).any())

    def _reserve(self, to_s: float) -> None:
        """Widens the energy series: nothing is booked beyond the time that the kernel runs to."""
        bins = int(to_s / float(self._state.bin_s[0])) + 1
        have = self._state.series_j.shape[1]
        if bins > have:
            wide = np.zeros((self._state.eng.size, max(bins, have + have // 2)))
            wide[:, :have] = self._state.series_j
            self._state = self._state._replace(series_j=wide)


class ReferenceWorld:
    """The reference's instances. It keeps no energy series by time: one bin holds all."""

    def __init__(self, fleet: FleetSpec, load: Load) -> None:
        self._load = load
        self._world = ReferenceFleet(fleet, load)

    @property
    def arrived(self) -> int:
        return self._world.next_arrival

    @property
    def pending(self) -> bool:
        return self.arrived < len(self._load) or any(i.active or i.queue for i in self._world.instances)

    def run_until(self, to_s: float) -> None:
        self._world.run_until(to_s)

    def view(self, now_s: float) -> FleetView:
        instances = self._world.instances
        return FleetView(
            now_s,
            names=tuple(i.spec.name for i in instances),
            mhz=tuple(i.mhz for i in instances),
            running=tuple(len(i.active) for i in instances),
            waiting=tuple(len(i.queue) for i in instances),
            kv_used_tokens=tuple(i.kv_booked for i in instances),
        )

    def set_clock(self, instance: int, mhz: float, now_s: float) -> None:
        self._world.instances[instance].set_clock(mhz, now_s)

    def outcome(self, end_s: float | None, partial: bool) -> Outcome:
        sequences, instances = self._world.sequences, self._world.instances
        done = np.array([s.generated == s.output for s in sequences])
        first = np.array([s.token_s[0] if s.token_s else math.nan for s in sequences])
        finish = np.array([s.token_s[-1] if ok else math.nan for s, ok in zip(sequences, done, strict=True)])
        if end_s is None:
            end_s = max(float(np.nanmax(finish)) if done.any() else 0.0, float(self._load.arrival_s[-1]))
        for instance in instances:
            instance.settle_idle(end_s)
        placed = np.array([kernel.NONE if s.instance is None else s.instance for s in sequences], np.int64)
        status = np.where(done, kernel.DONE, np.where(placed == kernel.NONE, kernel.REJECTED, kernel.IN_FLIGHT))
        status[self.arrived :] = kernel.AHEAD
        gaps = [np.diff(s.token_s) for s in sequences]
        spent = {
            "prefill": np.array([i.prefill_j for i in instances]),
            "decode": np.array([i.decode_j for i in instances]),
            "idle": np.array([i.idle_j for i in instances]),
        }
        return Outcome(
            load=self._load,
            status=status,
            instance=placed,
            generated=np.array([s.generated for s in sequences]),
            first_token_s=first,
            finish_s=finish,
            itl_max_s=np.array([gap.max(initial=0.0) for gap in gaps]),
            itl_p50_s=np.array([_nearest_rank(gap, 50) for gap in gaps]),
            itl_p99_s=np.array([_nearest_rank(gap, 99) for gap in gaps]),
            preemptions=np.array([s.preemptions for s in sequences]),
            timely_tokens=np.array([s.timely for s in sequences]),
            energy_j=np.array([s.energy_j for s in sequences]),
            spent_j=spent,
            series_j=np.sum(list(spent.values()), axis=0)[:, None],
            bin_s=math.inf,
            gaps=_binned(np.concatenate(gaps)),
            end_s=end_s,
            iterations=sum(i.iterations for i in instances),
            partial=partial,
            events=tuple(self._world.events),
        )


def _binned(gaps_s: Floats) -> Ints:
    place = kernel.GAP_BINS_PER_E * np.log(np.maximum(gaps_s, kernel.GAP_MIN_S) / kernel.GAP_MIN_S)
    return np.bincount(np.minimum(place.astype(np.int64), kernel.GAP_BINS - 1), minlength=kernel.GAP_BINS)


def _nearest_rank(values: Floats, percent: int) -> float:
    """The smallest value that `percent` of them do not exceed; 0 when there are none."""
    return float(np.sort(values)[-(-values.size * percent // 100) - 1]) if values.size else 0.0
