"""Lengths and classes of requests before they run, and what is learned from those that ended."""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from core.observations.limits import LONG_ANSWER
from core.ports import PermanentError, RequestFeatures
from core.predictors.boosted_lengths import RETRAIN_AFTER, BoostedLengthPredictor, LengthTrees
from core.predictors.length_errors import LEAST, LengthError
from core.predictors.output_length import PRIOR_OUTPUT_TOKENS, WARM_UP
from pools import wire
from pools.gateway.classify.classified import Classified
from pools.gateway.classify.classifier import Classifier
from pools.gateway.classify.length_trainer import LengthTrainer
from pools.gateway.classify.prompt_tokens import HuggingFaceTokenizer, PromptEstimator, TokenizerThread
from tests.unit.pools.gateway.conftest import until

CLASSES = [
    wire.FleetClass("SS", 0, 0, 184, 0, 25),
    wire.FleetClass("SL", 1, 0, 184, 25, None),
    wire.FleetClass("LS", 2, 184, None, 0, 25),
    wire.FleetClass("LL", 3, 184, None, 25, None),
]


@dataclass
class View:
    name: str = "chat"
    max_model_len: int = 4096
    classes: Sequence[wire.FleetClass] = field(default_factory=lambda: CLASSES)
    policy: wire.RequestPolicy = field(default_factory=wire.RequestPolicy)


SERVICE = View()
ASKED = RequestFeatures(chat=True, at_s=1.7e9, tenant_id=7, text_bytes=2000)


def ended(
    classifier: Classifier, features: RequestFeatures, output: int, prompt: int | None = None, status: str = "ok"
) -> Classified:
    """Classifies and learns from one request that took `output` tokens."""
    guess = classifier.classify(SERVICE, features)
    prompt = guess.prompt_tokens if prompt is None else prompt
    row = wire.RequestRow(
        "id", features.at_s, SERVICE.name, 7, 1, "chat", False, status, 200,
        prompt_tokens=prompt, output_tokens=output, tokens_source="usage", request_class=guess.class_name,
        actual_class=classifier.actual_class(SERVICE, features, prompt, output),
    )  # fmt: skip
    classifier.learn(row, features, guess)
    return guess


def test_a_long_answer_is_what_one_of_a_hundred_exceeds() -> None:
    classifier = Classifier()
    unknown = classifier.classify(SERVICE, ASKED)
    assert unknown.long_tokens == LONG_ANSWER * PRIOR_OUTPUT_TOKENS
    for output in [*range(1, 201)] * 2:
        ended(classifier, replace(ASKED, digest=None), output)
    known = classifier.classify(SERVICE, ASKED)
    assert known.long_tokens == 199
    assert known.predicted_tokens < 199
    assert classifier.classify(SERVICE, replace(ASKED, max_tokens=150)).long_tokens == 150
    assert classifier.classify(SERVICE, replace(ASKED, sequences=2)).long_tokens == 398


# -- classes and sources -----------------------------------------------------------------------------


def test_the_prior_is_expected_when_nothing_is_known() -> None:
    guess = Classifier().classify(SERVICE, ASKED)
    assert (guess.predicted_tokens, guess.source, guess.exact) == (PRIOR_OUTPUT_TOKENS, "prior", False)
    assert guess.class_name == "LL"


def test_token_ids_are_counted_exactly_when_the_prompt_came_so() -> None:
    guess = Classifier().classify(SERVICE, replace(ASKED, text_bytes=0), ids=183)
    assert (guess.prompt_tokens, guess.exact, guess.near_border, guess.class_name) == (183, True, False, "SL")


def test_history_then_trees_then_the_cache_are_asked_when_they_know() -> None:
    classifier = Classifier()
    asked = replace(ASKED, digest=b"d" * 16)
    for _ in range(WARM_UP):
        ended(classifier, ASKED, 20)
    assert (found := classifier.classify(SERVICE, asked)).source == "history"
    assert (found.predicted_tokens, found.class_name) == (20, "LS")
    classifier.boosted.install("chat", LengthTrees(4.0, (), (), (), (), (), {}, 0.0, 1))
    assert (found := classifier.classify(SERVICE, asked)).source == "boosted"
    assert (found.predicted_tokens, found.class_name) == (55, "LL")
    ended(classifier, asked, 7, prompt=150)
    assert (found := classifier.classify(SERVICE, asked)).source == "cache"
    assert (found.predicted_tokens, found.prompt_tokens, found.exact, found.class_name) == (7, 150, True, "SS")


