"""DynamoLLM's predictive scheduling (IV-D): a request to the pool of its class, there to the instance of least energy.

Of what a pool hands on to the next larger class every so many requests go there, evenly. In a pool the router predicts
energy and latencies with the request added (`core.controllers.request.routing`), and takes the least energy among the
instances that keep the limits and are within the load that these allow. Is there none, the pool is overloaded: the next
larger one is asked. When no pool has any, the fastest instance of all is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.controllers.request.hand_on import HandOn
from core.controllers.request.routing import Candidate, RouteRequest, choose, holds
from core.simulator.kernel.commands import FleetView, Placement, RequestView
from core.simulator.policies.dynamollm.demand import ClassDemands
from core.simulator.policies.dynamollm.pool_nodes import Nodes
from core.simulator.policies.energy_router import candidate
from core.types import Limits, Mode

_BURST_S = 1.0  # of its largest load that an instance may be ahead by


@dataclass(slots=True)
class _Place:
    """An instance: how far it is ahead of its largest load (prompt tokens), and since when that is right."""

    ahead: float = 0.0
    at_s: float = 0.0


class DynamoRouter:
    """Router of the policy. `most`: the largest load of an instance by (pool, mode), in prompt tokens a second.

    `pressed`: slots that are to get nothing while there are others (the ladder's re-steering). `placed`: requests by
    slot, for the clock loop, which takes them away.
    """

    tick_s = 0.25

    def __init__(self, demand: ClassDemands, nodes: Nodes, routing: str) -> None:
        self._demand, self._nodes, self._routing = demand, nodes, routing
        self.most: Mapping[tuple[int, Mode], float] = {}
        self.pressed: set[int] = set()
        self.placed: dict[int, int] = {}
        self.mean_prompt = [0.0] * len(demand.classes)  # of each pool, tokens
        self._hand_on = HandOn()
        self._pue = {site.name: site.pue for site in demand.world.sites}
        self._kv_tokens: dict[int, int] = {}
        self._places: dict[int, _Place] = {}
        self._limits = tuple(demand.planned(own) for own in demand.limits)
        self._members: list[list[int]] = [[] for _ in demand.classes]
        self._version = -1

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        """None: no instance serves that could hold it."""
        self._nodes.sync(view)
        if self._version != self._nodes.version:
            self._members = [self._nodes.serving(pool, view) for pool in range(len(self._members))]
            self._version = self._nodes.version
        rank = self._demand.class_of_cell[request.cell]
        own = self._hand_on.enter(rank, self._demand.shares)
        slot = self._least_loaded(own, request, view) if self._routing != "energy" else None
        if self._routing == "energy":
            slot = self._least_energy(own, rank, request, view)
        if slot is None:
            return None
        self.placed[slot] = self.placed.get(slot, 0) + 1
        return Placement(slot)

    def _order(self, own: int) -> list[int]:
        """Returns the own pool, then the larger ones, then the smaller ones."""
        return [*range(own, len(self._members)), *reversed(range(own))]

    def _least_loaded(self, own: int, request: RequestView, view: FleetView) -> int | None:
        for pool in self._order(own):
            fits = [slot for slot in self._members[pool] if self._fits(slot, request, view)]
            if fits:
                return min(fits, key=lambda slot: (int(view.running[slot]) + int(view.waiting[slot]), slot))
        return None

    def _least_energy(self, own: int, rank: int, request: RequestView, view: FleetView) -> int | None:
        prompt, output = request.prompt_tokens, request.predicted_tokens
        wanted = RouteRequest(prompt, output, rank, self._limits[rank])
        everyone: dict[int, tuple[int, Candidate]] = {}
        for pool in self._order(own):
            able: list[Candidate] = []
            for slot in self._members[pool]:
                if self._fits(slot, request, view):
                    kv_tokens, mean_tokens = self._kv(slot, view), self.mean_prompt[pool]
                    pue = self._pue[view.instances[slot].site]
                    here = candidate(slot, pool, view, mean_tokens, kv_tokens, rank=0, pue=pue)
                    everyone[slot] = pool, here
                    if slot not in self.pressed and self._has_room(slot, pool, view):
                        able.append(here)
            found = choose(able, wanted)
            if found is not None and found.meets_slo:
                return self._take(int(found.uid), pool, request, view)
        found = choose([one for _, one in everyone.values()], RouteRequest(prompt, output, rank, _NEVER))
        if found is None:
            return None
        slot = int(found.uid)
        return self._take(slot, everyone[slot][0], request, view)

    def _fits(self, slot: int, request: RequestView, view: FleetView) -> bool:
        return holds(self._kv(slot, view), request.prompt_tokens, request.predicted_tokens)

    def _kv(self, slot: int, view: FleetView) -> int:
        """A place in the view is always for one kind of instance."""
        found = self._kv_tokens.get(slot)
        if found is None:
            found = self._kv_tokens[slot] = view.instances[slot].kv_capacity
        return found

    def _has_room(self, slot: int, pool: int, view: FleetView) -> bool:
        most = self._most(slot, pool, view)
        return self._now(slot, most, view.now_s).ahead <= _BURST_S * most

    def _most(self, slot: int, pool: int, view: FleetView) -> float:
        spec = view.instances[slot]
        return self.most.get((pool, Mode(spec.gpu, spec.tp)), 0.0)

    def _now(self, slot: int, most: float, now_s: float) -> _Place:
        place = self._places.setdefault(slot, _Place())
        place.ahead = max(0.0, place.ahead - most * (now_s - place.at_s))
        place.at_s = now_s
        return place

    def _take(self, slot: int, pool: int, request: RequestView, view: FleetView) -> int:
        self._now(slot, self._most(slot, pool, view), view.now_s).ahead += request.prompt_tokens
        return slot


# Limits that no instance keeps: `choose` then takes the fastest.
_NEVER = Limits(ttft_s=0.0)
