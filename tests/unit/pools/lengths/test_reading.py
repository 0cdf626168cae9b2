"""The queue before a trained encoder: what is read together, and what is not read in time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from core.length_odds import LengthOdds
from pools.lengths.reading import MOST_TOGETHER, SENDING_S, START_S, Reader
from tests.fakes.encoder import FakeEncoder
from tests.fakes.text_predictor import odds_of
from tests.unit.pools.gateway.conftest import until

SAID = odds_of(300, "encoder")


class Queue:
    """A reader whose clock stands still unless it is set, and what came of each prompt."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.encoder = FakeEncoder(SAID)
        self.reader = Reader(self.encoder, lambda: self.now_s)
        self.read: list[str] = []
        self.said: dict[str, LengthOdds | None] = {}
        self.unread: list[str] = []

    def ask(self, prompt: str, until_s: float) -> None:
        def then(odds: LengthOdds | None, unread: bool) -> None:
            (self.unread if unread else self.read).append(prompt)
            self.said[prompt] = odds

        self.reader.read("chat", prompt, until_s, then)

    async def all_said(self, count: int) -> None:
        await until(lambda: len(self.said) == count)


@pytest.fixture
def queue() -> Queue:
    return Queue()


async def test_what_waits_is_read_together_and_what_comes_meanwhile_is_the_next_batch(queue: Queue) -> None:
    queue.encoder.goes_on.clear()
    for prompt in "abc":
        queue.ask(prompt, 1.0)
    await until(lambda: bool(queue.encoder.batches))
    for number in range(MOST_TOGETHER + 1):
        queue.ask(str(number), 1.0)
    queue.encoder.goes_on.set()
    await queue.all_said(MOST_TOGETHER + 4)
    assert [len(batch) for batch in queue.encoder.batches] == [3, MOST_TOGETHER, 1]
    assert queue.read == ["a", "b", "c", *map(str, range(MOST_TOGETHER + 1))]
    assert set(queue.said.values()) == {SAID}


async def test_a_prompt_whose_turn_comes_too_late_is_turned_away_at_once(queue: Queue) -> None:
    queue.encoder.goes_on.clear()
    for number in range(6):
        queue.ask(str(number), SENDING_S + 4.5 * START_S)
    assert queue.unread == ["4", "5"]
    await until(lambda: bool(queue.encoder.batches))
    queue.ask("behind these", SENDING_S + 4.5 * START_S)
    queue.ask("later", SENDING_S + 5.5 * START_S)
    assert queue.unread == ["4", "5", "behind these"]
    queue.now_s = 10 * START_S  # the batch takes twice as long as it should, and may take as long again
    queue.ask("behind what is late", queue.now_s + 6 * START_S)
    assert queue.unread[-1] == "behind what is late"
    queue.encoder.goes_on.set()
    await queue.all_said(9)
    assert queue.unread[-1] == "later"
    assert queue.read == ["0", "1", "2", "3"]


async def test_a_batch_is_no_larger_than_the_budget_of_its_first_allows(queue: Queue) -> None:
    queue.ask("first", SENDING_S + 2.5 * START_S)
    for prompt in ("second", "third", "fourth"):
        queue.ask(prompt, 1.0)
    await queue.all_said(4)
    assert queue.encoder.batches == [["first", "second"], ["third", "fourth"]]


async def test_what_a_prompt_takes_is_measured_and_a_bad_minute_passes(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_long(services: Sequence[str], prompts: Sequence[str]) -> Sequence[LengthOdds | None]:
        queue.now_s += 10.0
        return [SAID] * len(prompts)

    with monkeypatch.context() as patched:
        patched.setattr(queue.encoder, "predict", takes_long)
        queue.ask("slow", 1.0)
        await queue.all_said(1)
    for number in range(400):
        queue.ask(str(number), queue.now_s + 0.05)
    await queue.all_said(401)
    assert queue.unread[:300] == [str(number) for number in range(300)]
    assert queue.read[1:], "it is asked again"


@pytest.mark.parametrize("error", ["no memory", ""])
async def test_an_encoder_that_fails_says_nothing_and_is_asked_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: str
) -> None:
    queue.encoder.error = error
    if not error:
        monkeypatch.setattr(queue.encoder, "serves", None)  # raises what no adapter should
    queue.ask("one", 1.0)
    await queue.all_said(1)
    assert queue.said == {"one": None}
    assert "the encoder fails" in caplog.text
    monkeypatch.undo()
    queue.encoder.error = ""
    queue.ask("two", 1.0)
    await queue.all_said(2)
    assert queue.said["two"] == SAID
