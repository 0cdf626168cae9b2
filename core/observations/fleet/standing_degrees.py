"""The TP degrees that stand in a pool, which a policy with `freeze_tp` keeps: counts alone change."""

from __future__ import annotations

from collections.abc import Mapping

from core.types import Mode, ModeProfile


def with_standing_degrees(
    profiles: Mapping[Mode, ModeProfile], workers: Mapping[Mode, int]
) -> Mapping[Mode, ModeProfile]:
    """Returns the profiles of the worker modes with a TP degree that some worker has; all where no worker stands."""
    degrees = {mode.tp for mode, count in workers.items() if count}
    return {mode: profile for mode, profile in profiles.items() if mode.tp in degrees} if degrees else profiles
