"""Runs a load on a fleet: `simulate`. One driver for all worlds: controls at their epochs, and their delayed effects.

Total order of events: time, then priority (effects that were under way, then controls from the slowest to the fastest),
then sequence. At one instant iterations end first, then these, then hand-overs land and requests arrive.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

import numpy as np

from core.simulator.kernel.commands import (
    OFF,
    SERVING,
    Assign,
    Control,
    Decision,
    Drain,
    FleetView,
    Keep,
    Move,
    RequestView,
    Reshard,
    Router,
    SetWeight,
    SimCommand,
    Start,
)
from core.simulator.kernel.outcome import Kept, Outcome, Sink
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, Load, SimulationError
from core.simulator.kernel.worlds import CompiledWorld
from core.types import ReorderQueue, ResteerRequests, SetSmClock, SquashRequests

_SLICE_S = 600.0  # how often progress is reported and Ctrl-C is heard, at the most
_SLICES = 64  # of a load's time span, where it is known
_OFFERS = 1000
_PATIENCE = 3  # epochs of the slowest control that unplaced requests wait for an instance when nothing else is left

Effect = Callable[[float], None]


class World(Protocol):
    """A fleet that can be brought forward in time, and changed at the time it has been brought to.

    Instances are numbered in order of appearance; `add` makes one that is off.
    """

    def run_until(self, to_s: float) -> None: ...

    def view(self, now_s: float) -> FleetView: ...

    def begin_means(self, now_s: float) -> None: ...

    def add(self, spec: InstanceSpec) -> int: ...

    def switch_on(self, i: int, now_s: float) -> None: ...

    def serve(self, i: int, pool: int, weight: float, now_s: float) -> None: ...

    def move(self, i: int, pool: int, weight: float, now_s: float) -> None: ...

    def drain(self, i: int, now_s: float) -> None: ...

    def retire(self, i: int, successors: Sequence[int], ready_s: float, now_s: float) -> None: ...

    def leaves_s(self, i: int, now_s: float) -> float: ...

    def switch_off(self, i: int, now_s: float) -> None: ...

    def set_clock(self, i: int, mhz: float, now_s: float) -> None: ...

    def set_kv_share(self, i: int, share: float, now_s: float) -> None: ...

    def set_weight(self, i: int, weight: float) -> None: ...

    def assign(self, cell: int, pool: int) -> None: ...

    def state_of(self, i: int) -> int: ...

    def pool_of(self, i: int) -> int:
        """-1: it is in none."""
        ...

    def reject_unplaced(self) -> None: ...

    @property
    def next_arrival_s(self) -> float:
        """Infinite: no more requests."""
        ...

    def receive(self, now_s: float) -> RequestView:
        """The next request arrives (now), and is to be placed or refused."""
        ...

    def place(self, number: int, i: int, split: int, second: int, now_s: float) -> None: ...

    def refuse(self, number: int) -> None: ...

    def reorder(self, i: int, numbers: Sequence[int], now_s: float) -> bool:
        """Puts what waits at `i` in this order.

        False: nothing of it waits there, or its queue has an order of its own.
        """
        ...

    def resteer(self, number: int, i: int, to: int, now_s: float) -> bool:
        """Moves a request that waits at `i` and has nothing in the cache.

        False: it does not, or `to` cannot take it.
        """
        ...

    def squash(self, number: int, i: int, now_s: float) -> bool:
        """A request that waits at `i` and has no token yet leaves, until it comes again. False: there is no such."""
        ...

    def come_again(self, number: int) -> RequestView:
        """A squashed request arrives again, and is to be placed, refused or entered."""
        ...

    def enter(self, number: int, now_s: float) -> None:
        """It goes where its pool sends it."""
        ...

    @property
    def arrived(self) -> int: ...

    @property
    def pending(self) -> bool:
        """True while requests are in flight or still to come."""
        ...

    @property
    def stuck(self) -> bool:
        """True where all requests that are left wait for want of an instance."""
        ...

    def outcome(self, now_s: float, partial: bool) -> Outcome:
        """The end: of a partial run at `now_s`, else when the last request had ended, but not before `now_s`."""
        ...


class WorldMaker(Protocol):
    def __call__(
        self,
        fleet: FleetSpec,
        blocks: Iterator[Load],
        sink: Sink,
        *,
        bin_s: float,
        keep_events: int,
        keep_segments: int,
    ) -> World: ...


@dataclass(frozen=True, slots=True)
class Stepping:
    """A way to go through time: its name among the figures, and the world that does so."""

    name: str
    world: WorldMaker


MACRO = Stepping("macro", CompiledWorld)
WALK = Stepping("walk", partial(CompiledWorld, walk=True))
STEPPINGS = {stepping.name: stepping for stepping in (MACRO, WALK)}


def simulate(
    fleet: FleetSpec,
    load: Load | Iterable[Load],
    *,
    stepping: Stepping = MACRO,
    controls: Sequence[Control] = (),
    router: Router | None = None,
    clock_switch_s: Callable[[InstanceSpec], float] = lambda spec: 0.0,
    sink: Sink | None = None,
    progress: Callable[[int, float], None] | None = None,
    bin_s: float = 3600.0,
    keep_events: int = 0,
    keep_segments: int = 0,
    slice_s: float = _SLICE_S,
    offers: int = _OFFERS,
    first_s: Mapping[str, float] = MappingProxyType({}),
) -> Outcome:
    """Runs every request to its end.

    Args:
        load: All requests, or blocks of them in order of time, of which only one and those in flight are in memory.
        stepping: MACRO jumps from event to event; WALK is the same compiled code, one iteration at a time.
        router: Places each request, in the place of the pools' own routing.
        clock_switch_s: How long after its command an instance's clock changes.
        sink: Takes the requests as they end; none: the outcome has them all.
        progress: Called now and then with the number of requests that arrived, and the simulated time.
        bin_s: Width of the energy series.
        keep_events, keep_segments: How many entries of the logs to keep (the first ones).
        slice_s: Simulated seconds after which progress is reported, at the latest.
        offers: How often a router may hold back what is left, while nothing runs; then it is refused.
        first_s: When the first epoch of a control is, by its name; else at 0.

    A KeyboardInterrupt (Ctrl-C) out of `progress` ends the run early: the outcome is `partial`.

    Raises:
        SimulationError: A block is out of order or does not go with the fleet, no request fits any instance of its
            pool, or a control asks for what there is not.
    """
    if not 0.0 < bin_s < math.inf:
        raise SimulationError(f"bin_s must be above 0, not {bin_s}")
    kept = Kept() if sink is None else None
    taker: Sink = kept if kept is not None else sink  # type: ignore[assignment]
    blocks = _checked(fleet, iter([load] if isinstance(load, Load) else load), bool(controls))
    world = stepping.world(fleet, blocks, taker, bin_s=bin_s, keep_events=keep_events, keep_segments=keep_segments)
    span_s = float(load.arrival_s[-1]) if isinstance(load, Load) else math.inf
    driver = _Driver(fleet, world, controls, router, clock_switch_s, offers, first_s)
    outcome = driver.run(max(1.0, min(slice_s, span_s / _SLICES)), progress)
    return replace(outcome, rows=kept.rows()) if kept is not None else outcome


class _Driver:
    """Time, and the effects of commands in it."""

    def __init__(
        self,
        fleet: FleetSpec,
        world: World,
        controls: Sequence[Control],
        router: Router | None,
        clock_switch_s: Callable[[InstanceSpec], float],
        offers: int,
        first_s: Mapping[str, float],
    ) -> None:
        self._fleet, self._world = fleet, world
        self._clock_switch_s, self._offers, self._first_s = clock_switch_s, offers, first_s
        self._controls = sorted(controls, key=lambda control: -control.period_s)
        self._specs = list(fleet.instances)
        self._number = {spec.name: i for i, spec in enumerate(self._specs)}
        self._changing: set[int] = set()  # being re-sharded
        self._starting: dict[int, int] = {}  # instance -> which of its starts
        self._starts = 0
        self._replaced: dict[int, list[int]] = {}  # which of the starts -> the instances that drain once it serves
        self._events: list[tuple[float, int, int, Effect]] = []
        self._sequence = 0
        self._decisions: list[Decision] = []
        self._holds: dict[str, int] = {control.name: 0 for control in self._controls}
        self._refused = 0
        self._router = router
        self._waiting: list[RequestView] = []  # what the router holds back
        self._offered = 0  # how often in vain, since anything last happened
        self._moved = 0  # epoch of the slowest control in which something could still happen

    def run(self, slice_s: float, progress: Callable[[int, float], None] | None) -> Outcome:
        world, now_s, acted_s, tick_s = self._world, 0.0, 0.0, slice_s
        for rank, control in enumerate(self._controls):
            self._at(self._first_s.get(control.name, 0.0), self._epoch(control, rank), 1 + rank)
        try:
            while True:
                now_s = min(tick_s, self._events[0][0] if self._events else math.inf)
                if self._router is not None:
                    now_s = min(now_s, world.next_arrival_s)
                world.run_until(now_s)
                if world.stuck and not self._controls:
                    world.reject_unplaced()
                if not world.pending:
                    break
                while self._events and self._events[0][0] <= now_s:
                    heapq.heappop(self._events)[3](now_s)
                    acted_s = now_s
                if self._router is not None:
                    self._route(self._router, now_s)
                if now_s >= tick_s:
                    tick_s = now_s + slice_s
                    if progress is not None:
                        progress(world.arrived, now_s)
        except KeyboardInterrupt:
            return self._with_log(world.outcome(now_s, True))
        return self._with_log(world.outcome(acted_s, False))

    def _with_log(self, outcome: Outcome) -> Outcome:
        return replace(outcome, decisions=tuple(self._decisions), holds=dict(self._holds), refused=self._refused)

    def _at(self, at_s: float, effect: Effect, priority: int = 0) -> None:
        heapq.heappush(self._events, (at_s, priority, self._sequence, effect))
        self._sequence += 1

    def _epoch(self, control: Control, rank: int) -> Effect:
        fastest = rank == len(self._controls) - 1
        first_s, count = self._first_s.get(control.name, 0.0), 0

        def effect(now_s: float) -> None:
            nonlocal count
            answer = control.step(self._world.view(now_s))
            if fastest:
                self._world.begin_means(now_s)
            self._decisions += answer.decisions
            self._holds[control.name] += not answer.commands
            for command in answer.commands:
                self._carry_out(command, now_s)
            if rank == 0:
                self._give_up(count)
            count += 1
            self._at(first_s + count * control.period_s, effect, 1 + rank)

        return effect

    def _route(self, router: Router, now_s: float) -> None:
        """Places those that arrive now."""
        while self._world.next_arrival_s <= now_s:
            request = self._world.receive(now_s)
            self._offer(router, request, self._world.view(now_s))
            self._offered = 0

    def _offer(self, router: Router, request: RequestView, view: FleetView) -> bool:
        """Offers a request to the router, and says whether it was placed."""
        now_s = view.now_s
        found = router.place(request, view)
        if found is None:
            if not self._waiting:
                self._at(now_s + router.tick_s, lambda at_s: self._offer_again(router, at_s))
            self._waiting.append(request)
            return False
        for command in found.commands:
            self._carry_out(command, now_s)
        self._world.place(request.number, found.instance, found.split, found.second, now_s)
        return True

    def _offer_again(self, router: Router, now_s: float) -> None:
        """Offers the router what no instance serves yet, in order of arrival.

        It refuses these requests when nothing runs and the router has long taken none.
        """
        waiting, self._waiting = self._waiting, []
        self._offered += 1
        view = self._world.view(now_s)
        if self._offered > self._offers and not view.running.any() and not self._starting:
            for request in waiting:
                self._world.refuse(request.number)
            return
        for request in waiting:
            if self._offer(router, request, view):
                view = self._world.view(now_s)
        if len(self._waiting) < len(waiting):
            self._offered = 0

    def _give_up(self, epoch: int) -> None:
        """Rejects what is unplaced when nothing else is left and nobody has come for a while."""
        if not self._world.stuck or self._starting or self._changing:
            self._moved = epoch
        elif epoch - self._moved >= _PATIENCE:
            self._world.reject_unplaced()

    # -- commands ----------------------------------------------------------------------------------

    def _carry_out(self, command: SimCommand, now_s: float) -> None:
        if isinstance(command, SetSmClock):
            self._set_clock(command, now_s)
        elif isinstance(command, Start):
            self._start(command, now_s)
        elif isinstance(command, Drain):
            self._drain(self._instance(command.instance), now_s)
        elif isinstance(command, Keep):
            self._keep(self._instance(command.instance))
        elif isinstance(command, Reshard):
            self._reshard(command, now_s)
        elif isinstance(command, Move):
            self._move(command, now_s)
        elif isinstance(command, Assign):
            for cell, pool in command.pools.items():
                self._world.assign(cell, self._fleet.pool_number(pool))
        elif isinstance(command, SetWeight):
            self._world.set_weight(self._instance(command.instance), command.weight)
        elif isinstance(command, ReorderQueue):
            numbers = [_number(name) for name in command.requests]
            self._refused += not self._world.reorder(self._instance(command.instance), numbers, now_s)
        elif isinstance(command, ResteerRequests):
            i = self._instance(command.instance)
            for name, to in command.moves:
                self._refused += not self._world.resteer(_number(name), i, self._instance(to), now_s)
        elif isinstance(command, SquashRequests):
            self._squash(command, now_s)

    def _instance(self, name: str) -> int:
        if name not in self._number:
            raise SimulationError(f"a controller named the instance '{name}', and there is no such instance")
        return self._number[name]

    def _set_clock(self, command: SetSmClock, now_s: float) -> None:
        i = self._instance(command.instance)
        delay_s = self._clock_switch_s(self._specs[i])
        if delay_s <= 0.0:
            self._world.set_clock(i, command.mhz, now_s)
        else:
            self._at(now_s + delay_s, lambda at_s: self._world.set_clock(i, command.mhz, at_s))

    def _squash(self, command: SquashRequests, now_s: float) -> None:
        i = self._instance(command.instance)
        gone = [n for n in map(_number, command.requests) if self._world.squash(n, i, now_s)]
        self._refused += len(command.requests) - len(gone)

        def try_again(at_s: float) -> None:
            for number in gone:
                request = self._world.come_again(number)
                if self._router is None:
                    self._world.enter(number, at_s)
                else:
                    self._offer(self._router, request, self._world.view(at_s))

        if gone:
            self._at(now_s + command.retry_after_s, try_again)

    def _slot(self, spec: InstanceSpec) -> int:
        """Returns an instance that is off and of the same kind, or a new one with a name of its own."""
        for i, own in enumerate(self._specs):
            idle = self._world.state_of(i) == OFF and i not in self._changing
            if idle and own.gpu == spec.gpu and replace(own, name=spec.name, mhz=spec.mhz) == spec:
                return i
        name, count = spec.name, 1
        while name in self._number:
            count += 1
            name = f"{spec.name}~{count}"
        i = self._world.add(replace(spec, name=name))
        self._specs.append(replace(spec, name=name))
        self._number[name] = i
        return i

    def _start(self, command: Start, now_s: float) -> None:
        i, pool = self._slot(command.spec), self._fleet.pool_number(command.pool)
        self._starts += 1
        self._starting[i] = life = self._starts
        self._replaced[life] = [self._instance(name) for name in command.replaces]
        self._world.switch_on(i, now_s)
        self._world.set_clock(i, command.spec.mhz, now_s)

        def ready(at_s: float) -> None:
            if self._starting.get(i) != life:
                del self._replaced[life]
                return  # it was drained meanwhile
            del self._starting[i]
            self._world.serve(i, pool, command.weight, at_s)
            for replaced in self._replaced.pop(life):
                self._drain(replaced, at_s)

        self._at(now_s + command.ready_in_s, ready)

    def _drain(self, i: int, now_s: float) -> None:
        if i in self._changing or self._world.state_of(i) == OFF:
            self._refused += 1
            return
        self._starting.pop(i, None)
        self._world.drain(i, now_s)

    def _keep(self, i: int) -> None:
        for replaced in self._replaced.values():
            if i in replaced:
                replaced.remove(i)

    def _move(self, command: Move, now_s: float) -> None:
        i = self._instance(command.instance)
        if i in self._changing or self._world.state_of(i) != SERVING:
            self._refused += 1
            return
        self._world.move(i, self._fleet.pool_number(command.pool), command.weight, now_s)

    def _reshard(self, command: Reshard, now_s: float) -> None:
        old = [self._instance(name) for name in command.instances]
        if any(i in self._changing or self._world.state_of(i) != SERVING for i in old):
            self._refused += 1
            return
        pool = self._world.pool_of(old[0])
        self._changing.update(old)
        for i in old:
            self._world.set_kv_share(i, command.kv_share, now_s)

        def halt(at_s: float) -> None:
            new = []
            for spec in command.into:
                new.append(self._slot(spec))
                self._changing.add(new[-1])
            for i in old:
                self._world.retire(i, new, at_s + command.sync_s, at_s)
            self._at(at_s + command.sync_s, lambda ready_s: take_over(new, ready_s))

        def take_over(new: list[int], at_s: float) -> None:
            left_s = max(self._world.leaves_s(i, at_s) for i in old)
            if left_s > at_s:  # one has yet to end the iteration in which it was halted
                self._at(left_s, lambda then_s: take_over(new, then_s))
                return
            for i in old:
                self._world.switch_off(i, at_s)
            weights = command.weights or (1.0,) * len(new)
            for i, spec, weight in zip(new, command.into, weights, strict=True):
                self._world.switch_on(i, at_s)
                self._world.set_clock(i, spec.mhz, at_s)
                self._world.serve(i, pool, weight, at_s)
            self._changing.difference_update(old, new)

        self._at(now_s + command.transfer_s, halt)


def _number(request: str) -> int:
    if not request.isdecimal():
        raise SimulationError(f"a controller named the request '{request}': requests are named by their numbers")
    return int(request)


def _checked(fleet: FleetSpec, blocks: Iterator[Load], controlled: bool) -> Iterator[Load]:
    """Yields the blocks, each checked against the fleet and the one before."""
    last_s, first = 0.0, True
    for block in blocks:
        low, high = int(block.cell.min()), int(block.cell.max())
        if low < 0 or high >= len(fleet.cell_pool):
            raise SimulationError(
                f"the load has request classes {low} to {high}; the fleet knows {len(fleet.cell_pool)}"
            )
        if block.arrival_s[0] < last_s:
            raise SimulationError(f"arrival_s must not go back: a block begins at {block.arrival_s[0]} after {last_s}")
        last_s = float(block.arrival_s[-1])
        if first and not controlled:
            _check_room(fleet, block)
        first = False
        yield block
    if first:
        raise SimulationError("the load is empty: no request to simulate")


def _check_room(fleet: FleetSpec, block: Load) -> None:
    """Without controls nothing will change: refuse when no request of the first block fits its pool."""
    room = np.zeros(len(fleet.cell_pool), np.int64)
    for cell, number in enumerate(fleet.cell_pool):
        pool = fleet.pools[number]
        if not pool.members and (block.cell == cell).any():
            raise SimulationError(f"pool {pool.name} has no instances: nothing could serve its requests")
        room[cell] = max((fleet.instances[i].kv_capacity for i in pool.members), default=0)
    need = block.prompt_tokens + block.output_tokens
    if (need > room[block.cell]).all():
        raise SimulationError(
            f"no request can ever be served: the smallest needs {need.min()} tokens of KV cache, and the largest "
            f"instance of its pool has {room[block.cell].max()}; take more GPUs (tp) or a smaller model"
        )
