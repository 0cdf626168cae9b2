"""Asks and lessons of gateways, without a socket."""

from collections.abc import Sequence

import msgspec
import pytest

from core.length_odds import LengthOdds
from core.ports import PermanentError
from core.predictors.text_predictor import MEMORY
from pools.lengths import predicting
from pools.lengths.messages import Ask, Lesson
from pools.lengths.predicting import Predicting
from tests.fakes.text_predictor import FakeTextPredictor, odds_of
from tests.unit.pools.lengths.test_messages import ASK


class Encoder:
    def __init__(self, said: LengthOdds | None = None, error: str = "") -> None:
        self.said, self.error = said, error
        self.prompts: list[str] = []

    def predict(self, service: str, prompts: Sequence[str]) -> Sequence[LengthOdds | None]:
        self.prompts += prompts
        if self.error:
            raise PermanentError(self.error)
        return [self.said] * len(prompts)


def numbered(number: int) -> Ask:
    return msgspec.structs.replace(ASK, number=number)


def test_what_a_request_took_is_learned_when_it_has_ended_and_only_once() -> None:
    own = Predicting(predictor := FakeTextPredictor())
    assert own.ask("g", ASK) is None
    own.learn("g", Lesson(1, 41, 60))
    assert own.ask("g", numbered(2)) == odds_of(60)
    own.learn("g", Lesson(1, 41, 200))  # it has ended before
    own.learn("other", Lesson(2, 41, 200))  # whose number that is not
    assert (predictor.known, own.lessons) == ({11: 60}, 1)
    service, tenant, shown = predictor.seen[0]
    assert (service, tenant, shown.tenant_id, shown.max_tokens) == ("chat", 7, 7, 50)


def test_requests_that_have_not_ended_are_bounded_and_go_with_their_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "MOST_OPEN", 2)
    own = Predicting(FakeTextPredictor())
    for number in (1, 2, 3):
        own.ask("g", numbered(number))
    own.learn("g", Lesson(1, 41, 60))
    assert own.lessons == 0
    own.learn("g", Lesson(2, 41, 60))
    own.forget("g")
    own.learn("g", Lesson(3, 41, 60))
    assert own.lessons == 1


def test_the_memory_of_prompts_answers_before_trained_models() -> None:
    knows = Encoder(odds_of(300, "encoder"))
    own = Predicting(FakeTextPredictor({11: 60}, MEMORY), [knows])
    assert own.ask("g", ASK) == odds_of(60, MEMORY)
    assert not knows.prompts


def test_trained_models_are_asked_in_their_order_before_the_words() -> None:
    broken, knows = Encoder(error="no memory"), Encoder(odds_of(300, "encoder"))
    own = Predicting(FakeTextPredictor({11: 60}), [broken, Encoder(), knows])
    assert own.ask("g", ASK) == odds_of(300, "encoder")
    assert knows.prompts == broken.prompts == ["Was\nist das?"]
    knows.said = None
    assert own.ask("g", ASK) == odds_of(60)
