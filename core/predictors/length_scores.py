"""Scores predictors of answers' lengths on a table of prompts and models, by cross-validation over prompts.

What is scored learns from all answers to the prompts of the other folds, in random order. Of a held back prompt,
`text` and `sizes` know no answer. `memory` knows the other models' answers to it, never that of the model under test:
this is what memory across models is. `alike` takes it for the prompt of the other folds that is most like it by an
encoder's vectors, where their cosine is 0.8 or more, as mu-Serve finds prompts. Classes are the fifths of a model's own
answers in the other folds; `all_models` are those of all models' answers together, which the model's level says
something of, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from core.length_odds import LengthOdds
from core.ports import RequestFeatures

from .answer_scale import LEAST_ANSWERS, SHARES
from .text_predictor import LengthPredictor

FOLDS, SEED = 5, 20_26
MEMORY, ALIKE, TEXT, SIZES, BASE = "memory", "alike", "text", "sizes", "base"
LEAST_COSINE = 0.8  # of vectors of prompts that are taken for the same
BYTES_A_TOKEN = 4.0
_TENANT = 1
_QUESTION_MARKS = "?\uff1f\u061f\u037e"


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Lengths of models' answers to prompts.

    Args:
        prompts: (p,)
        models: (m,)
        tokens: (p, m), 0 where a model gave no answer.
    """

    prompts: tuple[str, ...]
    models: tuple[str, ...]
    tokens: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LengthFigures:
    """The scores of predictions for one model, or their means over models. Classes are numbered from 0.

    Args:
        answers: That were predicted; others had no prediction.
        accuracy: Share in the right fifth.
        longest_recall: Share of the longest fifth that was said to be in it.
        class_error: Mean absolute difference of the class said and the true one.
        r2: Of tokens, by the median of what is said.
        r2_log: The same of the tokens' logarithms.
        mae_tokens: Of the median.
        accuracy_all_models: Share in the right fifth of all models' answers.
        longest_recall_all_models: The same of these fifths; NaN where the model has no answer in the longest.
    """

    answers: float
    accuracy: float
    longest_recall: float
    class_error: float
    r2: float
    r2_log: float
    mae_tokens: float
    accuracy_all_models: float
    longest_recall_all_models: float


@dataclass(slots=True)
class _Said:
    """What was said of one model's answers by one predictor: tokens, medians, and classes, said and true, twice."""

    rows: list[tuple[float, float, int, int, int, int]] = field(default_factory=list)

    def add(self, odds: LengthOdds, tokens: int, borders: Sequence[int], all_borders: Sequence[int]) -> None:
        """Takes in the odds of an answer, which have borders at those of both kinds of classes."""
        own, wide = _classes(odds, tokens, borders), _classes(odds, tokens, all_borders)
        self.rows.append((float(tokens), float(odds.quantile(0.5)), *own, *wide))

    def confusion(self) -> NDArray[np.int64]:
        """Counts answers by true class (rows) and the class said."""
        found = np.zeros((len(SHARES) + 1,) * 2, np.int64)
        for _, _, guess, actual, _, _ in self.rows:
            found[actual, guess] += 1
        return found

    def figures(self) -> LengthFigures:
        true, said, guess, actual, wide_guess, wide = np.array(self.rows).T
        last = len(SHARES)
        return LengthFigures(
            answers=float(true.size),
            accuracy=float(np.mean(guess == actual)),
            longest_recall=_mean(guess[actual == last] == last),
            class_error=float(np.mean(np.abs(guess - actual))),
            r2=_r2(true, said),
            r2_log=_r2(np.log(true), np.log(said)),
            mae_tokens=float(np.mean(np.abs(true - said))),
            accuracy_all_models=float(np.mean(wide_guess == wide)),
            longest_recall_all_models=_mean(wide_guess[wide == last] == last),
        )


@dataclass(frozen=True, slots=True)
class LengthReport:
    """Figures by predictor and model, and which models have no five classes of lengths and were left out.

    Args:
        confusion: By predictor the answers by true class (rows) and the class said, of all models together.
    """

    figures: Mapping[str, Mapping[str, LengthFigures]]
    confusion: Mapping[str, Sequence[Sequence[int]]]
    tested: tuple[str, ...]
    left_out: tuple[str, ...]

    def mean(self, predictor: str) -> LengthFigures | None:
        """Returns the means over models; None: the predictor said nothing of any."""
        found = list(self.figures[predictor].values())
        if not found:
            return None
        names = LengthFigures.__dataclass_fields__
        return LengthFigures(**{name: _mean(np.array([getattr(one, name) for one in found])) for name in names})


