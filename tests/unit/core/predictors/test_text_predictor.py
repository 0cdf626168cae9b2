"""Tests of core.predictors.text_predictor."""

from __future__ import annotations

import numpy as np
import pytest

from core.ports import RequestFeatures
from core.predictors.text_predictor import LEAST_MEASURED, LengthPredictor

SALT = b"0123456789abcdef"
TOPICS = {"define": 20, "list": 60, "explain": 150, "compare": 400, "write": 900}


def request(prompt: str) -> RequestFeatures:
    size = len(prompt.encode())
    return RequestFeatures(True, 0.0, None, size, last_role="user", last_bytes=size, has_question=False, lines=1)


def taught(requests: int, salt: bytes | None = SALT, by_topic: bool = True) -> LengthPredictor:
    """Returns a predictor for a service whose answers are as long as the first word says, or else anything."""
    found, rng = LengthPredictor(salt), np.random.default_rng(7)
    for topic in rng.choice(list(TOPICS), requests).tolist():
        prompt = f"{topic} matter{rng.integers(1000)} please"
        expected = TOPICS[topic] if by_topic else rng.choice(list(TOPICS.values()))
        tokens = max(1, int(expected * rng.lognormal(0.0, 0.1)))
        found.observe("chat", 1, found.look([prompt]), 5, request(prompt), tokens)
    return found


def median(predictor: LengthPredictor, topic: str) -> int:
    prompt = f"{topic} something please"
    odds = predictor.predict("chat", 1, predictor.look([prompt]), 5, request(prompt))
    assert odds is not None
    assert odds.predictor == "text"
    return odds.quantile(0.5)


def test_lengths_go_with_words_once_there_were_enough_answers() -> None:
    predictor = taught(600)
    medians = [median(predictor, topic) for topic in TOPICS]
    assert medians == sorted(medians)
    assert medians[-1] > 10 * medians[0]
    error = predictor.errors()["chat", "text"]
    assert error.requests == 600 - 64
    assert error.right > 0.5
    assert error.loss < 1.3 < error.base_loss


def test_nothing_is_said_when_words_say_nothing_of_lengths() -> None:
    predictor = taught(600, by_topic=False)
    found = predictor.predict("chat", 1, predictor.look(["write something please"]), 5, request(""))
    assert found is None
    assert not predictor.errors()["chat", "text"].earned


def test_nothing_is_said_before_enough_was_measured() -> None:
    predictor = taught(64 + LEAST_MEASURED - 1)
    features = predictor.look(["write something please"])
    assert predictor.predict("chat", 1, features, 5, request("write something please")) is None
    assert predictor.predict("other", 1, features, 5, request("write something please")) is None


def test_predictions_follow_when_all_answers_grow_longer() -> None:
    predictor = taught(600)
    rng = np.random.default_rng(8)
    for topic in rng.choice(list(TOPICS), 1024).tolist():
        prompt = f"{topic} it please"
        predictor.observe("chat", 1, predictor.look([prompt]), 5, request(prompt), 4 * TOPICS[topic])
    assert 4 * TOPICS["explain"] < median(predictor, "write") <= 4.1 * TOPICS["write"]


def test_an_answer_without_a_token_is_refused() -> None:
    predictor = LengthPredictor(SALT)
    with pytest.raises(ValueError, match="has a token or more, not 0"):
        predictor.observe("chat", 1, predictor.look(["a"]), 1, request("a"), 0)


@pytest.mark.parametrize("salt", [SALT, None])
def test_a_predictor_goes_on_as_before_when_it_was_kept(salt: bytes | None) -> None:
    predictor = taught(300, salt)
    again = LengthPredictor.restored(predictor.state(), salt)
    assert [median(again, topic) for topic in TOPICS] == [median(predictor, topic) for topic in TOPICS]
    assert again.errors() == predictor.errors()
    assert all(values.dtype.kind in "iuf" for values in predictor.state().values())


def test_a_state_is_refused_when_it_is_not_ours() -> None:
    state = taught(80).state()
    with pytest.raises(ValueError, match="another salt"):
        LengthPredictor.restored(state, b"x" * 16)
    with pytest.raises(ValueError, match="no state of a length predictor"):
        LengthPredictor.restored({"weights": np.zeros(3)}, SALT)
    for name, values in (
        ("about", np.zeros(3, np.uint8)),
        ("lengths", np.zeros(16, np.int64)),
        ("text.weights", np.zeros(4, np.float32)),
        ("text.squares", np.full_like(state["text.squares"], np.nan)),
    ):
        with pytest.raises(ValueError, match="no state of a length predictor"):
            LengthPredictor.restored({**state, name: values}, SALT)