def test_the_limit_is_expected_when_a_request_may_not_generate_more() -> None:
    classifier = Classifier()
    guess = classifier.classify(SERVICE, replace(ASKED, max_tokens=16))
    assert (guess.predicted_tokens, guess.source, guess.class_name) == (16, "bound", "LS")
    room = classifier.classify(View(max_model_len=510), ASKED, ids=500)
    assert (room.predicted_tokens, room.source) == (10, "bound")
    assert classifier.classify(View(max_model_len=510), ASKED, ids=9999).predicted_tokens == 1


def test_answers_add_up_but_the_class_is_of_one_when_several_are_asked_for() -> None:
    classifier = Classifier()
    several = replace(ASKED, sequences=4)
    for _ in range(WARM_UP):
        ended(classifier, several, 80)
    guess = classifier.classify(SERVICE, several)
    assert (guess.predicted_tokens, guess.class_name) == (80, "LS")
    assert classifier.classify(SERVICE, ASKED).predicted_tokens == 20
    missed = {key: n for key, n in classifier.counts.classes.items() if key[1] != key[2]}
    assert missed == {("chat", "LL", "LS", "prior"): WARM_UP}  # the prior's 129 were too long


def test_there_is_no_class_when_the_service_has_none() -> None:
    classifier = Classifier()
    guess = classifier.classify(View(classes=[]), ASKED)
    assert (guess.class_name, guess.near_border) == (None, False)


# -- what is counted ---------------------------------------------------------------------------------


def test_mispredictions_are_counted_by_class_and_source_when_requests_end() -> None:
    classifier = Classifier()
    ended(classifier, ASKED, 29)
    ended(classifier, ASKED, 5)
    ended(classifier, replace(ASKED, max_tokens=10), 5)
    counts = classifier.counts
    assert counts.classes == {
        ("chat", "LL", "LL", "prior"): 1,
        ("chat", "LL", "LS", "prior"): 1,
        ("chat", "LS", "LS", "bound"): 1,
    }
    missed = {key: (miss.count, miss.tokens) for key, miss in counts.outputs.items()}
    assert missed == {("chat", "prior"): (2, 100 + 124), ("chat", "bound"): (1, 5)}
    families = {name: dict(samples) for name, _, samples in counts.families()}
    assert sum(families["classified_total"].values()) == 3
    by_prior = (("service", "chat"), ("source", "prior"))
    assert families["output_predictions_total"][by_prior] == 2
    assert families["output_prediction_error_tokens_total"][by_prior] == 224
    assert families["prompt_prediction_error_tokens_total"] == {(("service", "chat"), ("exact", "false")): 0}


def test_errors_of_predictions_are_measured_on_answers_that_could_have_been_longer() -> None:
    classifier = Classifier()
    for _ in range(LEAST):
        ended(classifier, ASKED, 2 * PRIOR_OUTPUT_TOKENS)
    ended(classifier, replace(ASKED, max_tokens=10), 10)
    assert classifier.errors.of("chat") == LengthError(1.0, LEAST)


def test_nothing_is_learned_when_a_request_failed() -> None:
    classifier = Classifier()
    ended(classifier, ASKED, 29, status="upstream_error")
    assert not classifier.counts.classes


# -- prompt tokens -----------------------------------------------------------------------------------


def test_ratio_and_template_are_learned_when_prompts_differ_in_length() -> None:
    rng = random.Random(1)
    estimator = PromptEstimator()
    for _ in range(600):
        length, messages = rng.randrange(20, 6000), rng.choice((1, 1, 3))
        tokens = round(length * rng.gauss(0.31, 0.01) + 12 * messages)
        estimator.observe("chat", True, length, messages, tokens)
    for length, messages in ((40, 1), (4000, 1), (4000, 9)):
        found = estimator.estimate("chat", True, length, messages)
        assert found.tokens == pytest.approx(0.31 * length + 12 * messages, rel=0.06, abs=4)
        assert found.low <= found.tokens <= found.high
    assert estimator.overhead("chat", True) == pytest.approx(12, rel=0.2)
    assert estimator.estimate("other", True, 4000, 1).tokens == 1004


def test_the_range_holds_nine_in_ten_when_texts_vary() -> None:
    rng = random.Random(2)
    estimator = PromptEstimator()
    inside = 0
    for number in range(3000):
        length = rng.randrange(400, 6000)
        tokens = round(length * rng.gauss(0.25, 0.03))
        found = estimator.estimate("code", False, length, 1)
        inside += number >= 1000 and found.low <= tokens <= found.high
        estimator.observe("code", False, length, 1, tokens)
    assert 0.85 < inside / 2000 < 0.95


