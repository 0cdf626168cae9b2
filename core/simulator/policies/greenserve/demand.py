"""The inputs of GreenServe's loops: the recent load, its lengths, and profiles at these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from core.algorithms.fleet.sharing import NodeGpus
from core.algorithms.fleet.site_mix import Offer, in_time, worth_per_watt
from core.engine.engine_model import engine_model
from core.engine.load_profile import LoadProfile, clocks, modelled
from core.engine.steady_state import SPARE_DEVIATIONS
from core.observations.clock_given import least_mhz
from core.observations.mode_profile import Lengths, mean_context, rounded
from core.simulator.kernel.commands import STRETCH_S, FleetView
from core.simulator.kernel.simulated import TOKENS_PER_ITERATION
from core.simulator.policies.greenserve.config import GreenserveConfig
from core.simulator.policies.world import CellLoad, ServiceInfo, World
from core.types import Limits, Mode

_AHEAD_S, _AHEAD_STEP_S = 1800.0, 300.0  # how far ahead carbon is weighed: a move should pay for longer than it takes
_ENOUGH = 64  # requests whose mean lengths are trusted over those before


_ROUNDED_TOKENS = 64


def _rounded(tokens: float) -> int:
    """Rounds up, so that a profile is made once and not each time that means have moved a little."""
    return max(_ROUNDED_TOKENS, math.ceil(tokens / _ROUNDED_TOKENS) * _ROUNDED_TOKENS)


@lru_cache(maxsize=1024)
def load_profile(
    model: str,
    engine: str,
    mode: Mode,
    lengths: Lengths,
    context_tokens: float,
    full_tokens: int,
    step_mhz: float,
    floor: str,
    floor_mhz: float | None,
) -> LoadProfile | None:
    """Returns a profile from the clock on that `floor` and `floor_mhz` say, as `least_mhz` has it."""
    worker = engine_model(model, mode.gpu, mode.tp, engine)
    own = worker.gpu_params
    mhz = clocks(own, step_mhz, least_mhz(mode.gpu, own.f_min, own.f_max, floor, floor_mhz))
    return modelled(
        worker,
        lengths.prompt_tokens,
        lengths.output_tokens,
        mhz,
        chunk_tokens=full_tokens,
        context_tokens=context_tokens,
        spare_deviations=SPARE_DEVIATIONS,
    )


def instances_in(nodes: Iterable[NodeGpus], site: str, mode: Mode) -> int:
    """Returns how many instances of a mode fit on the nodes of a site."""
    return sum(node.gpus // mode.tp for node in nodes if (node.site, node.gpu) == (site, mode.gpu))


def _mean(loads: Sequence[CellLoad], otherwise: Lengths) -> Lengths:
    total = sum(load.rps for load in loads)
    if not total:
        return otherwise
    return Lengths(
        sum(load.rps * load.prompt_tokens for load in loads) / total,
        sum(load.rps * load.output_tokens for load in loads) / total,
    )


def _recent_lengths(seen: NDArray[np.int64], otherwise: Lengths) -> Lengths:
    """Returns mean lengths of what came by (cell, stretch, [requests, prompt tokens, output tokens]), when it is
    enough."""
    requests, prompt, output = seen.sum(axis=(0, 1)).tolist()
    return Lengths(prompt / requests, max(1.0, output / requests)) if requests >= _ENOUGH else otherwise


class ServiceDemand:
    """A service; all its classes share a pool, which keeps the limits of each."""

    def __init__(self, config: GreenserveConfig, world: World, service: ServiceInfo) -> None:
        self.config, self.world, self.service = config, world, service
        partition = service.partitions[0]
        self._classes = partition.classes
        self._class_of_cell = dict(sorted(partition.cell_class.items()))
        self.cells = list(self._class_of_cell)
        declared = {c: load for c, load in enumerate(world.declared) if load is not None and c in self._class_of_cell}
        self.declared_rps = sum(load.minute_rps or load.rps for load in declared.values())
        self._seen = [Lengths(*info.typical_tokens) for info in self._classes]
        for k in range(len(self._classes)):
            self._seen[k] = _mean([own for c, own in declared.items() if self._class_of_cell[c] == k], self._seen[k])
        self.lengths = _mean(list(declared.values()), self._seen[0])
        loads = [(own.rps, own.rps * own.prompt_tokens, own.rps * own.output_tokens) for own in declared.values()]
        self._context_tokens = mean_context(*np.array(loads).reshape(-1, 3).T)

    def planned(self, margin: float, offers: Sequence[Offer]) -> Limits:
        """Returns limits for a profile's latencies, so that requests that wait as well keep the real ones.

        TTFT is that of the class whose prompts have the least time (`_worst_case`). An E2E limit counts as the TPOT
        that its class's mean answer has left, as in FREESH's plan (1e); where no offer keeps that it is left out.
        """
        ttft_s = self._worst_case()[0]
        ttft_s = None if ttft_s is None else ttft_s * self.config.wait_share
        tpot_s = min((own.limits.tpot_s for own in self._classes if own.limits.tpot_s is not None), default=None)
        kept = Limits(ttft_s, None if tpot_s is None else tpot_s * margin)
        left_s = [
            (info.limits.e2e_s - (info.limits.ttft_s or 0.0)) / own.output_tokens
            for info, own in zip(self._classes, self._seen, strict=True)
            if info.limits.e2e_s is not None
        ]
        return in_time(offers, kept, left_s)

    def _worst_case(self) -> tuple[float | None, int]:
        """Returns the TTFT limit of the class with the least time for the prompt tokens of its worst iteration, and
        these tokens.

        The worst iteration has the request's own prompt and one of the longest class's. Without classes to
        distinguish them, both are whole chunks.
        """
        most = self.config.chunk_tokens or TOKENS_PER_ITERATION
        chunks = [min(own.prompt_tokens, most) if len(self._seen) > 1 else most for own in self._seen]
        full = [_rounded(min(TOKENS_PER_ITERATION, own + max(chunks))) for own in chunks]
        limits = [info.limits.ttft_s for info in self._classes]
        known = [(limit, tokens) for limit, tokens in zip(limits, full, strict=True) if limit is not None]
        return min(known, key=lambda one: one[0] / one[1], default=(None, max(full)))

    @property
    def taken_in(self) -> int:
        """Requests whose prompts the iteration that profiles are made with (`_worst_case`) takes in."""
        return int(self._worst_case()[1] / max(1.0, self.lengths.prompt_tokens))

    def look(self, view: FleetView) -> NDArray[np.float64]:
        """Returns the requests a second in each stretch of the look-back; takes in the lengths of what came."""
        seen = self._recent(view, self.config.look_s)
        for k in range(len(self._classes)):
            own = [n for n, c in enumerate(self.cells) if self._class_of_cell[c] == k]
            self._seen[k] = _recent_lengths(seen[own], self._seen[k])
        self.lengths = _recent_lengths(seen, self.lengths)
        came = seen.sum(axis=1, dtype=float)
        if came[:, 0].sum() >= _ENOUGH:
            self._context_tokens = mean_context(*came.T)
        return np.asarray(seen[:, :, 0].sum(axis=0) / STRETCH_S)

    def recent_rps(self, view: FleetView, span_s: float) -> float | None:
        """Returns the largest of the last stretch and of the mean over `span_s`; None: nothing was seen yet."""
        seen = self._recent(view, span_s).sum(axis=0)[:, 0] / STRETCH_S
        return max(float(seen[-1]), float(seen.mean())) if seen.size else None

    def _recent(self, view: FleetView, span_s: float) -> NDArray[np.int64]:
        now = int(view.now_s / STRETCH_S + 1e-9)
        found: NDArray[np.int64] = view.arrived[self.cells, max(0, now - round(span_s / STRETCH_S)) : now]
        return found

    def profile(self, mode: Mode) -> LoadProfile | None:
        """None: not even one such request fits its KV cache."""
        of, c = (self.service.model, self.service.engine, mode, self.lengths.rounded), self.config
        shape = c.clock_step_mhz, c.clock_floor, c.clock_floor_mhz
        return load_profile(*of, self._running_tokens(), self._full_tokens(), *shape)

    def _running_tokens(self) -> float:
        """Returns the mean context of a running request, rounded as lengths are."""
        own = self.lengths
        return rounded(self._context_tokens or own.prompt_tokens + own.output_tokens / 2.0)

    def _full_tokens(self) -> int:
        """Returns the prompt tokens of the iteration that gives a first token: the worst case's, or two chunks of mean
        prompts."""
        two = 2 * (self.config.chunk_tokens or TOKENS_PER_ITERATION)
        return max(self._worst_case()[1], _rounded(min(self.lengths.prompt_tokens, two, TOKENS_PER_ITERATION)))

    def offers(self, now_s: float) -> tuple[Offer, ...]:
        """Offers every kind of instance at every site. Carbon is only weighed where it is known of all sites."""
        carbon = {site.name: self._g_per_kwh(site.name, now_s) for site in self.world.sites}
        known = self.config.objective == "carbon" and None not in carbon.values()
        found = []
        for site in self.world.sites:
            worth = worth_per_watt(site.pue, carbon[site.name] if known else None)
            for mode in self.world.modes(self.service, site.name):
                own, room = self.profile(mode), instances_in(site.nodes, site.name, mode)
                if own is not None and room:
                    found.append(Offer(mode, own, room, site.name, worth))
        return tuple(found)

    def _g_per_kwh(self, site: str, now_s: float) -> float | None:
        """Returns the mean of the next half hour, as far as it is known."""
        ahead = self.world.intensity(site, now_s, now_s + _AHEAD_S, _AHEAD_STEP_S)
        known = [value for value in ahead if value is not None and math.isfinite(value)]
        return sum(known) / len(known) if known else None
