"""The compiled world: the kernel's arrays, the window of requests that passes through them, and what they add up to."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.deadline_clock import MOST_PROMPTS, PROMPT
from core.algorithms.fleet.arrival_replay import MOST_SEEN
from core.algorithms.split.step_fit import FIT
from core.engine import gpu_slices
from core.engine.compiled_model import COST_COLUMNS, COSTS, TIME0, iteration, model_row
from core.simulator.kernel import kernel
from core.simulator.kernel.commands import FleetView, RequestView, Sequences
from core.simulator.kernel.outcome import Floats, Outcome, Sink
from core.simulator.kernel.simulated import ORDERS, ROUTINGS, FixedCosts, FleetSpec, InstanceSpec, Load

KINDS = ("prefill", "decode", "idle", "transition")
KNOWN = ("number", "arrival_s", "prompt", "cached", "predicted", "due_s", "cell", "service", "tenant")
_EPS = 1e-9
_ROWS = 1024  # of `own` to begin with; more when needed


def cost_row(spec: InstanceSpec) -> Floats:
    """Returns an instance's cost parameters in the kernel's order, of shape (costs,)."""
    costs = spec.engine_costs
    if not isinstance(costs, FixedCosts):
        return model_row(costs)
    row = np.zeros(COSTS)
    row[TIME0:] = 1.0
    row[COST_COLUMNS.index("fixed")] = 1.0
    for name in ("base_s", "prefill_token_s", "decode_s", "busy_w", "idle_w"):
        row[COST_COLUMNS.index(name)] = getattr(costs, name)
    return row


def pool_rows(fleet: FleetSpec) -> NDArray[np.void]:
    """Returns the pools as the kernel has them, one row a pool, without members."""
    rows = np.zeros(len(fleet.pools), kernel.POOL)
    rows["unplaced_head"] = rows["unplaced_tail"] = rows["then"] = kernel.NONE
    for row, pool in zip(rows, fleet.pools, strict=True):
        row["routing"], row["most_unstarted"] = ROUTINGS.index(pool.routing), pool.most_unstarted
        if (handover := pool.handover) is not None:
            row["then"] = fleet.pool_number(handover.to)
            if not isinstance(handover.at, str):
                row["split"], row["split_ratio"] = kernel.AT_RATIO, handover.at
            elif handover.at == "prompt":
                row["split"] = kernel.AT_PROMPT
            row["token_s"], row["latency_s"], row["chunked"] = handover.token_s, handover.latency_s, handover.chunked
    return rows


def spills_of(fleet: FleetSpec) -> NDArray[np.int64]:
    """Returns the pools that take each pool's requests when its own cannot, (pools, most of any), filled with NONE."""
    found = np.full((len(fleet.pools), max(len(pool.spills) for pool in fleet.pools)), kernel.NONE)
    for row, pool in zip(found, fleet.pools, strict=True):
        row[: len(pool.spills)] = [fleet.pool_number(name) for name in pool.spills]
    return found


def request_rows(load: Load, first_number: int) -> NDArray[np.void]:
    """Returns requests ahead as the kernel has them, one row a request."""
    rows = np.zeros(len(load), kernel.REQUEST)
    rows["number"] = np.arange(first_number, first_number + len(load))
    rows["prompt"], rows["output"], rows["cached"] = load.prompt_tokens, load.output_tokens, load.cached_tokens
    rows["predicted"] = load.predicted_tokens
    for name in ("arrival_s", "deadline_s", "due_s", "lat_s", "request_class", "cell", "service", "tenant"):
        rows[name] = getattr(load, name)
    for name in ("pool", "instance", "next", "before", "row", "target"):
        rows[name] = kernel.NONE
    for name in ("first_token_s", "last_token_s", "finish_s"):
        rows[name] = np.nan
    return rows


