"""Routing by least predicted energy, as gateways do it: `core.controllers.request.routing` over a class's instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core.controllers.request.routing import Candidate, RouteRequest, choose_of, holds
from core.simulator.kernel.commands import SERVING, FleetView, Placement, RequestView
from core.types import Limits


class EnergyRouter:
    """Router of a policy whose instances are in one pool for each class.

    A request goes to the instance of its class that takes least energy for it within the limits. Where none keeps them
    it spills to the next larger classes of its service, then to smaller ones, as at a gateway.

    Args:
        limits: The limits that the requests of each pool are to keep; pools are in the order of their classes.
        cells: The cells of each service.
        pue: By site.
    """

    tick_s = 0.25

    def __init__(self, limits: Sequence[Limits], cells: Sequence[Sequence[int]], pue: Mapping[str, float]) -> None:
        self._limits, self._cells, self._pue = limits, cells, pue
        self._prompts = np.zeros((len(limits), 2), np.int64)  # requests of each pool, and their prompt tokens
        self._members: list[list[int]] = []
        self._seen = b""

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        """Returns where the request goes. None: no instance serves that could hold it."""
        seen = view.state.tobytes() + view.pool.tobytes()
        if seen != self._seen:
            self._seen = seen
            serving = view.state == SERVING
            self._members = [
                np.flatnonzero(serving & (view.pool == pool)).tolist() for pool in range(len(self._limits))
            ]
        pool = view.cell_pool[request.cell]
        self._prompts[pool] += (1, request.prompt_tokens)
        choice = choose_of(
            self._candidates(pool, request, view),
            lambda: [
                found
                for other in sorted({view.cell_pool[cell] for cell in self._cells[request.service]})
                for found in self._candidates(other, request, view)
            ],
            RouteRequest(request.prompt_tokens, request.predicted_tokens, pool, self._limits[pool]),
        )
        return None if choice is None else Placement(int(choice.uid))

    def _candidates(self, pool: int, request: RequestView, view: FleetView) -> list[Candidate]:
        requests, tokens = self._prompts[pool].tolist()
        mean_tokens, found = tokens / max(1, requests), []
        for slot in self._members[pool]:
            spec = view.instances[slot]
            kv_tokens = spec.kv_capacity
            if holds(kv_tokens, request.prompt_tokens, request.predicted_tokens):
                found.append(candidate(slot, pool, view, mean_tokens, kv_tokens, rank=pool, pue=self._pue[spec.site]))
        return found


def candidate(
    slot: int, pool: int, view: FleetView, mean_prompt_tokens: float, kv_tokens: int, *, rank: int, pue: float
) -> Candidate:
    """Returns an instance as routing knows it.

    Args:
        mean_prompt_tokens: Of the pool's requests; what waits is counted with it, as no router looks into queues.
        kv_tokens: The instance's whole cache.
    """
    spec, waiting = view.instances[slot], int(view.waiting[slot])
    return Candidate(
        uid=str(slot),
        pool_id=pool,
        site=spec.site,
        request_class="",
        class_rank=rank,
        model=spec.model,
        engine=spec.engine,
        gpu=spec.gpu,
        tp=spec.tp,
        mhz=float(view.mhz[slot]),
        running=int(view.running[slot]),
        waiting=waiting,
        queued_prompt_tokens=round(waiting * mean_prompt_tokens),
        kv_usage=float(view.kv_used_tokens[slot]) / kv_tokens,
        pue=pue,
        intensity_g_per_kwh=None,
    )
