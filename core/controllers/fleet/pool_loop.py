"""What the scale and the shard epoch share: both decide pool by pool, for the same need, and tell it alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.controllers.fleet.explain import gravest
from core.types import Mode, PoolDecision, PoolKey, Rationale, Reason


@dataclass(frozen=True, slots=True)
class PoolLoopConfig:
    """The epoch's knobs. A pool with a budget keeps capacity for `floor_rps` also without traffic."""

    alpha: float = 1.1
    floor_rps: float = 0.05
    time_limit_s: float = 5.0
    gap: float = 1e-4

    def __post_init__(self) -> None:
        if self.alpha < 1.0:
            raise ValueError(f"alpha is head-room over the demand and at least 1, not {self.alpha}")


@dataclass(frozen=True, slots=True)
class PoolLoopState:
    """The workers wanted at the end of the last epoch."""

    workers: Mapping[PoolKey, Mapping[Mode, int]] = field(default_factory=dict)


def pool_name(key: PoolKey) -> str:
    """Returns a pool's name as rationales write it."""
    return f"{key.request_class} at {key.site}"


def summarise(decisions: Sequence[PoolDecision], nothing: str) -> Rationale:
    """Merges the rationales of all pools: the gravest reason, and the sentences of those that changed or could not."""
    reported = [d for d in decisions if d.changed or d.rationale.reason is Reason.INFEASIBLE]
    return Rationale(
        gravest(d.rationale.reason for d in decisions),
        " ".join(d.rationale.summary for d in reported) or nothing,
        {pool_name(d.pool): dict(d.rationale.inputs) for d in decisions},
        tuple(alternative for d in reported for alternative in d.rationale.alternatives),
    )
