"""Tests of core.predictors.prompt_memory."""

from __future__ import annotations

import numpy as np
import pytest

from core.predictors import prompt_memory
from core.predictors.answer_scale import AnswerScale
from core.predictors.prompt_memory import SemanticLengthCache
from core.predictors.text_features import TextFeatures, TextHasher

HASHER = TextHasher(b"0123456789abcdef")
# Of three services the first two answer alike, and the third as it likes.
SERVICES = ("long", "short", "other")


def look(number: int) -> TextFeatures:
    return HASHER.look([f"tell me of matter{number} and of subject{number} what there is{number} to know"])


def taught(prompts: int) -> tuple[SemanticLengthCache, dict[str, AnswerScale], np.ndarray]:
    """Returns a memory of prompts, scales, and the scores that answers were drawn by, (prompts, services)."""
    rng = np.random.default_rng(3)
    shared = rng.normal(size=(prompts, 1))
    scores = np.hstack([shared + 0.2 * rng.normal(size=(prompts, 2)), rng.normal(size=(prompts, 1))])
    tokens = np.exp(scores * 0.7 + np.log([400.0, 40.0, 100.0])).astype(int) + 1
    scales = {name: AnswerScale(tokens[:, column].tolist()) for column, name in enumerate(SERVICES)}
    memory = SemanticLengthCache()
    for number in range(prompts):
        for name, length in zip(SERVICES, tokens[number].tolist(), strict=True):
            memory.remember(name, 1, look(number), length, scales[name].score(length))
    memory.relearn(scales)
    return memory, scales, scores


def correlation(memory: SemanticLengthCache, scales: dict[str, AnswerScale], asked: str, answered: str) -> float:
    """Returns how well what one service answers to new prompts foretells of another's answers to them."""
    rng = np.random.default_rng(4)
    true, said = [], []
    for number in range(1000, 1100):
        score = rng.normal()
        memory.remember(answered, 1, look(number), 1, score)
        row = memory.find(1, look(number))
        assert row is not None
        found = memory.score(asked, row)
        assert found is not None
        true.append(score)
        said.append(found[0])
    return float(np.polyfit(true, said, 1)[0])


def test_services_that_answered_alike_foretell_each_other_and_others_do_not() -> None:
    memory, scales, _ = taught(150)
    assert correlation(memory, scales, "long", "short") == pytest.approx(0.9, abs=0.15)
    assert correlation(memory, scales, "other", "short") == pytest.approx(0.0, abs=0.25)


def test_a_service_without_history_is_taken_as_the_usual() -> None:
    memory, _, _ = taught(70)
    row = memory.find(1, look(0))
    assert row is not None
    found = memory.score("new", row)
    assert found is not None
    assert 0.0 < found[1] < 1.0


def test_the_variance_is_less_where_services_answer_alike() -> None:
    memory, _, _ = taught(150)
    row = memory.find(1, look(3))
    assert row is not None
    alike, unlike = memory.score("long", row, repeated=False), memory.score("other", row, repeated=False)
    assert alike is not None
    assert unlike is not None
    assert alike[1] < 0.4 < 0.8 < unlike[1]


def test_prompts_that_are_nearly_the_same_are_found_by_their_tenant_alone() -> None:
    memory = SemanticLengthCache()
    words = [f"word{number}" for number in range(60)]
    first = HASHER.look([" ".join(words)])
    memory.remember("chat", 1, first, 100, 0.0)
    near = HASHER.look([" ".join([*words[:-2], "new", "end"])])
    far = HASHER.look([" ".join(words[40:]) + " and something else altogether that is asked here"])
    assert memory.find(1, near) == memory.find(1, first) is not None
    assert memory.find(1, far) is None
    assert memory.find(2, first) is None
    assert memory.find(1, HASHER.look([""])) is None


def test_a_tenants_prompts_are_forgotten_and_no_one_elses() -> None:
    memory = SemanticLengthCache()
    for tenant in (1, 2):
        memory.remember("chat", tenant, look(1), 100, 0.5)
    memory.forget_tenant(1)
    assert memory.find(1, look(1)) is None
    assert memory.find(2, look(1)) is not None
    memory.remember("chat", 3, look(5), 10, -1.0)
    row = memory.find(3, look(5))
    assert row is not None
    assert memory.score("chat", row, repeated=False) is None  # nothing is left of who was there before


def test_the_prompt_that_was_answered_longest_ago_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_memory, "PROMPTS", 3)
    memory = SemanticLengthCache()
    for number in (1, 2, 3, 1, 4):
        memory.remember("chat", 1, look(number), 100, 0.5)
    assert [memory.find(1, look(number)) is not None for number in (1, 2, 3, 4)] == [True, False, True, True]
    assert len(memory) == 3


def test_the_service_that_answered_longest_ago_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_memory, "SERVICES", 2)
    memory = SemanticLengthCache()
    for service in ("a", "b", "a", "c"):
        memory.remember(service, 1, look(1), 100, 0.5)
    assert sorted(memory.state()[0]) == ["a", "c"]


def test_scores_follow_the_scale_when_answers_grow_longer() -> None:
    memory, scales, _ = taught(100)
    row = memory.find(1, look(0))
    assert row is not None
    before = memory.score("short", row, repeated=False)
    for tokens in range(5000, 6000):
        scales["long"].add(tokens)
    memory.relearn(scales)
    after = memory.score("short", row, repeated=False)
    assert before is not None
    assert after is not None
    assert after[0] < 0.0 < 1.0 < before[0]


def test_what_is_remembered_is_the_same_when_it_was_kept() -> None:
    memory, scales, _ = taught(100)
    memory.forget_tenant(2)
    services, state = memory.state()
    again = SemanticLengthCache()
    again.restore(services, state, scales)
    for number in (0, 40, 99):
        rows = memory.find(1, look(number)), again.find(1, look(number))
        assert rows[0] is not None
        assert rows[1] is not None
        assert again.score("long", rows[1]) == pytest.approx(memory.score("long", rows[0]), abs=1e-5)


@pytest.mark.parametrize("name", ["tenants", "signatures", "tokens"])
def test_a_state_is_refused_when_its_parts_do_not_fit(name: str) -> None:
    memory, scales, _ = taught(70)
    services, state = memory.state()
    with pytest.raises(ValueError, match="remembered prompts"):
        SemanticLengthCache().restore(services, {**state, name: state[name][:-1]}, scales)
    with pytest.raises(ValueError, match="remembered prompts"):
        SemanticLengthCache().restore(services, {**state, name: state[name].astype(np.float64)}, scales)
