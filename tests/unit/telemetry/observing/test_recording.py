"""Pages that are read again and again, by a clock that is handed in."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable

from telemetry.observing.recording import Page, record, why_not
from telemetry.observing.scrapes import TargetKind
from tests.fakes.observed_fleet import BEGIN_S, HandedClock, page

ENGINE, GPUS = Page("http://engine", TargetKind.ENGINE), Page("http://dcgm", TargetKind.GPUS)


def fetching(clock: HandedClock, down: Callable[[str, float], bool]) -> Callable[[str, float], bytes]:
    def fetch(url: str, timeout_s: float) -> bytes:
        if down(url, clock.at_s - BEGIN_S):
            raise urllib.error.URLError("no route to host")
        return page("vllm" if url == ENGINE.url else "dcgm").encode()

    return fetch


def test_pages_are_read_at_each_step_and_at_the_end() -> None:
    clock, shares = HandedClock(), list[float]()
    found = record(
        [ENGINE, GPUS],
        40.0,
        15.0,
        clock,
        lambda targets, share: shares.append(share),
        fetching(clock, lambda *_: False),
    )
    for target in found.targets:
        assert [scrape.at_s - BEGIN_S for scrape in target.read] == [0.0, 15.0, 30.0, 40.0]
    assert shares == [0.0, 15 / 40, 30 / 40, 1.0]
    assert not found.ended_early


def test_page_that_fails_leaves_a_gap_with_its_remedy() -> None:
    clock = HandedClock()
    fetch = fetching(clock, lambda url, at_s: url == GPUS.url and at_s == 10.0)
    engine, gpus = record([ENGINE, GPUS], 20.0, 10.0, clock, fetch=fetch).targets
    assert len(engine.read) == 3
    assert [scrape.samples is None for scrape in gpus.scrapes] == [False, True, False]
    assert gpus.scrapes[1].error.startswith("no route to host; the DCGM exporter serves /metrics")


def test_fault_of_the_network_is_said_in_words() -> None:
    assert why_not(urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))) == "connection refused"
    assert why_not(urllib.error.URLError(TimeoutError("timed out"))) == "did not answer in time"


def test_page_that_is_no_prometheus_text_is_a_fault() -> None:
    found = record([ENGINE], 1.0, 1.0, HandedClock(), fetch=lambda url, timeout_s: b"vllm:prompt_tokens_total x\n")
    assert "no Prometheus text" in found.targets[0].scrapes[0].error


def test_ctrl_c_ends_the_reading_with_what_there_is() -> None:
    clock = HandedClock(interrupted_at_s=BEGIN_S + 30.0)
    found = record([ENGINE], 900.0, 15.0, clock, fetch=fetching(clock, lambda *_: False))
    assert found.ended_early
    assert len(found.targets[0].read) == 2
