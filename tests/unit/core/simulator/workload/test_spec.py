from pathlib import Path

import numpy as np
import pytest

from core.simulator.fields import ScenarioError
from core.simulator.kernel.arrivals import Arrivals
from core.simulator.workload import Tally, TraceError, Workload, read_workload, stream
from core.simulator.workload.columns import pick
from core.simulator.workload.curves import WEEK_S, RateCurve
from core.simulator.workload.lengths import AZURE_CONV, Exponential, Fixed, Lengths, Lognormal, Quantiles
from tests.unit.core.simulator.workload.helpers import assert_same, section, whole

HERE = Path("/somewhere")


def read(text: str) -> Workload:
    return read_workload(section(text), HERE)


def requests(text: str, seed: int = 1, **given: object) -> Arrivals:
    return whole(stream(read(text), seed, **given))


def lengths(text: str) -> Lengths:
    generator = read(f"{{generate: gamma, lengths: {text}}}").generator
    assert generator is not None
    return generator.lengths


def trace(folder: Path, *seconds: float) -> Path:
    path = folder / "trace.csv"
    rows = "".join(f"{s},m,{10 + n},5,15,API log\n" for n, s in enumerate(seconds))
    path.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + rows)
    return path


def test_todays_fields_are_read() -> None:
    found = read(
        "{generate: poisson, rate_rps: 5, duration_s: 3600, prompt_tokens: 900, output_tokens: 150, "
        "lengths: exponential, rate_scale: 2, prefix_hit_ratio: 0.2, trace: t.csv, requests: 7}"
    )
    assert found.trace == HERE / "t.csv"
    assert (found.requests, found.duration_s, found.rate_scale, found.prefix_hit_ratio) == (7, 3600.0, 2.0, 0.2)
    assert found.generator is not None
    assert found.generator.lengths == Lengths(Exponential(900.0), Exponential(150.0))
    assert (found.generator.rate_rps, found.generator.cv, found.generator.curve) == (5.0, 1.0, None)


def test_lengths_are_read_in_every_form() -> None:
    assert lengths("fixed") == Lengths(Fixed(1000.0), Fixed(200.0))
    assert lengths("azure-conv") == AZURE_CONV
    assert lengths(
        "{prompt: {lognormal: {mean: 1500, sigma: 1}}, output: {exponential: 90}, correlation: -0.5}"
    ) == Lengths(Lognormal(1500.0, 1.0), Exponential(90.0), -0.5)
    assert lengths("{prompt: {quantiles: {shares: [0, 0.5, 1], tokens: [1, 20, 300]}}, output: 7}") == Lengths(
        Quantiles((0.0, 0.5, 1.0), (1.0, 20.0, 300.0)), Fixed(7.0)
    )


def test_week_starts_where_it_is_configured() -> None:
    found = read("{generate: week, preset: coding, start_weekday: sunday, start_hour: 20, utc_offset_h: 5.5}").generator
    assert found is not None
    assert found.start_s == pytest.approx(1.5 * 3600.0)  # Monday
    assert found.curve is not None
    assert found.curve.period_s == WEEK_S
    custom = read("{generate: week, preset: {peak_to_mean: 2, peak_to_valley: 10, weekend: 0.5}, cv: 2}").generator
    assert custom is not None
    assert custom.curve is not None
    rates = np.array(custom.curve.rates)
    assert rates.max() / rates.mean() == pytest.approx(2.0)


def test_rate_curve_is_read() -> None:
    found = read("{generate: poisson, rate_curve: {step_s: 3600, rates: [1, 2]}}").generator
    assert found is not None
    assert found.curve == RateCurve(3600.0, (1.0, 2.0))


def test_rates_of_uneven_steps_are_the_curve_and_its_mean() -> None:
    found = read("{generate: gamma, cv: 2, rates: [{for_s: 40, rps: 3}, {for_s: 20, rps: 0}]}").generator
    assert found is not None
    assert (found.rate_rps, found.curve) == (2.0, RateCurve(20.0, (3.0, 3.0, 0.0)))


