"""Predicts what a service's fleet draws, emits and costs under a policy, at the present demand, by the engine model.

The clock of an instance is the one of least power that keeps the policy's limits, where its clock rule acts, and the
top clock elsewhere. GPUs without an instance are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.controllers.fleet.explain import gpus_of
from core.engine.load_profile import LoadProfile
from core.observations.clock_given import ProfileClocks, clock_limits
from core.observations.load_profiles import full_load_profile
from core.types import Limits, Loop, Mode
from core.units import J_PER_KWH
from pools.models import Site
from scheduler.control import active_operations
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.recorded_demand import DemandWindow, arrivals
from scheduler.control.snapshot.snapshot import ClassNow
from scheduler.control.turn_context import TurnContext
from scheduler.json_values import workers_from_json
from telemetry.carbon.site_signals import intensity_at
from telemetry.ledger.rates import Rates
from telemetry.selectors.newest_samples import pools_power

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class FleetPrediction:
    """A fleet under a policy. `workers`: by pool (`site/class`) and mode. Carbon and cost include the sites' PUE.

    A figure of None is not known, and `unknown` says why, as sentences. `feasible`: it carries the peak demand.
    """

    policy: str
    partition: str
    workers: Mapping[str, Mapping[str, int]]
    gpus: int
    demand_rps: float
    feasible: bool
    power_w: float | None
    carbon_g_per_h: float | None
    cost_per_h: float | None
    currency: str
    unknown: tuple[str, ...] = ()

    @property
    def instances(self) -> int:
        return sum(sum(own.values()) for own in self.workers.values())


@dataclass(frozen=True, slots=True)
class ClockRange:
    """The clocks in MHz that a pool's instances may have, of those that are profiled; None: the top clock alone."""

    least_mhz: float | None
    most_mhz: float = math.inf


@dataclass(frozen=True, slots=True)
class _Rates:
    """The carbon and the cost of an hour; None: not known."""

    carbon_g: float | None
    cost: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class _PoolPower:
    """The watts of a pool's instances. `short`: they do not carry their part of the load."""

    watts: float
    short: bool


def clock_ranges(context: TurnContext, *, held: bool = True) -> dict[int, ClockRange]:
    """Returns the clocks that each pool may have now, by what people have set and the policy's clock rule.

    `held`: where no loop of the service has acted yet, its clocks stay at the top.
    """
    _, fixed = active_operations.fixed_clocks()
    floors = active_operations.clock_floors()
    at_top = context.knobs.clock == "fixed" or active_operations.is_paused(context.service, Loop.CLOCK)
    waits = held and active_operations.control_mode_of(context.service).gateways_only
    found = {}
    for pool in context.pools:
        if pool.pk in fixed:
            found[pool.pk] = ClockRange(fixed[pool.pk], fixed[pool.pk])
        elif at_top or (waits and pool.pk not in floors):
            found[pool.pk] = ClockRange(None)
        else:
            found[pool.pk] = ClockRange(floors.get(pool.pk, 0.0))
    return found


def predicted(context: TurnContext, clocks: Mapping[int, ClockRange]) -> FleetPrediction:
    """Predicts the figures of the context's pools, each with the workers that it is to have."""
    seen = arrivals(context.service, context.now, context.times.look_back_s)
    classes = {own.demand.name: own for own in snapshot.classes_now(context, context.service.partition, seen, 1)}
    rates_rps = _rates_rps(seen, list(classes.values()))
    pools = [(pool, workers_from_json(pool.workers)) for pool in context.pools]
    watts: dict[str, float] = {}
    unknown: list[str] = []
    feasible = True
    for name, own in classes.items():
        mine = [(pool, workers) for pool, workers in pools if pool.request_class.name == name and workers]
        carries_rps = math.fsum(_carries_rps(own, workers) for _, workers in mine)
        feasible &= carries_rps >= max(own.demand.demand_rps) and (bool(mine) or not rates_rps[name])
        for pool, workers in mine:
            try:
                power = _pool_power(context, own, workers, clocks[pool.pk], rates_rps[name] / (carries_rps or math.inf))
            except LookupError as error:
                unknown.append(str(error))
                continue
            feasible &= not power.short
            watts[pool.site.name] = watts.get(pool.site.name, 0.0) + power.watts
    power_w = None if unknown else math.fsum(watts.values())
    rates, why = _rates_now(context, watts)
    return FleetPrediction(
        policy=context.policy.name,
        partition=context.service.partition.name,
        workers={
            f"{pool.site.name}/{pool.request_class.name}": {mode.name: n for mode, n in workers.items()}
            for pool, workers in pools
            if workers
        },
        gpus=sum(sum(gpus_of(workers).values()) for _, workers in pools),
        demand_rps=math.fsum(rates_rps.values()),
        feasible=feasible,
        power_w=power_w,
        carbon_g_per_h=None if power_w is None else rates.carbon_g,
        cost_per_h=None if power_w is None else rates.cost,
        currency=rates.currency,
        unknown=tuple(dict.fromkeys([*unknown, *why])),
    )


