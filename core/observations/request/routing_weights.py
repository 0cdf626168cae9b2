"""Weighs instances for routers, of gateways and of simulated pools alike, by what they can do of their class's work.

Routing by turns gives an instance turns in proportion to its weight; routing by load compares requests over weights.
Instances without a weight weigh 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from core.engine.load_profile import LoadProfile
from core.types import Mode, ModeProfile

LEAST = 1e-6  # every instance gets some work
LEAST_RPS = 1e-3  # under which a planned batch is taken


def by_capacity(profiles: Mapping[Mode, ModeProfile]) -> dict[Mode, float]:
    """Returns by mode the largest rate, in requests/s, that an instance carries of the class within its limits."""
    return {mode: max(LEAST, profile.max_rps) for mode, profile in profiles.items()}


def by_batch(profile: LoadProfile | None, mhz: float | None, load_rps: float, output_tokens: float) -> float:
    """Returns the mean batch that a plan gives an instance: its load by the time that a request takes there.

    Args:
        profile: Of the instance; None or out of its range: a request is taken to last 1 s.
        mhz: The planned clock. None: clocks go by deadlines, so that any of them makes answers last as long as limits
            let them; what tells instances apart is their largest batch, and the time counts that a request takes in it.
        load_rps: The planned load, in requests/s.
        output_tokens: Mean tokens of an answer.
    """
    service_s = 1.0
    if profile is not None:
        at_rps = profile.top().max_rps if mhz is None else min(load_rps, profile.max_rps)
        ttft_s, tpot_s, _ = profile.at(np.array([at_rps]))
        row = -1 if mhz is None else int(np.argmin(np.abs(profile.mhz - mhz)))
        found_s = float(ttft_s[row, 0] + output_tokens * tpot_s[row, 0])
        service_s = found_s if math.isfinite(found_s) else 1.0
    return max(LEAST, max(LEAST_RPS, load_rps) * service_s)
