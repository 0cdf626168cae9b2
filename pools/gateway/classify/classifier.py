"""Predicts what a request will take, before it is sent anywhere: tokens of prompt and answer, and so its class.

`Classifier.classify` answers from memory in some 30 us and never waits. Lengths of answers are asked of, in order of
trust: the cache of seen prompts, boosted trees once there are some that beat history, history's quantile. What the
request may generate at most (`max_tokens`, the context's room) bounds them all.

`Classifier.refine` is for requests whose prompt lies near a border between classes, where a tokenizer is configured: it
waits for the exact count, 5 ms at most. That is worth it. With the prompts of Azure's conversation trace of 2023 and an
estimate that is off by 10 % (one standard deviation), 7 % of the prompts lie near FREESH's border of 184 tokens, and a
third near DynamoLLM's of 256 and 1,024. Better than a quarter of these would get the wrong class, and nearly all that
would are among them. 5 ms is a fiftieth of a tight objective for the first token; to count every prompt would cost
more processor time than all else in the gateway. Late counts are thrown away: the engine's usage, which always comes,
teaches the estimate the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from core.observations.limits import LONG_ANSWER
from core.policy.request_classes import ClassBounds, ClassGrid
from core.ports import RequestFeatures
from core.predictors.boosted_lengths import BoostedLengthPredictor
from core.predictors.length_errors import LengthErrors
from core.predictors.output_length import PRIOR_OUTPUT_TOKENS, HistoryQuantilePredictor
from core.predictors.seen_prompts import SeenPrompt, SeenPrompts
from pools import wire

from ..token_bucket import TokenBucket
from .length_trainer import LengthTrainer
from .prompt_tokens import PromptEstimator, TokenizerThread

# Where a prediction comes from. PRIOR: nothing is known of the service yet. BOUND: the request may not generate as much
# as would be expected, so what it may is what is expected.
CACHE, BOOSTED, HISTORY, PRIOR, BOUND = "cache", "boosted", "history", "prior", "bound"


class ServiceView(Protocol):
    """The part of a service that classifying needs. `classes` is replaced as a whole when the partition changes."""

    @property
    def name(self) -> str: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def classes(self) -> Sequence[ClassBounds]: ...


# Requests that are learned from; more would teach little, and cost as much as all else that a request costs here.
LESSONS_PER_S, LESSONS_AT_ONCE = 50.0, 500.0


@dataclass(slots=True)
class Classified:
    """Lengths are totals over a request's answers. `class_name` None: the service has no classes (yet). `long_tokens`:
    what one answer of a hundred exceeds.

    `exact`: the prompt's tokens were counted, not estimated. `near_border`: the estimate may well lie in another class
    than the true count, which can be had.
    """

    prompt_tokens: int
    exact: bool
    predicted_tokens: int
    source: str
    class_name: str | None
    long_tokens: int
    near_border: bool = False


@dataclass
class _Miss:
    count: int = 0
    tokens: float = 0.0


@dataclass
class PredictionCounts:
    """The outcomes of predictions. Only requests count whose true lengths the engine reported."""

    classes: dict[tuple[str, str, str, str], int] = field(default_factory=dict)  # service, predicted, actual, source
    outputs: dict[tuple[str, str], _Miss] = field(default_factory=dict)  # service, source
    prompts: dict[tuple[str, bool], _Miss] = field(default_factory=dict)  # service, exact
    images: Counter[tuple[str, str]] = field(default_factory=Counter)  # service, known | unknown: their size

    def add_images(self, service: str, sized: int, unknown: int) -> None:
        for size, count in (("known", sized), ("unknown", unknown)):
            if count:
                self.images[service, size] += count

    def add(self, row: wire.RequestRow, classified: Classified) -> None:
        """Counts a row with the engine's own token counts."""
        source = classified.source
        if classified.class_name is not None and row.actual_class is not None:
            key = (row.service, classified.class_name, row.actual_class, source)
            self.classes[key] = self.classes.get(key, 0) + 1
        if row.output_tokens is not None:
            by = row.service, source
            miss = self.outputs.get(by) or self.outputs.setdefault(by, _Miss())
            miss.count += 1
            miss.tokens += abs(classified.predicted_tokens - row.output_tokens)
        if row.prompt_tokens is not None:
            of = row.service, classified.exact
            miss = self.prompts.get(of) or self.prompts.setdefault(of, _Miss())
            miss.count += 1
            miss.tokens += abs(classified.prompt_tokens - row.prompt_tokens)

    def families(self) -> Iterator[tuple[str, str, list[tuple[tuple[tuple[str, str], ...], float]]]]:
        """Yields counters for /metrics: name, help, and samples as (labels, value)."""
        yield (
            "classified_total",
            "Requests by the class predicted and the class they turned out to be.",
            [
                ((("service", service), ("predicted", said), ("actual", was), ("source", source)), n)
                for (service, said, was, source), n in sorted(self.classes.items())
            ],
        )
        yield (
            "images_total",
            "Images in chats, by whether their size was known; others count as the largest that their model takes.",
            [((("service", service), ("size", size)), n) for (service, size), n in sorted(self.images.items())],
        )
        outputs = [((("service", name), ("source", by)), miss) for (name, by), miss in sorted(self.outputs.items())]
        prompts = [
            ((("service", name), ("exact", str(exact).lower())), miss)
            for (name, exact), miss in sorted(self.prompts.items())
        ]
        for kind, misses in (("output", outputs), ("prompt", prompts)):
            yield (
                f"{kind}_predictions_total",
                f"Requests whose {kind} length was predicted and became known.",
                [(labels, miss.count) for labels, miss in misses],
            )
            yield (
                f"{kind}_prediction_error_tokens_total",
                f"Sum of how far {kind} lengths were off, in tokens.",
                [(labels, miss.tokens) for labels, miss in misses],
            )


