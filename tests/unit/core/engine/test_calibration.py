from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from core.engine import measured
from core.engine.calibration import MEMORY_S, Calibration, Ratio, Span, Window, ratio
from core.engine.corrections import BOUNDS, KNOTS, Correction, configuration, factor
from core.engine.engine_model import EngineModel, closed_form
from core.engine.iteration import Totals
from core.types import Source
from tests.representatives import first

KEY = configuration("Llama3-8B", "A100-80GB", 1, "vllm-v1")
MODEL = closed_form(*KEY)
GPU = MODEL.gpu_params


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    yield
    measured.calibrate({})


def window(
    at_s: float, mhz: float = 1005.0, slower: float = 1.0, hungrier: float = 1.0, prompts: float = 0.5
) -> Window:
    return Window((span(at_s, mhz, slower, hungrier, prompts),))


def span(
    at_s: float,
    mhz: float = 1005.0,
    slower: float = 1.0,
    hungrier: float = 1.0,
    prompts_a_second: float = 0.5,
    seconds: float = 10.0,
) -> Span:
    """What an engine reports that is slower and hungrier than the closed form, at 16 sequences of 800 tokens."""
    running, context, each = 16.0, 16.0 * 800.0, 600.0
    decode = MODEL.iteration_of(mhz, Totals(decodes=running, context_tokens=context))
    beside = MODEL.iteration_of(mhz, Totals(each, 0.0, each**2 / 2.0, 1.0, running, context))
    prompts = prompts_a_second * seconds
    others_s = seconds - prompts * beside.t_s * slower
    iterations = prompts + others_s / (decode.t_s * slower)
    joules = hungrier * slower * (prompts * beside.energy_j + (iterations - prompts) * decode.energy_j)
    return Span(at_s, seconds, mhz, running, iterations * running, prompts * each, prompts, context, joules)


def calibrated(windows: list[Window], before: Calibration | None = None) -> Calibration:
    found = before or Calibration()
    for one in windows:
        seen = ratio(one, MODEL)
        assert seen is not None
        found = found.add(one, seen, GPU)
    return found


@pytest.mark.parametrize("prompts", [0.0, 0.5, 5.0])
@pytest.mark.parametrize(("slower", "hungrier"), [(1.0, 1.0), (1.3, 1.0), (0.8, 1.2)])
def test_ratio_is_what_the_engine_differs_by(slower: float, hungrier: float, prompts: float) -> None:
    found = ratio(window(0.0, 1005.0, slower, hungrier, prompts), MODEL)
    assert found is not None
    assert found.power is not None
    assert found.time == pytest.approx(slower, rel=0.01)
    assert found.power == pytest.approx(hungrier, rel=0.01)


def served(chunk_tokens: int, slower: float, seconds: int = 200) -> Window:
    """What an engine reports each second that takes in so much of a prompt at once, iteration by iteration.

    Sixteen sequences run, of 200 to 1,800 prompt tokens and 100 output tokens in the mean; where one ends, one begins.
    """
    draws, mhz = np.random.default_rng(1), 1005.0
    prompt = draws.integers(200, 1_800, 16)
    answer, left = draws.geometric(0.01, 16), prompt.copy()  # `left`: of the prompt
    made = np.zeros(16)
    now_s = tokens = taken = begun = joules = 0.0
    reports = []
    for second in range(seconds + 1):
        while now_s < second:
            new = np.minimum(left, chunk_tokens or 10_000)
            pairs, decodes = float(new @ (prompt - left + new / 2.0)), left == 0
            context = float((prompt + made)[decodes].sum())
            work = Totals(float(new.sum()), 0.0, pairs, float((new > 0).sum()), float(decodes.sum()), context)
            iteration = MODEL.iteration_of(mhz, work)
            now_s += slower * iteration.t_s
            joules += slower * iteration.energy_j
            taken += float(new.sum())
            left -= new
            tokens += float((left == 0).sum())
            made[left == 0] += 1.0
            for n in np.flatnonzero(made >= answer):
                begun += 1.0
                prompt[n], answer[n], made[n] = draws.integers(200, 1_800), draws.geometric(0.01), 0.0
                left[n] = prompt[n]
        reports.append((tokens, taken, begun, float((prompt - left + made).sum()), joules))
    spans = []
    for before, after in pairwise(reports[20:]):  # once the sequences are out of step
        made_tokens, prompt_tokens, prompts, _, energy_j = np.subtract(after, before).tolist()
        spans.append(Span(0.0, 1.0, mhz, 16.0, made_tokens, prompt_tokens, prompts, after[3], energy_j))
    return Window(tuple(spans))


