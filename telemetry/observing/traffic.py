"""The recorded traffic of a model as a workload of the simulator: rates by time, lengths from histograms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .engine_courses import EngineCourse
from .histograms import length_quantiles

UNNAMED = "unnamed"  # a model of which no page says the name
_MOST_STEPS = 2_000


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """Requests for one model, and the engines that serve it, the most frequent first.

    `rates_rps[k]` holds in the k-th step of `step_s` whole seconds. `lengths`: as a workload of a scenario has them;
    None: nothing is known of them. `cached_share`: of prompt tokens, from the prefix cache; None: unknown.
    """

    model: str
    engines: tuple[str, ...]
    instances: int
    requests: float
    prompt_tokens: float
    output_tokens: float
    rates_rps: tuple[float, ...]
    step_s: int
    lengths: dict[str, Any] | None
    cached_share: float | None
    notes: tuple[str, ...]

    def workload(self) -> dict[str, Any]:
        """Returns the section of a scenario that draws such requests."""
        return {
            "generate": "poisson",
            "rates": [{"for_s": self.step_s, "rps": rps} for rps in self.rates_rps],
            "duration_s": float(self.step_s * len(self.rates_rps)),
            "lengths": self.lengths,
            "prefix_hit_ratio": self.cached_share or 0.0,
        }


def by_model(courses: Sequence[EngineCourse], from_s: float, to_s: float, every_s: float) -> list[ModelTraffic]:
    """Returns the traffic of each model, between two moments in Unix seconds, in steps as long as scrapes are apart."""
    found: dict[str, list[EngineCourse]] = {}
    for course in courses:
        found.setdefault(course.model or UNNAMED, []).append(course)
    step_s = max(1, round(every_s), math.ceil((to_s - from_s) / _MOST_STEPS))
    return [_traffic(model, own, from_s, to_s, step_s) for model, own in found.items()]


def _traffic(model: str, courses: Sequence[EngineCourse], from_s: float, to_s: float, step_s: int) -> ModelTraffic:
    totals = [
        sum(value or 0.0 for value in values)
        for values in (
            [course.requests() for course in courses],
            [course.counted(course.names.prompt_tokens) for course in courses],
            [course.counted(course.names.output_tokens) for course in courses],
        )
    ]
    requests, prompt_tokens, output_tokens = totals
    steps = [step for course in courses for step in course.request_steps()]
    notes: list[str] = []
    lengths = None
    if requests > 0.0:
        prompt, prompt_note = _lengths("prompt", courses, prompt_tokens / requests)
        output, output_note = _lengths("output", courses, output_tokens / requests)
        notes = [note for note in (prompt_note, output_note) if note]
        lengths = None if prompt is None or output is None else {"prompt": prompt, "output": output}
    cached = [course.counted(course.names.cached_tokens) for course in courses]
    queried = [course.counted(course.names.queried_tokens) or 0.0 for course in courses]
    known = [(hits, asked) for hits, asked in zip(cached, queried, strict=True) if hits is not None and asked > 0.0]
    cached_share = sum(hits for hits, _ in known) / sum(asked for _, asked in known) if known else None
    return ModelTraffic(
        model=model,
        engines=tuple(name for name, _ in Counter(course.names.engine for course in courses).most_common()),
        instances=sum(course.ranks for course in courses),
        requests=requests,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        rates_rps=_rates(steps, from_s, to_s, step_s),
        step_s=step_s,
        lengths=lengths,
        cached_share=None if cached_share is None else min(1.0, cached_share),
        notes=tuple(notes),
    )


def _rates(steps: Sequence[tuple[float, float, float]], from_s: float, to_s: float, step_s: int) -> tuple[float, ...]:
    """Returns requests per second by step. What was counted between two scrapes came evenly between them."""
    edges = from_s + step_s * np.arange(max(1, math.ceil((to_s - from_s) / step_s - 1e-9)) + 1)
    total = np.zeros(edges.size)
    for begin_s, end_s, count in steps:
        total += count * np.clip((edges - begin_s) / (end_s - begin_s), 0.0, 1.0)
    return tuple((np.diff(total) / step_s).tolist())


def _lengths(which: str, courses: Sequence[EngineCourse], mean_tokens: float) -> tuple[dict[str, Any] | None, str]:
    """Returns the distribution of prompts' or outputs' lengths, and what is to be said of it."""
    buckets: list[tuple[float, float, float]] = []
    count = total = 0.0
    for course in courses:
        names = course.names.prompt_lengths if which == "prompt" else course.names.output_lengths
        if (own := course.buckets(names)) is not None and own.count > 0.0:
            buckets += own.buckets
            count, total = count + own.count, total + own.total
    if buckets:
        shares, tokens = length_quantiles(buckets, total / count)
        return {"quantiles": {"shares": shares, "tokens": tokens}}, ""
    if mean_tokens < 1.0:
        return None, f"{which} tokens are not counted, so that there is nothing to draw requests from"
    note = f"no histogram of {which} lengths: they are drawn from an exponential distribution with the recorded mean"
    return {"exponential": mean_tokens}, note
