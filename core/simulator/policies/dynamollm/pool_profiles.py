"""Profiles an instance of each pool at the lengths now seen: DynamoLLM's fast decisions go by that."""

from __future__ import annotations

from core.engine.load_profile import LoadProfile
from core.simulator.kernel.commands import FleetView
from core.simulator.policies.dynamollm.demand import ClassDemands
from core.simulator.policies.dynamollm.router import DynamoRouter
from core.types import Limits, Mode

_EPS = 1e-9


class PoolProfiles:
    """`of[pool]` are the profiles by mode; `clocks[pool]` those at the clocks of the clock loop.

    `modes`: those that run, or may. The router gets the largest load of each with every renewal.
    """

    def __init__(self, demand: ClassDemands, router: DynamoRouter, period_s: float) -> None:
        self.of: list[dict[Mode, LoadProfile]] = []
        self.clocks: list[dict[Mode, LoadProfile]] = []
        self.modes: tuple[Mode, ...] = ()
        self._demand, self._router = demand, router
        self._period_s, self._next_s = period_s, 0.0

    def limits(self, pool: int) -> Limits:
        """Returns the limits that mean latencies in a pool are to keep."""
        return self._demand.planned(self._demand.pool_limits(pool))

    def renew(self, view: FleetView) -> None:
        """Profiles at the lengths now seen, and with them the largest load of each kind of instance."""
        self._next_s = view.now_s + self._period_s
        loads = self._demand.pool_loads(view.now_s)
        self.of = [self._demand.profiles(load, self.modes) for load in loads]
        self.clocks = [self._demand.clock_profiles(load, self.modes) for load in loads]
        most: dict[tuple[int, Mode], float] = {}
        for pool, own in enumerate(self.of):
            limits = self.limits(pool)
            prompt = loads[pool].lengths.rounded.prompt_tokens
            self._router.mean_prompt[pool] = prompt
            for mode, profile in own.items():
                most[pool, mode] = prompt * max(0.0, float(profile.top().within(limits)[0]))
        self._router.most = most

    def renew_if_old(self, view: FleetView) -> None:
        if view.now_s >= self._next_s - _EPS:
            self._demand.look(view)
            self.renew(view)
