"""Makes, of a policy's knobs and tuning, what is decided on for each request and batch, for every world.

Gateways start with this module: it imports nothing that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from core.controllers.request.emergency import EmergencyConfig, Rung
from core.policy.tuning import LadderTuning
from core.types import Limits

T = TypeVar("T")

ITL_S = 0.1  # DynaServe's objective for the time between tokens (section 6.1)
TBT_S = 0.2  # throttLL'eM's limit of its mean, that of a reader (V-A)


@lru_cache(maxsize=64)
def emergency_config(up_to: str, tuning: LadderTuning) -> EmergencyConfig:
    """Returns the configuration of DynamoLLM's ladder. `up_to`: its last rung."""
    return EmergencyConfig(
        period_s=tuning.period_s,
        patience_s=tuning.patience_s,
        calm_s=tuning.calm_s,
        squash_after_s=tuning.squash_after_s,
        most_moves=tuning.most_moves,
        highest=Rung[up_to.upper()],
    )


def itl_limit_s(limit_s: float | None, margin: float, limits: Iterable[Limits]) -> float:
    """Returns the gap between tokens, in s, that engines compose batches for; 0: any.

    Args:
        limit_s: The knob. None: the strictest of the classes, or else `ITL_S`.
        margin: Share of the limit that batches leave free.
        limits: Of the classes.
    """
    return (_strictest_tpot_s(limits, ITL_S) if limit_s is None else limit_s) * (1.0 - margin)


def tbt_limit_s(limit_s: float | None, limits: Iterable[Limits]) -> float:
    """Returns the limit, in s, on the mean time between tokens that projections keep.

    Args:
        limit_s: Of the tuning. None: the strictest of those who share a batch, or else `TBT_S`.
        limits: Of the classes, or of the requests, that share a batch.
    """
    return limit_s or _strictest_tpot_s(limits, TBT_S)


def first_parts(instances: int, share: float) -> int:
    """Returns how many of at least two instances do first parts of split requests; at least one is left for second
    parts."""
    return min(instances - 1, max(1, round(share * instances)))


def groups(instances: Sequence[T], decoding: Callable[[T], int], share: float) -> tuple[Sequence[T], Sequence[T]]:
    """Returns the instances that do first parts of split requests, which generate least, and those that do second ones.

    Among equals, and for a single instance, their order says; one alone does both.
    """
    if len(instances) < 2:
        return instances, instances
    by_load = sorted(instances, key=decoding)
    count = first_parts(len(by_load), share)
    return by_load[:count], by_load[count:]


def _strictest_tpot_s(limits: Iterable[Limits], otherwise_s: float) -> float:
    return min((own.tpot_s for own in limits if own.tpot_s is not None), default=otherwise_s)
