from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engine.engine_model import engine_model
from core.engine.profiled_engine import ProfiledEngine
from core.engine.profiles import Profile, ProfileError, load_profiles, profiles_of, rows_of_json, write_profile
from core.types import Limits, Source

MODEL = engine_model("Llama3-8B", "A100-80GB", 1)
CLOCKS, BATCHES = (705.0, 1005.0, 1410.0), (1, 8, 16, 32, 64)
CONTEXTS, PREFILLS = (200, 2000), (0, 256, 512, 1024)
FIELDS = ("model", "gpu", "tp", "mhz", "engine", "prefill_tokens", "batch", "context_tokens", "t_s", "watts")


def row(mhz: float, prefill: int, batch: int, each: int, slower: float = 1.2, hotter: float = 0.9) -> dict[str, Any]:
    """As a node that is `slower` and `hotter` than the closed form would measure it."""
    found = MODEL.iteration(mhz, [(prefill, 0)] if prefill else (), batch, batch * each)
    values = ("Llama3-8B", "A100-80GB", 1, mhz, "vllm-v1", prefill, batch, batch * each)
    return dict(zip(FIELDS, (*values, slower * found.t_s, hotter * found.watts), strict=True))


def rows(**factors: float) -> list[dict[str, Any]]:
    return [row(f, p, b, each, **factors) for p in PREFILLS for f in CLOCKS for b in BATCHES for each in CONTEXTS]


def only(profiles: tuple[Profile, ...]) -> Profile:
    (found,) = profiles
    return found


@pytest.fixture(scope="module")
def engine() -> ProfiledEngine:
    return ProfiledEngine(only(profiles_of(rows())))


def test_prediction_is_the_measurement_when_it_was_measured(engine: ProfiledEngine) -> None:
    for point in engine.profile.points:
        prefills = [(point.prefill_tokens, 0)] if point.prefill_tokens else []
        found = engine.iteration(point.mhz, prefills, point.batch, point.context_tokens)
        assert found.iteration.source is Source.MEASURED
        assert found.iteration.t_s == pytest.approx(point.t_s)
        assert found.iteration.watts == pytest.approx(point.watts)
        assert found.iteration.f_eff_mhz == point.mhz
        assert found.margins.time == pytest.approx(0.0, abs=1e-9)


def test_prediction_is_close_when_a_batch_and_a_clock_lie_between_measured_ones(engine: ProfiledEngine) -> None:
    found = engine.iteration(1200.0, [(500, 0)], 20, 20 * 700.0)
    truth = MODEL.iteration(1200.0, [(500, 0)], 20, 20 * 700.0)
    assert found.iteration.source is Source.INTERPOLATED
    assert found.iteration.t_s == pytest.approx(1.2 * truth.t_s, rel=0.1)
    assert found.iteration.watts == pytest.approx(0.9 * truth.watts, rel=0.1)
    assert found.margins.time >= 0.03
    assert found.iteration.energy_j == pytest.approx(found.iteration.watts * found.iteration.t_s)


