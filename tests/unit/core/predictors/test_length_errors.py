"""The error of predicted lengths, as it is measured on requests that have ended."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from core.predictors.length_errors import LEAST, WINDOW, LengthError, LengthErrors

PAIR = st.tuples(st.integers(1, 500), st.integers(1, 2000))


@given(pairs=st.lists(PAIR, min_size=LEAST, max_size=LEAST + 40))
def test_at_least_95_of_100_answers_stay_within_their_raised_predictions(pairs: list[tuple[int, int]]) -> None:
    errors = LengthErrors()
    for predicted, output in pairs:
        errors.observe("chat", predicted, output)
    found = errors.of("chat")
    assert found is not None
    assert found.requests == len(pairs)
    within = [output <= predicted * (1.0 + found.share) * (1.0 + 1e-9) for predicted, output in pairs]
    assert sum(within) >= 0.95 * len(pairs)
    assert found.share >= 0.0
    assert found.share == 0.0 or sum(output / predicted - 1.0 >= found.share - 1e-9 for predicted, output in pairs) >= 1


def test_newest_requests_of_a_service_count_and_no_others() -> None:
    errors, rng = LengthErrors(), random.Random(1)
    for _ in range(LEAST - 1):
        errors.observe("chat", 100, 400)
    assert errors.of("chat") is None, "too few to say"
    errors.observe("chat", 100, 400)
    assert errors.of("chat") == LengthError(3.0, LEAST)
    assert errors.of("code") is None
    for _ in range(WINDOW):
        errors.observe("chat", 100, rng.randint(1, 100))
    assert errors.of("chat") == LengthError(0.0, WINDOW), "none is longer than predicted any more"
