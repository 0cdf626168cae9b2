"""The clock rules of FREESH and mu-Serve over columns of GPUs: the oracle of the product's, one clock at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.algorithms.clock.miad import MiadConfig
from core.algorithms.clock.slack_miad import SlackConfig

Floats = NDArray[np.float64]


def miad_clocks_mhz(
    mhz: Floats, congested: NDArray[np.bool_], min_mhz: Floats | float, max_mhz: Floats | float, config: MiadConfig
) -> Floats:
    """FREESH eq. 5; arrays of one value for each GPU."""
    up, down = np.minimum(config.increase * mhz, max_mhz), np.maximum(mhz - config.decrease_mhz, min_mhz)
    return np.where(congested, up, down)


def slack_clocks_mhz(
    mhz: Floats,
    device: NDArray[np.int64],
    target_s: Floats,
    latency_s: Floats,
    weight: Floats,
    busy: NDArray[np.bool_],
    min_mhz: Floats | float,
    max_mhz: Floats | float,
    config: SlackConfig,
) -> Floats:
    """mu-Serve's Algorithm 3.

    Args:
        mhz: Clock of each of G devices.
        device: For each of P partitions, the index of its device.
        target_s, latency_s, weight, busy: Of each partition; a latency of NaN is unknown.
    """
    left = (target_s - latency_s) / target_s
    with np.errstate(invalid="ignore"):
        up = left < config.reserve
        down = weight * latency_s * config.step_mhz / mhz[device] / target_s < left - config.reserve
    allowed = down | (np.isnan(latency_s) & ~busy)
    raised = np.bincount(device[up], minlength=mhz.size) > 0
    held = np.bincount(device[~allowed], minlength=mhz.size) > 0
    lowered = np.where(held, mhz, np.maximum(min_mhz, mhz - config.step_mhz))
    found: Floats = np.where(raised, np.minimum(max_mhz, mhz * config.increase), lowered)
    return found
