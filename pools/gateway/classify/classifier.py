"""Predicts what a request will take, before it is sent anywhere: tokens of prompt and answer, and so its class.

`Classifier.classify` answers from memory in some 30 us and never waits. Lengths of answers are asked of, in order of
trust: the cache of seen prompts, boosted trees once there are some that beat history, history's quantile. What the
request may generate at most (`max_tokens`, the context's room) bounds them all.

`Classifier.refine` waits for what others know, and classifies again. The predictor's process, which reads the prompt's
text (`asked_lengths`), comes before trees and history; only a prompt that was seen before is not shown to it.

Prompts near a border between classes are counted, where a tokenizer is configured, in 5 ms at most. That is worth it.
With the prompts of Azure's conversation trace of 2023 and an estimate that is off by 10 % (one standard deviation), 7 %
of the prompts lie near FREESH's border of 184 tokens, and a third near DynamoLLM's of 256 and 1,024. Better than a
quarter of these would get the wrong class, and nearly all that would are among them. 5 ms is a fiftieth of a tight
objective for the first token; to count every prompt would cost more processor time than all else in the gateway. Late
counts are thrown away: the engine's usage, which always comes, teaches the estimate the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from core.length_odds import LengthOdds
from core.observations.limits import LONG_ANSWER
from core.policy.request_classes import ClassBounds, ClassGrid
from core.ports import RequestFeatures
from core.predictors.boosted_lengths import BoostedLengthPredictor
from core.predictors.length_errors import LengthErrors
from core.predictors.output_length import LONG_SHARE, PRIOR_OUTPUT_TOKENS, HistoryQuantilePredictor
from core.predictors.seen_prompts import SeenPrompt, SeenPrompts
from pools import wire

from ..token_bucket import TokenBucket
from .asked_lengths import LengthAsker
from .classified import (
    BOOSTED,
    BOUND,
    CACHE,
    HISTORY,
    LESSONS_AT_ONCE,
    LESSONS_PER_S,
    PRIOR,
    Classified,
    PredictionCounts,
)
from .length_trainer import LengthTrainer
from .prompt_tokens import PromptEstimator, TokenizerThread


class ServiceView(Protocol):
    """The part of a service that classifying needs. `classes` is replaced as a whole when the partition changes."""

    @property
    def name(self) -> str: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def classes(self) -> Sequence[ClassBounds]: ...

    @property
    def policy(self) -> wire.RequestPolicy: ...


class Odds(Protocol):
    """Says how probable an answer's lengths are: LengthOdds do, and the outputs of like requests."""

    def quantile(self, share: float) -> int: ...

    def exceeds(self, tokens: float) -> float: ...


class _Expected(NamedTuple):
    """The length of one answer. `odds` None: the source says no more than `tokens`."""

    tokens: int
    long_tokens: int
    source: str
    odds: Odds | None = None


