"""A network for load is learned, forecasts, is kept and read again, with real PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("load_lstm.py")


@pytest.fixture(scope="module")
def found(with_torch):
    return json.loads(with_torch(SCRIPT))


def test_it_does_about_as_well_as_the_best_statistical_model(found) -> None:
    loss = found["loss"]
    assert loss["lstm"] < 1.1 * min(loss["profile"], loss["harmonic"])
    assert loss["network"] < 0.5 * loss["persistence"]


def test_quantiles_ascend(found) -> None:
    low, middle, high = found["quantiles"]
    assert all(a < b < c for a, b, c in zip(low, middle, high, strict=True))


def test_learning_twice_gives_the_same_network_and_a_kept_one_says_the_same(found) -> None:
    assert found["same"]
    assert found["read"]


def test_nothing_is_said_beyond_what_was_learned_or_when_the_newest_value_is_not_known(found) -> None:
    assert found["beyond"] == 2
    assert found["gap"]


def test_what_is_no_network_is_refused(found) -> None:
    refused = found["refused"]
    assert set(refused) == {"cut off", "other", "anchors", "short"}
    assert "oracle" in refused["anchors"]
    assert "are needed to learn from" in refused["short"]
