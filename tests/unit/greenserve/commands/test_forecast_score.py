"""`greenserve forecast score`: any file of the form is scored, and a bad one says where and what to do."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from core.predictors import carbon_scores, carbon_training
from core.predictors.seasonal import MODELS
from greenserve.cli import cli
from greenserve.commands.carbon_files import BadFile, grids
from telemetry.forecasts.learned import carbon_makers

HEADER = "region,utc,g_per_kwh\n"
SKY = "region,utc,wind_m_s,temperature_k,dewpoint_k,irradiance_w_m2,precipitation\n"
START = datetime(2021, 1, 1, tzinfo=UTC)


def hours(days: int, leave_out: int | None = None) -> str:
    rows = []
    for hour in range(24 * days):
        at = START + timedelta(hours=hour)
        if hour != leave_out:
            rows.append(f"NORTH,{at:%Y-%m-%dT%H:%MZ},{200 + 50 * np.sin(hour / 24 * 2 * np.pi):.1f}\n")
    return HEADER + "".join(rows)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("region,utc\n", "the header lacks g_per_kwh"),
        (HEADER, "there is no row in it"),
        (HEADER + "A,2021-01-01T00:00Z,x\n", "line 2: g_per_kwh is 'x', which is no number"),
        (HEADER + "A,2021-01-01T00:00Z,-5\n", "line 2: g_per_kwh is -5, which is not from 0 to 20000"),
        (HEADER + "A,2021-01-01T00:00Z,nan\n", "line 2: g_per_kwh is nan, which is not from 0"),
        (HEADER + "A,2021-01-01T00:00,5\n", "which is not UTC: end it with Z"),
        (HEADER + "A,2021-01-01T00:30Z,5\n", "which is no whole hour"),
        (HEADER + "A,yesterday,5\n", "write it as 2021-07-01T00:00Z"),
        (HEADER + ",2021-01-01T00:00Z,5\n", "region is empty"),
        (HEADER + "A,2021-01-01T00:00Z,5\nA,2021-01-01T00:00Z,6\n", "line 3: A has 2021-01-01T00:00Z twice"),
        (HEADER + "A,1921-01-01T00:00Z,5\nA,2021-01-01T00:00Z,6\n", "more than 30 years"),
    ],
)
def test_a_file_is_refused_with_line_and_remedy_when_it_is_bad(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadFile, match=said):
        grids(write(tmp_path / "carbon.csv", text), None)


def test_gaps_stay_gaps_when_hours_are_missing(tmp_path: Path) -> None:
    carbon = write(tmp_path / "carbon.csv", hours(2, leave_out=5) + "SOUTH,2021-01-01T00:00Z,\n")
    packed = tmp_path / "weather.csv.gz"
    packed.write_bytes(gzip.compress((SKY + "NORTH,2021-01-01T01:00Z,3.1,0,270,0,0\n").encode()))
    found = grids(carbon, packed)
    assert np.flatnonzero(np.isnan(found["NORTH"].carbon)).tolist() == [5]
    assert found["NORTH"].weather is not None
    np.testing.assert_array_equal(found["NORTH"].weather[1], [3.1, np.nan, 270.0, 0.0, 0.0])
    assert np.isnan(found["NORTH"].weather[0]).all()
    assert found["SOUTH"].weather is None
    assert np.isnan(found["SOUTH"].carbon).all()


def test_a_file_is_scored_when_days_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carbon_training, "TREES", 4)
    monkeypatch.setattr(carbon_training, "EVERY_HOURS", 23)
    monkeypatch.setattr(carbon_scores, "MODELS", {"day ago": MODELS["day ago"]})
    monkeypatch.setattr(carbon_makers, "available", lambda: False)
    carbon = str(write(tmp_path / "carbon.csv", hours(75) + "SOUTH,2021-01-01T00:00Z,200\n"))
    asked = ("forecast", "score", "--carbon", carbon, "--from", "2021-03-08", "--to", "2021-03-13")
    found = CliRunner().invoke(cli, [*asked, "--json"])
    assert found.exit_code == 0, found.output
    (grid,) = json.loads(found.stdout)["grids"]
    assert {one["model"]: one["forecasts"] for one in grid["scores"]} == {"day ago": 3, "trees": 3}
    assert grid["scores"][0]["mape"][0] == pytest.approx(0.0, abs=1e-3)
    assert grid["silent"] == {"gru": 'PyTorch is not installed: pip install "greenserve[learned]"'}
    assert "NORTH: trees" in found.stderr
    assert "SOUTH: a score needs 28 days of values before --from and 4 days after it" in found.stderr
    shown = CliRunner().invoke(cli, [*asked, "--grid", "NORTH"])
    assert "the truth's plan emits" in shown.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--from", "2021-03-08", "--to", "2021-03-01"), "--to lies before --from"),
        (("--from", "2021-03-01", "--to", "2021-03-08", "--grid", "EAST"), "has no EAST; it has NORTH"),
        (("--from", "2021-01-05", "--to", "2021-02-08"), "28 days of values before --from"),
    ],
)
def test_a_score_is_refused_when_it_cannot_be(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    carbon = str(write(tmp_path / "carbon.csv", hours(70)))
    found = CliRunner().invoke(cli, ["forecast", "score", "--carbon", carbon, *more])
    assert found.exit_code == 2
    assert said in found.output


def test_options_of_forecasts_go_behind_the_command_when_a_file_is_scored() -> None:
    found = CliRunner().invoke(cli, ["forecast", "--json", "score", "--carbon", __file__])
    assert (found.exit_code, found.output) == (2, "greenserve: options go behind score\n")
