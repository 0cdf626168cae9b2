"""Recorded traffic from a Prometheus: the same metrics as on engines' pages, of the last hours, by its HTTP API."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from pools.metric_names import DCGM_BUSY, DCGM_ENERGY, DCGM_MEMORY, DCGM_POWER, ENGINES

from .recording import Fetch, Recording, fetch, why_not
from .scrapes import HISTOGRAM_SUFFIXES, SampleKey, Scrape, Target, TargetKind, sample_key

TIMEOUT_S = 30.0
LEAST_STEP_S, MOST_POINTS = 15, 480
_INSTANCE = "instance"
_NO_SAMPLE = "Prometheus has no sample of it: its scrape failed, or it did not run"
_GPUS = (DCGM_ENERGY, DCGM_POWER, DCGM_BUSY, DCGM_MEMORY)


class PrometheusError(Exception):
    """A Prometheus that cannot be asked; the message names the address and the remedy."""


def read_hours(
    url: str,
    hours: float,
    now_s: float,
    match: str = "",
    on_progress: Callable[[float], None] = lambda share: None,
    fetch: Fetch = fetch,
) -> Recording:
    """Returns what a Prometheus has of engines and GPUs over the last hours. Ctrl-C stops it.

    Args:
        url: Such as http://prometheus:9090, without /api.
        match: Label matchers of PromQL that narrow the fleet down, such as `cluster="a"`; empty: there are none.
        on_progress: Called with the share of the queries that have been answered.

    Raises:
        PrometheusError: It does not answer, or refuses.
    """
    length_s = hours * 3600.0
    step_s = max(LEAST_STEP_S, math.ceil(length_s / MOST_POINTS))
    points = int(length_s // step_s)
    end_s = math.floor(now_s)
    grid = [float(end_s - step_s * (points - k)) for k in range(points + 1)]
    found: dict[tuple[TargetKind, str], dict[float, dict[SampleKey, float]]] = {}
    queries = list(_queries(f",{match}" if match else ""))
    for n, (kind, query) in enumerate(queries):
        asked = {"query": query, "start": grid[0], "end": grid[-1], "step": step_s}
        for row in _rows(f"{url.rstrip('/')}/api/v1/query_range?{urlencode(asked)}", fetch):
            labels = row["metric"]
            key = sample_key(labels["__name__"], {name: value for name, value in labels.items() if name != "__name__"})
            own = found.setdefault((kind, labels.get(_INSTANCE, url)), {})
            for at_s, value in row["values"]:
                own.setdefault(float(at_s), {})[key] = float(value)
        on_progress((n + 1) / len(queries))
    targets = tuple(
        Target(name, kind, tuple(_scrape(at_s, by_time) for at_s in grid)) for (kind, name), by_time in found.items()
    )
    return Recording(targets, float(step_s), length_s, url)


def _scrape(at_s: float, by_time: Mapping[float, Mapping[SampleKey, float]]) -> Scrape:
    samples = by_time.get(at_s)
    return Scrape(at_s, samples, "" if samples else _NO_SAMPLE)


def _queries(match: str) -> Iterator[tuple[TargetKind, str]]:
    """Yields a query for each metric, histograms with all of their samples."""
    suffixes = "|".join(("", *HISTOGRAM_SUFFIXES))
    for engine in ENGINES:
        for name in sorted(engine.all):
            yield TargetKind.ENGINE, f'{{__name__=~"{name}({suffixes})"{match}}}'
    for name in _GPUS:
        yield TargetKind.GPUS, f'{{__name__="{name}"{match}}}'


def _rows(url: str, fetch: Fetch) -> list[dict[str, Any]]:
    where = url.partition("/api/")[0]
    try:
        document = json.loads(fetch(url, TIMEOUT_S))
        if document["status"] != "success":
            raise PrometheusError(f"{where}: {document.get('error', 'it refused the query')}")
        rows: list[dict[str, Any]] = document["data"]["result"]
        return rows
    except (OSError, HTTPException) as error:
        raise PrometheusError(
            f"{where}: {why_not(error)}; give the address at which its own page opens, such as http://HOST:9090"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise PrometheusError(f"{where}: its answer is not that of Prometheus's HTTP API") from error