def _instance_rows(specs: Sequence[InstanceSpec], costs: Floats) -> NDArray[np.void]:
    rows = np.zeros(len(specs), kernel.INSTANCE)
    rows["whole"] = rows["capacity"] = [spec.kv_capacity for spec in specs]
    rows["max_sequences"] = [spec.max_sequences for spec in specs]
    rows["budget"] = [spec.tokens_per_iteration for spec in specs]
    rows["chunk_tokens"] = [spec.chunk_tokens for spec in specs]
    rows["mhz"] = [spec.mhz for spec in specs]
    rows["weight"] = 1.0
    rows["looked"] = -1
    rows["comes_s"] = np.inf
    rows["order"] = [ORDERS.index(spec.scheduling.order) for spec in specs]
    for name in ("aging", "token_s", "prefill_token_s", "preempts_s", "margin", "itl_limit_s"):
        rows[name] = [getattr(spec.scheduling, name) for spec in specs]
    rows["queue_head"] = rows["queue_tail"] = rows["first_lax"] = rows["gpu"] = kernel.NONE
    for row, spec, cost in zip(rows, specs, costs, strict=True):
        if spec.pacing is not None:
            row["floor_mhz"], row["step_mhz"] = spec.pacing.floor_mhz, spec.pacing.step_mhz
            row["switch_s"], row["ahead"] = spec.pacing.switch_s, spec.pacing.ahead
        full = float(spec.tokens_per_iteration)
        row["prompt_token_s"] = iteration(cost, np.inf, full, 0.0, full * full / 2.0, 1.0, 0.0, 0.0)[0] / full
    return rows


def cell_limits(fleet: FleetSpec) -> Floats:
    """Returns TTFT and TPOT, in s, that clocks by deadlines keep, (cells, 2); infinite: no limit."""
    found = np.full((len(fleet.cell_pool), 2), np.inf)
    for row, limits in zip(found, fleet.cell_limits, strict=False):
        row[:] = [np.inf if own is None else own for own in (limits.ttft_s, limits.tpot_s)]
    return found


def lined_up(waiting: Sequence[int], named: Sequence[int]) -> list[int]:
    """Returns a queue in which those named take, in their order, the places that they have between them; others keep
    theirs."""
    own = set(waiting)
    coming = iter(number for number in dict.fromkeys(named) if number in own)
    moved = own.intersection(named)
    return [next(coming) if number in moved else number for number in waiting]


def _widened(array: NDArray[Any], size: int, axis: int) -> NDArray[Any]:
    """Returns the array with zeros behind it, up to `size` along `axis`."""
    missing = [(0, 0)] * array.ndim
    missing[axis] = (0, max(0, size - array.shape[axis]))
    return np.pad(array, missing)


