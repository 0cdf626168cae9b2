"""The table of all policies on rare traffic: its rows, what it marks, and its place in a page."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from core.policy.presets import PRESETS
from core.simulator.lab import promise
from core.simulator.lab.experiment import CONVERSATION
from core.simulator.lab.promise import (
    Case,
    PromiseError,
    bounds_of,
    cases,
    chosen,
    found_of,
    left_out,
    put_into,
    table,
    table_bounds,
    written,
)
from core.simulator.scenario.scenario import policy_of, read_scenario
from core.simulator.workload.public_traces import PUBLIC_TRACES, PublicTrace

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{n * 100},700,20\n" for n in range(61))
LOAD = {"requests": 1000.0, "rate_rps": 1.0 / 3.0}


def run(energy_wh: float, share: float | None) -> dict[str, float | None]:
    return {"energy_wh": energy_wh, "slo_attainment": share}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "mine.csv").write_text(TRACE)
    return tmp_path / "mine.csv"


def test_each_row_is_a_scenario_that_every_policy_can_be_read_for(trace: Path) -> None:
    found = cases([trace])
    assert len({case.name for case in found}) == len(promise.RARE) + 3
    for case in found:
        scenario = read_scenario(case.file, case.settings)
        assert [policy_of(scenario, policy).name for policy in promise.POLICIES] == list(promise.POLICIES)


def test_a_trace_is_a_row_of_its_first_hour_at_its_own_rate(trace: Path) -> None:
    *_, generated, own, busy = cases([trace])
    assert own.trace == trace
    load = promise.loads_of(own)
    assert load["requests"] == 37.0  # of 61: those within 3600 s
    assert load["rate_rps"] == pytest.approx(37.0 / 3600.0)
    assert generated.trace is None
    assert promise.loads_of(generated)["rate_rps"] == pytest.approx(5.52, rel=0.05)
    assert busy.name == "azure-conv-12xh100, generated, 17 times"


def test_the_busy_row_has_the_conversation_hour_where_it_is_among_the_traces(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = trace.parent / "hour.csv.gz"
    conversation.write_bytes(gzip.compress(TRACE.encode()))
    monkeypatch.setitem(PUBLIC_TRACES, CONVERSATION, _published(TRACE))
    *_, first, second, busy = cases([trace.with_name("hour.csv.gz"), _other(trace)])
    assert [first.trace, second.trace, busy.trace] == [conversation, trace.with_name("other.csv"), conversation]
    assert busy.name == "azure-conv-12xh100, hour, 17 times"
    assert promise.loads_of(busy)["requests"] == pytest.approx(17 * 37, rel=0.1)


def _other(trace: Path) -> Path:
    other = trace.with_name("other.csv")
    other.write_text(TRACE.replace("700", "300"))
    return other


def _published(text: str) -> PublicTrace:
    return replace(PUBLIC_TRACES["azure-2023-conv"], sha256=hashlib.sha256(text.encode()).hexdigest())


def test_rows_are_chosen_by_their_scenarios() -> None:
    every = cases()
    assert [case.name for case in chosen(every, ["heaps", "night"])] == ["night", "heaps"]
    assert chosen(every, []) == every
    with pytest.raises(PromiseError, match="there is no scenario 'nigth' here; there are: night, step"):
        chosen(every, ["nigth"])


def test_policies_that_judge_each_request_are_not_run_on_many() -> None:
    own, few, many = Case("busy", "step"), {"requests": 100_000.0}, {"requests": 100_001.0}
    assert left_out(own, "dynaserve", many).startswith("not run on more than 100,000 requests")
    assert left_out(own, "dynaserve", few) == left_out(own, "greenserve", many) == ""


@pytest.mark.parametrize(("settings", "runs"), [((), True), (("slo.tpot_s=null",), False), (("slo.e2e_s=30",), True)])
def test_a_policy_whose_clock_goes_by_a_pace_is_run_where_there_is_an_objective_of_one(
    settings: tuple[str, ...], runs: bool
) -> None:
    found = left_out(Case("night", "night", settings), "throttllem", {"requests": 9.0})
    assert (found == "") is runs


@pytest.mark.parametrize("scenario", ["step", "site-dark"])
def test_throttllem_is_run_where_the_load_rises(scenario: str) -> None:
    assert left_out(Case(scenario, scenario), "throttllem", {"requests": 20_000.0}) == ""


def test_the_least_energy_of_those_that_keep_the_objectives_is_bold_and_less_is_not() -> None:
    found = found_of(
        LOAD,
        {
            "single_pool": run(5000.0, 0.99999),
            "threshold": run(900.0, 0.98999),
            "greenserve": run(1234.4, 0.99),
            "dynamollm": run(2000.0, 0.995),
            "freesh": run(0.0, None),
            next(iter(promise.WITHOUT)): run(1000.0, 0.999),  # no policy
        },
        {"muserve": "no room"},
    )
    own = table({"night": found})
    cells = dict(zip(own.head, own.rows[0], strict=True))
    assert cells["scenario"] == "night"
    assert cells["requests/s"] == "0.333"
    assert cells["`single_pool`"] == "5,000 (99.99)"
    assert cells["`threshold`"] == "900 (98.99)"
    assert cells["`greenserve`"] == "**1,234 (99.00)**"
    assert cells["`dynamollm`"] == "2,000 (99.50)"
    assert cells["`freesh`"] == cells["`muserve`"] == cells["does not hold"] == "-"
    assert "\n- `muserve` (night; day): no room\n" in written({"night": found, "day": found})


def test_a_row_names_ours_and_the_yardstick_where_they_do_not_keep_what_is_promised() -> None:
    late = found_of(LOAD, {"single_pool": run(5.0, 0.9949), "greenserve": run(1.0, 0.9899)}, {})
    gone = found_of(LOAD, {"single_pool": run(5.0, 0.995)}, {"greenserve": "no room"})
    rows = table({"late": late, "gone": gone}).rows
    assert [row[-1] for row in rows] == ["`greenserve` 98.99, `single_pool` 99.49", "`greenserve` not run"]
    assert "**5 (99.49)**" in rows[0]


def test_each_mean_is_taken_away_where_a_row_has_not_too_many_requests() -> None:
    few, many = {"requests": float(promise.MOST_WITHOUT)}, {"requests": promise.MOST_WITHOUT + 1.0}
    assert promise.runs_on(many) == promise.POLICIES
    assert promise.runs_on(few) == (*promise.POLICIES, *promise.WITHOUT)
    night = Case("night", "night")
    scenario = read_scenario(night.file)
    whole = policy_of(scenario, "greenserve")
    without = [policy_of(scenario, promise.job_of(night, name).policy) for name in promise.WITHOUT]
    assert all(own.name == "greenserve" and own != whole for own in without)


def test_rows_without_a_mean_have_what_greenserve_has_beside_it() -> None:
    less, *_ = promise.WITHOUT
    own = found_of(LOAD, {"greenserve": run(10.0, 0.999), less: run(9.0, 0.97)}, {})
    found = promise.table_without({"night": own, "busy": found_of(LOAD, {"greenserve": run(5.0, 1.0)}, {})})
    (row,) = found.rows
    assert row[:3] == ("night", "10 (99.90)", "9 (97.00)")
    assert set(row[3:]) == {"-"}
    assert f"without {less}" in written({"night": own})
    assert "without" not in written({"busy": found_of(LOAD, {"greenserve": run(5.0, 1.0)}, {})})


def test_the_table_is_put_between_the_markers_and_nothing_else_changes() -> None:
    page = f"before\n{promise.BEGIN}\nold\n{promise.END}\nafter\n"
    assert put_into(page, "new\n") == f"before\n{promise.BEGIN}\nnew\n{promise.END}\nafter\n"
    with pytest.raises(PromiseError, match="put these two lines where it is to be"):
        put_into("no place", "new")


def test_policies_of_the_table_are_presets() -> None:
    assert set(promise.POLICIES) <= set(PRESETS)


def test_a_job_is_of_the_shipped_file_with_what_is_put_over_it(trace: Path) -> None:
    job = promise.job_of(Case("row", "night", ("seed=2",), trace), "freesh")
    assert Path(job.scenario).name == "night.yaml"
    assert (job.settings, job.policy, job.trace) == (("seed=2",), "freesh", str(trace.resolve()))


def test_rows_are_held_against_their_bounds(trace: Path) -> None:
    bounds = bounds_of(next(case for case in cases([trace]) if case.trace == trace))
    assert 0.0 < bounds["bound_wh"] <= bounds["stays_wh"]
    assert 0.0 < bounds["bound_gpu_hours"] <= bounds["stays_gpu_hours"]
    own = run(4.0 * bounds["bound_wh"], 0.99) | {"gpu_hours": 8.0}
    none = dict.fromkeys(bounds)
    kept = {
        "mine": found_of(LOAD | bounds, {"greenserve": own}, {}),
        "full": found_of(LOAD | none, {"greenserve": own}, {}),
    }
    mine, full = table_bounds(kept).rows
    assert (mine[3], mine[6]) == ("4.00", "8.0")
    assert full[2:6] == ("-", "-", "-", "-")
    assert "beside the bounds for 99 % in time" in written(kept)
    assert table_bounds({"none": found_of(LOAD, {}, {})}).rows == ()