def score_lengths(
    table: AnswerTable,
    models: int | None = None,
    folds: int = FOLDS,
    seed: int = SEED,
    vectors: NDArray[np.float32] | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> LengthReport:
    """Scores all predictors. Deterministic.

    Args:
        models: Test so many, drawn at random; None: all. The memory knows the answers of all in any case; the text
            learns from those that are tested.
        vectors: Of the prompts, by an encoder, (p, d) of length 1; None: `alike` is not scored.
        progress: Called after each fold with how many are done, and of how many.

    Raises:
        ValueError: There are too few prompts, or no model whose answers fall into five classes.
    """
    rng = np.random.default_rng(seed)
    whole = [_has_fifths(table.tokens[:, column]) for column in range(len(table.models))]
    tested = np.flatnonzero(whole)
    if not tested.size:
        raise ValueError(f"no model has {2 * LEAST_ANSWERS} answers or more that fall into five classes of lengths")
    if models is not None and models < tested.size:
        tested = np.sort(rng.choice(tested, models, replace=False))
    fold_of = rng.permutation(len(table.prompts)) % folds
    names = [name for name in (MEMORY, ALIKE, TEXT, SIZES, BASE) if name != ALIKE or vectors is not None]
    said = {name: {column: _Said() for column in tested.tolist()} for name in names}
    requests = [request_of(prompt) for prompt in table.prompts]
    for fold in range(folds):
        _Fold(table, requests, tested.tolist(), rng).score(fold_of == fold, said, vectors)
        progress(fold + 1, folds)
    models_of = table.models
    return LengthReport(
        {name: {models_of[c]: one.figures() for c, one in by.items() if one.rows} for name, by in said.items()},
        {name: np.sum([one.confusion() for one in by.values()], axis=0).tolist() for name, by in said.items()},
        tuple(models_of[column] for column in tested.tolist()),
        tuple(name for name, fits in zip(models_of, whole, strict=True) if not fits),
    )


def request_of(prompt: str) -> RequestFeatures:
    """Returns the features of a chat with one message, as a gateway takes them."""
    tail = prompt[-512:]
    return RequestFeatures(
        chat=True,
        at_s=0.0,
        tenant_id=_TENANT,
        text_bytes=len(prompt.encode()),
        last_role="user",
        last_bytes=len(prompt),
        has_system=False,
        has_stop=False,
        wants_json=False,
        tools_bytes=0,
        has_question=any(mark in tail for mark in _QUESTION_MARKS),
        has_code="```" in tail or "~~~" in tail,
        digit_share=sum(map(tail.count, "0123456789")) / max(1, len(tail)),
        lines=tail.count("\n"),
    )


class _Fold:
    """Predictors that learn from all folds but one, which they are then asked of."""

    def __init__(
        self,
        table: AnswerTable,
        requests: Sequence[RequestFeatures],
        tested: Sequence[int],
        rng: np.random.Generator,
    ) -> None:
        self._table, self._requests, self._tested, self._rng = table, requests, tested, rng
        self._words = LengthPredictor(rng.bytes(16))
        self._sizes = LengthPredictor(rng.bytes(16))
        self._nothing = self._sizes.look([])
        self._features = [self._words.look([prompt]) for prompt in table.prompts]

    def score(
        self,
        held: NDArray[np.bool_],
        said: Mapping[str, Mapping[int, _Said]],
        vectors: NDArray[np.float32] | None,
    ) -> None:
        self._learn(~held)
        known = self._table.tokens[~held]
        all_borders = tuple(np.quantile(known[known > 0], SHARES).astype(int).tolist())
        if vectors is not None:
            self._score_alike(held, vectors, all_borders, said[ALIKE])
        for prompt in np.flatnonzero(held).tolist():
            answers = {column: int(self._table.tokens[prompt, column]) for column in self._tested}
            for column, tokens in answers.items():
                borders = self._words.scales[self._table.models[column]].borders
                for name, odds in self._without_answers(prompt, column, all_borders).items():
                    if tokens > 0:
                        said[name][column].add(odds, tokens, borders, all_borders)
            self._remember_all(prompt)
            for column, tokens in answers.items():
                name = self._table.models[column]
                found = self._words.memory_odds(name, _TENANT, self._features[prompt], False, all_borders)
                if found is not None and tokens > 0:
                    said[MEMORY][column].add(found, tokens, self._words.scales[name].borders, all_borders)

    def _score_alike(
        self,
        held: NDArray[np.bool_],
        vectors: NDArray[np.float32],
        all_borders: tuple[int, ...],
        said: Mapping[int, _Said],
    ) -> None:
        """Predicts what is held back from the answers, of all models, to the taught prompt that is most like it."""
        taught = np.flatnonzero(~held)
        for prompt in np.flatnonzero(held).tolist():
            cosines = vectors[taught] @ vectors[prompt]
            if cosines.max() < LEAST_COSINE:
                continue
            like = self._features[int(taught[cosines.argmax()])]
            for column in self._tested:
                name, tokens = self._table.models[column], int(self._table.tokens[prompt, column])
                found = self._words.memory_odds(name, _TENANT, like, borders=all_borders)
                if found is not None and tokens > 0:
                    said[column].add(found, tokens, self._words.scales[name].borders, all_borders)

    def _learn(self, taught: NDArray[np.bool_]) -> None:
        tested, models = set(self._tested), self._table.models
        rows, columns = np.nonzero((self._table.tokens > 0) & taught[:, None])
        for number in self._rng.permutation(rows.size).tolist():
            prompt, column = int(rows[number]), int(columns[number])
            tokens, features = int(self._table.tokens[prompt, column]), self._features[prompt]
            if column in tested:
                how = self._prompt_tokens(prompt), self._requests[prompt], tokens
                self._words.observe(models[column], _TENANT, features, *how)
                self._sizes.observe(models[column], _TENANT, self._nothing, *how)
            else:
                self._words.remember(models[column], _TENANT, features, tokens)
        self._words.memory.relearn(self._words.scales)

    def _without_answers(self, prompt: int, column: int, borders: tuple[int, ...]) -> dict[str, LengthOdds]:
        name, how = self._table.models[column], (self._prompt_tokens(prompt), self._requests[prompt])
        return {
            TEXT: self._words.text_odds(name, self._features[prompt], *how, borders),
            SIZES: self._sizes.text_odds(name, self._nothing, *how, borders),
            BASE: self._words.scales[name].odds(BASE, 0.0, 1.0, borders),
        }

    def _remember_all(self, prompt: int) -> None:
        """Puts all models' answers to a prompt into the memory, and nowhere else: scales and likeness stay."""
        for name, tokens in zip(self._table.models, self._table.tokens[prompt].tolist(), strict=True):
            scale = self._words.scales.get(name)
            if tokens > 0 and scale is not None and scale.ready:
                score = scale.score(tokens)
                self._words.memory.remember(name, _TENANT, self._features[prompt], tokens, score)

    def _prompt_tokens(self, prompt: int) -> int:
        return max(1, round(self._requests[prompt].text_bytes / BYTES_A_TOKEN))


def _has_fifths(tokens: NDArray[np.int64]) -> bool:
    known = tokens[tokens > 0]
    return known.size >= 2 * LEAST_ANSWERS and len({*np.quantile(known, SHARES).tolist(), known.max()}) == 5


def _classes(odds: LengthOdds, tokens: int, borders: Sequence[int]) -> tuple[int, int]:
    """Returns the most probable class between these borders, and the true one."""
    exceeds = [1.0, *(odds.exceeds(border) for border in borders), 0.0]
    shares = [high - low for high, low in pairwise(exceeds)]
    return int(np.argmax(shares)), int(np.searchsorted(borders, tokens, "left"))


def _r2(true: NDArray[np.float64], said: NDArray[np.float64]) -> float:
    return 1.0 - float(np.sum((true - said) ** 2) / np.sum((true - true.mean()) ** 2))


def _mean(values: NDArray[np.generic]) -> float:
    known = values[np.isfinite(values)]
    return float(np.mean(known)) if known.size else float("nan")