def metered_w(context: TurnContext) -> float | None:
    """Returns what the GPUs of the service's instances draw now by their meters; None: none reports."""
    ids = list(context.service.pools.values_list("pk", flat=True))
    known = [watts for watts in pools_power(context.now.timestamp(), ids).values() if watts is not None]
    return math.fsum(known) if known else None


def _rates_rps(seen: DemandWindow, classes: Sequence[ClassNow]) -> dict[str, float]:
    """Returns the mean rate of each class in the window; before anything was seen, what is declared."""
    came = seen.by_class([own.request_class for own in classes])
    found = {}
    for own in classes:
        counts, name = came[own.demand.name], own.demand.name
        total = float(counts[:, 0].sum()) if counts.size else 0.0
        found[name] = total / seen.span_s
    if seen.declared is not None and seen.declared.rps and not any(found.values()):
        found[seen.declared.class_name([own.request_class for own in classes])] = seen.declared.rps
    return found


def _carries_rps(own: ClassNow, workers: Mapping[Mode, int]) -> float:
    return math.fsum(n * own.profiles[mode].max_rps for mode, n in workers.items() if mode in own.profiles)


def _pool_power(
    context: TurnContext, own: ClassNow, workers: Mapping[Mode, int], clocks: ClockRange, share: float
) -> _PoolPower:
    """Raises LookupError where the engine model does not know what runs there. `share`: of what an instance carries."""
    card, knobs = context.service.model_card, context.knobs
    limits = clock_limits(context.service.limits(), own.request_class.thresholds, knobs)
    grid = ProfileClocks(context.tuning.profile.step_mhz, knobs.clock_floor, knobs.clock_floor_mhz)
    watts, short = 0.0, False
    for mode, count in workers.items():
        profile = full_load_profile(card.engine_model_name, card.engine, mode, own.lengths.rounded, None, grid)
        if profile is None or mode not in own.profiles:
            raise LookupError(f"The engine model does not know {card.name} on {mode.name}.")
        load_rps = share * own.profiles[mode].max_rps
        most_rps = float(profile.rps[-1, -1])
        short |= load_rps > most_rps
        watts += count * _least_w(profile, limits, clocks, min(load_rps, most_rps))
    return _PoolPower(watts, short)


def _least_w(profile: LoadProfile, limits: Limits, clocks: ClockRange, load_rps: float) -> float:
    """Returns the least power in W among the clocks that are allowed and keep the limits; else that of the highest."""
    ttft_s, tpot_s, watts = (values[:, 0] for values in profile.at(np.array([load_rps])))
    if clocks.least_mhz is None:
        return float(watts[-1])
    able = np.flatnonzero((profile.mhz >= clocks.least_mhz) & (profile.mhz <= clocks.most_mhz) & np.isfinite(watts))
    if not able.size:  # one that is fixed between two that are profiled, or below all that carry the load
        nearest = int(np.argmin(np.abs(profile.mhz - clocks.least_mhz)))
        return float(watts[nearest]) if np.isfinite(watts[nearest]) else float(watts[-1])
    keeps = np.ones(len(able), bool)
    for values, limit in ((ttft_s, limits.ttft_s), (tpot_s, limits.tpot_s)):
        if limit is not None:
            keeps &= values[able] <= limit
    return float(watts[able[keeps]].min()) if keeps.any() else float(watts[able[-1]])


def _rates_now(context: TurnContext, watts: Mapping[str, float]) -> tuple[_Rates, list[str]]:
    """Returns what the power emits and costs in an hour, with the sites' PUE, and sentences on what is not known."""
    grams: list[float | None] = []
    money: list[float | None] = []
    currencies, unknown = set(), []
    for site in Site.objects.filter(name__in=watts).order_by("name"):
        own = Rates.of(site).at(context.now)
        kwh = watts[site.name] * own.pue * HOUR_S / J_PER_KWH
        g_per_kwh = intensity_at(site, context.now)
        grams.append(None if g_per_kwh is None else kwh * g_per_kwh)
        money.append(None if own.terms is None else kwh * own.terms.price_at(context.now.timestamp()))
        currencies.add(site.currency)
        missing = ("carbon intensity", grams[-1]), ("tariff", money[-1])
        unknown += [f"{site} has no {what} now." for what, value in missing if value is None]
    if len(currencies) > 1:
        unknown.append(f"Costs are in {', '.join(sorted(currencies))}: they have no sum.")
    cost = None if len(currencies) > 1 else _sum(money)
    return _Rates(_sum(grams), cost, next(iter(currencies)) if len(currencies) == 1 else ""), unknown


def _sum(values: Iterable[float | None]) -> float | None:
    """Returns the sum; None where any part of it is not known."""
    found = list(values)
    known = [value for value in found if value is not None]
    return math.fsum(known) if len(known) == len(found) else None
