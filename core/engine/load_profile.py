"""Energy and latency of an instance over its load, at each clock: the profile that DynamoLLM decides by (IV-A).

Few load levels are evaluated, up to the largest that the instance carries, and the rest lies on straight lines between
them, as in the paper. A profile holds for one model, GPU, TP degree, engine and one pair of mean lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.engine.engine_model import EngineModel
from core.engine.engine_params import GpuParams
from core.engine.engine_vector import iterations
from core.engine.iteration import IterationCosts, Totals
from core.engine.profiled_engine import ProfiledEngine
from core.engine.steady_state import SPARE_DEVIATIONS, batch_point, largest_batch, with_spare
from core.types import Limits, Source

Floats = NDArray[np.float64]
LEVELS = 17  # load levels of a clock, the idle one among them
CLOCK_STEP_MHZ, LOWEST_MHZ = 200.0, 800.0  # DynamoLLM IV-A: 800 to 1980 MHz in steps of 200


@dataclass(frozen=True, slots=True, eq=False)
class LoadProfile:
    """Rows are clocks, rising; columns load levels, rising from 0. Latencies are means of a steady state.

    `watts` of the whole instance. Beyond the last level of a row the instance cannot keep up at that clock.
    `measured_at_s`: as a ModeProfile's.
    """

    mhz: Floats  # (clocks,)
    rps: Floats  # (clocks, levels), as are the others
    ttft_s: Floats
    tpot_s: Floats
    watts: Floats
    source: Source = Source.MODELLED
    measured_at_s: float | None = None

    def at(self, load_rps: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns TTFT, TPOT and watts of each clock (rows) under each load (columns); infinite where it cannot keep
        up."""
        clock, last = np.arange(self.mhz.size)[:, None], self.rps.shape[1] - 1
        level = np.maximum(np.count_nonzero(self.rps[:, None, :] <= load_rps[:, None], axis=2) - 1, 0)
        after = np.minimum(level + 1, last)
        beyond_rps = load_rps - self.rps[clock, level]
        between = (beyond_rps > 0.0) & (level < last)
        apart_rps = np.where(between, self.rps[clock, after] - self.rps[clock, level], 1.0)
        too_much = load_rps > self.rps[:, -1:]

        def of(values: Floats) -> Floats:  # as np.interp has it, for all clocks at once
            here = values[clock, level]
            slope = (values[clock, after] - here) / apart_rps
            return np.where(too_much, np.inf, np.where(between, slope * beyond_rps + here, here))

        return of(self.ttft_s), of(self.tpot_s), of(self.watts)

    def within(self, limits: Limits) -> Floats:
        """Returns the largest load of each clock that keeps TTFT and TPOT, on the lines; -1 where not even no load
        does."""
        most = self.rps[:, -1].copy()
        for values, limit in ((self.ttft_s, limits.ttft_s), (self.tpot_s, limits.tpot_s)):
            if limit is not None:
                most = np.minimum(most, [_crossing(x, y, limit) for x, y in zip(self.rps, values, strict=True)])
        return most

    def up_to(self, most_rps: Floats) -> LoadProfile:
        """Returns the same with no load beyond `most_rps`, one for each clock."""
        loads = np.minimum(self.rps, most_rps[:, None])

        def cut(values: Floats) -> Floats:
            return np.array([np.interp(x, old, y) for x, old, y in zip(loads, self.rps, values, strict=True)])

        return replace(self, rps=loads, ttft_s=cut(self.ttft_s), tpot_s=cut(self.tpot_s), watts=cut(self.watts))

    def top(self) -> LoadProfile:
        """Returns the profile with the top clock only: eq. 1 simplified (DynamoLLM IV-B)."""
        last = slice(-1, None)
        rows = {name: getattr(self, name)[last] for name in ("mhz", "rps", "ttft_s", "tpot_s", "watts")}
        return replace(self, **rows)

    @property
    def max_rps(self) -> float:
        return float(self.rps.max(initial=0.0))


def _crossing(x: Floats, y: Floats, limit: float) -> float:
    """Returns the first x at which the lines through (x, y) rise above `limit`."""
    over = np.flatnonzero(y > limit)
    if not over.size:
        return float(x[-1])
    after = int(over[0])
    if after == 0:
        return -1.0
    share = (limit - y[after - 1]) / (y[after] - y[after - 1])
    return float(x[after - 1] + share * (x[after] - x[after - 1]))


def clocks(gpu: GpuParams, step_mhz: float = CLOCK_STEP_MHZ, lowest_mhz: float = LOWEST_MHZ) -> Floats:
    """Returns the clocks that are profiled, (clocks,): from the lowest, in steps, and the top one."""
    found: Floats = np.unique(np.append(np.arange(max(lowest_mhz, gpu.f_min), gpu.f_max, step_mhz), gpu.f_max))
    return found


def load_profile_of(
    worker: EngineModel | ProfiledEngine,
    prompt_tokens: float,
    output_tokens: float,
    mhz: Floats,
    chunk_tokens: float | None = None,
    context_tokens: float | None = None,
    spare_deviations: float = 0.0,
) -> LoadProfile | None:
    """Makes a profile at the clocks `mhz`, (clocks,), from what is known of an instance; see `modelled`."""
    given = (prompt_tokens, output_tokens, mhz, LEVELS, chunk_tokens, context_tokens, spare_deviations)
    return modelled(worker, *given) if isinstance(worker, EngineModel) else from_costs(worker, *given, worker.source)