@pytest.mark.parametrize(
    ("mhz", "prefills", "decodes", "each"),
    [
        (300.0, [], 8, 500.0),  # a clock below
        (1005.0, [], 200, 500.0),  # a batch above
        (1005.0, [], 8, 9000.0),  # contexts above
        (1005.0, [(4096, 0)], 8, 500.0),  # a prefill above
        (1005.0, [(100, 0)], 8, 500.0),  # between no prefill and the smallest
        (1005.0, [(512, 512)], 8, 500.0),  # cached tokens
        (1005.0, [(512, 0), (512, 0)], 8, 500.0),  # two prefills
        (1005.0, [(512, 0)], 0, 0.0),  # a prefill alone
    ],
)
def test_closed_form_is_scaled_to_the_nearest_points_when_outside(
    engine: ProfiledEngine, mhz: float, prefills: list[tuple[int, int]], decodes: int, each: float
) -> None:
    found = engine.iteration(mhz, prefills, decodes, decodes * each)
    modelled = MODEL.iteration(mhz, prefills, decodes, decodes * each)
    assert found.iteration.source is Source.MODELLED
    assert found.iteration.t_s == pytest.approx(1.2 * modelled.t_s, rel=0.1)
    assert found.iteration.watts == pytest.approx(0.9 * modelled.watts, rel=0.1)
    assert found.margins.time == 0.10


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ((1005.0, 64, 64 * 2000.0), (1005.0, 64, 64 * 2000.001)),
        ((705.0, 20, 20 * 500.0), (704.999, 20, 20 * 500.0)),
        ((1200.0, 20, 20 * 200.0), (1200.0, 20, 20 * 199.999)),
    ],
)
def test_sources_meet_when_the_hull_is_left(
    engine: ProfiledEngine, inside: tuple[float, int, float], outside: tuple[float, int, float]
) -> None:
    (f, batch, context), (f_out, batch_out, context_out) = inside, outside
    within, beyond = engine.iteration(f, (), batch, context), engine.iteration(f_out, (), batch_out, context_out)
    assert within.iteration.source is not Source.MODELLED
    assert beyond.iteration.source is Source.MODELLED
    assert beyond.iteration.t_s == pytest.approx(within.iteration.t_s, rel=1e-3)
    assert beyond.iteration.watts == pytest.approx(within.iteration.watts, rel=1e-3)


@given(st.floats(210.0, 1410.0), st.integers(1, 128), st.sampled_from([0, 100, 256, 700]), st.floats(200.0, 1990.0))
def test_time_and_energy_are_linear_in_context_when_the_batch_is_constant(
    mhz: float, batch: int, prefill: int, each: float
) -> None:
    engine = _cached_engine()
    prefills = [(prefill, 0)] if prefill else []
    three = [engine.iteration(mhz, prefills, batch, batch * (each + step)).iteration for step in (0.0, 5.0, 10.0)]
    if any(one.f_eff_mhz < mhz or one.gpu_watts >= 400.0 for one in three):
        return  # at its TDP no source is linear
    assert three[1].t_s * 2 == pytest.approx(three[0].t_s + three[2].t_s, rel=1e-9)
    assert three[1].energy_j * 2 == pytest.approx(three[0].energy_j + three[2].energy_j, rel=1e-9)


@given(
    st.floats(100.0, 2000.0),
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 100)), max_size=2),
    st.integers(0, 300),
    st.floats(0.0, 5000.0),
)
def test_every_batch_has_an_answer_when_the_profile_is_sparse(
    mhz: float, prefills: list[tuple[int, int]], decodes: int, each: float
) -> None:
    places = ((512, 0, 0), (512, 8, 0), (512, 8, 900), (0, 8, 500))
    sparse = [row(f, prefill, batch, one) for f in (705.0, 1410.0) for prefill, batch, one in places]
    engine = ProfiledEngine(only(profiles_of(sparse)))
    found = engine.iteration(mhz, prefills, decodes or (0 if prefills else 1), decodes * each).iteration
    assert 0.0 < found.t_s < 1000.0
    assert 0.0 < found.gpu_watts <= 400.0
    assert found.energy_j == pytest.approx(found.t_s * found.watts)


_engines: list[ProfiledEngine] = []


def _cached_engine() -> ProfiledEngine:
    if not _engines:
        _engines.append(ProfiledEngine(only(profiles_of(rows(hotter=0.7)))))
    return _engines[0]


def test_margin_shows_the_noise_when_a_line_misses_its_points() -> None:
    noisy = [row(1410.0, 0, 8, each) for each in (100, 500, 1000, 2000)]
    noisy[1]["t_s"] *= 1.08
    found = ProfiledEngine(only(profiles_of(noisy))).iteration(1410.0, (), 8, 8 * 700.0)
    assert found.iteration.source is Source.MEASURED
    assert 0.03 < found.margins.time < 0.08


