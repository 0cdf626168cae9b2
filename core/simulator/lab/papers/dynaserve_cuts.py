"""Bounds what cutting requests can gain at all, of DynaServe's shapes on its pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.algorithms.split.split_point import pass_costs
from core.algorithms.split.step_times import LEAST_MARGIN
from core.algorithms.split.sustained_rates import Steady, rate_of
from core.algorithms.split.virtual_passes import parts
from core.engine.engine_model import engine_model

ITL_LIMIT_S = 0.1
_TOKENS = 2048  # of an iteration, at most
_CUTS = 64  # of each shape that are tried


def most_of_cuts(shapes: Sequence[tuple[int, int]]) -> float:
    """Returns what the best cut sustains over what whole requests on both instances do, of all shapes.

    Args:
        shapes: Prompt and output tokens of each.
    """
    worker = engine_model("Qwen2.5-14B", "A100-80GB", 1, "vllm-v1")
    costs = pass_costs(worker, worker.gpu_params.f_max, _TOKENS)
    alike = Steady(costs.values, ITL_LIMIT_S, margin=LEAST_MARGIN)
    found = []
    for prompt, output in shapes:
        total = prompt + output
        whole_rps = 2.0 * rate_of(alike, (prompt, output - 1, 0))
        for cut in np.linspace(1, total - 1, _CUTS).astype(int).tolist():
            one, two = parts(prompt, total, cut)
            found.append(min(rate_of(alike, one), rate_of(alike, two)) / whole_rps)
    return max(found)
