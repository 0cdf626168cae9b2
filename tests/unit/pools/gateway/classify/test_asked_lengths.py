"""The gateway asks the predictor's process, over its socket, and does without it."""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from core.ports import RequestFeatures
from pools import wire
from pools.gateway.classify import asked_lengths
from pools.gateway.classify.asked_lengths import LengthAsker
from pools.gateway.classify.classifier import Classifier
from pools.lengths import length_server, reading
from pools.lengths.length_server import LengthServer, make_private
from pools.lengths.predicting import Predicting
from tests.fakes.encoder import FakeEncoder
from tests.fakes.text_predictor import FakeTextPredictor, kept_in, odds_of
from tests.unit.pools.gateway.classify.test_classifier import ASKED, SERVICE, ended
from tests.unit.pools.gateway.conftest import until

FEATURES = replace(ASKED, digest=None)


class House:
    """The process's parts in this loop, and a gateway's asker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.predictor = FakeTextPredictor({5: 60})
        self.asker = LengthAsker(folder / "s", budget_s=0.2)
        self.keeping = asyncio.ensure_future(self.asker.keep())
        self.stop: asyncio.Event | None = None
        self.serving: asyncio.Task[None] | None = None

    async def start(self, reader: reading.Reader | None = None) -> None:
        self.stop = asyncio.Event()
        server = LengthServer(self.folder / "s", Predicting(self.predictor, reader), kept_in(self.folder))
        self.serving = asyncio.ensure_future(server.serve(self.stop))
        await until(lambda: self.asker.connected)

    async def end(self) -> None:
        if self.stop is not None and self.serving is not None:
            self.stop.set()
            await self.serving

    async def said(self, *texts: str) -> object:
        asked = self.asker.ask("chat", FEATURES, 40, texts)
        return None if asked is None else await self.asker.answer(asked)


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr(asked_lengths, "CONNECT_AGAIN_S", 0.01)
    make_private(tmp_path / "own")
    own = House(tmp_path / "own")
    yield own
    own.keeping.cancel()
    await own.end()


async def test_answers_are_of_their_asks_however_many_are_on_their_way(house: House) -> None:
    await house.start()
    house.predictor.known = {size: 20 * size for size in range(1, 9)}
    found = await asyncio.gather(*(house.said("x" * size) for size in range(1, 10)))
    assert found == [*(odds_of(20 * size) for size in range(1, 9)), None]
    assert (house.asker.answered, house.asker.late) == (9, 0)


async def test_what_waits_is_read_together_and_what_an_encoder_that_is_behind_leaves_is_counted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = FakeEncoder(odds_of(300, "encoder"))
    encoder.goes_on.clear()
    monkeypatch.setattr(reading, "START_S", 0.35)  # five prompts in the budget
    house.asker._budget_s = 2.0
    await house.start(reading.Reader(encoder))
    house.predictor.known = dict.fromkeys(range(1, 21), 60)
    asked = asyncio.gather(*(house.said("x" * size) for size in range(1, 21)))
    await until(lambda: house.asker.unread == 15)
    encoder.goes_on.set()
    assert await asked == [*[odds_of(300, "encoder")] * 5, *[odds_of(60)] * 15]
    assert (house.asker.answered, house.asker.unread, house.asker.late) == (20, 15, 0)


async def test_nobody_is_asked_while_there_is_no_process_and_again_when_there_is(house: House) -> None:
    assert not house.asker.ready
    assert await house.said("hello") is None
    await house.start()
    assert await house.said("hello") == odds_of(60)
    await house.end()
    assert not (house.folder / "s").exists()


async def test_a_text_that_is_no_unicode_is_not_asked_about(house: House) -> None:
    await house.start()
    assert await house.said("\ud800") is None
    assert await house.said() is None
    assert await house.said("hello") == odds_of(60)


async def test_a_process_that_hangs_costs_the_budget_and_after_some_times_nothing(house: House) -> None:
    held: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_unix_server(lambda _, writer: held.append(writer), house.folder / "s")
    await until(lambda: house.asker.ready)
    house.asker._budget_s = 0.02
    for _ in range(asked_lengths.LATE_IN_A_ROW):
        assert house.asker.ready
        began_s = time.monotonic()
        assert await house.said("hello") is None
        assert time.monotonic() - began_s < 0.15
    assert not house.asker.ready
    assert (house.asker.late, house.asker.refused) == (asked_lengths.LATE_IN_A_ROW, 1)
    silent.close()
    for writer in held:
        writer.close()


async def test_whoever_waits_gets_none_at_once_when_the_process_dies(house: House) -> None:
    held: list[asyncio.StreamWriter] = []
    dies = await asyncio.start_unix_server(lambda _, writer: held.append(writer), house.folder / "s")
    await until(lambda: house.asker.connected)
    house.asker._budget_s = 5.0
    waiting = asyncio.ensure_future(house.said("hello"))
    await until(lambda: bool(held))
    held[0].transport.abort()
    assert await asyncio.wait_for(waiting, 1.0) is None
    dies.close()


async def test_too_many_asks_without_an_answer_are_no_more(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_lengths, "MOST_WAITING", 2)
    await house.start()
    asks = [house.asker.ask("chat", FEATURES, 40, ["hello"]) for _ in range(2)]
    assert not house.asker.ready
    assert [await house.asker.answer(asked) for asked in asks if asked] == [odds_of(60)] * 2
    assert house.asker.ready


async def test_what_was_learned_is_kept_when_the_process_ends(house: House) -> None:
    await house.start()
    asked = house.asker.ask("chat", FEATURES, 40, ["hello you"])
    assert asked is not None
    house.asker.learn(asked.number, 40, 77)
    await until(lambda: 9 in house.predictor.known)
    await house.end()
    assert kept_in(house.folder).recall().known == {5: 60, 9: 77}


async def test_a_process_that_serves_goes_back_to_what_was_put_in_the_place_of_its_file(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length_server, "LOOK_S", 0.02)
    other = kept_in(house.folder)
    other.write(house.predictor.state())
    await house.start()
    assert await house.said("hello") == odds_of(60)
    other.write(FakeTextPredictor({5: 400}).state())
    for _ in range(200):
        if await house.said("hello") == odds_of(400):
            break
        await asyncio.sleep(0.02)
    assert await house.said("hello") == odds_of(400)


async def test_only_its_own_account_reaches_the_socket(house: House, tmp_path: Path) -> None:
    await house.start()
    assert stat.S_IMODE((house.folder / "s").stat().st_mode) == 0o600
    assert stat.S_IMODE(house.folder.stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(house.folder)
    with pytest.raises(PermissionError, match="move it away"):
        make_private(tmp_path / "link")
    assert os.geteuid() == house.folder.stat().st_uid


# -- as the classifier uses it -----------------------------------------------------------------------


async def classified(classifier: Classifier, features: RequestFeatures, *texts: str) -> tuple[object, ...]:
    first = classifier.classify(SERVICE, features)
    if not classifier.can_refine(SERVICE, features, first):
        return first.predicted_tokens, first.source, first.class_name, first.class_probability
    found = await classifier.refine(SERVICE, features, texts, first)
    return found.predicted_tokens, found.source, found.class_name, found.class_probability


async def test_what_the_process_says_comes_before_history_and_after_a_prompt_that_was_seen(house: House) -> None:
    classifier = Classifier(lengths=house.asker)
    for output in range(1, 129):
        ended(classifier, FEATURES, output)
    assert await classified(classifier, FEATURES, "hello") == (65, "history", "LL", pytest.approx(104 / 128))
    await house.start()
    tokens, source, name, probability = await classified(classifier, FEATURES, "hello")
    assert (tokens, source, name, probability) == (
        odds_of(60).quantile(0.5),
        "text",
        "LL",
        pytest.approx(0.9, abs=0.01),
    )
    assert house.predictor.borders == (24,), "an answer of 25 tokens is of the longer class"
    assert await classified(classifier, FEATURES, "unknown") == (65, "history", "LL", pytest.approx(104 / 128))
    seen = replace(FEATURES, digest=b"d")
    ended(classifier, seen, 9)
    assert await classified(classifier, seen, "hello") == (9, "cache", "LS", None)


async def test_the_class_is_the_one_that_costs_least_and_the_tokens_stay_the_median(house: House) -> None:
    await house.start()
    house.predictor.known = {5: 10}  # of at most 25 tokens with probability 0.8, and of more with 0.2
    classifier = Classifier(lengths=house.asker)
    for cost, name, probability in ((1.0, "LS", 0.8), (3.0, "LS", 0.8), (9.0, "LL", 0.2), (0.01, "LS", 0.8)):
        view = replace(SERVICE, policy=wire.RequestPolicy(short_class_cost=cost))
        first = classifier.classify(view, FEATURES)
        found = await classifier.refine(view, FEATURES, ["hello"], first)
        assert found.predicted_tokens == odds_of(10).quantile(0.5)
        assert found.class_name == name, cost
        assert found.class_probability == pytest.approx(probability, abs=0.02)


def test_history_leans_to_longer_classes_where_short_ones_cost_more() -> None:
    classifier = Classifier()
    for output in [*[10] * 70, *[200] * 30]:
        ended(classifier, FEATURES, output)
    leans = replace(SERVICE, policy=wire.RequestPolicy(short_class_cost=3.0))
    plain, careful = (classifier.classify(view, FEATURES) for view in (SERVICE, leans))
    assert (plain.predicted_tokens, careful.predicted_tokens) == (10, 10)
    assert (plain.class_name, careful.class_name) == ("LS", "LL")
    assert [plain.class_probability, careful.class_probability] == pytest.approx([0.7, 0.3])


async def test_an_answer_that_may_not_be_longer_is_certainly_of_the_class_of_what_it_may(house: House) -> None:
    await house.start()
    classifier = Classifier(lengths=house.asker)
    bound = replace(FEATURES, max_tokens=24)
    assert await classified(classifier, bound, "hello") == (24, "bound", "LS", pytest.approx(1.0))
    assert not classifier.can_refine(SERVICE, replace(FEATURES, max_tokens=0), classifier.classify(SERVICE, bound))


async def test_the_process_learns_from_requests_that_it_was_asked_about(house: House) -> None:
    await house.start()
    classifier = Classifier(lengths=house.asker)
    first = classifier.classify(SERVICE, FEATURES)
    guess = await classifier.refine(SERVICE, FEATURES, ["unknown"], first)
    assert guess.source == "prior"
    row = wire.RequestRow(
        *("id", FEATURES.at_s, "chat", 7, 1, "chat", False, "ok", 200),
        prompt_tokens=guess.prompt_tokens,
        output_tokens=33,
        tokens_source="usage",
    )
    classifier.learn(row, FEATURES, guess)
    await until(lambda: house.predictor.known.get(7) == 33)
