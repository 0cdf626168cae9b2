"""Load profiles with made-up levels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.engine.load_profile import LoadProfile
from core.types import Source


def measured(mhz: Sequence[float], levels: Sequence[Sequence[tuple[float, float, float, float]]]) -> LoadProfile:
    """For each clock its levels (rps, TTFT, TPOT, watts), the first one idle, all of equal number."""
    rps, ttft_s, tpot_s, watts = np.moveaxis(np.array(levels, dtype=np.float64), 2, 0)
    return LoadProfile(np.array(mhz, dtype=np.float64), rps, ttft_s, tpot_s, watts, Source.MEASURED)
