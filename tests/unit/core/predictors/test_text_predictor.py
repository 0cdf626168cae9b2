"""Tests of core.predictors.text_predictor."""

from __future__ import annotations

import numpy as np
import pytest

from core.length_odds import LengthOdds
from core.ports import RequestFeatures
from core.predictors import answer_scale
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
        prompt = f"{topic} matter{rng.integers(100_000)} please"
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
    predictor = taught(400)
    medians = [median(predictor, topic) for topic in TOPICS]
    assert medians == sorted(medians)
    assert medians[-1] > 10 * medians[0]
    error = predictor.errors()["chat", "text"]
    assert 300 < error.requests <= 400 - 64  # of new prompts
    assert error.right > 0.5
    assert error.loss < 1.3 < error.base_loss


def test_nothing_is_said_when_words_say_nothing_of_lengths() -> None:
    predictor = taught(400, by_topic=False)
    found = predictor.predict("chat", 1, predictor.look(["write something please"]), 5, request(""))
    assert found is None
    assert not predictor.errors()["chat", "text"].earned


def test_nothing_is_said_before_enough_was_measured() -> None:
    predictor = taught(64 + LEAST_MEASURED - 1)
    features = predictor.look(["write something please"])
    assert predictor.predict("chat", 1, features, 5, request("write something please")) is None
    assert predictor.predict("other", 1, features, 5, request("write something please")) is None


def test_predictions_follow_when_all_answers_grow_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_scale, "ANSWERS", 256)
    predictor = taught(300)
    rng = np.random.default_rng(8)
    for topic in rng.choice(list(TOPICS), 256).tolist():
        prompt = f"{topic} it please"
        predictor.observe("chat", 1, predictor.look([prompt]), 5, request(prompt), 4 * TOPICS[topic])
    assert 4 * TOPICS["explain"] < median(predictor, "write") <= 4.1 * TOPICS["write"]


def test_borders_that_are_asked_for_get_the_share_that_the_scale_has_and_the_fifths_stay() -> None:
    predictor = taught(400)
    features, shown = predictor.look(["compare something please"]), request("compare something please")
    plain, asked = (predictor.predict("chat", 1, features, 5, shown, borders) for borders in ((), (1, 300, 9_999)))
    assert plain is not None
    assert asked is not None
    assert set(asked.borders) == {*plain.borders, 300}, "nothing is shorter than 1 or longer than 9,999"
    scale = predictor.scales["chat"]
    shares = [1.0 - scale.odds("", 0.0, 1.0, (border,)).exceeds(border) for border in (30, 300)]
    known = np.array(scale.by_arrival())
    assert shares == pytest.approx([np.mean(known <= border) for border in (30, 300)], abs=0.01)
    assert [asked.exceeds(border) for border in plain.borders] == pytest.approx(
        [plain.exceeds(border) for border in plain.borders]
    )


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


def test_memory_goes_before_text_when_other_services_answered_the_same_prompts() -> None:
    predictor, rng = LengthPredictor(SALT), np.random.default_rng(5)

    def answer(number: int, service: str, score: float) -> None:
        prompt = f"prompt{number} with words{number} that say{number} nothing{number}"
        tokens = max(1, int(np.exp((5.0 if service == "chat" else 3.0) + score + 0.1 * rng.normal())))
        predictor.observe(service, 1, predictor.look([prompt]), 5, request(prompt), tokens)

    def asked(number: int, tenant: int) -> LengthOdds | None:
        features = predictor.look([f"prompt{number} with words{number} that say{number} nothing{number}"])
        return predictor.predict("chat", tenant, features, 5, request(""))

    for number in range(200):
        score = rng.normal()
        answer(number, "draft", score)
        answer(number, "chat", score)
    answer(1001, "draft", 1.5)
    answer(1002, "draft", -1.5)
    long, short = asked(1001, 1), asked(1002, 1)
    assert long is not None
    assert short is not None
    assert long.predictor == short.predictor == "memory"
    assert (long.most_probable(), short.most_probable()) == (4, 0)
    assert asked(1001, 2) is None  # another tenant's
    assert predictor.errors()["chat", "memory"].right > 0.6
    predictor.forget_tenant(1)
    assert asked(1001, 1) is None
