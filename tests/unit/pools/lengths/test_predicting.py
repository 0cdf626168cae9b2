"""Asks and lessons of gateways, without a socket."""

import msgspec
import pytest

from core.length_odds import LengthOdds
from core.predictors.text_predictor import MEMORY
from pools.lengths import predicting
from pools.lengths.messages import Ask, Lesson
from pools.lengths.predicting import Predicting
from pools.lengths.reading import Reader
from tests.fakes.encoder import FakeEncoder
from tests.fakes.text_predictor import FakeTextPredictor, odds_of
from tests.unit.pools.gateway.conftest import until
from tests.unit.pools.lengths.test_messages import ASK


def numbered(number: int) -> Ask:
    return msgspec.structs.replace(ASK, number=number)


class Heard(list[tuple[LengthOdds | None, bool]]):
    """What was answered."""

    def __call__(self, odds: LengthOdds | None, unread: bool) -> None:
        self.append((odds, unread))


def asked(own: Predicting, ask: Ask) -> LengthOdds | None:
    """What is predicted at once."""
    own.ask("g", ask, heard := Heard())
    ((odds, unread),) = heard
    assert not unread
    return odds


def test_what_a_request_took_is_learned_when_it_has_ended_and_only_once() -> None:
    own = Predicting(predictor := FakeTextPredictor())
    assert asked(own, ASK) is None
    own.learn("g", Lesson(1, 41, 60))
    assert asked(own, numbered(2)) == odds_of(60)
    own.learn("g", Lesson(1, 41, 200))  # it has ended before
    own.learn("other", Lesson(2, 41, 200))  # whose number that is not
    assert (predictor.known, own.lessons) == ({11: 60}, 1)
    service, tenant, shown = predictor.seen[0]
    assert (service, tenant, shown.tenant_id, shown.max_tokens) == ("chat", 7, 7, 50)


def test_requests_that_have_not_ended_are_bounded_and_go_with_their_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "MOST_OPEN", 2)
    own = Predicting(FakeTextPredictor())
    for number in (1, 2, 3):
        asked(own, numbered(number))
    own.learn("g", Lesson(1, 41, 60))
    assert own.lessons == 0
    own.learn("g", Lesson(2, 41, 60))
    own.forget("g")
    own.learn("g", Lesson(3, 41, 60))
    assert own.lessons == 1


async def test_the_memory_of_prompts_answers_before_the_encoder() -> None:
    knows = FakeEncoder(odds_of(300, "encoder"))
    own = Predicting(FakeTextPredictor({11: 60}, MEMORY), Reader(knows))
    assert asked(own, ASK) == odds_of(60, MEMORY)
    assert not knows.batches


@pytest.mark.parametrize("knows", [True, False])
async def test_the_encoder_answers_before_the_words_where_it_can(knows: bool) -> None:
    encoder = FakeEncoder(odds_of(300, "encoder") if knows else None)
    own, heard = Predicting(FakeTextPredictor({11: 60}), Reader(encoder, lambda: 0.0)), Heard()
    own.ask("g", ASK, heard)
    assert not heard
    await until(lambda: bool(heard))
    assert heard == [(odds_of(300, "encoder") if knows else odds_of(60), False)]
    assert encoder.batches == [["Was\nist das?"]]


async def test_words_answer_at_once_where_the_encoder_serves_another_service_or_is_behind() -> None:
    encoder = FakeEncoder(odds_of(300, "encoder"), services=("code",))
    own, heard = Predicting(FakeTextPredictor({11: 60}), Reader(encoder, lambda: ASK.until_s)), Heard()
    assert asked(own, ASK) == odds_of(60)
    own.ask("g", msgspec.structs.replace(ASK, service="code"), heard)
    assert heard == [(odds_of(60), True)]
    assert not encoder.batches
