"""Values of controllers as JSON and back."""

from __future__ import annotations

import importlib
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.controllers.fleet.carbon import CarbonConfig
from core.observations.recording import _MOVED, RecordingError, recall, record
from core.types import Limits, Mode, ModeProfile, PoolKey, Reason, Source

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.sampled_from(Reason),
    st.builds(Mode, st.text(max_size=3), st.integers(1, 8)),
    st.builds(PoolKey, st.text(max_size=3), st.text(max_size=3)),
    st.builds(Limits, st.none() | st.floats(0, 9), st.none() | st.floats(0, 9)),
)
KEYS = st.tuples(st.text(max_size=3), st.builds(Mode, st.text(max_size=3), st.integers(1, 8)))
VALUES = st.recursive(
    LEAVES, lambda own: st.lists(own, max_size=4).map(tuple) | st.dictionaries(KEYS, own, max_size=4), max_leaves=20
)


@given(VALUES)
def test_value_is_the_same_when_it_comes_back(value):
    assert recall(json.loads(json.dumps(record(value), allow_nan=False))) == value


def test_special_values_come_back_as_what_they_were():
    profile = ModeProfile(1.0, 200.0, None, 0.1, math.inf, Source.PUBLISHED)
    back = recall(json.loads(json.dumps(record((profile, frozenset({"b", "a"}), CarbonConfig())))))
    assert back == (profile, frozenset({"a", "b"}), CarbonConfig())
    assert type(back[0].source) is Source
    array = np.array([[1.0, np.nan], [math.inf, 4.0]])
    found = recall(json.loads(json.dumps(record({"x": array}))))["x"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert record(np.float64(2.5)) == 2.5


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"$type": "os:system", "fields": {}}, "not of the core"),
        ({"$enum": "core.types:Gone", "value": 1}, "not there any more"),
        ({"$type": "core.types:Limits", "fields": {"ttft": 1}}, "no longer what it was"),
        ({"what": 1}, "no value"),
    ],
)
def test_recording_that_cannot_be_read_says_why(stored, message):
    with pytest.raises(RecordingError, match=message):
        recall(stored)


def test_what_is_no_value_is_not_recorded():
    with pytest.raises(TypeError, match="no value"):
        record(object())


@pytest.mark.parametrize(
    ("stored", "back"),
    [
        ({"$enum": "scheduler.core.types:Source", "value": "measured"}, Source.MEASURED),
        ({"$type": "scheduler.core.controllers.carbon:CarbonConfig", "fields": {}}, CarbonConfig()),
    ],
)
def test_recording_of_release_0_1_0_is_read(stored, back):
    assert recall(stored) == back


def test_modules_of_release_0_1_0_are_where_the_table_says():
    for moved in _MOVED.values():
        importlib.import_module(f"core.{moved}")
