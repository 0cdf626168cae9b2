"""Measures how far off predictions of answers' lengths were of late, by service and by what made them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ._sql import at, rows

SPAN_S = 3_600.0
NEWEST = 20_000  # requests at most that are read, whatever came in the hour

# Answers that were cut off at what the request may have say nothing of what was expected (source `bound`).
ERRORS_SQL = """
SELECT service, prediction_source AS source, count(*) AS requests,
       avg(abs(predicted_output_tokens - output_tokens))::float8 AS error_tokens,
       avg((request_class = actual_class)::int)::float8 AS right_class,
       avg(class_probability)::float8 AS said
FROM (
    SELECT * FROM telemetry_requestrecord
    WHERE started_at >= %(since)s AND started_at <= %(until)s
      AND (%(pools)s::bigint[] IS NULL OR pool_id = ANY(%(pools)s))
    ORDER BY started_at DESC LIMIT %(newest)s
) newest
WHERE status = 'ok' AND tokens_source = 'usage' AND prediction_source <> 'bound'
  AND predicted_output_tokens IS NOT NULL AND output_tokens > 0
GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2
"""


@dataclass(frozen=True, slots=True)
class LengthSourceError:
    """The running error of one source of predictions, for one service.

    Args:
        requests: That it was measured on.
        error_tokens: The mean of how far off it was, to either side.
        right_class: The share of requests that were of the class that they were taken for; None: there are no classes.
        said: The mean probability that the source itself gave these classes; None: it does not say.
    """

    service: str
    source: str
    requests: int
    error_tokens: float
    right_class: float | None
    said: float | None


def length_errors(now_s: float, pools: Collection[int] | None = None) -> tuple[LengthSourceError, ...]:
    """Returns the errors of the last hour's newest requests, the most used source of a service first. One query.

    Args:
        pools: Only requests that these pools served; None: all.
    """
    window = {"since": at(now_s - SPAN_S), "until": at(now_s), "newest": NEWEST}
    found = rows(ERRORS_SQL, {**window, "pools": None if pools is None else list(pools)})
    return tuple(LengthSourceError(*row) for row in found)
