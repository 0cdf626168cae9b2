"""Builds what throttLL'eM's autoscaler is given: the sizes that an engine may have, and one engine's load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from core.algorithms.fleet.fleet_problem import mode_failure
from core.controllers.fleet.autoscale import AutoscaleObservation, EngineSize
from core.engine.measured import Basis
from core.observations.demand.class_view import ClassView
from core.types import Mode, PartitionOption


def rates_rps(seen: ClassView) -> dict[Mode, float]:
    """Returns by mode the requests/s that an engine carries within the limits; 0 where it keeps them at no load."""
    limits = seen.demand.limits
    return {mode: 0.0 if mode_failure(profile, limits) else profile.max_rps for mode, profile in seen.profiles.items()}


def bases(seen: ClassView) -> dict[Mode, Basis]:
    """Returns by mode what its rate rests on."""
    return {mode: Basis(profile.source, profile.measured_at_s) for mode, profile in seen.profiles.items()}


def sizes(
    rates_rps: Mapping[Mode, float],
    caps_rps: Mapping[int, float],
    most_tp: int,
    spawn_s: Mapping[Mode, float],
    bases: Mapping[Mode, Basis],
) -> dict[str, tuple[EngineSize, ...]]:
    """Returns by type of GPU the sizes of an engine, rising in what they carry: one that carries no more than a smaller
    one is left out.

    Args:
        rates_rps: Requests/s that an engine carries within the limits; 0 where it keeps them at no load.
        caps_rps: Profiled rates by TP degree that count in place of these.
        most_tp: Largest TP degree of an engine; where none so small carries any load, the smallest that does.
        spawn_s: Time that a start takes.
        bases: What the rates rest on.
    """
    found: dict[str, list[EngineSize]] = {}
    for mode in sorted(rates_rps, key=lambda mode: (mode.gpu, mode.tp)):
        rising, rps = found.setdefault(mode.gpu, []), caps_rps.get(mode.tp, rates_rps[mode])
        small_enough = mode.tp <= most_tp or not rising
        if small_enough and rps > (rising[-1].max_rps if rising else 0.0):
            basis = None if mode.tp in caps_rps else bases.get(mode)
            rising.append(EngineSize(mode, rps, spawn_s[mode], basis))
    return {gpu: tuple(own) for gpu, own in found.items() if own}


def profiled(option: PartitionOption, caps_rps: Mapping[int, float]) -> PartitionOption:
    """Returns the partition with profiled rates by TP degree in place of those of its profiles."""
    profiles = {
        key: replace(profile, max_rps=caps_rps.get(key[1].tp, profile.max_rps))
        for key, profile in option.profiles.items()
    }
    return replace(option, profiles=profiles)


def largest_tp(option: PartitionOption, most_tp: int) -> int:
    """Returns the largest degree of an engine: `most_tp`, or where none so small carries any load, the smallest that
    does.
    """
    able = {mode.tp for (_, mode), profile in option.profiles.items() if profile.max_rps > 0.0}
    return max(most_tp, min(able, default=most_tp))


def observation(
    now_s: float, engine: str, mode: Mode, shadow: Mode | None, came_rps: float | None, engines: int
) -> AutoscaleObservation:
    """Returns what one turn of the loop is given for one engine.

    Args:
        shadow: What warms up beside it.
        came_rps: Load of all engines that share it; None: unknown. Routers give each of them an equal part.
        engines: Number of these.
    """
    return AutoscaleObservation(now_s, engine, mode, shadow, None if came_rps is None else came_rps / engines)