@pytest.mark.parametrize("slower", [1.0, 1.3])
@pytest.mark.parametrize("chunk_tokens", first(2, [0, 256, 512], "between the two"))
def test_ratio_is_the_same_when_prompts_are_taken_in_by_chunks(chunk_tokens: int, slower: float) -> None:
    """Chunks cost less than the whole prompt at once: they come along while weights are read."""
    one = served(chunk_tokens, slower)
    found = ratio(one, MODEL, chunk_tokens)
    assert found is not None
    assert found.time == pytest.approx(slower, rel=0.01)
    assert found.power == pytest.approx(1.0, rel=0.01)
    if chunk_tokens:
        unaware = ratio(one, MODEL)
        assert unaware is not None
        assert abs(unaware.time / slower - 1.0) > 0.02


def test_window_of_many_clocks_says_the_same_as_one_of_each() -> None:
    clocks = [1410.0 - 100.0 * n for n in range(10)]
    many = Window(tuple(span(1.0 * n, mhz, 1.3, 1.2, seconds=1.0) for n, mhz in enumerate(clocks)))
    found = ratio(many, MODEL)
    assert found is not None
    assert found.time == pytest.approx(1.3, rel=0.01)
    assert found.power == pytest.approx(1.2, rel=0.01)
    kept = Calibration().add(many, found, GPU)
    assert kept.time.windows == pytest.approx(1.0)
    assert sum(weight > 0.0 for weight in kept.time.weight) == 7  # of eight: none was at the lowest clocks


def test_reports_that_come_early_or_late_cancel_out() -> None:
    """A second's tokens are counted in the next one."""
    spans = [span(1.0 * n, slower=1.3, seconds=1.0) for n in range(10)]
    late = [
        replace(one, generated_tokens=one.generated_tokens * (1.0 + 0.5 * (-1) ** n)) for n, one in enumerate(spans)
    ]
    found = ratio(Window(tuple(late)), MODEL)
    assert found is not None
    assert found.time == pytest.approx(1.3, rel=0.03)


@pytest.mark.parametrize(
    "changes",
    [{"generated_tokens": 0.0}, {"running": 0.4}, {"seconds": 0.0}, {"generated_tokens": 1.0}, {"joules": 1e9}],
)
def test_window_says_nothing_when_it_cannot_be_believed(changes: dict[str, float]) -> None:
    assert ratio(Window((replace(span(0.0), **changes),)), MODEL) is None


def test_power_stays_unknown_without_meters() -> None:
    found = ratio(Window((span(0.0, slower=1.3), replace(span(10.0, slower=1.3), joules=None))), MODEL)
    assert found is not None
    assert found.time == pytest.approx(1.3, rel=0.01)
    assert found.power is None
    calibration = Calibration().add(window(0.0), found, GPU)
    assert calibration.drift[1] == 0.0


def test_nothing_is_corrected_by_few_windows() -> None:
    few = calibrated([window(10.0 * n, slower=1.3) for n in range(4)])
    assert few.residual() is None
    assert not few.drifted


def test_small_differences_are_left_alone() -> None:
    found = calibrated([window(10.0 * n, slower=1.04, hungrier=0.97) for n in range(60)])
    assert found.residual() is None
    assert calibrated([window(10.0 * n, slower=1.07) for n in range(60)]).residual() is not None


@pytest.mark.parametrize(("off", "found"), [(0.06, False), (0.25, True)])
def test_scatter_of_windows_is_not_taken_for_a_difference(off: float, found: bool) -> None:
    """Windows that are 12 % off either way say little about six in a hundred, and enough about a quarter."""
    calibration = Calibration()
    for n in range(24):
        calibration = calibration.add(window(10.0 * n), Ratio((1.0 + off) * 1.12 ** (-1) ** n, 1.0), GPU)
        assert off > 0.1 or calibration.residual() is None
    assert (calibration.residual() is not None) is found
    assert calibration.drifted is found


