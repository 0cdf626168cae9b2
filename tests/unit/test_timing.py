"""The lint of the suite: which tests take too long, whatever else the machine does."""

from __future__ import annotations

import pytest

from tests.timing import FAILS_AT, Times, kind_of, pytest_collection_modifyitems

UNIT, PAGE, PRODUCT = (
    "tests/unit/core/test_a.py::test_x",
    "tests/browser/test_b.py::test_y",
    "tests/e2e/test_c.py::test_z",
)


def test_limit_is_that_of_the_kind() -> None:
    times = Times(call_s={UNIT: 1.01, PAGE: 4.99, PRODUCT: 100.0})
    assert list(times.too_long()) == [UNIT]
    assert Times(call_s={UNIT: 0.99, PAGE: 5.01}).too_long() == {PAGE: f"{PAGE}: 5.01 s, browser tests may take 5 s"}


def test_run_fails_at_four_times_the_limit_alone() -> None:
    times = Times(call_s={UNIT: 3.9, PAGE: 20.1})
    assert list(times.too_long(FAILS_AT)) == [PAGE]
    assert list(times.too_long()) == [UNIT, PAGE]


def test_waiting_for_a_processor_does_not_count() -> None:
    times = Times(call_s={UNIT: 1.9}, ran_s=10.0, waited_s=10.0)
    assert times.stretch == 2.0
    assert times.too_long() == {}


def test_sum_is_by_folder() -> None:
    times = Times()
    for name, took_s in ((UNIT, 1.0), (UNIT.replace("_x", "_w"), 0.5), (PAGE, 2.0)):
        times.whole_s[name] += took_s
    assert times.by_kind() == {"unit": (2, 1.5), "browser": (1, 2.0)}
    assert kind_of("tests/test_at_the_top.py::test_x") == "other"


@pytest.mark.parametrize(("mark", "refused"), [(pytest.mark.slow, True), (pytest.mark.slow("three deaths"), False)])
def test_slow_test_must_say_why(request: pytest.FixtureRequest, mark: pytest.MarkDecorator, refused: bool) -> None:
    request.node.add_marker(mark)
    if refused:
        with pytest.raises(pytest.UsageError, match="test_slow_test_must_say_why"):
            pytest_collection_modifyitems([request.node])
    else:
        pytest_collection_modifyitems([request.node])