def test_points_without_a_common_context_are_not_interpolated_when_between_them() -> None:
    apart = [row(1410.0, 0, 8, each) for each in (100, 200)] + [row(1410.0, 0, 32, each) for each in (1000, 2000)]
    found = ProfiledEngine(only(profiles_of(apart))).iteration(1410.0, (), 16, 16 * 1000.0)
    assert found.iteration.source is Source.MODELLED


def test_h100_clock_choices_have_a_wider_margin_when_modelled() -> None:
    measured = row(1410.0, 0, 8, 500) | {"gpu": "H100-SXM-80GB"}
    found = ProfiledEngine(only(profiles_of([measured]))).iteration(800.0, (), 8, 4000.0)
    assert (found.margins.time, found.margins.power, found.margins.clock) == (0.10, 0.10, 0.30)


def timed_only(**factors: float) -> ProfiledEngine:
    return ProfiledEngine(only(profiles_of([one | {"watts": ""} for one in rows(**factors)])))


def test_power_is_the_closed_forms_at_the_measured_time_when_only_time_was_measured() -> None:
    engine, idle_w = timed_only(slower=1.5), MODEL.gpu_params.idle_w
    for mhz, prefills, batch in ((1410.0, [], 8), (705.0, [(512, 0)], 16), (1410.0, [], 12)):
        found = engine.iteration(mhz, prefills, batch, batch * 700.0)
        closed = MODEL.iteration(mhz, prefills, batch, batch * 700.0)
        assert found.iteration.source in (Source.MEASURED, Source.INTERPOLATED)
        assert found.watts_source is Source.MODELLED
        assert found.iteration.t_s == pytest.approx(1.5 * closed.t_s, rel=0.02)
        assert idle_w < found.iteration.watts < closed.watts  # the same work over a longer time
        assert found.iteration.energy_j == pytest.approx(found.iteration.watts * found.iteration.t_s)
        assert (found.margins.power, found.margins.clock) == (0.10, 0.10)


def test_power_is_the_closed_forms_when_the_measured_time_is_its_too() -> None:
    engine = timed_only(slower=1.0)
    for point in engine.profile.points:
        prefills = [(point.prefill_tokens, 0)] if point.prefill_tokens else []
        found = engine.iteration(point.mhz, prefills, point.batch, point.context_tokens).iteration
        closed = MODEL.iteration(point.mhz, prefills, point.batch, point.context_tokens)
        assert found.watts == pytest.approx(closed.watts, rel=1e-5)


def test_published_profile_is_trusted_no_more_than_the_closed_form_when_inside() -> None:
    content = [one | {"source": "published", "origin": "a paper"} for one in rows()]
    engine = ProfiledEngine(only(profiles_of(content)))
    for batch in (8, 12):
        found = engine.iteration(1410.0, (), batch, batch * 700.0)
        assert found.iteration.source is Source.PUBLISHED
        assert found.watts_source is Source.PUBLISHED
        assert (found.margins.time, found.margins.power) == (0.10, 0.10)


def test_scale_is_profile_over_closed_form_when_asked_for_a_clock(engine: ProfiledEngine) -> None:
    for mhz in (300.0, 705.0, 1200.0, 1410.0):
        assert engine.scale(mhz) == (pytest.approx(1.2), pytest.approx(0.9))


def test_scale_lies_between_clocks_when_they_differ() -> None:
    content = [row(705.0, 0, 8, 500, slower=1.1), row(1410.0, 0, 8, 500, slower=1.6)]
    engine = ProfiledEngine(only(profiles_of(content)))
    assert engine.scale(500.0).time == pytest.approx(1.1)
    assert 1.1 < engine.scale(1000.0).time < 1.6
    assert engine.scale(1410.0).time == pytest.approx(1.6)


