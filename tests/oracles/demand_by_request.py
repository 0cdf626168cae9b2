"""Demand computed request by request, as it was before there were sketches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from core.observations.demand.class_arrivals import STRETCH_S, ClassArrivals
from core.policy.request_classes import ClassBounds, classify
from pools.wire import RequestRow
from telemetry.storage.sql.demand_sketches import OUTPUT_UNKNOWN_TOKENS


def lengths_of(row: RequestRow) -> tuple[int, int]:
    """(the output length that it is classified by, the true one): of an answer that was cut short the prediction."""
    known = (row.output_tokens if row.status == "ok" else None, row.predicted_output_tokens, row.output_tokens)
    output = next((tokens for tokens in known if tokens is not None), OUTPUT_UNKNOWN_TOKENS)
    return output if row.predicted_output_tokens is None else row.predicted_output_tokens, output


def arrivals_by_class(
    rows: Iterable[RequestRow], classes: Sequence[ClassBounds], start_s: float, end_s: float
) -> dict[str, ClassArrivals]:
    """What came of each class in [start_s, end_s), in the stretches of 5 s that begin with it."""
    found: dict[str, list[tuple[int, float, float, float]]] = {own.name: [] for own in classes}
    for row in rows:
        if start_s <= row.started_at_s < end_s and row.prompt_tokens is not None and row.status != "client_error":
            guess, output = lengths_of(row)
            stretch, context = int((row.started_at_s - start_s) // STRETCH_S), output * (row.prompt_tokens + output / 2)
            name = classify(classes, row.prompt_tokens, guess)
            found[name].append((stretch, float(row.prompt_tokens), float(output), context))
    return {name: _together(own) for name, own in found.items()}


def _together(came: Sequence[tuple[int, float, float, float]]) -> ClassArrivals:
    busiest = max(Counter(stretch for stretch, *_ in came).values(), default=0)
    prompt, output, context = (sum(one[n] for one in came) for n in (1, 2, 3))
    return ClassArrivals(len(came), busiest, prompt, output, context)
