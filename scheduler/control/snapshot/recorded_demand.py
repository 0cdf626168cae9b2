"""Demand as the request records of the recent past have it, divided into the classes of any partition."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from core.observations.mode_profile import Lengths, mean_context
from core.policy.request_classes import classify
from core.predictors.arrival_rate import peak_rates
from core.types import ClassDemand, Limits
from pools.models import RequestClass, Service
from telemetry.forecasts import load_forecasts
from telemetry.forecasts.histories import load_step_s
from telemetry.models import RequestRecord
from telemetry.storage.sql.demand_sketches import OUTPUT_UNKNOWN_TOKENS

MIN_WINDOW_S = 300.0
MAX_WINDOW_S = 3_600.0
MOST_RISE = 4.0  # a forecast may not multiply what was seen by more


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: `predicted_tokens` is the output length it was classified by, `output_tokens` the true one."""

    at_s: float
    prompt_tokens: int
    predicted_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Declared:
    """The load that an operator expects of a service."""

    rps: float
    lengths: Lengths

    def class_name(self, classes: Sequence[RequestClass]) -> str:
        """Returns the class of its mean lengths: all of it counts there, since their spread is not known yet."""
        return classify(classes, round(self.lengths.prompt_tokens), round(self.lengths.output_tokens))


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The arrivals of a window that ends at `now`; `declared`: the least to plan for, where the window is not full.

    `rise`: by what factor the load of each coming step is foreseen to lie above that of the window; beyond it 1.
    """

    now_s: float
    window_s: float
    rows: Sequence[Arrival]
    declared: Declared | None = None
    rise: tuple[float, ...] = ()

    def by_class(self, classes: Sequence[RequestClass]) -> Mapping[str, list[Arrival]]:
        """Divides arrivals as the gateway does: a pool must carry what is predicted to be of its class, whatever comes
        out.
        """
        found: dict[str, list[Arrival]] = {request_class.name: [] for request_class in classes}
        for row in self.rows:
            found[classify(classes, row.prompt_tokens, row.predicted_tokens)].append(row)
        return found

    def demands(
        self, classes: Sequence[RequestClass], limits: Limits, steps: int
    ) -> dict[int, tuple[ClassDemand, Lengths | None]]:
        """Returns demand and mean lengths by class id; lengths are None where nothing came."""
        split = self.by_class(classes)
        found = {
            request_class.pk: self._demand(request_class.name, split[request_class.name], limits, steps)
            for request_class in classes
        }
        return found if self.declared is None else _at_least(self.declared, found, classes)

    def _demand(
        self, name: str, rows: Sequence[Arrival], limits: Limits, steps: int
    ) -> tuple[ClassDemand, Lengths | None]:
        times = np.array([row.at_s for row in rows], dtype=np.float64)
        rates = peak_rates(times, self.now_s, self.window_s, steps=steps)
        rise = (*self.rise[:steps], *(1.0,) * (steps - len(self.rise)))
        rates = tuple(rate * factor for rate, factor in zip(rates, rise, strict=True))
        if not rows:
            return ClassDemand(name, rates, limits), None
        prompts, outputs = np.array([(row.prompt_tokens, row.output_tokens) for row in rows], dtype=np.float64).T
        prompt, output = float(prompts.mean()), max(1.0, float(outputs.mean()))
        lengths = Lengths(prompt, output, mean_context(np.ones(len(rows)), prompts, outputs))
        return ClassDemand(name, rates, limits, prompt, output), lengths


def foreseen(seen: Arrivals, service: Service, now: datetime, step_s: float, steps: int) -> Arrivals:
    """Adds the rise that the best load model foresees, once it has a record; recent demand stays the least.

    The service's load as a whole is forecast, and each class follows it: a partition that is not in force has no
    history of its own.
    """
    times = np.array([row.at_s for row in seen.rows], dtype=np.float64)
    (peak_rps,) = peak_rates(times, seen.now_s, seen.window_s, steps=1)
    if peak_rps <= 0.0 or not math.isclose(step_s, load_step_s()):
        return seen
    ahead = load_forecasts.expected(service.name, "", now, steps)
    if not any(row.chosen for row in ahead.record):
        return seen
    rise = tuple(1.0 if rate is None else min(MOST_RISE, max(1.0, rate / peak_rps)) for rate in ahead.rates_rps)
    return replace(seen, rise=rise)


def _at_least(
    declared: Declared, seen: dict[int, tuple[ClassDemand, Lengths | None]], classes: Sequence[RequestClass]
) -> dict[int, tuple[ClassDemand, Lengths | None]]:
    name = declared.class_name(classes)
    key = next(request_class.pk for request_class in classes if request_class.name == name)
    demand, lengths = seen[key]
    lengths = lengths or declared.lengths
    raised = replace(
        demand,
        demand_rps=tuple(max(rate, declared.rps) for rate in demand.demand_rps),
        mean_prompt_tokens=lengths.prompt_tokens,
        mean_output_tokens=lengths.output_tokens,
    )
    return seen | {key: (raised, lengths)}


def arrivals(service: Service, now: datetime, period_s: float) -> Arrivals:
    """Returns the requests of the last period (between 5 minutes and an hour) that a worker had or should have had.

    An answer that was cut short tells nothing of its true length: there the prediction counts.
    """
    window_s = min(MAX_WINDOW_S, max(MIN_WINDOW_S, period_s))
    rows = (
        RequestRecord.objects.filter(
            service=service.name,
            started_at__gt=now - timedelta(seconds=window_s),
            started_at__lte=now,
            prompt_tokens__isnull=False,
        )
        .exclude(status=RequestRecord.Status.CLIENT_ERROR)
        .values_list("started_at", "prompt_tokens", "output_tokens", "predicted_output_tokens", "status")
    )
    found = []
    for started_at, prompt_tokens, output_tokens, predicted, status in rows:
        whole = status == RequestRecord.Status.OK and output_tokens is not None
        lengths = (output_tokens if whole else None, predicted, output_tokens, OUTPUT_UNKNOWN_TOKENS)
        length = next(tokens for tokens in lengths if tokens is not None)  # an embedding's is 0
        guess = length if predicted is None else predicted
        found.append(Arrival(started_at.timestamp(), prompt_tokens or 0, guess, length))
    start = now - timedelta(seconds=window_s)
    return Arrivals(now.timestamp(), window_s, found, _declared(service, start))


def _declared(service: Service, start: datetime) -> Declared | None:
    """Returns the load that the operator expects, until records reach back to `start`; then silence means no load."""
    if not (service.expected_rps and service.expected_prompt_tokens and service.expected_output_tokens):
        return None
    if RequestRecord.objects.filter(service=service.name, started_at__lte=start).exists():
        return None
    return Declared(service.expected_rps, Lengths(service.expected_prompt_tokens, service.expected_output_tokens))