class Classifier:
    """Predicts lengths and classes, and learns from requests that ended.

    Args:
        history: Without a prior of its own (`prior_tokens=None`), so that a prediction that rests on nothing says so.
        trainer: Learns the trees of `boosted`; None: they come from elsewhere (`boosted.install`), or not at all.
        tokenizers: None: prompts are only ever estimated, unless they came as token ids or were seen before.
    """

    def __init__(
        self,
        seen: SeenPrompts | None = None,
        boosted: BoostedLengthPredictor | None = None,
        history: HistoryQuantilePredictor | None = None,
        trainer: LengthTrainer | None = None,
        tokenizers: TokenizerThread | None = None,
    ) -> None:
        self.counts = PredictionCounts()
        self.errors = LengthErrors()
        self.estimator = PromptEstimator()
        self.boosted = boosted or BoostedLengthPredictor()
        self.trainer = trainer
        self.tokenizers = tokenizers
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

    def can_refine(self, service: ServiceView, classified: Classified) -> bool:
        """Says whether `refine` may change anything."""
        return classified.near_border and self.tokenizers is not None and self.tokenizers.serves(service.name)

    async def refine(
        self, service: ServiceView, features: RequestFeatures, texts: Sequence[str], classified: Classified
    ) -> Classified:
        """Classifies again by the model's own tokenizer, within its deadline; else `classified` as it is.

        A chat's count is its texts' and the learned overhead of its template, so it is closer, but not `exact`.
        """
        if self.tokenizers is None or not self.can_refine(service, classified):
            return classified
        counted = await self.tokenizers.count(service.name, texts, features.text_bytes)
        if counted is None:
            return classified
        if not features.chat:
            return self._classified(service, features, max(1, counted), True, False)
        tokens = round(counted + features.messages * self.estimator.overhead(service.name, True))
        tokens += features.image_tokens
        return self._classified(service, features, max(1, tokens), False, False)

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
    ) -> Classified:
        expected, source = PRIOR_OUTPUT_TOKENS, PRIOR
        if known is not None:
            expected, source = max(1, round(known.output_tokens)), CACHE
        else:
            for trusted, predictor in self._sources:
                found = predictor.predict(service.name, prompt_tokens, None, features)
                if found is not None:
                    expected, source = found, trusted
                    break
        long = self._history.long(service.name, prompt_tokens, features) or round(LONG_ANSWER * expected)
        most = max(1, service.max_model_len - prompt_tokens)
        if features.max_tokens is not None:
            most = min(most, features.max_tokens)
        if expected > most:
            expected, source = most, BOUND
        long = min(most, max(expected, long)) * features.sequences
        # Classes are of a single answer's length: the engine generates several side by side.
        name = self._grid(service).name(prompt_tokens, expected) if service.classes else None
        return Classified(prompt_tokens, exact, expected * features.sequences, source, name, long, near)

    def _grid(self, service: ServiceView) -> ClassGrid:
        grid = self._grids.get(service.name)
        if grid is None or grid.classes is not service.classes:
            grid = self._grids[service.name] = ClassGrid(service.classes)
        return grid
