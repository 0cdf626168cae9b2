"""What a GPU draws with nothing to do: the data sheet's type beside a recording of one H200."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.engine.engine_model import gpu

RECORDED = json.loads((Path(__file__).parents[3] / "fixtures" / "h200_idle_power.json").read_text())


def mean_w(phase: str) -> float:
    """By the energy counter, in mJ."""
    first, last = RECORDED["phases"][phase][0], RECORDED["phases"][phase][-1]
    return (last[2] - first[2]) / 1000.0 / (last[0] - first[0])


@pytest.mark.parametrize("phase", ["nothing loaded", "nothing loaded again"])
def test_a_gpu_without_an_engine_draws_what_its_type_says(phase: str) -> None:
    assert gpu("H200-SXM-141GB").idle_w == pytest.approx(mean_w(phase), rel=0.05)


@pytest.mark.parametrize("phase", ["context and 60 GiB held, idle", "context held after work, idle"])
def test_a_gpu_whose_engine_waits_draws_about_what_the_model_says(phase: str) -> None:
    (mhz,) = {row[3] for row in RECORDED["phases"][phase]}
    assert gpu("H200-SXM-141GB").loaded_idle_w(mhz) == pytest.approx(mean_w(phase), rel=0.12)
