"""A tiny stand-in for the simulator: carries out commands on lists, and checks that no GPU is used twice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core.simulator.kernel.commands import (
    DRAINING,
    OFF,
    SERVING,
    STARTING,
    STRETCH_S,
    Assign,
    Decision,
    Drain,
    FleetView,
    Keep,
    Move,
    Reshard,
    SetWeight,
    SimCommand,
    Start,
)
from core.simulator.policies import Plan, SiteInfo
from core.types import SetSmClock


class FakeFleet:
    """`load[cell]` is the rate now, with `tokens` a request; drains last `drain_s`."""

    def __init__(self, plan: Plan, sites: Sequence[SiteInfo], cells: int = 1, drain_s: float = 20.0) -> None:
        self.plan, self.sites, self.drain_s, self.now_s = plan, sites, drain_s, 0.0
        self.specs = [member.spec for member in plan.members]
        self.state = [SERVING] * len(self.specs)
        self.names = [pool.name for pool in plan.pools]
        self.pool = [self.names.index(member.pool) for member in plan.members]
        self.mhz = [spec.mhz for spec in self.specs]
        self.waiting: Counter[int] = Counter()
        self.kv: dict[int, int] = {}
        self.late_s: dict[int, float] = {}
        self.life: Counter[int] = Counter()
        self.kept: dict[int, float] = {}
        self.weight = [member.weight for member in plan.members]
        self.cell_pool = list(plan.cell_pool)
        self.load = [0.0] * cells
        self.tokens = (1000, 200)
        self.arrived = np.zeros((cells, 0, 3), np.int64)
        self.events: list[tuple[float, int, object]] = []
        self.decisions: list[Decision] = []
        self.log: list[tuple[float, SimCommand]] = []
        self.next_s = [0.0] * len(plan.controls)
        self.check()

    # -- time ------------------------------------------------------------------------------------------

    def run(self, until_s: float) -> None:
        """Each 5 seconds: effects, then controls that are due, then arrivals."""
        while self.now_s <= until_s:
            self.step()
            self.now_s += STRETCH_S
            row = [[[round(rps * STRETCH_S * scale) for scale in (1, *self.tokens)]] for rps in self.load]
            self.arrived = np.concatenate([self.arrived, np.array(row, np.int64)], axis=1)

    def step(self) -> None:
        for event in sorted((e for e in self.events if e[0] <= self.now_s), key=lambda e: e[:2]):
            self.events.remove(event)
            event[2]()  # type: ignore[operator]
        order = sorted(range(len(self.plan.controls)), key=lambda n: -self.plan.controls[n].period_s)
        for n in order:
            control = self.plan.controls[n]
            if self.now_s >= self.next_s[n]:
                self.next_s[n] += max(control.period_s, STRETCH_S)
                answer = control.step(self.view())
                self.decisions += answer.decisions
                for command in answer.commands:
                    self.log.append((self.now_s, command))
                    self.carry_out(command)
                    self.check()

    def later(self, in_s: float, effect: object) -> None:
        self.events.append((self.now_s + in_s, len(self.log), effect))

    def view(self) -> FleetView:
        n = len(self.specs)
        nan = np.full(n, math.nan)
        return FleetView(
            self.now_s,
            tuple(self.specs),
            np.array(self.state, np.int64),
            np.array(self.pool, np.int64),
            np.array(self.mhz),
            np.zeros(n, np.int64),
            np.array([self.waiting[i] for i in range(n)], np.int64),
            np.array([self.kv.get(i, 0) for i in range(n)], np.int64),
            np.array([self.late_s.get(i, math.nan) for i in range(n)]),
            nan,
            nan,
            tuple(self.names.index(name) for name in self.cell_pool),
            np.zeros(len(self.names), np.int64),
            self.arrived,
        )

    # -- commands --------------------------------------------------------------------------------------

    def carry_out(self, command: SimCommand) -> None:
        if isinstance(command, SetSmClock):
            i = self.index(command.instance)
            assert self.mhz[i] != command.mhz, "a clock command that changes nothing"
            self.mhz[i] = command.mhz
        elif isinstance(command, Start):
            i = self.slot(command.spec, -1, STARTING)
            self.weight[i] = command.weight
            self.life[i] += 1
            begun_s = self.now_s
            self.later(command.ready_in_s, lambda life=self.life[i]: self.ready(i, life, command, begun_s))
        elif isinstance(command, Drain):
            self.drain(self.index(command.instance))
        elif isinstance(command, Keep):
            self.kept[self.index(command.instance)] = self.now_s
        elif isinstance(command, Reshard):
            old = [self.index(name) for name in command.instances]
            assert all(self.state[i] == SERVING for i in old)
            pool = self.pool[old[0]]
            self.later(command.transfer_s + command.sync_s, lambda: self.take_over(old, command, pool))
        elif isinstance(command, Move):
            i = self.index(command.instance)
            assert self.state[i] == SERVING
            self.pool[i], self.weight[i] = self.names.index(command.pool), command.weight
        elif isinstance(command, SetWeight):
            self.weight[self.index(command.instance)] = command.weight
        elif isinstance(command, Assign):
            for cell, pool in command.pools.items():
                self.cell_pool[cell] = pool

    def index(self, name: str) -> int:
        return [spec.name for spec in self.specs].index(name)  # ValueError: no such instance

    def slot(self, spec, pool: int, state: int) -> int:
        for i, own in enumerate(self.specs):
            if self.state[i] == OFF and replace(own, name=spec.name, mhz=spec.mhz) == spec:
                break
        else:
            i = len(self.specs)
            self.specs.append(replace(spec, name=f"{spec.name}#{i}"))
            for column in (self.state, self.pool, self.mhz, self.weight):
                column.append(0)
        self.state[i], self.pool[i], self.mhz[i] = state, pool, spec.mhz
        return i

    def ready(self, i: int, life: int, start: Start, begun_s: float) -> None:
        if self.state[i] == STARTING and self.life[i] == life:  # else it was drained, and perhaps started again
            self.state[i], self.pool[i] = SERVING, self.names.index(start.pool)
            for old in map(self.index, start.replaces):
                if self.kept.get(old, -1.0) < begun_s:
                    self.drain(old)

    def drain(self, i: int) -> None:
        assert self.state[i] in (STARTING, SERVING), f"{self.specs[i].name} cannot be drained"
        if self.state[i] == STARTING:
            self.state[i] = OFF
            return
        self.state[i], self.pool[i] = DRAINING, -1
        self.later(self.drain_s, lambda: self.off(i))

    def off(self, i: int) -> None:
        self.state[i] = OFF

    def take_over(self, old: Sequence[int], command: Reshard, pool: int) -> None:
        for i in old:
            self.state[i] = OFF
        for spec in command.into:
            self.slot(spec, pool, SERVING)
        self.check()

    # -- what tests ask --------------------------------------------------------------------------------

    def check(self) -> None:
        used: Counter[tuple[str, str]] = Counter()
        for spec, state in zip(self.specs, self.state, strict=True):
            used[spec.site, spec.gpu] += spec.tp * (state != OFF)
        for site in self.sites:
            for gpu, count in site.gpus.items():
                assert used[site.name, gpu] <= count, f"{site.name} has {count} {gpu}, {used[site.name, gpu]} are used"

    def serving(self, site: str | None = None, pool: str | None = None) -> list[int]:
        """TP degrees of the instances that serve."""
        return sorted(
            spec.tp
            for spec, state, own in zip(self.specs, self.state, self.pool, strict=True)
            if state == SERVING and site in (None, spec.site) and pool in (None, self.names[own])
        )