def test_a_border_is_near_when_it_lies_within_the_estimates_error() -> None:
    classifier = Classifier(tokenizers=TokenizerThread({"chat": FakeTokenizer()}))
    for _ in range(300):
        classifier.estimator.observe("chat", True, 2000, 1, 510)
        classifier.estimator.observe("chat", True, 1000, 1, 245)
    spread = classifier.estimator.estimate("chat", True, 740, 1)
    assert spread.low < 184 < spread.high
    assert spread.high - spread.low < 24
    assert classifier.classify(SERVICE, replace(ASKED, text_bytes=740)).near_border
    assert not classifier.classify(SERVICE, replace(ASKED, text_bytes=600)).near_border
    assert not classifier.classify(SERVICE, replace(ASKED, text_bytes=900)).near_border
    moved = [replace_bounds(cell, 150) for cell in CLASSES]
    assert classifier.classify(View(classes=moved), replace(ASKED, text_bytes=600)).near_border
    classifier.close()


def test_no_border_is_near_when_nobody_can_count() -> None:
    assert not Classifier().classify(SERVICE, replace(ASKED, text_bytes=740)).near_border


def replace_bounds(cell: wire.FleetClass, border: int) -> wire.FleetClass:
    low, high = (border if cell.input_min else 0), (border if cell.input_max else None)
    return wire.FleetClass(cell.name, cell.rank, low, high, cell.output_min, cell.output_max)


# -- tokenizers --------------------------------------------------------------------------------------


@dataclass
class FakeTokenizer:
    """Counts words, in `takes_s`, until `opens` if there is such an event."""

    takes_s: float = 0.0
    opens: threading.Event | None = None
    fails: bool = False
    broken: bool = False
    asked: list[Sequence[str]] = field(default_factory=list)

    def count(self, texts: Sequence[str]) -> int:
        self.asked.append(texts)
        if self.fails:
            raise PermanentError("no such word")
        if self.broken:
            raise RuntimeError("boom")
        if self.opens is not None:
            assert self.opens.wait(60.0)
        time.sleep(self.takes_s)
        return sum(len(text.split()) for text in texts)


NEAR = replace(ASKED, chat=False, text_bytes=740)


async def test_the_tokenizer_decides_when_the_prompt_lies_near_a_border() -> None:
    thread = TokenizerThread({"chat": FakeTokenizer()}, deadline_s=1.0)
    classifier = Classifier(tokenizers=thread)
    guess = classifier.classify(SERVICE, NEAR)
    assert (guess.prompt_tokens, guess.class_name, guess.near_border) == (185, "LL", True)
    assert classifier.can_refine(SERVICE, NEAR, guess)
    found = await classifier.refine(SERVICE, NEAR, ["a " * 100, "b " * 80], guess)
    assert (found.prompt_tokens, found.exact, found.class_name, found.near_border) == (180, True, "SL", False)
    in_chat = replace(NEAR, chat=True, messages=2)
    found = await classifier.refine(SERVICE, in_chat, ["a " * 100, "b " * 80], guess)
    assert (found.prompt_tokens, found.exact, found.class_name) == (188, False, "LL")  # 2 x 4 of the template
    assert thread.answered == 2
    classifier.close()


async def test_the_estimate_stands_when_the_tokenizer_is_slow_full_or_broken() -> None:
    gate = threading.Event()
    slow = FakeTokenizer(opens=gate)
    thread = TokenizerThread(
        {"chat": slow, "bad": FakeTokenizer(fails=True), "worse": FakeTokenizer(broken=True)}, 0.02, max_queue=1
    )
    classifier = Classifier(tokenizers=thread)
    guess = classifier.classify(SERVICE, NEAR)
    late = 1
    first = asyncio.ensure_future(classifier.refine(SERVICE, NEAR, ["a"], guess))
    await until(lambda: bool(slow.asked) or first.done())
    while not slow.asked:  # its deadline had passed before the thread looked: on a busy machine it may
        late += 1
        first = asyncio.ensure_future(classifier.refine(SERVICE, NEAR, ["a"], guess))
        await until(lambda: bool(slow.asked) or first.done())  # noqa: B023
    second = asyncio.ensure_future(classifier.refine(SERVICE, NEAR, ["b"], guess))
    await asyncio.sleep(0)
    assert await classifier.refine(SERVICE, NEAR, ["c"], guess) is guess
    assert thread.refused == 1
    assert await first is guess
    assert await second is guess, "and the tokenizer is still at the first"
    assert thread.late == late + 1
    gate.set()
    await until(lambda: thread.waiting == 0)
    assert await thread.count("chat", ["x" * 10**6], 10**6) is None  # longer than the deadline by far
    assert thread.refused == 2
    thread.deadline_s = 60.0
    logging.disable(logging.CRITICAL)
    try:
        assert await thread.count("bad", ["a"], 1) is None
        assert await thread.count("worse", ["a"], 1) is None
    finally:
        logging.disable(logging.NOTSET)
    assert await thread.count("chat", ["a b"], 3) == 2
    assert slow.asked == [["a"], ["a b"]]  # the second's deadline had passed before its turn
    assert thread.failed == 2
    classifier.close()


