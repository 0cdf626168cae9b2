"""What the network over neighbouring grids reads, and how it is scored: no PyTorch is needed for either."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from core.predictors.carbon_features import DAY, LEADS, MEMORY, WEATHER, Grid, names
from core.predictors.carbon_scores import Silent
from core.predictors.carbon_training import TooShort
from telemetry.forecasts.learned import carbon_makers
from telemetry.forecasts.learned.carbon_windows import AHEAD, BEFORE, HEAD_EXTRA, Aligned, Windows, step_columns

FIRST = 20_000 * DAY
ORIGINS = np.array([30 * DAY, 35 * DAY + 7])


def grid(days: int, first: int = FIRST, weather: bool = False) -> Grid:
    hours = first + np.arange(days * DAY)
    sky = np.tile(np.arange(float(len(WEATHER))), (days * DAY + LEADS, 1)) if weather else None
    return Grid(first, 300.0 + 50.0 * np.sin(2.0 * np.pi * hours / DAY) + hours % 7, sky)


def test_grids_lie_over_the_same_hours_when_they_begin_and_end_apart() -> None:
    aligned = Aligned.of({"a": grid(40), "b": grid(20, FIRST + 10 * DAY, weather=True)}, weather=True)
    assert (aligned.first_hour, aligned.size) == (FIRST, 40 * DAY)
    a, b = aligned.grids
    assert np.flatnonzero(~np.isnan(b.carbon)).tolist() == list(range(10 * DAY, 30 * DAY))
    np.testing.assert_array_equal(a.carbon, grid(40).carbon)
    assert a.weather is not None
    assert np.isnan(a.weather).all()
    assert b.weather is not None
    assert b.weather[10 * DAY].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(b.weather) == 40 * DAY + LEADS


def test_nothing_beyond_the_origin_is_read_when_the_future_changes() -> None:
    known, changed = grid(40, weather=True), grid(40, weather=True)
    changed.carbon[30 * DAY :] = 1.0
    assert changed.weather is not None
    changed.weather[30 * DAY + LEADS :] = np.nan
    one, other = (Windows.of(Aligned.of({"a": own}, True), ORIGINS[:1]) for own in (known, changed))
    for name in ("values", "sky", "clock", "rows", "restless", "reference"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert not np.allclose(one.extra, other.extra)


@pytest.mark.parametrize("weather", [False, True])
def test_inputs_are_finite_and_unknown_hours_are_said_to_be_when_there_are_gaps(weather: bool) -> None:
    gap = grid(40, weather=weather)
    gap.carbon[30 * DAY - 5 : 30 * DAY] = np.nan
    windows = Windows.of(Aligned.of({"gap": gap, "late": grid(5, FIRST + 34 * DAY)}, weather), ORIGINS)
    rows, columns = np.arange(2), len(names(weather))
    spread, centre, scale = (
        np.ones(2, np.float32),
        np.zeros((2, columns), np.float32),
        np.ones((2, columns), np.float32),
    )
    days = windows.days(rows, spread)
    hours = windows.hours(rows, np.array([0, 50]), spread, centre, scale)
    assert days.shape == (2, BEFORE + AHEAD, 2, step_columns(weather))
    assert hours.shape == (2, 2, 2, columns + HEAD_EXTRA)
    assert np.isfinite(days).all()
    assert np.isfinite(hours).all()
    known = days[..., DAY : 2 * DAY].sum(axis=(1, 3))
    assert known.tolist() == [[MEMORY - 5, 0], [MEMORY - 5, DAY + 7]]


def test_days_ahead_have_a_clock_and_no_values() -> None:
    windows = Windows.of(Aligned.of({"a": grid(40)}, False), ORIGINS)
    days = windows.days(np.arange(2), np.ones(1, np.float32))
    assert not days[:, BEFORE:, :, : 2 * DAY].any()
    assert days[:, BEFORE:, :, 2 * DAY :].any()


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """How much each network learned from, in the place of the one that needs PyTorch; it says 1, 2 and 3 g/kWh."""
    found: list[dict[str, int]] = []

    def learn(grids: dict[str, Grid]) -> object:
        if len(grids) < 2:
            raise TooShort("alone")
        found.append({name: own.carbon.size for name, own in grids.items()})

        def forecasts(grids: object, hours: np.ndarray, quantiles: tuple[float, ...]) -> dict[str, np.ndarray]:
            return {"a": np.arange(1.0, 4.0)[:, None, None] * np.ones((3, hours.size, LEADS))}

        return SimpleNamespace(forecasts=forecasts, about=SimpleNamespace(grids=("a", "b")))

    stand_in = ModuleType("carbon_gru_training")
    stand_in.learn = learn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "telemetry.forecasts.learned.carbon_gru_training", stand_in)
    monkeypatch.setattr(carbon_makers, "available", lambda: True)
    return found


def test_one_network_serves_all_grids_when_they_are_scored(learned: list[dict[str, int]]) -> None:
    grids = {"a": grid(40), "b": grid(40, FIRST + DAY), "c": grid(40, FIRST + 90 * DAY)}
    makers = carbon_makers.GruMakers(grids, relearn_days=2)
    made = makers.of("a")(grids["a"], np.arange(30, 33) * DAY)
    assert made.quantiles.shape == (3, 3, LEADS)
    assert learned == [{"a": 30 * DAY, "b": 29 * DAY}, {"a": 32 * DAY, "b": 31 * DAY}]
    makers.of("a")(grids["a"], np.arange(30, 33) * DAY)
    with pytest.raises(Silent, match="its past is too short for the network over a, b"):
        makers.of("c")(grids["b"], np.arange(29, 30) * DAY)
    assert len(learned) == 2


def test_it_says_why_when_there_is_no_network(learned: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    makers = carbon_makers.GruMakers({"a": grid(40)}, relearn_days=92)
    with pytest.raises(Silent, match="alone"):
        makers.of("a")(grid(40), ORIGINS)
    monkeypatch.setattr(carbon_makers, "available", lambda: False)
    with pytest.raises(Silent, match="PyTorch is not installed: pip install"):
        makers.of("a")(grid(40), ORIGINS)
