"""Tests of core.predictors.length_scores."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from core.predictors.length_scores import ALIKE, BASE, MEMORY, SIZES, TEXT, AnswerTable, score_lengths

PROMPTS = 140


def table(models: int, shared: float = 1.0) -> AnswerTable:
    """Returns models that answer the same prompts at lengths that go together."""
    rng = np.random.default_rng(1)
    scores = shared * rng.normal(size=(PROMPTS, 1)) + 0.2 * rng.normal(size=(PROMPTS, models))
    prompts = tuple(f"prompt{number} asks{number} of matter{number}" for number in range(PROMPTS))
    return AnswerTable(
        prompts, tuple(f"m{n}" for n in range(models)), np.exp(scores + 5.0 + np.arange(models)).astype(int)
    )


def test_memory_does_better_than_text_where_only_other_models_answers_say_something() -> None:
    report = score_lengths(table(3), folds=2)
    memory, text, base = (report.mean(name) for name in (MEMORY, TEXT, BASE))
    assert memory is not None
    assert text is not None
    assert base is not None
    assert memory.answers == text.answers == base.answers == PROMPTS
    assert memory.accuracy > 0.6
    assert max(text.accuracy, base.accuracy) < 0.35
    assert memory.r2_log > 0.7
    counts = np.array(report.confusion[MEMORY])
    assert counts.sum() == 3 * PROMPTS
    assert np.trace(counts) / counts.sum() == pytest.approx(memory.accuracy)


def test_a_models_own_answer_is_never_known_to_what_is_scored() -> None:
    report = score_lengths(table(1), folds=3)
    assert report.figures[MEMORY] == {}
    assert report.mean(MEMORY) is None
    assert np.sum(report.confusion[MEMORY]) == 0


def test_prompts_alike_by_their_vectors_answer_for_each_other_and_others_do_not() -> None:
    given = table(2)
    vectors = np.zeros((PROMPTS, PROMPTS), np.float32)
    vectors[np.argsort(given.tokens[:, 0]), np.arange(PROMPTS) // 2] = 1.0  # neighbours by length share a direction
    report = score_lengths(given, folds=2, vectors=vectors)
    alike, text = report.mean(ALIKE), report.mean(TEXT)
    assert alike is not None
    assert text is not None
    assert 20 < alike.answers < text.answers, "of some the other one is held back, too"
    assert alike.accuracy > 0.5 > 0.35 > text.accuracy
    apart = score_lengths(given, folds=2, vectors=np.eye(PROMPTS, dtype=np.float32))
    assert apart.mean(ALIKE) is None


def test_figures_are_the_same_when_the_seed_is() -> None:
    one, again = (score_lengths(table(2), folds=2, seed=5) for _ in range(2))
    assert one.figures == again.figures
    assert one.figures != score_lengths(table(2), folds=2, seed=6).figures


def test_models_without_five_classes_are_left_out_and_missing_answers_are_no_answers() -> None:
    given = table(2)
    tokens = np.hstack([given.tokens, np.full((PROMPTS, 1), 7)])
    tokens[3, 0] = 0
    report = score_lengths(AnswerTable(given.prompts, (*given.models, "same"), tokens), folds=2)
    assert report.left_out == ("same",)
    assert report.tested == given.models
    assert report.figures[BASE]["m0"].answers == PROMPTS - 1


def test_so_few_answers_that_no_model_can_be_scored_are_refused() -> None:
    given = table(1)
    with pytest.raises(ValueError, match="no model has 128 answers or more"):
        score_lengths(AnswerTable(given.prompts[:100], given.models, given.tokens[:100]))


def test_of_recorded_answers_memory_text_and_sizes_do_better_than_the_base_rate_in_this_order(test_data: Path) -> None:
    with gzip.open(test_data / "answer_lengths.csv.gz", "rt", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))[:321]
    some = range(25, 35)
    tokens = np.array([[int(row[column]) for column in some] for row in rows])
    recorded = AnswerTable(tuple(row[0] for row in rows), tuple(header[column] for column in some), tokens)
    report = score_lengths(recorded, models=2, folds=2)
    accuracy = [mean.accuracy for name in (MEMORY, TEXT, BASE) if (mean := report.mean(name)) is not None]
    assert accuracy[0] > 0.4 > accuracy[1] > accuracy[2]
    sizes = report.mean(SIZES)
    assert sizes is not None
    assert sizes.accuracy > accuracy[2]