def test_engines_that_are_as_predicted_are_left_alone() -> None:
    """Thirty of them for half an hour, two sequences each: single windows are 9 % off."""
    few = replace(span(0.0), running=2.0)
    rng = np.random.default_rng(5)
    for _ in range(30):
        calibration = Calibration()
        for n, off in enumerate(rng.normal(0.0, 0.09, 180)):
            one = Window((replace(few, at_s=10.0 * n),))
            calibration = calibration.add(one, Ratio(math.exp(off), None), GPU)
            assert calibration.residual() is None


def test_window_counts_less_when_few_sequences_ran() -> None:
    few = Window((replace(span(0.0), running=1.0),))
    kept = Calibration().add(few, Ratio(1.3, 1.0), GPU)
    assert kept.time.windows == pytest.approx(0.25)


def test_engine_that_changes_is_followed_within_ten_minutes() -> None:
    before = calibrated([window(10.0 * n) for n in range(360)])
    assert before.residual() is None
    assert not before.drifted
    after = calibrated([window(3600.0 + 10.0 * n, slower=1.3, hungrier=1.2) for n in range(60)], before)
    residual = after.residual()
    assert residual is not None
    assert after.drifted
    assert (residual.source, residual.at_s) == (Source.CALIBRATED, 4190.0)
    assert factor(residual.time, GPU, 1005.0) == pytest.approx(1.3, rel=0.01)
    assert factor(residual.power, GPU, 1005.0) == pytest.approx(1.2, rel=0.01)
    measured.calibrate({KEY: residual})
    healed = measured.engine_costs(*KEY)
    assert isinstance(healed, EngineModel)
    again = ratio(window(4200.0, slower=1.3, hungrier=1.2), healed)
    assert again is not None
    assert again.time == pytest.approx(1.0, abs=0.03)
    assert again.power == pytest.approx(1.0, abs=0.03)


def test_clocks_differ_when_they_were_measured_to_differ() -> None:
    windows = [window(10.0 * n, *((1410.0, 1.0) if n % 2 else (600.0, 1.4))) for n in range(60)]
    residual = calibrated(windows).residual()
    assert residual is not None
    assert factor(residual.time, GPU, 1410.0) == pytest.approx(1.0, abs=0.08)
    assert factor(residual.time, GPU, 600.0) == pytest.approx(1.4, abs=0.08)
    assert 1.0 < factor(residual.time, GPU, 300.0) < 1.4


def test_correction_in_force_stands_while_it_is_near_enough() -> None:
    first = calibrated([window(10.0 * n, slower=1.3) for n in range(60)])
    in_force = first.residual()
    later = calibrated([window(600.0 + 10.0 * n, slower=1.305) for n in range(6)], first)
    assert later.residual(in_force) is in_force
    changed = calibrated([window(700.0 + 10.0 * n, slower=1.1) for n in range(60)], later)
    assert changed.residual(in_force) is not in_force


def test_residual_is_bounded() -> None:
    found = Calibration()
    for n in range(20):
        found = found.add(window(10.0 * n), Ratio(4.0, 0.25), GPU)
    residual = found.residual()
    assert residual is not None
    assert set(residual.time) == {BOUNDS[1]}
    assert set(residual.power) == {BOUNDS[0]}


def test_old_windows_fade() -> None:
    old = calibrated([window(10.0 * n, slower=2.0) for n in range(6)])
    young = old.add(window(50.0 + MEMORY_S), Ratio(1.0, 1.0), GPU)
    assert young.time.windows == pytest.approx(old.time.windows / 2.0 + 1.0)


def test_power_is_left_alone_where_only_time_is_known() -> None:
    found = Calibration()
    for n in range(20):
        found = found.add(window(10.0 * n), Ratio(1.5, None), GPU)
    residual = found.residual(Correction((1.0,) * KNOTS, (1.0,) * KNOTS))
    assert residual is not None
    assert residual.power == (1.0,) * KNOTS


def test_state_is_read_back_as_it_was_written() -> None:
    found = calibrated([window(10.0 * n, slower=1.3) for n in range(7)])
    assert Calibration.of_state(json.loads(json.dumps(found.state()))) == found
    assert Calibration.of_state({}) == Calibration()
