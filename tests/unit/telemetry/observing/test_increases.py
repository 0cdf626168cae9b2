"""Counters between scrapes: resets, gaps, series that appear."""

from __future__ import annotations

from telemetry.observing.increases import Gap, gaps, increases
from telemetry.observing.scrapes import START_TIME, SampleKey, Scrape, Target, TargetKind, sample_key

TOKENS = sample_key("vllm:prompt_tokens_total", {})
REQUESTS = sample_key("vllm:request_success_total", {"finished_reason": "stop"})
RUNNING = sample_key("vllm:num_requests_running", {})
STARTED = sample_key(START_TIME, {})


def target(*samples: dict[SampleKey, float] | None) -> Target:
    scrapes = (Scrape(10.0 * k, own, "" if own else "refused") for k, own in enumerate(samples))
    return Target("engine", TargetKind.ENGINE, tuple(scrapes))


def test_counters_count_what_came_since_the_scrape_before_and_gauges_do_not() -> None:
    (step,) = increases(target({TOKENS: 100.0, RUNNING: 3.0}, {TOKENS: 130.0, RUNNING: 1.0}))
    assert (step.from_s, step.to_s, step.reset) == (0.0, 10.0, False)
    assert dict(step.values) == {TOKENS: 30.0}


def test_all_counters_of_a_process_that_began_anew_count_from_zero() -> None:
    # Tokens are more than before, so that only the requests show that the process is another one.
    (step,) = increases(target({TOKENS: 100.0, REQUESTS: 9.0}, {TOKENS: 150.0, REQUESTS: 2.0}))
    assert step.reset
    assert dict(step.values) == {TOKENS: 150.0, REQUESTS: 2.0}


def test_another_start_time_is_another_process() -> None:
    (step,) = increases(target({TOKENS: 100.0, STARTED: 5.0}, {TOKENS: 150.0, STARTED: 6.0}))
    assert step.reset
    assert dict(step.values) == {TOKENS: 150.0}


def test_series_that_appears_begins_at_zero() -> None:
    (step,) = increases(target({TOKENS: 100.0}, {TOKENS: 130.0, REQUESTS: 4.0}))
    assert not step.reset
    assert step.values[REQUESTS] == 4.0


def test_failed_scrape_is_a_gap_over_which_counters_go_on() -> None:
    one = target({TOKENS: 100.0}, None, None, {TOKENS: 160.0})
    (step,) = increases(one)
    assert (step.from_s, step.to_s, step.values[TOKENS]) == (0.0, 30.0, 60.0)
    assert gaps(one) == (Gap(0.0, 30.0, "refused", counted=True),)


def test_gap_at_an_end_is_not_counted() -> None:
    one = target(None, {TOKENS: 100.0}, None)
    assert increases(one) == ()
    assert gaps(one) == (Gap(0.0, 10.0, "refused", counted=False), Gap(10.0, 20.0, "refused", counted=False))


def test_target_that_never_answers_is_one_gap() -> None:
    assert gaps(target(None, None)) == (Gap(0.0, 10.0, "refused", counted=False),)