def modelled(
    worker: EngineModel,
    prompt_tokens: float,
    output_tokens: float,
    mhz: Floats,
    levels: int = LEVELS,
    chunk_tokens: float | None = None,
    context_tokens: float | None = None,
    spare_deviations: float = 0.0,
) -> LoadProfile | None:
    """Makes a profile from the engine model at the clocks `mhz`, (clocks,); None when no such request fits its KV
    cache.

    Args:
        chunk_tokens: TTFT is that of an iteration filled with so many prompt tokens, others' among them, instead of
            one with the request's own: the worst case.
        context_tokens: Of a running sequence, on the mean; None: as if all answers were equally long.
        spare_deviations: Of the batch, for which the KV cache is to have room as well (`steady_state.max_rps`).
    """
    out = max(1.0, output_tokens)
    context_each = prompt_tokens + out / 2.0 if context_tokens is None else context_tokens
    batch = _batches(worker, prompt_tokens, output_tokens, levels, context_each, spare_deviations)
    if batch is None:
        return None
    clock = mhz[:, None]
    context = batch * context_each
    starts, q = np.maximum(1.0, batch / out), np.minimum(1.0, batch / out)
    decode = iterations(worker, clock, decodes=batch, context_tokens=context)
    mixed = iterations(
        worker, clock, prefill_tokens=prompt_tokens, prefills=starts, decodes=batch, context_tokens=context
    )
    tpot_s = (1.0 - q) * decode.t_s + q * mixed.t_s
    watts = ((1.0 - q) * decode.energy_j + q * mixed.energy_j) / tpot_s
    idle_w = np.array([worker.idle_watts(float(one)) for one in mhz])
    found = _profile(mhz, batch, out, mixed.t_s, tpot_s, watts, idle_w, worker.source)
    if chunk_tokens is None:
        return found
    full = iterations(worker, clock, prefill_tokens=chunk_tokens, decodes=batch, context_tokens=context)
    return replace(found, ttft_s=np.hstack([full.t_s[:, :1], full.t_s]))


def servable(
    worker: EngineModel | ProfiledEngine,
    prompt_tokens: float,
    output_tokens: float,
    context_tokens: float | None = None,
) -> LoadProfile | None:
    """Makes `load_profile_of` at the profiled clocks, each up to the load at which the KV cache has room at 99 of 100
    moments."""
    return load_profile_of(
        worker,
        prompt_tokens,
        output_tokens,
        clocks(worker.gpu_params),
        context_tokens=context_tokens,
        spare_deviations=SPARE_DEVIATIONS,
    )


def from_costs(
    costs: IterationCosts,
    prompt_tokens: float,
    output_tokens: float,
    mhz: Floats,
    levels: int = LEVELS,
    chunk_tokens: float | None = None,
    context_tokens: float | None = None,
    spare_deviations: float = 0.0,
    source: Source = Source.INTERPOLATED,
) -> LoadProfile | None:
    """Makes a profile at the clocks `mhz`, (clocks,), from anything that knows what an iteration costs.

    `chunk_tokens`, `spare_deviations`, `context_tokens`: as those of `modelled`.
    """
    out = max(1.0, output_tokens)
    each = prompt_tokens + out / 2.0 if context_tokens is None else context_tokens
    batch = _batches(costs, prompt_tokens, output_tokens, levels, each, spare_deviations)
    if batch is None:
        return None
    points = [[batch_point(costs, f, b, prompt_tokens, out, each) for b in batch.tolist()] for f in mhz.tolist()]
    ttft_s = np.array([[point.ttft_s for point in row] for row in points])
    tpot_s = np.array([[point.tpot_s for point in row] for row in points])
    watts = np.array([[point.busy_w for point in row] for row in points])
    idle_w = np.array([costs.idle_watts(float(one)) for one in mhz])
    found = _profile(mhz, batch, out, ttft_s, tpot_s, watts, idle_w, source)
    if chunk_tokens is None:
        return found
    full = [Totals(chunk_tokens, 0.0, chunk_tokens**2 / 2.0, 1.0, b, b * each) for b in batch]
    full_s = np.array([[costs.iteration_of(f, totals).t_s for totals in full] for f in mhz.tolist()])
    return replace(found, ttft_s=np.hstack([full_s[:, :1], full_s]))


def _batches(
    costs: IterationCosts,
    prompt_tokens: float,
    output_tokens: float,
    levels: int,
    context_tokens: float | None = None,
    spare_deviations: float = 0.0,
) -> Floats | None:
    """Mean batches from a lone request to the largest, geometrically: what happens, happens at small ones."""
    cap = with_spare(largest_batch(costs, prompt_tokens, max(1.0, output_tokens), context_tokens), spare_deviations)
    return np.geomspace(1.0, cap, max(2, levels - 1)) if cap >= 1.0 else None


def _profile(
    mhz: Floats,
    batch: Floats,
    out: float,
    ttft_s: Floats,
    tpot_s: Floats,
    watts: Floats,
    idle_w: Floats,
    source: Source,
) -> LoadProfile:
    """Loads by Little's law, and the idle level before the lone request: below it the instance idles in between."""
    rps = np.maximum.accumulate(batch / (ttft_s + out * tpot_s), axis=1)
    none = np.zeros((mhz.size, 1))
    return LoadProfile(
        mhz,
        np.hstack([none, rps]),
        np.hstack([ttft_s[:, :1], ttft_s]),
        np.hstack([tpot_s[:, :1], tpot_s]),
        np.hstack([idle_w[:, None], watts]),
        source,
    )
