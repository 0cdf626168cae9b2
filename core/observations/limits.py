"""The limits that plans, gateways and clocks keep for a class, and those of a pool that several classes come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from core.policy.dynamo_classes import strictest
from core.types import Limits

PRESENT = 0.01  # a class is present in a pool that takes this part of it


def class_limits(slo: Limits, own: Limits, by_class: bool) -> Limits:
    """Returns the limits that plans, gateways and clocks keep for a class.

    Args:
        slo: The service's objectives.
        own: The class's thresholds. Its E2E threshold is left out, since E2E goes with a request's length.
        by_class: Take the stricter of both; else the service's alone.
    """
    return replace(strictest([slo, own]), e2e_s=slo.e2e_s) if by_class else slo


def present_limits(classes: Sequence[tuple[str, Limits]], shares: Mapping[str, float]) -> dict[str, Limits]:
    """Returns for each class the strictest TTFT and TPOT limits of the classes that come to its pools.

    Args:
        classes: Names and limits, smallest class first.
        shares: What each class's pools hand on to the next larger class, 0 to 1; classes left out hand on nothing.
    """
    found: dict[str, Limits] = {}
    arriving: list[tuple[float, Limits]] = []  # parts of the classes that come to the present one's pools
    for name, limits in classes:
        share = shares.get(name, 0.0)
        arriving = [*arriving, (1.0, limits)]
        present = [own for part, own in arriving if part * (1.0 - share) >= PRESENT]
        found[name] = strictest(present or [limits])
        arriving = [(part * share, own) for part, own in arriving if part * share > 0.0]
    return found