def test_steady_state_is_the_closed_forms_when_the_profile_is(engine: ProfiledEngine) -> None:
    same = ProfiledEngine(only(profiles_of(rows(slower=1.0, hotter=1.0))))
    for rps in (0.0, 0.1, 2.0, 1e6):
        found, closed = (one.steady_state(rps, 500.0, 200.0, 1410.0) for one in (same, MODEL))
        assert found.stable == closed.stable
        for name in ("ttft_s", "tpot_s", "e2e_s", "power_w", "batch"):
            assert getattr(found, name) == pytest.approx(getattr(closed, name), rel=0.05), name
    slow, closed = (one.steady_state(2.0, 500.0, 200.0, 1410.0) for one in (engine, MODEL))
    assert slow.tpot_s > 1.1 * closed.tpot_s


def test_largest_rate_falls_when_the_node_is_slower_than_the_closed_form(engine: ProfiledEngine) -> None:
    limits = Limits(ttft_s=1.0, tpot_s=0.03)
    found, closed = (one.max_rps(500.0, 200.0, 1410.0, limits) for one in (engine, MODEL))
    assert 0.0 < found < closed
    state = engine.steady_state(found, 500.0, 200.0, 1410.0)
    assert state.stable
    assert state.ttft_s <= 1.0 + 1e-9
    assert state.tpot_s <= 0.03 + 1e-9
    assert engine.max_rps(500.0, 200.0, 1410.0, Limits(tpot_s=1e-4)) == 0.0


@pytest.mark.parametrize("origin", ['a "paper", 2025', "=SUM(a1)", "-- our own node"])
@pytest.mark.parametrize("name", ["p.csv", "p.json"])
def test_profile_is_the_same_when_written_and_read(tmp_path: Path, name: str, origin: str) -> None:
    content = [one | {"source": "published", "origin": origin} for one in rows()]
    content[0] |= {"t_spread": 0.01, "watts_spread": 0.02}
    profile = only(profiles_of(content))
    write_profile(tmp_path / name, profile)
    assert only(load_profiles(tmp_path / name)) == profile


def test_profile_is_refused_when_its_rows_have_several_sources_or_one_that_is_none() -> None:
    first = row(1410.0, 0, 8, 200)
    with pytest.raises(ProfileError, match="row 2: source: another"):
        profiles_of([first, row(1410.0, 0, 8, 500) | {"source": "published"}])
    with pytest.raises(ProfileError, match="row 2: origin: another"):
        profiles_of([first, row(1410.0, 0, 8, 500) | {"origin": "elsewhere"}])
    with pytest.raises(ProfileError, match="row 1: source: 'modelled' is neither"):
        profiles_of([first | {"source": "modelled"}])


def _csv(path: Path, content: list[dict[str, Any]]) -> Path:
    lines = [",".join(FIELDS), *(",".join(str(one[name]) for name in FIELDS) for one in content)]
    path.write_text("\n".join(lines))
    return path