async def test_a_tokenizer_is_asked_again_when_it_had_seemed_too_slow() -> None:
    thread = TokenizerThread({"chat": FakeTokenizer()}, deadline_s=1.0)
    refusals = 0
    while await thread.count("chat", ["a b"], 3 * 10**6) is None:  # a megabyte a second is what it starts from
        refusals += 1
        assert refusals < 500
    assert refusals > 50
    thread.close()


async def test_there_is_no_thread_when_there_is_no_tokenizer() -> None:
    before = threading.active_count()
    thread = TokenizerThread({})
    classifier = Classifier(tokenizers=thread)
    assert threading.active_count() == before
    guess = classifier.classify(SERVICE, NEAR)
    assert not classifier.can_refine(SERVICE, NEAR, guess)
    assert await classifier.refine(SERVICE, NEAR, ["a"], guess) is guess
    assert await thread.count("chat", ["a"], 1) is None
    classifier.close()


def test_a_tokenizer_is_refused_when_its_package_or_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"tokenizer"):
        HuggingFaceTokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_counts_when_its_package_is_there(tmp_path: Path) -> None:
    package = pytest.importorskip("tokenizers")
    tokenizer = package.Tokenizer(package.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = HuggingFaceTokenizer(tmp_path / "tokenizer.json")
    assert found.count(["a b c", "", "b"]) == 4


# -- learning beside the gateway ---------------------------------------------------------------------

PATIENCE_S = 300.0  # the machine may be busy


def taught(n: int = 400) -> BoostedLengthPredictor:
    rng = random.Random(3)
    predictor = BoostedLengthPredictor(retrain_after=n, min_records=n)
    for _ in range(n):
        question = rng.random() < 0.5
        asked = replace(ASKED, has_question=question)
        predictor.observe("chat", 500, 40 if question else 400, asked)
    return predictor


@pytest.fixture(scope="module")
def learned() -> Iterator[tuple[BoostedLengthPredictor, LengthTrainer]]:
    """What another process has learned, once for all: it takes seconds, and longer where much else goes on."""
    predictor = taught()
    trainer = LengthTrainer(predictor, niceness=0)
    trainer.consider("chat", 0.5)
    trainer.join(PATIENCE_S)
    yield predictor, trainer
    trainer.close()


def test_trees_are_in_force_when_another_process_has_learned_them(
    learned: tuple[BoostedLengthPredictor, LengthTrainer],
) -> None:
    predictor, trainer = learned
    classifier = Classifier(boosted=predictor, trainer=trainer)
    assert trainer.failures == 0
    guess = classifier.classify(SERVICE, replace(ASKED, has_question=True))
    assert (guess.predicted_tokens, guess.source) == (40, "boosted")
    lesson = trainer.lessons["chat"]
    assert lesson.kept
    assert lesson.boosted_mae_tokens < lesson.history_mae_tokens
    trainer.consider("chat", 0.5)  # not due again
    assert not trainer.busy


def test_learning_pauses_when_it_has_just_taken_long(learned: tuple[BoostedLengthPredictor, LengthTrainer]) -> None:
    predictor, trainer = learned
    for number in range(RETRAIN_AFTER):
        predictor.observe("chat", 500, 40 + number % 7, ASKED)
    assert predictor.due("chat")
    trainer.consider("chat", 0.5)
    assert not trainer.busy


def test_what_was_learned_stays_when_learning_fails(caplog: pytest.LogCaptureFixture) -> None:
    predictor = taught()
    trees = LengthTrees(4.0, (), (), (), (), (), {}, 0.0, 1)
    predictor.install("chat", trees)
    trainer = LengthTrainer(predictor, timeout_s=0.001)
    trainer.consider("chat", 0.5)
    trainer.join(PATIENCE_S)
    assert trainer.failures == 1
    assert "could not be learned" in caplog.text
    assert predictor.trees("chat") is trees


def test_learning_ends_when_the_gateway_does() -> None:
    trainer = LengthTrainer(taught())
    trainer.consider("chat", 0.5)
    began_s = time.monotonic()
    trainer.close()
    assert time.monotonic() - began_s < 10.0
    trainer.join(60.0)
    assert not trainer.busy
    trainer.consider("chat", 0.5)
    assert not trainer.busy
