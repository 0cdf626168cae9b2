"""What is known of an engine: profiles and residuals, and that every form of the model follows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from core.engine import compiled_model, corrections, measured
from core.engine.corrections import BOUNDS, KNOTS, Correction, configuration, factor, knots_mhz
from core.engine.engine_model import EngineModel, closed_form, engine_model
from core.engine.engine_vector import iterations
from core.engine.iteration import Totals
from core.engine.load_profile import servable
from core.engine.profiled_engine import ProfiledEngine
from core.engine.profiles import Point, Profile
from core.engine.step_tables import step_table
from core.observations.clock_given import Sensitivity, latency_sensitivity
from core.observations.load_profiles import load_profile
from core.observations.mode_profile import Lengths, mode_profile
from core.predictors.engine_speed import engine_speed
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.kernel.worlds import cost_row
from core.types import Limits, Mode, Source

MODEL, GPU, TP, ENGINE = "Llama3-8B", "A100-80GB", 1, "vllm-v1"
KEY = configuration(MODEL, GPU, TP, ENGINE)
FLAT = (1.0,) * KNOTS
BATCH = Totals.plain(500, 12, 12_000.0)
SLOWER = 1.3


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    yield
    measured.publish(())
    measured.calibrate({})


def profile(slower: float = SLOWER, hungrier: float = 1.2, **changes: object) -> Profile:
    """What a profiler would measure on an engine that differs from the closed form by two factors."""
    points = []
    for mhz in (600.0, 1005.0, 1410.0):
        for prefill in (0, 512, 2048):
            for batch in (1, 8, 32, 128):
                for each in (200.0, 2000.0):
                    totals = Totals.plain(prefill, batch, batch * each)
                    one = closed_form(MODEL, GPU, TP, ENGINE).iteration_of(mhz, totals)
                    points.append(
                        Point(prefill, mhz, batch, batch * each, one.t_s * slower, min(one.watts * hungrier, 400.0))
                    )
    return replace(Profile(MODEL, GPU, TP, ENGINE, tuple(points)), **changes)  # type: ignore[arg-type]


def test_profile_answers_for_fine_tunes_of_its_base() -> None:
    assert measured.publish([profile()])
    assert not measured.publish([profile()])
    shape = engine_model(MODEL, GPU, TP, ENGINE).model_params.key
    assert isinstance(measured.engine_costs(shape, GPU, TP, ENGINE), ProfiledEngine)
    assert isinstance(measured.engine_costs(MODEL, GPU, 2, ENGINE), EngineModel)
    assert measured.publish(())
    assert isinstance(measured.engine_costs(MODEL, GPU, TP, ENGINE), EngineModel)


def test_every_form_of_the_closed_form_follows_the_profile() -> None:
    before = engine_model(MODEL, GPU, TP, ENGINE).iteration_of(1005.0, BATCH)
    measured.publish([profile()])
    model = engine_model(MODEL, GPU, TP, ENGINE)
    scalar = model.iteration_of(1005.0, BATCH)
    assert scalar.t_s / before.t_s == pytest.approx(SLOWER, rel=0.01)
    assert scalar.source is Source.CALIBRATED
    several = iterations(model, 1005.0, prefill_tokens=500, decodes=12, context_tokens=12_000.0)
    assert float(several.t_s) == pytest.approx(scalar.t_s, rel=1e-12)
    assert float(several.energy_j) == pytest.approx(scalar.energy_j, rel=1e-12)
    row = cost_row(InstanceSpec("i", MODEL, GPU, TP, 1410.0, ENGINE))
    t_s, energy_j, _ = compiled_model.iteration(row, 1005.0, 500.0, 0.0, BATCH.pairs, 1.0, 12.0, 12_000.0)
    assert (t_s, energy_j) == (pytest.approx(scalar.t_s, rel=1e-12), pytest.approx(scalar.energy_j, rel=1e-12))
    assert compiled_model.idle_watts(row, 1005.0) == pytest.approx(model.idle_watts(1005.0), rel=1e-12)
    assert compiled_model.KNOTS == KNOTS


def test_corrected_power_never_exceeds_the_tdp() -> None:
    measured.calibrate({KEY: Correction(FLAT, (2.0,) * KNOTS)})
    model = engine_model(MODEL, GPU, TP, ENGINE)
    heavy = Totals.plain(8192, 128, 128_000.0)
    scalar = model.iteration_of(1410.0, heavy)
    assert scalar.gpu_watts <= 400.0
    assert scalar.f_eff_mhz < 1410.0
    row = cost_row(InstanceSpec("i", MODEL, GPU, TP, 1410.0, ENGINE))
    t_s, energy_j, regime = compiled_model.iteration(row, 1410.0, 8192.0, 0.0, heavy.pairs, 1.0, 128.0, 128_000.0)
    assert regime == 2
    assert (t_s, energy_j) == (pytest.approx(scalar.t_s, rel=1e-9), pytest.approx(scalar.energy_j, rel=1e-9))


def test_plans_routers_clock_rules_and_throttle_follow_the_profile() -> None:
    lengths, mode, limits = Lengths(512.0, 128.0), Mode(GPU, TP), Limits(ttft_s=2.0, tpot_s=0.1)

    def known() -> tuple[float, float, float, float]:
        plan = mode_profile(MODEL, ENGINE, mode, lengths, limits)
        table = step_table(MODEL, GPU, TP, ENGINE, 1410.0)
        loads = load_profile(MODEL, ENGINE, mode, lengths)
        assert table is not None
        assert loads is not None
        speed = engine_speed(MODEL, GPU, TP, ENGINE, 100_000)
        return 1.0 / plan.max_rps, table.decode(8)[0], float(loads.tpot_s[-1, 1]), float(speed.seconds[-1, 7, 1])

    before = known()
    assert mode_profile(MODEL, ENGINE, mode, lengths, limits).source is Source.MODELLED
    measured.publish([profile()])
    ratios = np.array(known()) / np.array(before)
    assert ratios == pytest.approx(SLOWER, rel=0.1)
    assert mode_profile(MODEL, ENGINE, mode, lengths, limits).source is Source.INTERPOLATED
    longer = Lengths(30_000.0, 200.0)
    assert mode_profile(MODEL, ENGINE, mode, longer, Limits()).source is Source.MODELLED  # beyond what was measured


@pytest.fixture(scope="module")
def _trees_are_imported() -> None:
    """A second, once a process; the product imports them where somebody asks for trees."""
    import_module("sklearn.ensemble")


@pytest.mark.usefixtures("_trees_are_imported")
def test_trees_learn_from_measured_points() -> None:
    def speed() -> float:
        """Of 32 sequences at the top clock. The whole table takes a second."""
        table = engine_speed(MODEL, GPU, TP, ENGINE, 100_000, max_sequences=32, floor_mhz=1350.0, trees=True)
        return float(table.seconds[-1, 31, 1])

    by_model = speed()
    measured.publish([profile()])
    assert speed() / by_model == pytest.approx(SLOWER, rel=0.15)


def test_residual_heals_a_profile_that_has_become_wrong() -> None:
    measured.publish([profile(slower=1.0, hungrier=1.0)])
    wrong = measured.engine_costs(MODEL, GPU, TP, ENGINE).iteration_of(1410.0, BATCH)
    measured.calibrate({KEY: Correction((SLOWER,) * KNOTS, FLAT, at_s=1000.0)})
    healed = measured.engine_costs(MODEL, GPU, TP, ENGINE).iteration_of(1410.0, BATCH)
    assert healed.t_s == pytest.approx(wrong.t_s * SLOWER)
    assert healed.energy_j == pytest.approx(wrong.energy_j * SLOWER)
    assert healed.source is Source.CALIBRATED
    closed, bare = (
        known(MODEL, GPU, TP, ENGINE).iteration_of(1005.0, BATCH).t_s for known in (engine_model, closed_form)
    )
    assert closed / bare == pytest.approx(SLOWER, rel=0.01)
    kept = measured.uncalibrated(KEY).iteration_of(1410.0, BATCH)
    assert kept.t_s == pytest.approx(wrong.t_s)


def test_profile_outside_the_bounds_corrects_the_closed_form_up_to_them() -> None:
    measured.publish([profile(slower=5.0)])
    correction = corrections.correction_of(KEY)
    assert correction is not None
    assert set(correction.time) == {BOUNDS[1]}


def test_configuration_that_nobody_knows_is_left_aside() -> None:
    cpu = replace(profile(), gpu="CPU")
    assert measured.publish([cpu])
    assert corrections.correction_of(configuration(MODEL, "CPU", TP, ENGINE)) is None


@pytest.mark.parametrize(
    ("time", "words"), [((1.0,) * 7, "8 factors"), ((3.0,) * KNOTS, "from 0.4 to 2.5"), ((0.1,) * KNOTS, "from 0.4")]
)
def test_correction_is_refused_when_it_is_none(time: tuple[float, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Correction(time, FLAT)


def test_factor_lies_on_the_line_between_two_knots() -> None:
    gpu = closed_form(MODEL, GPU, TP, ENGINE).gpu_params
    knots = knots_mhz(gpu)
    factors = tuple(1.0 + n / 10.0 for n in range(KNOTS))
    for mhz, want in zip(knots, factors, strict=True):
        assert factor(factors, gpu, mhz) == pytest.approx(want)
    middle = (knots[2] + knots[3]) / 2.0
    assert factor(factors, gpu, middle) == pytest.approx(1.25)


def test_load_profile_of_a_profile_knows_its_source() -> None:
    measured.publish([profile()])
    found = servable(measured.engine_costs(MODEL, GPU, TP, ENGINE), 512.0, 128.0)
    assert found is not None
    assert found.source is Source.MEASURED


def sensitivity_of(*, flat: bool) -> Sensitivity:
    """`flat`: an engine that was measured to take as long at each clock."""
    own = profile()
    if flat:
        top = {(p.prefill_tokens, p.batch, p.context_tokens): p.t_s for p in own.points if p.mhz == 1410.0}
        points = (replace(p, t_s=top[p.prefill_tokens, p.batch, p.context_tokens]) for p in own.points)
        own = replace(own, points=tuple(points))
    measured.publish([own])
    return latency_sensitivity(measured.engine_costs(MODEL, GPU, TP, ENGINE), Lengths(500.0, 200.0), 8.0)


def test_sensitivity_is_what_a_profile_measured_under_its_clocks() -> None:
    flat = sensitivity_of(flat=True)
    assert flat.weights["tpot"] == pytest.approx(0.0, abs=1e-6)
    assert flat.sources["tpot"] is Source.INTERPOLATED
    assert flat.sources["ttft"] is Source.MODELLED  # a prompt by itself was not measured
    as_modelled = sensitivity_of(flat=False)
    measured.publish(())
    modelled = latency_sensitivity(closed_form(MODEL, GPU, TP, ENGINE), Lengths(500.0, 200.0), 8.0)
    assert set(modelled.sources.values()) == {Source.MODELLED}
    assert as_modelled.weights == pytest.approx(modelled.weights, abs=0.1)