def test_each_step_has_its_own_rate_when_rates_are_given_and_the_steps_come_over_and_over() -> None:
    text = "{generate: poisson, rates: [{for_s: 299, rps: 2}, {for_s: 1, rps: 1000}], duration_s: 1500}"
    at_s = requests(text).arrival_s
    heap = at_s % 300.0 >= 299.0
    assert int(heap.sum()) == pytest.approx(5000, abs=4 * 5000**0.5)
    assert int((~heap).sum()) == pytest.approx(2990, abs=4 * 2990**0.5)
    once = requests(text.replace(", duration_s: 1500", ""))
    assert 299.0 < once.arrival_s[-1] <= 300.0
    twice = requests(text.replace("duration_s", "rate_scale: 2, duration_s"))
    assert len(twice) == pytest.approx(2 * 7990, rel=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{generate: poison}", "workload.generate: unknown 'poison'; known: azure-conv-like, poisson, gamma, week"),
        ("{generate: poisson, rate_rps: 0}", "workload.rate_rps: must be above 0"),
        ("{generate: poisson, cv: 2}", "workload.cv: goes with generate: gamma or week"),
        ("{generate: gamma, cv: -1}", "workload.cv: must be at least 0"),
        ("{generate: week, rate_curve: {step_s: 1, rates: [1]}}", "rate_curve: goes with generate: poisson or gamma"),
        ("{generate: poisson, preset: coding}", "workload.preset: goes with generate: week"),
        ("{generate: week, preset: code}", "workload.preset: unknown 'code'; known: conversation, coding"),
        ("{generate: week, preset: {peak_to_mean: 5}}", "preset.peak_to_valley: missing"),
        ("{generate: week, preset: {peak_to_mean: 5, peak_to_valley: 4}}", "preset: peak_to_mean must be above 1 and"),
        ("{generate: week, preset: {peak_to_mean: 2, peak_to_valley: 9, weekend: 3}}", "preset: weekend must be from"),
        ("{generate: week, start_weekday: someday}", "start_weekday: unknown 'someday'"),
        ("{generate: week, start_hour: 25}", "start_hour: must be at most 24"),
        ("{generate: gamma, rate_curve: {step_s: 1, rates: [0, 0]}}", "rates: must be at least 0, and one"),
        ("{generate: gamma, rate_curve: {step_s: 1, rates: two}}", "rates: must be a list of numbers"),
        ("{generate: gamma, rate_curve: {rates: [1]}}", "rate_curve.step_s: missing"),
        ("{generate: week, rates: [{for_s: 1, rps: 1}]}", "workload.rates: goes with generate: poisson or gamma"),
        ("{generate: poisson, rates: [1, 2]}", "workload.rates: must be a mapping or a list of them"),
        ("{generate: poisson, rates: [{rps: 1}]}", r"rates\[0\].for_s: missing; say for how many seconds"),
        ("{generate: poisson, rates: [{for_s: 0.5, rps: 1}]}", r"rates\[0\].for_s: must be a whole number"),
        ("{generate: poisson, rates: [{for_s: 1, rps: 1}, {for_s: 1}]}", r"rates\[1\].rps: missing; give a number"),
        ("{generate: poisson, rates: [{for_s: 1, rps: -1}]}", r"rates\[0\].rps: must be at least 0"),
        ("{generate: poisson, rates: [{for_s: 1, rps: 0}]}", "workload.rates: one of the rates must be above 0"),
        ("{generate: poisson, rates: [{for_s: 1, rps: 1, rate: 1}]}", r"rates\[0\].rate: unknown field"),
        ("{generate: poisson, rate_rps: 5, rates: [{for_s: 1, rps: 1}]}", "workload.rate_rps: goes without rates"),
        (
            "{generate: gamma, rate_curve: {step_s: 1, rates: [1]}, rates: [{for_s: 1, rps: 1}]}",
            "workload.rate_curve: goes without rates",
        ),
        ("{generate: poisson, lengths: long}", "lengths: unknown 'long'; known: fixed, exponential, azure-conv"),
        ("{generate: week, prompt_tokens: 5}", "prompt_tokens: goes with lengths: fixed or exponential"),
        ("{generate: gamma, lengths: {prompt: 5}}", "lengths.output: missing; give a number of tokens, or one of"),
        ("{generate: gamma, lengths: {prompt: {normal: 5}, output: 5}}", "lengths.prompt: must be a number of tokens"),
        ("{generate: gamma, lengths: {prompt: 5, output: 5, correlation: 2}}", "correlation: must be at most 1"),
        ("{generate: gamma, lengths: {prompt: {lognormal: {mean: 5}}, output: 5}}", "lognormal.sigma: missing"),
        (
            "{generate: gamma, lengths: {prompt: {quantiles: {shares: [0, 0.5], tokens: [1, 2]}}, output: 5}}",
            "quantiles.shares: must ascend from 0 to 1",
        ),
        (
            "{generate: gamma, lengths: {prompt: {quantiles: {shares: [0, 1], tokens: [1]}}, output: 5}}",
            "quantiles.tokens: must be as many as shares, 2, not 1",
        ),
        (
            "{generate: gamma, lengths: {prompt: {quantiles: {shares: [0, 1], tokens: [3, 2]}}, output: 5}}",
            "quantiles.tokens: must ascend from at least 1",
        ),
        ("{generate: poisson, prefix_hit_ratio: 2}", "workload.prefix_hit_ratio: must be at most 1, not 2"),
        ("{generate: poisson, time_scale: 0}", "workload.time_scale: must be above 0"),
        ("{generate: poisson, tenants: {a: 0}}", "workload.tenants.a: must be above 0"),
        ("{generate: poisson, tenants: [a]}", "workload.tenants: must be a mapping"),
        ("{generate: poisson, rate: 3}", "workload.rate: unknown field; did you mean"),
    ],
)
def test_workload_is_refused_and_the_field_named_when_wrong(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read(text)


@pytest.mark.parametrize("kind", ["azure-conv-like", "poisson", "gamma", "week"])
def test_requests_are_as_many_as_asked_for_and_the_same_whatever_the_blocks(kind: str) -> None:
    text = f"{{generate: {kind}, rate_rps: 3, requests: 5000, tenants: {{a: 1, b: 2}}}}"
    found = requests(text, service=2)
    assert len(found) == 5000
    assert set(found.service.tolist()) == {2}
    assert_same(requests(text, service=2, block_requests=701), found)
    longer = requests(text.replace("5000", "6000"), service=2)
    assert_same(pick(longer, slice(0, 5000)), found)


def test_requests_end_with_the_duration_or_a_default() -> None:
    found = requests("{generate: poisson, rate_rps: 3, duration_s: 1000}")
    assert found.arrival_s[-1] <= 1000.0
    assert len(found) == pytest.approx(3000, rel=0.06)
    assert len(requests("{generate: gamma, rate_rps: 3}")) == 10_000
    week = requests("{generate: week, rate_rps: 0.05, time_scale: 7}")
    assert 0.95 * WEEK_S / 7 < week.arrival_s[-1] <= WEEK_S / 7
    assert len(week) == pytest.approx(0.05 * WEEK_S, rel=0.03)


def test_rate_is_higher_when_scaled_and_the_span_stays() -> None:
    found = requests("{generate: poisson, rate_rps: 3, rate_scale: 2, duration_s: 1000}")
    assert len(found) == pytest.approx(6000, rel=0.05)


def test_trace_is_scaled_then_cut(tmp_path: Path) -> None:
    path = trace(tmp_path, *range(1000))
    found = requests("{time_scale: 2, rate_scale: 3, duration_s: 100, rate_jitter_s: 0}", trace=path)
    assert len(found) == 3 * 201
    assert found.arrival_s[-1] == 100.0
    assert len(requests("{requests: 3, generate: week}", trace=path)) == 3  # a trace goes before the generator


def test_tenants_are_numbered_as_in_the_scenario(tmp_path: Path) -> None:
    found = requests("{tenants: {b: 1, c: 1}}", trace=trace(tmp_path, *range(200)), tenants=("a", "b", "c"))
    assert set(found.tenant.tolist()) == {1, 2}


def test_left_out_rows_are_reported(tmp_path: Path) -> None:
    path = trace(tmp_path, 1.0, 2.0)
    path.write_text(path.read_text() + "3,m,4,0,4,API log\n")
    tally = Tally()
    assert len(requests("{}", trace=path, tally=tally)) == 2
    assert tally.failed == 1


def test_workload_is_refused_when_it_has_no_source_or_no_request(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"workload: give trace: FILE .* or generate: one of azure-conv-like"):
        stream(read("{}"), 1)
    with pytest.raises(ScenarioError, match="no request falls within duration_s"):
        requests("{generate: poisson, rate_rps: 0.001, duration_s: 0.001}")
    with pytest.raises(TraceError, match=r"none\.csv: cannot be read"):
        stream(read("{trace: none.csv}"), 1)
