"""How many instances do prompts alone: as many as let both parts keep their limits at the same rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.algorithms.split.request_mix import RequestMix
from core.algorithms.split.sustained_rates import Steady, rate_of
from core.engine.engine_model import engine_model
from core.observations.request.phase_share import LATE, busy_share, phase_rates
from core.observations.request.split_given import engine_passes
from core.ports import EngineLimits
from core.types import Limits

MODEL = engine_model("Llama3-70B", "H100-SXM-80GB", 4, "vllm-v1")
LIMITS = Limits(ttft_s=0.6, tpot_s=0.08)


def share(prompt: float, output: float, limits: Limits = LIMITS) -> float:
    return phase_rates(MODEL, EngineLimits(), RequestMix(prompt, output, 1), limits).first_share


def test_both_parts_sustain_the_same_rate_without_a_limit_on_ttft():
    costs = engine_passes(MODEL, 2048, 256, 0.0).steady(MODEL.gpu_params.f_max).costs
    first_rps = rate_of(Steady(costs, 0.0), (1500, 0, 0))
    second_rps = rate_of(Steady(costs, 0.08), (0, 299, 1500))
    found = share(1500, 300, Limits(tpot_s=0.08))
    assert found * first_rps == pytest.approx((1.0 - found) * second_rps, rel=0.02)


def test_instances_apart_carry_what_the_slower_part_sustains():
    found = phase_rates(MODEL, EngineLimits(), RequestMix(1500.0, 300.0, 1), LIMITS)
    each_rps = found.apart * found.whole_rps
    assert each_rps == pytest.approx(found.first_share * found.prompts_rps)
    assert each_rps == pytest.approx((1.0 - found.first_share) * found.answers_rps)


def test_longer_prompts_and_shorter_limits_on_ttft_take_more_and_longer_answers_fewer():
    usual = share(1000, 200)
    assert share(3000, 200) > usual > share(1000, 600)
    assert share(1000, 200, Limits(ttft_s=0.2, tpot_s=0.08)) > usual
    assert share(1000, 200, Limits(ttft_s=0.6, tpot_s=0.02)) < usual
    assert 0.0 < usual < 1.0


@pytest.mark.parametrize("waits", [1.0, 4.0, 20.0])
def test_few_jobs_wait_for_too_long_at_the_busy_share(waits: float):
    busy = busy_share(waits)
    rng = np.random.default_rng(3)
    gaps, wait, late = rng.exponential(1.0 / busy, 40_000), 0.0, 0
    for gap in gaps.tolist():
        wait = max(0.0, wait + 1.0 - gap)
        late += wait > waits
    assert late / gaps.size < 2.0 * LATE
    assert busy_share(waits + 1.0) > busy
    assert busy_share(-1.0) == pytest.approx(LATE, rel=0.05)
    assert math.isclose(busy_share(1e6), 1.0, rel_tol=1e-4)
