"""Shares a device out among its models: what each needs, and of the rest parts by weight, within floor and ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.algorithms.fleet.gpu_parts import Share


@dataclass(frozen=True, slots=True)
class Claim:
    """A model on a device. `use`: the part that its load keeps busy, above 1 where one device is too little.

    `floor`, `ceiling`: of its part, in 0..1. `weight`: of its part beside others'.
    """

    use: float
    weight: float = 1.0
    floor: float = 0.0
    ceiling: float = 1.0


def claim(use: float, share: Share, gpus: int) -> Claim:
    """Returns the claim on each of the GPUs that all replicas of a service have part of: floor and ceiling are theirs
    together."""
    ceiling = 1.0 if share.max_gpus is None else min(1.0, share.max_gpus / gpus)
    return Claim(use, share.weight, min(ceiling, share.min_gpus / gpus), ceiling)


def parts(claims: Sequence[Claim]) -> list[float]:
    """Returns each model's part of one device, together at most 1: less where ceilings leave some of it to nobody.

    Where the device has more than all need, each has what it needs and a part of the rest by weight; where it has less,
    parts go by need and weight, and none is above its need. Floors that are more than the device together hold in
    proportion.
    """
    promised = sum(own.floor for own in claims)
    floors = [own.floor / max(1.0, promised) for own in claims]
    wants = [max(own.use, own.floor) for own in claims]
    needs = [min(own.ceiling, want) for own, want in zip(claims, wants, strict=True)]
    short = sum(needs) >= 1.0
    most = needs if short else [own.ceiling for own in claims]
    base = [0.0 if short else need for need in needs]
    grow = [own.weight * want if short else own.weight for own, want in zip(claims, wants, strict=True)]
    fixed: dict[int, float] = {}
    while len(fixed) < len(claims):
        free = [k for k in range(len(claims)) if k not in fixed]
        left = 1.0 - sum(fixed.values()) - sum(base[k] for k in free)
        total = sum(grow[k] for k in free)
        given = {k: base[k] + left * grow[k] / total for k in free}
        within = {k: min(most[k], max(floors[k], given[k])) for k in free}
        fixed |= _settled(given, within)
    return [fixed[k] for k in range(len(claims))]


def _settled(given: Mapping[int, float], within: Mapping[int, float]) -> dict[int, float]:
    """Returns the parts that stay: all where no bound changes their sum, else those that the stronger bounds hold."""
    more = sum(within[k] - given[k] for k in given)
    if more > 0.0:
        return {k: within[k] for k in given if within[k] > given[k]}
    if more < 0.0:
        return {k: within[k] for k in given if within[k] < given[k]}
    return dict(within)
