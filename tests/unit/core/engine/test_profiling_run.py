from __future__ import annotations

from typing import Any

import pytest

from core.engine.profiled_engine import ProfiledEngine
from core.engine.profiles import ProfileError
from core.engine.profiling_run import fold_run
from core.types import Source

KEY = ("Llama3-8B", "A100-80GB", 1, "vllm-v1")


def repeat(t_s: float | None = 0.02, **fields: Any) -> dict[str, Any]:
    """A row of a run; a field given as None is left out."""
    row = {"mhz": 1410, "prefill_tokens": 0, "batch": 8, "context_tokens": 4000, "t_s": t_s, "watts": 250} | fields
    return {name: value for name, value in row.items() if value is not None}


def test_point_is_the_median_with_its_spread_when_repeats_differ() -> None:
    run = fold_run([repeat(t, watts=w) for t, w in ((0.020, 250), (0.021, 240), (0.022, 260))], KEY)
    (point,) = run.profile.points
    assert (point.t_s, point.watts) == (0.021, 250.0)
    assert point.t_spread == pytest.approx(0.001 / 0.021)
    assert point.watts_spread == pytest.approx(10 / 250)
    assert (run.repeats, run.outliers) == (3, ())
    found = ProfiledEngine(run.profile).iteration(1410.0, (), 8, 4000.0)
    assert found.iteration.source is Source.MEASURED
    assert (found.margins.time, found.margins.power) == (pytest.approx(1 / 21), pytest.approx(0.04))


def test_spread_is_unknown_when_there_was_one_repeat() -> None:
    (point,) = fold_run([repeat()], KEY).profile.points
    assert (point.t_spread, point.watts_spread) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"start_s": 1_700_000_000.0, "end_s": 1_700_000_000.5, "energy_start_j": 3e9, "energy_end_j": 3e9 + 125.0},
        {"start_s": 7.0, "end_s": 7.5, "energy_j": 125.0},
        {"t_s": 0.5, "energy_j": 125.0},
        {"t_s": "0.5", "watts": "250", "iterations": "25"},
    ],
)
def test_time_and_power_are_of_one_iteration_when_a_row_spans_many(fields: dict[str, Any]) -> None:
    row = repeat(**({"t_s": None, "watts": None, "iterations": 25} | fields))
    (point,) = fold_run([row], KEY).profile.points
    assert (point.t_s, point.watts) == (pytest.approx(0.02), pytest.approx(250.0))


def test_outlier_is_reported_and_hardly_moves_the_median_when_one_repeat_stalled() -> None:
    rows = [repeat(t) for t in (0.0200, 0.0201, 0.0199, 0.0200, 0.0800)]
    run = fold_run(rows, KEY)
    assert run.profile.points[0].t_s == 0.02
    (outlier,) = run.outliers
    assert (outlier.row, outlier.field_name, outlier.value, outlier.median) == (5, "t_s", 0.08, 0.02)


def test_nothing_is_an_outlier_when_repeats_are_almost_equal() -> None:
    assert fold_run([repeat(t) for t in (0.02, 0.02, 0.02, 0.0201)], KEY).outliers == ()


def test_profile_is_timed_only_when_there_was_no_meter() -> None:
    run = fold_run([repeat(watts=None), repeat(watts=None, batch=16, context_tokens=8000)], KEY)
    assert not run.profile.metered
    found = ProfiledEngine(run.profile).iteration(1410.0, (), 8, 4000.0)
    assert (found.iteration.source, found.watts_source) == (Source.MEASURED, Source.MODELLED)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"t_s": "nan"}, "row 2: t_s: nan"),
        ({"t_s": None}, "row 2: t_s: missing, and so is start_s"),
        ({"start_s": 1}, "row 2: t_s: given beside"),
        ({"t_s": None, "start_s": 2}, "row 2: end_s: missing"),
        ({"t_s": None, "start_s": 2, "end_s": 2}, "row 2: end_s: not after"),
        ({"watts": None}, "row 2: watts: missing, though"),
        ({"watts": -1}, "row 2: watts: -1 is negative"),
        ({"energy_j": 4}, "row 2: energy_j: given beside watts"),
        ({"watts": None, "energy_j": 0}, "row 2: energy_j: 0 is not above 0"),
        ({"watts": None, "energy_end_j": 5}, "row 2: energy_start_j: missing"),
        ({"watts": None, "energy_start_j": 5, "energy_end_j": 4}, "row 2: energy_end_j: below"),
        ({"watts": None, "energy_start_j": 5, "energy_end_j": 5}, "row 2: energy_end_j: the counter did not move"),
        ({"iterations": 0}, "row 2: iterations: 0 is not above 0"),
        ({"iterations": 1.5}, "row 2: iterations: 1.5 is not a whole"),
        ({"mhz": 5000}, "row 2: mhz: 5000 is outside"),
        ({"batch": 0}, "row 2: context_tokens: contexts|row 2: batch: neither"),
        ({"gpu": "H100-SXM-80GB"}, "row 2: gpu: 'H100-SXM-80GB', but the run is of A100-80GB"),
        ({"tp": 2}, "row 2: tp: '2', but"),
        ({"mhz": 705, "batch": 9}, "batch: a hole"),
    ],
)
def test_run_is_refused_by_row_and_field_when_it_cannot_be_used(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        fold_run([repeat(), repeat(**fields)], KEY)


def test_run_is_refused_when_it_is_empty_or_of_nothing_known() -> None:
    with pytest.raises(ProfileError, match="no measurements"):
        fold_run([], KEY)
    with pytest.raises(ProfileError, match="unknown gpu"):
        fold_run([repeat()], ("Llama3-8B", "T4", 1, "vllm-v1"))