def _json(path: Path, content: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_version_is_of_the_content_when_format_and_order_differ(tmp_path: Path) -> None:
    first = only(load_profiles(_csv(tmp_path / "a.csv", rows())))
    second = only(load_profiles(_json(tmp_path / "b.json", list(reversed(rows())))))
    changed = only(load_profiles(_json(tmp_path / "c.json", rows(slower=1.3))))
    assert first == second
    assert first.version == second.version
    assert changed.version != first.version


def test_configurations_are_kept_apart_when_a_file_has_several() -> None:
    two = profiles_of([row(1410.0, 0, 8, 500), row(1410.0, 0, 8, 500) | {"tp": 2}])
    assert [profile.tp for profile in two] == [1, 2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"t_s": "nan"}, "row 2: t_s: nan is not a finite"),
        ({"watts": float("inf")}, "row 2: watts: inf is not a finite"),
        ({"t_s": ""}, "row 2: t_s: missing"),
        ({"watts": None}, "row 2: watts: missing"),
        ({"t_s": -0.1}, "row 2: t_s: -0.1 is negative"),
        ({"watts": 0}, "row 2: watts: 0 is not above 0"),
        ({"batch": 2.5}, "row 2: batch: 2.5 is not a whole"),
        ({"batch": True}, "row 2: batch: '?True'? is not a number"),
        ({"mhz": "fast"}, "row 2: mhz: 'fast' is not a number"),
        ({"mhz": 5000}, "row 2: mhz: 5000 is outside"),
        ({"t_s": 1e300}, "row 2: t_s: 1e\\+300 is beyond"),
        ({"model": ""}, "row 2: model: missing"),
        ({"gpu": "T4"}, "row 2: gpu: unknown gpu"),
        ({"tp": 0}, "row 2: tp: 0 is not above 0"),
        ({"batch": 0}, "row 2: batch: neither"),
        ({"batch": 0, "prefill_tokens": 5}, "row 2: context_tokens: contexts without"),
        ({"context_tokens": 1600}, "row 2: context_tokens: the same"),
        ({"mhz": 705, "batch": 9}, "batch: a hole: .* batch .* is not measured at"),
    ],
)
@pytest.mark.parametrize("written", [_csv, _json])
def test_profile_is_refused_by_row_and_field_when_it_cannot_be_used(
    tmp_path: Path, written: Callable[[Path, list[dict[str, Any]]], Path], change: dict[str, Any], says: str
) -> None:
    if written is _csv:
        change = {name: "" if value is None else value for name, value in change.items()}
    content = [row(1410.0, 0, 8, 200), row(1410.0, 0, 8, 2000) | change]
    path = written(tmp_path / f"profile.{written.__name__.strip('_')}", content)
    with pytest.raises(ProfileError, match=says):
        load_profiles(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", ",".join(FIELDS), "no measurements"),
        ("a.csv", "model,gpu\nLlama3-8B,A100-80GB", "row 1: engine: missing"),
        ("a.json", "{", "not JSON"),
        ("a.json", "[1]", "a list of objects"),
    ],
)
def test_file_is_refused_when_it_holds_no_table(tmp_path: Path, name: str, content: str, says: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ProfileError, match=says):
        load_profiles(tmp_path / name)


def test_interpolation_holds_when_one_measured_batch_is_left_out(test_data: Path) -> None:
    """Splitwise's measurements on A100: token time and power at each batch from the neighbouring batches."""
    cells: dict[tuple[str, int, int], dict[int, list[tuple[float, float]]]] = {}
    with gzip.open(test_data / "splitwise_perf_model.csv.gz", "rt", encoding="utf-8") as file:
        for one in csv.DictReader(file):
            if one["hardware"] == "a100-80gb" and float(one["average_power"] or 0) > 0:
                tp = int(one["tensor_parallel"])
                place = cells.setdefault((one["model"], tp, int(one["prompt_size"])), {})
                measured = float(one["token_time"]) / 1e3, float(one["average_power"]) * 400.0 * tp
                place.setdefault(int(one["batch_size"]), []).append(measured)
    errors = [miss for place, batches in cells.items() for miss in _left_out(place, batches)]
    assert len(errors) > 10
    assert fmean(time for time, _ in errors) < 0.04
    assert fmean(power for _, power in errors) < 0.03


def _left_out(
    place: tuple[str, int, int], measured: dict[int, list[tuple[float, float]]]
) -> Iterator[tuple[float, float]]:
    name, tp, prompt = place
    model = {"llama2-70b": "Llama2-70B", "bloom-176b": "Bloom-176B"}[name]
    points = {batch: [median(column) for column in zip(*each, strict=True)] for batch, each in measured.items()}
    for left_out in sorted(points)[1:-1]:
        table = [
            dict(zip(FIELDS, (model, "A100-80GB", tp, 1410, "eager-2023-a100", 0, b, b * prompt, *one), strict=True))
            for b, one in points.items()
            if b != left_out
        ]
        found = ProfiledEngine(only(profiles_of(table))).iteration(1410.0, (), left_out, left_out * prompt).iteration
        assert found.source is Source.INTERPOLATED
        yield abs(found.t_s / points[left_out][0] - 1.0), abs(found.watts / points[left_out][1] - 1.0)


def test_json_is_refused_when_it_is_nested_without_end():
    with pytest.raises(ProfileError, match="file: not JSON"):
        rows_of_json("[" * 100_000)
