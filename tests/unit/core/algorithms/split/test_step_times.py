"""What a fit of step times says of the prompt tokens that a limit leaves room for."""

from __future__ import annotations

import random

import pytest

from core.algorithms.split.step_times import ENOUGH_STEPS, StepLoad, StepTimes, pairs


def truth_s(load: StepLoad, speed: float = 1.0) -> float:
    own = 0.008 + 60e-6 * load.prompt_tokens + 2e-9 * load.pairs + 150e-6 * load.decodes + 30e-9 * load.context_tokens
    return own / speed


def some_load(rng: random.Random) -> StepLoad:
    decodes = rng.randrange(0, 64)
    tokens = rng.choice([0, 0, 64, 256, 1024, 2048])
    return StepLoad(tokens, pairs(tokens, rng.randrange(0, 4096)), decodes, decodes * rng.randrange(100, 3000))


def taught(steps: int, noise: float = 0.0, speed: float = 1.0, times: StepTimes | None = None) -> StepTimes:
    rng = random.Random(steps)
    times = times or StepTimes()
    for _ in range(steps):
        load = some_load(rng)
        times.observe(load, truth_s(load, speed) * (1.0 + noise * rng.uniform(-1, 1)))
    return times


def test_budget_is_full_when_too_little_has_been_seen() -> None:
    times = taught(ENOUGH_STEPS - 1)
    assert not times.ready
    assert times.prompt_budget(10, 1000, 0, 0.001, 2048) == 2048
    only_decodes = StepTimes()
    for _ in range(200):
        only_decodes.observe(StepLoad(0, 0.0, 8, 800), 0.01)
    assert only_decodes.prompt_budget(10, 1000, 0, 0.001, 2048) == 2048


def test_fit_predicts_within_a_few_percent_when_times_are_noisy() -> None:
    times = taught(600, noise=0.1)
    rng = random.Random(7)
    for _ in range(50):
        load = some_load(rng)
        assert times.predict_s(load) == pytest.approx(truth_s(load), rel=0.1)


@pytest.mark.parametrize("limit_s", [0.02, 0.05, 0.1])
def test_step_keeps_the_limit_and_uses_it_when_the_budget_is_taken(limit_s: float) -> None:
    times = taught(600)
    budget = times.prompt_budget(16, 16_000, 512, limit_s, 100_000)
    full = StepLoad(budget, pairs(budget, 512), 16, 16_000)
    assert truth_s(full) <= limit_s
    assert truth_s(full) == pytest.approx(limit_s / 1.05, rel=0.05)


def test_budget_is_nothing_when_decodes_alone_take_longer_than_the_limit() -> None:
    assert taught(600).prompt_budget(60, 60_000, 0, 0.005, 2048) == 0


def test_budget_shrinks_when_the_clock_falls() -> None:
    times = taught(600)
    before = times.prompt_budget(16, 16_000, 0, 0.05, 2048)
    taught(300, speed=0.5, times=times)
    after = times.prompt_budget(16, 16_000, 0, 0.05, 2048)
    load = StepLoad(after, pairs(after, 0), 16, 16_000)
    assert after < before
    assert truth_s(load, 0.5) <= 0.05


def test_stall_teaches_little_but_another_engine_is_learned() -> None:
    times = taught(600)
    load = StepLoad(256, pairs(256, 0), 8, 800)
    before_s = times.predict_s(load)
    for _ in range(8):
        times.observe(StepLoad(0, 0.0, 8, 800), 5.0)
        taught(20, times=times)
    assert times.predict_s(load) == pytest.approx(before_s, rel=0.5)
    taught(600, speed=30.0, times=times)
    assert times.predict_s(load) == pytest.approx(truth_s(load, 30.0), rel=0.1)


def test_prompts_are_learned_when_none_so_long_has_come_before() -> None:
    times = StepTimes()
    for n in range(100):
        load = StepLoad(16 if n % 8 == 0 else 0, 128.0 if n % 8 == 0 else 0.0, 4, 400)
        times.observe(load, 0.002)
    for n in range(100):
        times.observe(
            StepLoad(1500, pairs(1500, 0), 4, 400) if n % 4 == 0 else StepLoad(0, 0.0, 4, 400),
            0.06 - 0.058 * (n % 4 > 0),
        )
    assert times.prompt_budget(4, 400, 0, 0.02, 2048) < 1000


def test_margin_follows_the_noise() -> None:
    assert taught(600).margin == pytest.approx(0.05)
    assert 0.15 < taught(600, noise=0.3).margin <= 0.5