class CompiledWorld:
    """A World (see `driver`) in the kernel's arrays."""

    def __init__(
        self,
        fleet: FleetSpec,
        blocks: Iterator[Load],
        sink: Sink,
        *,
        bin_s: float,
        keep_events: int,
        keep_segments: int,
        walk: bool = False,
    ) -> None:
        """Starts a world. `walk`: it takes one iteration at a time instead of jumps between events."""
        self._fleet, self._blocks, self._sink = fleet, blocks, sink
        self._specs: list[InstanceSpec] = []
        self._pool: list[int] = []
        self._gpus: list[tuple[str, str]] = []  # those that are cut: the site and the type of their slices
        self._numbered = 0
        self._latencies_then = np.zeros((0, 3, 2))
        self._last_s = 0.0  # of all that was handed to the sink
        self._asked_s: float | None = None  # up to when somebody asked for what ended
        self._given: list[NDArray[np.void]] = []  # to the sink since then
        self._ahead: Load | None = next(blocks)
        self._state = kernel.FleetArrays(
            cost=np.zeros((0, COSTS)),
            fit=np.zeros((0, FIT)),
            req=np.zeros(0, kernel.REQUEST),
            eng=np.zeros(0, kernel.INSTANCE),
            pool=pool_rows(fleet),
            active=np.zeros((0, 0), np.int64),
            tally=np.zeros((0, kernel.OWN_BINS), np.int32),
            own=np.zeros((0, kernel.OWN_BINS), np.int32),
            rows=np.zeros(0, np.int64),
            members=np.zeros((len(fleet.pools), 0), np.int64),
            spills=spills_of(fleet),
            successors=np.zeros((0, kernel.MAX_SUCCESSORS), np.int64),
            cell_pool=np.array(fleet.cell_pool, np.int64),
            cell_limit=cell_limits(fleet),
            prompts=np.zeros(MOST_PROMPTS, PROMPT),
            seen=np.zeros((len(fleet.cell_pool), 0, 3), np.int64),
            came=np.zeros((MOST_SEEN, 3)),
            gaps=np.zeros(kernel.GAP_BINS, np.int64),
            series_j=np.zeros((0, 1)),
            series_on_s=np.zeros((0, 1)),
            bin_s=np.array([bin_s]),
            counts=np.zeros(kernel.COUNTS, np.int64),
            log=np.zeros((keep_events, 3), np.int64),
            log_s=np.zeros(keep_events),
            segments=np.zeros((keep_segments, len(kernel.SEGMENT_COLUMNS))),
            walk=walk,
        )
        self._state.counts[kernel.FLIGHTS] = kernel.NONE
        self._more_rows(_ROWS)
        self._add(fleet.instances)
        weights = fleet.weights or (1.0,) * len(fleet.instances)
        for number, pool in enumerate(fleet.pools):
            for i in pool.members:
                self.switch_on(i, 0.0)
                self.serve(i, number, weights[i], 0.0)
        self._load_block()

    # -- time --------------------------------------------------------------------------------------

    @property
    def arrived(self) -> int:
        return self._numbered - int(self._state.req.size) + int(self._state.counts[kernel.NEXT_ARRIVAL])

    @property
    def pending(self) -> bool:
        s = self._state
        ahead = self._ahead is not None or s.counts[kernel.NEXT_ARRIVAL] < s.req.shape[0]
        return bool(ahead or s.counts[kernel.IN_FLIGHT_COUNT])

    @property
    def stuck(self) -> bool:
        s = self._state
        if self._ahead is not None or s.counts[kernel.NEXT_ARRIVAL] < s.req.shape[0]:
            return False
        return int(s.counts[kernel.IN_FLIGHT_COUNT]) == int(s.pool["unplaced"].sum())

    def run_until(self, to_s: float) -> None:
        while True:
            loaded_s = to_s if self._ahead is None else min(to_s, float(self._ahead.arrival_s[0]))
            self._reserve(loaded_s)
            while not kernel.run_until(self._state, loaded_s):
                self._more_rows(2 * self._state.own.shape[0])
            if loaded_s >= to_s:
                return
            self._load_block()

    def _load_block(self) -> None:
        """Hands those that ended to the sink and puts the block ahead in their place."""
        rows = np.zeros(0, kernel.REQUEST) if self._ahead is None else request_rows(self._ahead, self._numbered)
        self._numbered += rows.size
        self._ahead = next(self._blocks, None)
        s = self._state
        stays = (s.req["status"] == kernel.AHEAD) | (s.req["status"] == kernel.IN_FLIGHT)
        self._give(s.req[~stays])
        moved = np.full(s.req.size + 1, kernel.NONE, np.int64)  # the last entry: NONE stays NONE
        moved[:-1][stays] = np.arange(np.count_nonzero(stays))
        window = np.concatenate([s.req[stays], rows])
        for name in ("next", "before"):
            window[name] = moved[window[name]]
        for i, running in enumerate(s.eng["running"].tolist()):
            s.active[i, :running] = moved[s.active[i, :running]]
        for name in ("queue_head", "queue_tail", "first_lax"):
            s.eng[name] = moved[s.eng[name]]
        for name in ("unplaced_head", "unplaced_tail"):
            s.pool[name] = moved[s.pool[name]]
        s.counts[kernel.FLIGHTS] = moved[s.counts[kernel.FLIGHTS]]
        s.counts[kernel.NEXT_ARRIVAL] = np.count_nonzero(window["status"] != kernel.AHEAD)
        self._state = s._replace(req=window)

    def _give(self, rows: NDArray[np.void]) -> None:
        if rows.size:
            self._last_s = max(self._last_s, float(np.nanmax(rows["finish_s"], initial=0.0)))
            self._last_s = max(self._last_s, float(rows["arrival_s"].max()))
            self._sink.take(rows)
            if self._asked_s is not None:
                self._given.append(rows[rows["finish_s"] > self._asked_s])

    def _reserve(self, to_s: float) -> None:
        """Widens what is kept by time: nothing is recorded beyond the time that the kernel runs to."""
        s = self._state
        bins, stretches = int(to_s / float(s.bin_s[0])) + 1, int(to_s / kernel.STRETCH_S) + 1
        if bins > s.series_j.shape[1]:
            room = bins + bins // 2
            s = s._replace(series_j=_widened(s.series_j, room, 1), series_on_s=_widened(s.series_on_s, room, 1))
        if stretches > s.seen.shape[1]:
            s = s._replace(seen=_widened(s.seen, stretches + stretches // 2, 1))
        self._state = s

    def _more_rows(self, size: int) -> None:
        s = self._state
        have = s.own.shape[0]
        rows = np.zeros(size, np.int64)
        free = int(s.counts[kernel.FREE_ROWS])
        rows[:free] = s.rows[:free]
        rows[free : free + size - have] = np.arange(have, size)
        s.counts[kernel.FREE_ROWS] = free + size - have
        self._state = s._replace(own=_widened(s.own, size, 0), rows=rows)

    # -- instances ---------------------------------------------------------------------------------

    def add(self, spec: InstanceSpec) -> int:
        self._add((spec,))
        return len(self._specs) - 1

    def _add(self, specs: Sequence[InstanceSpec]) -> None:
        self._specs += specs
        self._pool += [kernel.NONE] * len(specs)
        s, n = self._state, len(self._specs)
        width = max((spec.max_sequences for spec in self._specs), default=0)
        costs = np.reshape([cost_row(spec) for spec in specs], (-1, s.cost.shape[1]))
        self._state = s._replace(
            cost=np.concatenate([s.cost, costs]),
            fit=_widened(s.fit, n, 0),
            eng=np.concatenate([s.eng, _instance_rows(specs, costs)]),
            active=_widened(_widened(s.active, n, 0), width, 1),
            tally=_widened(s.tally, n, 0),
            members=_widened(s.members, n, 1),
            successors=_widened(s.successors, n, 0),
            series_j=_widened(s.series_j, n, 0),
            series_on_s=_widened(s.series_on_s, n, 0),
        )

    def switch_on(self, i: int, now_s: float) -> None:
        self._state.eng["gpu"][i] = self._gpu_for(i)
        kernel.switch_on(self._state, i, self._specs[i].mhz, now_s)

    def _gpu_for(self, i: int) -> int:
        """Returns the GPU that an instance gets a slice of: the fullest with room, so that whole ones stay free."""
        own, eng = self._specs[i], self._state.eng
        if not gpu_slices.is_slice(own.gpu):
            return kernel.NONE
        taken: defaultdict[int, float] = defaultdict(float)
        for j in np.flatnonzero(eng["state"] != kernel.OFF).tolist():
            taken[int(eng["gpu"][j])] += self._specs[j].gpu_share
        place, most = (own.site, own.gpu), gpu_slices.whole(own.gpu)[1] - own.gpu_share + _EPS
        room = [gpu for gpu, at in enumerate(self._gpus) if at == place and taken[gpu] <= most]
        if not room:
            self._gpus.append(place)
            return len(self._gpus) - 1
        return max(room, key=lambda gpu: (taken[gpu], -gpu))

    def serve(self, i: int, pool: int, weight: float, now_s: float) -> None:
        self._pool[i] = pool
        self._state.eng["weight"][i] = weight
        kernel.serve(self._state, i, pool, now_s)

    def move(self, i: int, pool: int, weight: float, now_s: float) -> None:
        self._withdraw(i)
        self.serve(i, pool, weight, now_s)

    def drain(self, i: int, now_s: float) -> None:
        self._withdraw(i)
        kernel.drain(self._state, i, now_s)

    def retire(self, i: int, successors: Sequence[int], ready_s: float, now_s: float) -> None:
        self._withdraw(i)
        kernel.retire(self._state, i, np.array(successors, np.int64), ready_s, now_s)

    def _withdraw(self, i: int) -> None:
        if self._pool[i] != kernel.NONE:
            kernel.withdraw(self._state, i, self._pool[i])
            self._pool[i] = kernel.NONE

    def switch_off(self, i: int, now_s: float) -> None:
        if self._state.eng["state"][i] == kernel.STARTING:
            kernel.switch_off(self._state, i, now_s)

    def leaves_s(self, i: int, now_s: float) -> float:
        """Returns when an instance that hands everything over has ended its last iteration."""
        own = self._state.eng[i]
        return max(now_s, float(own["end_s"])) if own["successors"] else now_s

    def set_clock(self, i: int, mhz: float, now_s: float) -> None:
        kernel.set_clock(self._state, i, mhz, now_s)

    def set_kv_share(self, i: int, share: float, now_s: float) -> None:
        kernel.set_capacity(self._state, i, int(share * self._specs[i].kv_capacity), now_s)

    def set_weight(self, i: int, weight: float) -> None:
        self._state.eng["weight"][i] = weight

    def assign(self, cell: int, pool: int) -> None:
        self._state.cell_pool[cell] = pool

    def reject_unplaced(self) -> None:
        kernel.reject_unplaced(self._state)

    def state_of(self, i: int) -> int:
        return int(self._state.eng["state"][i])

    def pool_of(self, i: int) -> int:
        return self._pool[i]

    # -- what is seen ------------------------------------------------------------------------------

    def view(self, now_s: float) -> FleetView:
        eng = self._state.eng
        ttft_s, tpot_s, e2e_s = self._means_since(now_s)
        return FleetView(
            now_s=now_s,
            instances=tuple(self._specs),
            state=eng["state"].copy(),
            pool=np.array(self._pool, np.int64),
            mhz=eng["mhz"].copy(),
            running=eng["running"].copy(),
            waiting=eng["waiting"].copy(),
            kv_used_tokens=kernel.kv_now(self._state, now_s),
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            e2e_s=e2e_s,
            cell_pool=tuple(self._state.cell_pool.tolist()),
            unplaced=self._state.pool["unplaced"].copy(),
            arrived=self._state.seen[:, : int(now_s / kernel.STRETCH_S) + 1],
            sequences=lambda i: self._sequences(i, now_s),
            came=self._came,
            ended=cache(partial(self._ended, now_s)),
        )

    def _came(self) -> Floats:
        s, turn = self._state, int(self._state.counts[kernel.CAME])
        return s.came[:turn].copy() if turn < len(s.came) else np.roll(s.came, -turn % len(s.came), axis=0)

    def _ended(self, now_s: float) -> Floats:
        since_s = 0.0 if self._asked_s is None else self._asked_s
        arrived = self._state.req[: self._state.counts[kernel.NEXT_ARRIVAL]]
        found = []
        for block in (*self._given, arrived):  # few of each ended since, and a row is long
            finish_s = np.ascontiguousarray(block["finish_s"])
            ended = block[np.flatnonzero((finish_s > since_s) & (finish_s <= now_s))]
            found.append(ended[ended["status"] == kernel.DONE])
        rows = np.concatenate(found)
        self._asked_s, self._given = now_s, []
        first_s, finish_s, gaps = rows["first_token_s"], rows["finish_s"], rows["output"] - 1.0
        tpot_s = (finish_s - first_s) / np.where(gaps > 0.0, gaps, np.nan)
        asked_s = rows["arrival_s"]
        latencies = first_s - asked_s, tpot_s, finish_s - asked_s
        return np.stack([rows["prompt"], rows["cell"], *latencies, rows["predicted"], rows["output"]], axis=1)

    def _sequences(self, i: int, now_s: float) -> Sequences:
        found = kernel.sequences(self._state, i, now_s)
        rows = self._state.req[found[:, 0]]
        return Sequences(
            running=int(self._state.eng["running"][i]),
            number=rows["number"].copy(),
            kv_tokens=found[:, 1],
            generated_tokens=found[:, 2],
            to_prefill_tokens=found[:, 3],
            predicted_tokens=rows["predicted"].copy(),
            arrival_s=rows["arrival_s"].copy(),
            due_s=rows["due_s"].copy(),
        )

    # -- requests, one by one ----------------------------------------------------------------------

    @property
    def next_arrival_s(self) -> float:
        """The arrival of the next request, whose block it loads; infinite: there is none."""
        if self._state.counts[kernel.NEXT_ARRIVAL] == self._state.req.size and self._ahead is not None:
            self._load_block()
        place = int(self._state.counts[kernel.NEXT_ARRIVAL])
        return float(self._state.req["arrival_s"][place]) if place < self._state.req.size else math.inf

    def receive(self, now_s: float) -> RequestView:
        s = self._state
        self._reserve(now_s)
        while self._state.own.shape[0] <= kernel.rows_needed(self._state):
            self._more_rows(2 * self._state.own.shape[0])
        s = self._state
        if s.counts[kernel.COUPLED] > 0:
            kernel.settle(s, now_s, True)
        r = int(s.counts[kernel.NEXT_ARRIVAL])
        s.counts[kernel.NEXT_ARRIVAL] = r + 1
        kernel.receive(s, r)
        return self._view_of(r)

    def place(self, number: int, i: int, split: int, second: int, now_s: float) -> None:
        row = self._row(number)
        request = self._state.req[row]
        if split == 0 and request["prompt"] + request["output"] > self._state.eng["whole"][i]:
            kernel.reject(self._state, row)  # as in `choose`: it would block the queue for ever
        else:
            kernel.place(self._state, row, i, split, second, now_s)

    def refuse(self, number: int) -> None:
        kernel.reject(self._state, self._row(number))

    def _row(self, number: int) -> int:
        return int(np.searchsorted(self._state.req["number"], number))

    def _view_of(self, r: int) -> RequestView:
        return RequestView(*(self._state.req[name][r].item() for name in KNOWN))

    # -- emergencies -------------------------------------------------------------------------------

    def reorder(self, i: int, numbers: Sequence[int], now_s: float) -> bool:
        s = self._state
        if s.eng["order"][i] != kernel.FCFS:
            return False
        rows = kernel.sequences(s, i, now_s)[int(s.eng["running"][i]) :, 0]
        waiting = dict(zip(s.req["number"][rows].tolist(), rows.tolist(), strict=True))
        if waiting.keys().isdisjoint(numbers):
            return False
        order = [waiting[number] for number in lined_up(list(waiting), numbers)]
        kernel.set_order(s, i, np.array(order, np.int64), now_s)
        return True

    def resteer(self, number: int, i: int, to: int, now_s: float) -> bool:
        s, row = self._state, self._waiting_row(number, i)
        if row is None or to == i:
            return False
        request, pool = s.req[row], self._pool[to]
        if request["generated"] > 0 or request["computed"] > request["cached"]:
            return False
        if s.eng["state"][to] != kernel.SERVING or pool == kernel.NONE:
            return False
        fits = request["prompt"] + request["output"] <= s.eng["whole"][to]
        if not fits or (request["split"] > 0 and request["pool"] != pool):
            return False
        kernel.resteer(s, row, to, pool, now_s)
        return True

    def squash(self, number: int, i: int, now_s: float) -> bool:
        row = self._waiting_row(number, i)
        if row is None or self._state.req["generated"][row] > 0:
            return False
        kernel.squash(self._state, row, now_s)
        return True

    def come_again(self, number: int) -> RequestView:
        row = self._row(number)
        self._state.req["pool"][row] = self._state.cell_pool[self._state.req["cell"][row]]
        return self._view_of(row)

    def enter(self, number: int, now_s: float) -> None:
        kernel.enter(self._state, self._row(number), now_s)

    def _waiting_row(self, number: int, i: int) -> int | None:
        """Returns the row of a request, if it waits in the queue of that instance."""
        s, row = self._state, self._row(number)
        if row >= s.req.size or s.req["number"][row] != number:
            return None
        here = s.req["status"][row] == kernel.IN_FLIGHT and s.req["instance"][row] == i
        running = here and (s.active[i, : s.eng["running"][i]] == row).any()
        return row if here and not running else None

    def begin_means(self, now_s: float) -> None:
        self._latencies_then = kernel.latencies(self._state, now_s)

    def _means_since(self, now_s: float) -> NDArray[np.float64]:
        """Returns the means (3, instances) of TTFT, gaps between tokens, and E2E since `begin_means`; NaN: of none."""
        since = kernel.latencies(self._state, now_s)
        known = len(self._latencies_then)
        since[:known] -= self._latencies_then
        total, count = since.T
        means: NDArray[np.float64] = np.full(total.shape, np.nan)
        np.divide(total, count, out=means, where=count > 0)
        return means

    def outcome(self, now_s: float, partial: bool) -> Outcome:
        s = self._state
        arrived = self.arrived
        self._give(s.req[(s.req["status"] == kernel.DONE) | (s.req["status"] == kernel.REJECTED)])
        # An instance may be the last to end: with an iteration after which nothing was left but to reject a request.
        end_s = now_s if partial else max(now_s, self._last_s, float(s.eng["idle_since_s"].max(initial=0.0)))
        flying = s.req[s.req["status"] == kernel.IN_FLIGHT]
        if flying.size:
            self._sink.take(flying)
        self._reserve(end_s)
        s = self._state
        for i in range(s.eng.size):
            kernel.settle_idle(s, i, end_s)
            kernel.account_time(s, i, end_s)
        kept = min(int(s.counts[kernel.LOGGED]), s.log.shape[0])
        bins = int(end_s / float(s.bin_s[0])) + 1
        return Outcome(
            instances=tuple(self._specs),
            requests=arrived,
            spent_j={kind: s.eng[f"spent_{kind}_j"].copy() for kind in KINDS},
            series_j=s.series_j[:, :bins],
            series_on_s=s.series_on_s[:, :bins],
            bin_s=float(s.bin_s[0]),
            on_s=s.eng["on_s"].copy(),
            mhz_s=s.eng["mhz_s"].copy(),
            gaps=s.gaps,
            end_s=end_s,
            iterations=int(s.eng["iterations"].sum()),
            partial=partial,
            events=tuple((*row, at) for row, at in zip(s.log[:kept].tolist(), s.log_s[:kept].tolist(), strict=True)),
            segments=s.segments[: min(int(s.counts[kernel.SEGMENTS]), s.segments.shape[0])],
        )
