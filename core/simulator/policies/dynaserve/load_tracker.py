"""Tracks the instances for DynaServe's global scheduler: who has which micro-request, and how fast they are.

The fleet tells what each instance has. Where a request is to be cut, and which second parts are still to come, only the
one who placed it knows; both belong to an instance's work.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.algorithms.split.split_point import Backlog, PassCosts, calibrated, finish_s
from core.algorithms.split.virtual_passes import parts
from core.engine.engine_model import engine_model
from core.observations.request import split_given
from core.observations.request.split_given import EnginePasses, Row, engine_passes
from core.simulator.kernel.commands import FleetView
from core.simulator.kernel.simulated import InstanceSpec

Ints = NDArray[np.int64]

_FEWEST_PASSES = 8  # in a period, for its length to tell of the passes' and not of where they happen to end
# Columns of what an instance has: the middle three are a row of its backlog.
NUMBER, LEFT, DECODES, CACHED, GENERATED = range(5)


@dataclass(slots=True)
class PredictedInstance:
    """An instance as the predictor knows it. `scale`: measured over predicted time of its passes."""

    spec: InstanceSpec
    itl_s: float  # limit that its batches are composed for; 0: none
    scale: float = 1.0
    passes: EnginePasses = field(init=False)

    def __post_init__(self) -> None:
        own = self.spec
        model = engine_model(own.model, own.gpu, own.tp, own.engine)
        self.passes = engine_passes(model, own.tokens_per_iteration, own.max_sequences, self.itl_s)


@dataclass(frozen=True, slots=True)
class Placed:
    """A request and where it is cut. `split` 0: it is not. `total`: prompt and predicted output with its margin."""

    number: int
    prompt: int
    total: int
    split: int = 0
    second: int = -1


class _Requests:
    """The placed requests by number, as arrays for whole batches: a ring that grows when two live ones collide."""

    def __init__(self) -> None:
        self._rows = np.full((1024, 5), -1, np.int64)

    def put(self, placed: Placed) -> None:
        row = (placed.number, placed.prompt, placed.total, placed.split, placed.second)
        while self._rows[placed.number % len(self._rows), 0] not in (-1, placed.number):
            self._grow()
        self._rows[placed.number % len(self._rows)] = row

    def _grow(self) -> None:
        live = self._rows[self._rows[:, 0] >= 0]
        self._rows = np.full((2 * len(self._rows), 5), -1, np.int64)
        self._rows[live[:, 0] % len(self._rows)] = live  # apart before, so apart in twice the room

    def __len__(self) -> int:
        return int(np.count_nonzero(self._rows[:, 0] >= 0))

    def get(self, number: int) -> Placed | None:
        row = self._rows[number % len(self._rows)].tolist()
        return Placed(*row) if row[0] == number else None

    def many(self, numbers: Ints) -> Ints:
        """Returns (n, 4): prompt, total, split, second."""
        return self._rows[numbers % len(self._rows), 1:]

    def drop(self, number: int) -> None:
        self._rows[number % len(self._rows), 0] = -1


@dataclass(frozen=True, slots=True, eq=False)
class _Snapshot:
    """An instance at a time: what it had, the first `running` of it in its batch, and the costs of its passes."""

    at_s: float
    states: Ints
    running: int
    costs: PassCosts


class LoadTracker:
    """All micro-requests that are placed and not over, and the instances that they are on."""

    def __init__(
        self, instances: tuple[PredictedInstance, ...], link_token_s: float, latency_s: float, margin_tokens: int = 0
    ) -> None:
        self.instances = instances
        self._margin_tokens = margin_tokens  # of predicted answers
        self._token_s, self._latency_s = link_token_s, latency_s
        self._placed = _Requests()
        self._seen: list[set[int]] = [set() for _ in instances]
        self._only_prompts: list[set[int]] = [set() for _ in instances]  # first parts that generate nothing
        self._to_come: list[dict[int, Row]] = [{} for _ in instances]  # second parts, while the first is under way
        self._lands_s: dict[int, float] = {}  # latest time at which one that left its first instance is on the next
        self._last: dict[int, _Snapshot] = {}

    def __len__(self) -> int:
        """Counts the requests that are not known to be over."""
        return len(self._placed)

    def note(self, placed: Placed, first: int) -> None:
        self._placed.put(placed)
        self._seen[first].add(placed.number)
        if placed.split > 0:
            if placed.split <= placed.prompt:
                self._only_prompts[first].add(placed.number)
            self._to_come[placed.second][placed.number] = parts(placed.prompt, placed.total, placed.split)[1]

    # -- what an instance has --------------------------------------------------------------------------

    def count(self, i: int, view: FleetView) -> int:
        """Counts the micro-requests of an instance, those to come included."""
        return int(view.running[i] + view.waiting[i]) + len(self._to_come[i])

    def decoding(self, i: int, view: FleetView) -> int:
        """Counts those of them that generate there."""
        return self.count(i, view) - len(self._only_prompts[i])

    def backlog(self, i: int, view: FleetView) -> Backlog:
        """All that an instance has to do, the parts to come last."""
        states, running = self.states(i, view)
        instance, due = self.instances[i], self._due(i, view.now_s)
        there = states[:, LEFT : CACHED + 1]
        return split_given.backlog(instance.passes, float(view.mhz[i]), there, running, due, instance.scale)

    def states(self, i: int, view: FleetView) -> tuple[Ints, int]:
        """Returns the micro-requests on an instance, and how many of them run. Forgets those that are over."""
        seen = view.sequences(i)
        here = set(seen.number.tolist())
        for number in self._seen[i] - here:
            self._left(i, number, view.now_s)
        for number in self._to_come[i].keys() & here:
            del self._to_come[i][number]
            self._lands_s.pop(number, None)
        self._seen[i] = here
        prompt, total, split, second = self._placed.many(seen.number).T
        cut, generated = np.where((split > 0) & (second != i), split, total), seen.generated_tokens
        states = np.empty((cut.size, 5), np.int64)
        states[:, NUMBER], states[:, GENERATED] = seen.number, generated
        states[:, LEFT : CACHED + 1] = split_given.work(
            prompt, total, cut, seen.to_prefill_tokens, generated, seen.kv_tokens
        )
        return states, seen.running

    def _left(self, i: int, number: int, now_s: float) -> None:
        """It is not on this instance any more: over, or on its way to the next one."""
        self._only_prompts[i].discard(number)
        placed = self._placed.get(number)
        if placed is None or placed.split == 0 or i == placed.second:
            self._placed.drop(number)
        elif number in self._to_come[placed.second]:
            self._lands_s[number] = now_s + self._latency_s + placed.total * self._token_s

    def _due(self, i: int, now_s: float) -> list[Row]:
        """Returns the second parts that will come to an instance. One that ought to have landed had ended before."""
        to_come = self._to_come[i]
        for number in [n for n in to_come if self._lands_s.get(n, now_s) < now_s]:
            del to_come[number], self._lands_s[number]
            self._placed.drop(number)
        return list(to_come.values())

    def _costs(self, i: int, view: FleetView, running: Ints) -> PassCosts:
        return self.instances[i].passes.costs(float(view.mhz[i]), running[:, LEFT : CACHED + 1])

    # -- how fast it is --------------------------------------------------------------------------------

    def calibrate(self, i: int, view: FleetView, gain: float) -> None:
        """Holds what was done since the last call against the time that it was predicted to take.

        Only where one sequence decoded all the time: its tokens count the passes, and nothing stood still.
        """
        states, running = self.states(i, view)
        last = self._last.get(i)
        self._last[i] = _Snapshot(view.now_s, states, running, self._costs(i, view, states[:running]))
        if last is None:
            return
        now = {row[NUMBER]: row for row in states[:running].tolist()}
        waiting = set(states[running:, NUMBER].tolist())  # as before, or they gave way: did nothing that lasts
        before = [row for row in last.states.tolist() if row[NUMBER] not in waiting]
        decoding = [row for row in before[: last.running] if row[LEFT] == 0 and row[NUMBER] in now]
        passes = max((now[row[NUMBER]][GENERATED] - row[GENERATED] for row in decoding), default=0)
        if passes < _FEWEST_PASSES:
            return
        admitted = sum(number not in waiting for number in last.states[: last.running, NUMBER].tolist())
        known = {row[NUMBER] for row in before}
        done = [_done(row, now.get(row[NUMBER]), passes, self._margin_tokens) for row in before]
        done += [self._came(i, row) for number, row in now.items() if number not in known]
        engine = self.instances[i]
        predicted_s = finish_s(Backlog.of(last.costs, done, admitted))
        engine.scale = calibrated(engine.scale, predicted_s, view.now_s - last.at_s, gain)

    def _came(self, i: int, now: list[int]) -> Row:
        """Returns what a request did that was not there the last time."""
        prompt, _, split, second = self._placed.many(np.array([now[NUMBER]]))[0].tolist()
        brought = split if i == second else 0  # tokens in the cache that came with it
        had = max(0, brought - prompt + 1) if brought else 0
        return max(0, min(now[CACHED], prompt) - brought), max(0, now[GENERATED] - had), brought


def _done(before: list[int], now: list[int] | None, passes: int, margin_tokens: int) -> Row:
    """Returns what a micro-request did between two looks at it; one that has left did all it had to, which is its
    predicted answer without the margin."""
    if now is None:
        return before[LEFT], min(max(0, before[DECODES] - margin_tokens), passes), before[CACHED]
    if before[LEFT] == 0:
        return 0, max(0, now[GENERATED] - before[GENERATED]), before[CACHED]
    if now[LEFT] > 0:
        return max(0, now[CACHED] - before[CACHED]), 0, before[CACHED]
    return before[LEFT], max(0, now[GENERATED] - before[GENERATED] - 1), before[CACHED]
