"""Says what a request is expected to take, and counts how such predictions turn out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pools import wire

# Where a prediction comes from, unless the predictor's process makes it (`LengthOdds.predictor`). PRIOR: nothing is
# known of the service yet. BOUND: the request may not generate as much as would be expected, so what it may is what
# is expected.
CACHE, BOOSTED, HISTORY, PRIOR, BOUND = "cache", "boosted", "history", "prior", "bound"
# Requests that are learned from; more would teach little, and cost as much as all else that a request costs here.
LESSONS_PER_S, LESSONS_AT_ONCE = 50.0, 500.0


@dataclass(slots=True)
class Classified:
    """Lengths are totals over a request's answers. `class_name` None: the service has no classes (yet). `long_tokens`:
    what one answer of a hundred exceeds.

    `exact`: the prompt's tokens were counted, not estimated. `near_border`: the estimate may well lie in another class
    than the true count, which can be had.

    `class_probability`: of the class, by the source of the prediction; None: it does not say, or there is no class.
    `asked`: the number under which the predictor's process knows the request; 0: it does not.
    """

    prompt_tokens: int
    exact: bool
    predicted_tokens: int
    source: str
    class_name: str | None
    long_tokens: int
    near_border: bool = False
    class_probability: float | None = None
    asked: int = 0


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
