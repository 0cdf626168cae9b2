from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.engine.calibration import ratio
from core.engine.engine_model import closed_form
from core.engine.iteration import Totals
from telemetry.calibration.report_windows import WINDOW_S, EngineReports, Readings, windows

MODEL = closed_form("Llama3-70B", "A100-80GB", 4)
CAPACITY = MODEL.kv_capacity_tokens
RUNNING, CONTEXT, MHZ = 12.0, 12.0 * 700.0, 1005.0


def reports(seconds: int = 41, slower: float = 1.0) -> EngineReports:
    """What an engine reports each second that decodes twelve sequences all along."""
    at_s = 1_000.0 + np.arange(seconds, dtype=np.float64)
    t_s = slower * MODEL.iteration_of(MHZ, Totals(decodes=RUNNING, context_tokens=CONTEXT)).t_s
    level = np.ones(seconds)
    return EngineReports(
        at_s=at_s,
        serving=level.astype(np.bool_),
        running=RUNNING * level,
        kv_usage=CONTEXT / CAPACITY * level,
        prompt_tokens=5_000.0 * level,
        generated_tokens=RUNNING * (at_s - 900.0) / t_s,
        mhz=MHZ * level,
    )


def meters(of: EngineReports, hungrier: float = 1.0, gpus: int = 4) -> dict[int, Readings]:
    watts = hungrier * MODEL.iteration_of(MHZ, Totals(decodes=RUNNING, context_tokens=CONTEXT)).watts / 4.0
    return {n: Readings(of.at_s + 0.02 * n, 7_000.0 * n + watts * (of.at_s - 900.0)) for n in range(gpus)}


def cut(of: EngineReports, since_s: float = 0.0, prompt_mean: float | None = 600.0) -> list[float]:
    found = windows(of, meters(of), 4, CAPACITY, prompt_mean, since_s)
    return [one.seconds for one in found]


def changed(name: str, at: slice | int, value: float) -> EngineReports:
    of = reports()
    values = getattr(of, name).copy()
    values[at] = value
    return replace(of, **{name: values})


def test_windows_say_what_the_engine_differs_by() -> None:
    of = reports(slower=1.3)
    found = windows(of, meters(of, hungrier=1.2), 4, CAPACITY, None, 0.0)
    assert len(found) == 4
    for one in found:
        ratios = ratio(one, MODEL)
        assert ratios is not None
        assert ratios.time == pytest.approx(1.3, rel=1e-6)
        assert ratios.power == pytest.approx(1.2, rel=1e-6)
        assert {span.mhz for span in one.spans} == {MHZ}


def test_windows_follow_each_other_and_each_counts_once() -> None:
    of = reports()
    assert cut(of) == [9.0, 9.0, 9.0, 9.0]
    assert all(seconds <= WINDOW_S for seconds in cut(of))
    first = windows(of, meters(of), 4, CAPACITY, 600.0, 0.0)[0]
    assert cut(of, since_s=first.at_s) == [9.0, 9.0, 9.0]
    assert cut(of, since_s=1_040.0) == []


@pytest.mark.parametrize(
    "of",
    [
        changed("running", 15, 0.0),
        changed("running", 15, np.nan),
        changed("kv_usage", 15, np.nan),
        changed("serving", 15, 0.0),
        changed("generated_tokens", slice(15, None), 10.0),
        changed("mhz", 15, np.nan),
        changed("at_s", slice(15, None), 1_015.0 + 4.0 + np.arange(26)),  # type: ignore[arg-type]
    ],
)
def test_window_ends_when_the_engine_is_not_itself_any_more(of: EngineReports) -> None:
    found = windows(of, {}, 4, CAPACITY, 600.0, 0.0)
    assert found
    for one in found:
        within = (of.at_s >= one.at_s - one.seconds) & (of.at_s <= one.at_s)
        assert of.usable[within].all()
        assert np.diff(of.at_s[within]).max() <= 1.5
        assert (np.diff(of.generated_tokens[within]) >= 0.0).all()


def test_prompts_are_counted_by_their_mean_or_the_window_is_left_out() -> None:
    of = replace(reports(), prompt_tokens=600.0 * np.arange(41, dtype=np.float64))
    found = windows(of, meters(of), 4, CAPACITY, 300.0, 0.0)
    assert [sum(span.prompts for span in one.spans) for one in found] == pytest.approx([18.0] * 4)
    assert cut(of, prompt_mean=None) == []
    assert len(cut(reports(), prompt_mean=None)) == 4


def test_clock_of_a_span_is_the_one_that_was_set_at_its_beginning() -> None:
    """What an agent reads it then changes."""
    found = windows(changed("mhz", slice(5, None), 600.0), {}, 4, CAPACITY, None, 0.0)
    assert [span.mhz for span in found[0].spans] == [MHZ] * 4 + [600.0] * 5


def test_joules_are_unknown_when_a_meter_is() -> None:
    of = reports()
    for broken in (
        meters(of, gpus=3),
        meters(of) | {0: Readings(of.at_s[:3], np.arange(3.0))},
        meters(of) | {0: Readings(of.at_s, -of.at_s)},
    ):
        assert {one.joules for one in windows(of, broken, 4, CAPACITY, 600.0, 0.0)} == {None}
    assert None not in {one.joules for one in windows(of, meters(of), 4, CAPACITY, 600.0, 0.0)}
