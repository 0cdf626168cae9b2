"""Makes up one day of the demo: its requests, and what the instances of a plan would have done with them.

The load is that of the demo's own traffic: as many requests a second, of the same lengths, from the same tenants by
turns. Latencies and joules are the engine model's. Only sums are kept. The day closes on itself: what runs on at
midnight runs on in its first minutes, so that days can follow each other. The same seed gives the same day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.accounting.allocation import TokenTime
from core.engine.engine_model import EngineModel
from core.simulator.workload.columns import cut, joined
from core.simulator.workload.generate import Generator, generate
from core.simulator.workload.lengths import AZURE_CONV
from telemetry.ledger.window_sources import WINDOW_S
from telemetry.seeding.modelled_engine import BusyTime, Floats, Ints, Latencies, ModelledEngine

Mask = NDArray[np.bool_]
SEED = 1
RATE_RPS = 3.0  # GREENSERVE_DEMO_RPS, unless somebody sets another
MOST_OUTPUT_TOKENS = 1_000  # as the demo's traffic asks for
TENANTS = 4
DAY_S, MINUTE_S = 86_400, 60
MINUTES, WINDOWS = DAY_S // MINUTE_S, round(DAY_S / WINDOW_S)
TURN_S = 1_800  # the period of the carbon loop
LENGTHS_A_BIN = 4  # bins of lengths that are counted as one: a minute of all would have as many rows as requests


@dataclass(frozen=True, slots=True)
class ClassRange:
    """Lengths of a request class: lower bounds inclusive, upper ones exclusive, None: no bound."""

    name: str
    input_min: int
    input_max: int | None
    output_min: int
    output_max: int | None

    def holds(self, prompt: Ints, output: Ints) -> Mask:
        most = np.iinfo(np.int64).max
        long_enough = (prompt >= self.input_min) & (output >= self.output_min)
        return long_enough & (prompt < (self.input_max or most)) & (output < (self.output_max or most))


@dataclass(frozen=True, slots=True)
class Engine:
    """An instance of the plan. `g_per_kwh`: of its site in each window of the day, by which a class with several
    instances uses the one that emits least; half an hour each."""

    request_class: str
    costs: EngineModel
    mhz: float
    token_time: TokenTime
    g_per_kwh: Floats


@dataclass(frozen=True, slots=True)
class Use:
    """Sums of each tenant's requests by window, (windows, tenants). Seconds are the engine's, by phase."""

    requests: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    prefill_s: Floats
    decode_s: Floats


@dataclass(frozen=True, slots=True)
class EngineDay:
    """`up`: the minutes in which it was there, (minutes,); in the others its GPUs hold nothing."""

    up: Mask
    busy: BusyTime  # by minute
    use: Use


@dataclass(frozen=True, slots=True)
class Judged:
    """Requests that one objective judged and how many kept it, by the minute in which they ended, (minutes,)."""

    judged: Ints
    within: Ints


@dataclass(frozen=True, slots=True)
class Day:
    engines: Sequence[EngineDay]
    slo: Mapping[str, Judged]  # by kind; empty: by all together
    timely_tokens: Ints  # (tenants, minutes)
    output_tokens: Ints
    answers: Mapping[tuple[str, int], tuple[Ints, Ints]]  # by class and bin of lengths: answers, timely tokens


@dataclass(frozen=True, slots=True)
class _Requests:
    arrival_s: Floats
    prompt: Ints
    output: Ints
    tenant: Ints


def make(classes: Sequence[ClassRange], engines: Sequence[Engine], objectives_s: Mapping[str, float]) -> Day:
    drawn = joined(list(cut(generate(Generator(RATE_RPS, AZURE_CONV), SEED), None, float(DAY_S))))
    output = np.minimum(drawn.output_tokens, MOST_OUTPUT_TOKENS)
    n = len(output)
    all_ = _Requests(drawn.arrival_s, drawn.prompt_tokens, output, np.arange(n) % TENANTS)
    found = Latencies(*(np.zeros(n) for _ in range(3)))
    place = np.full(n, -1, dtype=np.int64)
    days: list[EngineDay | None] = [None] * len(engines)
    for i, one in enumerate(classes):
        which = np.flatnonzero(one.holds(all_.prompt, output))
        place[which] = i
        own = [k for k, engine in enumerate(engines) if engine.request_class == one.name]
        rate, mean = len(which) / DAY_S, (_mean(all_.prompt[which]), _mean(output[which]))
        models = [ModelledEngine(engines[k].costs, engines[k].mhz, rate, *mean) for k in own]
        chosen = _cleanest(models, [engines[k] for k in own])
        for j, (k, model) in enumerate(zip(own, models, strict=True)):
            mine = which[chosen[(all_.arrival_s[which] // TURN_S).astype(np.int64)] == j]
            requests = _Requests(*(getattr(all_, name)[mine] for name in _Requests.__slots__))
            own_found = model.latencies(requests.arrival_s, requests.prompt, requests.output)
            for name in Latencies.__slots__:
                getattr(found, name)[mine] = getattr(own_found, name)
            busy = model.busy(MINUTE_S, MINUTES, requests.arrival_s, own_found.e2e_s)
            up = np.repeat(chosen == j, TURN_S // MINUTE_S) | (busy.busy_us > 0)
            days[k] = EngineDay(up, busy, _use(engines[k].token_time, requests, own_found))
    return _summed(classes, place, all_, found, objectives_s, [day for day in days if day is not None])


def _mean(tokens: Ints) -> float:
    return float(tokens.mean()) if len(tokens) else 1.0


def _cleanest(models: Sequence[ModelledEngine], engines: Sequence[Engine]) -> Ints:
    """Returns in each half hour the engine that emits least under the load of the class."""
    turns = DAY_S // TURN_S
    grams = [
        model.power_w * np.nanmean(engine.g_per_kwh.reshape(turns, -1), axis=1)
        for model, engine in zip(models, engines, strict=True)
    ]
    found: Ints = np.argmin(np.array(grams), axis=0)
    return found


def _use(time: TokenTime, requests: _Requests, found: Latencies) -> Use:
    """Adds requests up in the window in which they began; their engine time goes by windows in which they ran."""
    first = (requests.arrival_s // WINDOW_S).astype(np.int64)
    end_s = requests.arrival_s + found.e2e_s
    border_s = (first + 1) * WINDOW_S
    later = np.clip((end_s - border_s) / np.maximum(found.e2e_s, 1e-9), 0.0, 1.0)  # no request outlasts two windows

    def summed(window: Ints, weights: NDArray[np.generic]) -> Floats:
        cell = window % WINDOWS * TENANTS + requests.tenant
        found: Floats = np.bincount(cell, weights, WINDOWS * TENANTS).astype(np.float64)
        return found.reshape(-1, TENANTS)

    def whole(weights: Ints) -> Ints:
        return np.rint(summed(first, weights)).astype(np.int64)

    decode_s = requests.output * time.decode_s
    return Use(
        requests=whole(np.ones_like(first)),
        prompt_tokens=whole(requests.prompt),
        output_tokens=whole(requests.output),
        prefill_s=summed(first, requests.prompt * time.prefill_s),
        decode_s=summed(first, decode_s * (1.0 - later)) + summed(first + 1, decode_s * later),
    )


def _summed(
    classes: Sequence[ClassRange],
    place: Ints,
    requests: _Requests,
    found: Latencies,
    objectives_s: Mapping[str, float],
    days: Sequence[EngineDay],
) -> Day:
    served = place >= 0
    minute = ((requests.arrival_s + found.e2e_s) // MINUTE_S).astype(np.int64) % MINUTES
    kept = {kind: getattr(found, f"{kind}_s") <= limit_s for kind, limit_s in sorted(objectives_s.items())}
    judged_by = {kind: served & (requests.output > 1) if kind == "tpot" else served for kind in kept}
    met = np.logical_and.reduce([kept[kind] | ~judged_by[kind] for kind in kept], initial=True) & served
    slo = {kind: _judged(minute, which, kept[kind]) for kind, which in judged_by.items()}
    slo[""] = _judged(minute, served, met)
    timely = np.where(met, requests.output, 0)
    cell = requests.tenant * MINUTES + minute

    def by_tenant(tokens: Ints) -> Ints:
        sums = np.bincount(cell[served], tokens[served], TENANTS * MINUTES)
        return np.rint(sums).astype(np.int64).reshape(TENANTS, MINUTES)

    length = np.floor(20 * np.log(requests.output)).astype(np.int64) // LENGTHS_A_BIN * LENGTHS_A_BIN
    answers = {}
    for i, one in enumerate(classes):
        for at in np.unique(length[place == i]).tolist():
            which = (place == i) & (length == at)
            counts, tokens = (
                np.bincount(minute[which], minlength=MINUTES),
                np.bincount(minute[which], timely[which], MINUTES),
            )
            answers[one.name, at] = counts, np.rint(tokens).astype(np.int64)
    return Day(days, slo, by_tenant(timely), by_tenant(requests.output), answers)


def _judged(minute: Ints, which: Mask, kept: Mask) -> Judged:
    return Judged(np.bincount(minute[which], minlength=MINUTES), np.bincount(minute[which & kept], minlength=MINUTES))