class Classifier:
    """Predicts lengths and classes, and learns from requests that ended.

    Args:
        history: Without a prior of its own (`prior_tokens=None`), so that a prediction that rests on nothing says so.
        trainer: Learns the trees of `boosted`; None: they come from elsewhere (`boosted.install`), or not at all.
        tokenizers: None: prompts are only ever estimated, unless they came as token ids or were seen before.
        lengths: The predictor's process; None: there is none.
    """

    def __init__(
        self,
        seen: SeenPrompts | None = None,
        boosted: BoostedLengthPredictor | None = None,
        history: HistoryQuantilePredictor | None = None,
        trainer: LengthTrainer | None = None,
        tokenizers: TokenizerThread | None = None,
        lengths: LengthAsker | None = None,
    ) -> None:
        self.counts = PredictionCounts()
        self.errors = LengthErrors()
        self.estimator = PromptEstimator()
        self.boosted = boosted or BoostedLengthPredictor()
        self.trainer = trainer
        self.tokenizers = tokenizers
        self.lengths = lengths
        self._seen = seen or SeenPrompts()
        self._history = history or HistoryQuantilePredictor(prior_tokens=None)
        self._sources = ((BOOSTED, self.boosted), (HISTORY, self._history))
        self._lessons = TokenBucket(LESSONS_PER_S, LESSONS_AT_ONCE)
        self._grids: dict[str, ClassGrid] = {}

    @property
    def history(self) -> HistoryQuantilePredictor:
        return self._history

    def wants_details(self, service: str, now_s: float) -> bool:
        """Whether to look at all of a request's features: trees ask for them, or the request is to be learned from.

        Some requests a second are enough to learn from; of more only counts are kept.
        """
        learns = self._lessons.take(now_s)
        return learns or self.boosted.trees(service) is not None

    def classify(self, service: ServiceView, features: RequestFeatures, ids: int = 0) -> Classified:
        """Never waits, never fails. `ids`: tokens that the prompt came as; 0: it came as text."""
        known = self._seen.get(features.digest)
        if known is not None:
            return self._classified(service, features, ids or known.prompt_tokens, True, False, known)
        if ids:
            return self._classified(service, features, ids, True, False)
        what, images = (service.name, features.chat, features.text_bytes, features.messages), features.image_tokens
        if self.tokenizers is None or not service.classes or not self.tokenizers.serves(service.name):
            return self._classified(service, features, self.estimator.tokens(*what) + images, False, False)
        tokens, low, high = self.estimator.estimate(*what)
        near = self._grid(service).has_border(low + images, high + images)
        return self._classified(service, features, tokens + images, False, near)

    def can_refine(self, service: ServiceView, features: RequestFeatures, classified: Classified) -> bool:
        """Says whether `refine` may change anything, for which it needs the prompt's texts."""
        return self._asks(features, classified) or self._counts(service, classified)

    async def refine(
        self, service: ServiceView, features: RequestFeatures, texts: Sequence[str], classified: Classified
    ) -> Classified:
        """Classifies again by what the model's own tokenizer and the predictor's process say, each within its time.

        Without either it stays as it is. A chat's count is its texts' and the learned overhead of its template, so it
        is closer, but not `exact`.
        """
        asked = None
        if self.lengths is not None and self._asks(features, classified):
            borders = self._grid(service).output_borders if service.classes else ()
            asked = self.lengths.ask(service.name, features, classified.prompt_tokens, texts, borders)
        counted = None
        if self.tokenizers is not None and self._counts(service, classified):
            counted = await self.tokenizers.count(service.name, texts, features.text_bytes)
        odds = await self.lengths.answer(asked) if self.lengths is not None and asked is not None else None
        found = classified
        if counted is not None or odds is not None:
            found = self._refined(service, features, classified, counted, odds)
        if asked is not None:
            found.asked = asked.number
        return found

    def _asks(self, features: RequestFeatures, classified: Classified) -> bool:
        lengths = self.lengths
        return lengths is not None and classified.source != CACHE and features.max_tokens != 0 and lengths.ready

    def _counts(self, service: ServiceView, classified: Classified) -> bool:
        return classified.near_border and self.tokenizers is not None and self.tokenizers.serves(service.name)

    def _refined(
        self,
        service: ServiceView,
        features: RequestFeatures,
        classified: Classified,
        counted: int | None,
        odds: LengthOdds | None,
    ) -> Classified:
        tokens, exact = classified.prompt_tokens, classified.exact
        if counted is not None:
            tokens, exact = counted, not features.chat
            if features.chat:
                tokens = round(counted + features.messages * self.estimator.overhead(service.name, True))
                tokens += features.image_tokens
        return self._classified(service, features, max(1, tokens), exact, False, None, odds)

    def class_of(self, service: ServiceView, prompt_tokens: int, output_tokens: int) -> str | None:
        """None: the service has no classes (yet)."""
        return self._grid(service).name(prompt_tokens, output_tokens) if service.classes else None

    def actual_class(
        self, service: ServiceView, features: RequestFeatures, prompt_tokens: int, output_tokens: int
    ) -> str | None:
        """Returns the class that a request turned out to be of, by the engine's usage, a total over its answers."""
        return self.class_of(service, prompt_tokens, max(1, round(output_tokens / features.sequences)))

    def learn(self, row: wire.RequestRow, features: RequestFeatures, classified: Classified) -> None:
        """Takes in a request that ended. Teaches only if it ended well and the engine counted its tokens."""
        if row.status != "ok" or row.tokens_source != "usage" or not row.prompt_tokens:
            return
        of_text = row.prompt_tokens - features.image_tokens
        if features.detailed and features.text_bytes and of_text > 0:
            self.estimator.observe(row.service, features.chat, features.text_bytes, features.messages, of_text)
        if not row.output_tokens:  # as of embeddings
            return
        self.counts.add(row, classified)
        if classified.source != BOUND:  # else the answer could not be longer, and says nothing of the predictor
            self.errors.observe(row.service, classified.predicted_tokens, row.output_tokens)
        output_tokens = max(1, round(row.output_tokens / features.sequences))
        self._seen.observe(row.service, row.prompt_tokens, output_tokens, features)
        if classified.asked and self.lengths is not None:
            self.lengths.learn(classified.asked, row.prompt_tokens, output_tokens)
        if not features.detailed:
            return
        for predictor in (self.boosted, self._history):
            predictor.observe(row.service, row.prompt_tokens, output_tokens, features)
        if self.trainer is not None:
            self.trainer.consider(row.service, self._history.quantile(row.service))

    def close(self) -> None:
        """Ends what works beside the event loop."""
        if self.trainer is not None:
            self.trainer.close()
        if self.tokenizers is not None:
            self.tokenizers.close()

    def _classified(
        self,
        service: ServiceView,
        features: RequestFeatures,
        prompt_tokens: int,
        exact: bool,
        near: bool,
        known: SeenPrompt | None = None,
        odds: LengthOdds | None = None,
    ) -> Classified:
        expected, long, source, said = self._expected(service, features, prompt_tokens, known, odds)
        most = max(1, service.max_model_len - prompt_tokens)
        if features.max_tokens is not None:
            most = min(most, features.max_tokens)
        if expected > most:
            expected, source = most, BOUND
        # Classes are of a single answer's length: the engine generates several side by side.
        name, probability = (
            self._class(service, prompt_tokens, expected, most, said) if service.classes else (None, None)
        )
        sequences = features.sequences
        long = min(most, max(expected, long)) * sequences
        return Classified(prompt_tokens, exact, expected * sequences, source, name, long, near, probability)

    def _expected(
        self,
        service: ServiceView,
        features: RequestFeatures,
        prompt_tokens: int,
        known: SeenPrompt | None,
        odds: LengthOdds | None,
    ) -> _Expected:
        """Asks the sources in order of trust. `odds`: of the predictor's process."""
        if known is None and odds is not None:
            return _Expected(odds.quantile(0.5), odds.quantile(LONG_SHARE), odds.predictor, odds)
        expected, source, like = PRIOR_OUTPUT_TOKENS, PRIOR, None
        if known is not None:
            expected, source = max(1, round(known.output_tokens)), CACHE
        else:
            for trusted, predictor in self._sources:
                found = predictor.predict(service.name, prompt_tokens, None, features)
                if found is not None:
                    expected, source = found, trusted
                    break
        if source == HISTORY:
            like = self._history.like(service.name, prompt_tokens, features)
        long = self._history.long(service.name, prompt_tokens, features) or round(LONG_ANSWER * expected)
        return _Expected(expected, long, source, like)

    def _class(
        self, service: ServiceView, prompt_tokens: int, expected: int, most: int, odds: Odds | None
    ) -> tuple[str, float | None]:
        """Returns the class that costs least, and how probable it is; where nobody says, that of `expected`, and None.

        Where a class that is too short costs u for each step that it is off, and one that is too long o, that is the
        class of the quantile u / (u + o).

        `most`: tokens that the answer may have. What would be longer ends there.
        """
        grid, cost = self._grid(service), service.policy.short_class_cost
        if odds is None:
            return grid.name(prompt_tokens, expected), None
        likely = expected if cost == 1.0 else min(most, max(1, odds.quantile(cost / (1.0 + cost))))
        name = grid.name(prompt_tokens, likely)
        least, end = grid.outputs(prompt_tokens, likely)
        beyond = odds.exceeds(end - 1) if end is not None and end <= most else 0.0
        return name, odds.exceeds(least - 1) - beyond

    def _grid(self, service: ServiceView) -> ClassGrid:
        grid = self._grids.get(service.name)
        if grid is None or grid.classes is not service.classes:
            grid = self._grids[service.name] = ClassGrid(service.classes)
        return grid
