"""The same metrics from a Prometheus's HTTP API."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any
from urllib.error import URLError
from urllib.parse import parse_qs, urlsplit

import pytest

from telemetry.observing.prometheus_api import PrometheusError, read_hours
from telemetry.observing.recording import Recording
from telemetry.observing.report import find
from telemetry.observing.scrapes import SampleKey, samples_of
from tests.fakes.observed_fleet import BEGIN_S, LENGTH_S, page

from .test_report import terms

HOURS = LENGTH_S / 3600.0
URL = "http://prometheus:9090"


@cache
def samples_at(name: str, share: float) -> dict[SampleKey, float]:
    return samples_of(page(name, share))


class FakePrometheus:
    """Answers query_range from recorded pages. `lost_s`: the moment of the range of which it has no sample."""

    def __init__(self, lost_s: float | None = None) -> None:
        self._lost_s = lost_s
        self.matchers: set[str] = set()

    def __call__(self, url: str, timeout_s: float) -> bytes:
        parts = urlsplit(url)
        assert parts.path == "/api/v1/query_range"
        asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
        start_s, end_s, step_s = (float(asked[key]) for key in ("start", "end", "step"))
        times = [start_s + step_s * k for k in range(int((end_s - start_s) / step_s) + 1)]
        wanted = re.fullmatch(r'\{__name__(=~|=)"([^"]*)"(.*)\}', asked["query"])
        assert wanted is not None
        self.matchers.add(wanted[3])
        return json.dumps({"status": "success", "data": {"result": self._rows(wanted[2], times)}}).encode()

    def _rows(self, pattern: str, times: list[float]) -> list[dict[str, Any]]:
        rows: dict[Any, dict[str, Any]] = {}
        for name in ("vllm", "dcgm"):
            for at_s in times:
                if at_s == self._lost_s:
                    continue
                for key, value in samples_at(name, (at_s - times[0]) / (times[-1] - times[0])).items():
                    if re.fullmatch(pattern, key.name):
                        metric = {"__name__": key.name, "instance": f"{name}:1", **dict(key.labels)}
                        row = rows.setdefault(key, {"metric": metric, "values": []})
                        row["values"].append([at_s, str(value)])
        return list(rows.values())


def recorded(prometheus: FakePrometheus) -> Recording:
    return read_hours(URL, HOURS, BEGIN_S + LENGTH_S, fetch=prometheus)


@pytest.fixture(autouse=True)
def _wide_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telemetry.observing.prometheus_api.LEAST_STEP_S", 100)


def test_range_gives_what_pages_give() -> None:
    recording = recorded(FakePrometheus())
    assert [(target.name, target.kind.value) for target in recording.targets] == [
        ("vllm:1", "engine"),
        ("dcgm:1", "gpus"),
    ]
    figures = find(recording, terms()).observation.figures
    assert figures["requests"].value == pytest.approx(300.0)
    assert figures["energy_wh"].value == pytest.approx(100.0)


def test_moment_without_samples_is_a_gap() -> None:
    engine = recorded(FakePrometheus(lost_s=BEGIN_S + 100.0)).engines[0]
    assert [scrape.samples is None for scrape in engine.scrapes] == [False, True, False, False]
    assert "no sample" in engine.scrapes[1].error


def test_matchers_narrow_each_query_down() -> None:
    prometheus = FakePrometheus()
    read_hours(URL, HOURS, BEGIN_S + LENGTH_S, 'cluster="a"', fetch=prometheus)
    assert prometheus.matchers == {',cluster="a"'}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (URLError("refused"), "http://prometheus:9090: refused; give the address"),
        (b'{"status": "error", "error": "query timed out"}', "query timed out"),
        (b"<html>", "not that of Prometheus"),
    ],
)
def test_what_is_wrong_with_a_prometheus_is_said(answer: Any, words: str) -> None:
    def fetch(url: str, timeout_s: float) -> bytes:
        if isinstance(answer, Exception):
            raise answer
        found: bytes = answer
        return found

    with pytest.raises(PrometheusError, match=words):
        read_hours(URL, HOURS, BEGIN_S, fetch=fetch)
