"""Makes the configuration of DynaServe's split of a policy's knobs and tuning, for every world."""

from __future__ import annotations

from functools import lru_cache

from core.algorithms.split.split_point import SplitConfig, SplitPolicy

SPLITS = {"any": SplitPolicy.DYNAMIC, "prompt": SplitPolicy.DISAGGREGATED, "none": SplitPolicy.COLOCATED}


@lru_cache(maxsize=64)
def split_config(split: str, max_probes: int, margin_tokens: int, tolerance: float) -> SplitConfig:
    """Returns how requests are cut. `split`: the knob; the others are those of `SplitTuning`."""
    return SplitConfig(SPLITS[split], max_probes, margin_tokens, tolerance)
