"""The figures of a run, streamed, against plain NumPy over all rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.engine.engine_model import gpu
from core.fairness import jain
from core.simulator.figures import run_figures
from core.simulator.figures.run_figures import Figures
from core.simulator.kernel import kernel
from core.simulator.kernel.commands import Decision
from core.simulator.kernel.objectives import Labels, Slo
from core.simulator.kernel.simulated import InstanceSpec
from core.simulator.site_series import Series, Site
from tests.unit.core.simulator.figures.rows import LABELS, instance, outcome, rows

COUNTS = st.integers(0, 120)
KEYS = {
    *("requests", "energy_wh", "energy_wh_by", "carbon_g", "cost_usd", "gpu_hours", "slo_attainment"),
    *("slo_attainment_by", "ttft_s", "tpot_s", "itl_s", "e2e_s", "goodput_rps", "goodput_tokens_s"),
    *("violation_rate", "jain_lengths"),
}


def summary(*blocks: Any, labels: Labels = LABELS) -> dict[str, Any]:
    made = Figures(labels)
    for block in blocks:
        made.take(block)
    return made.summary(outcome([[3600.0, 7200.0]]), {})


def same(value: Any, other: Any) -> bool:
    """Equal, but for what rounding does to sums in another order."""
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    return bool(value == other or (isinstance(value, float) and value == pytest.approx(other, rel=1e-9)))


@settings(deadline=None)
@given(st.integers(0, 1000), COUNTS, st.integers(0, 120), st.booleans())
def test_figures_are_the_same_when_rows_come_in_blocks(seed: int, count: int, cut: int, in_flight: bool) -> None:
    made = rows(seed, count, in_flight)
    assert same(summary(made[:cut], made[cut:]), summary(made))


def test_figures_are_the_same_when_a_block_is_larger_than_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows(1, 1000)
    whole = summary(made)
    monkeypatch.setattr(run_figures, "_ROWS", 64)
    assert same(summary(made), whole)


@settings(deadline=None)
@given(st.integers(0, 1000), COUNTS, st.booleans())
def test_counts_and_latencies_are_those_of_the_rows(seed: int, count: int, in_flight: bool) -> None:
    made = rows(seed, count, in_flight)
    done = made[made["status"] == kernel.DONE]
    several = done[done["output"] > 1]
    found = summary(made)
    rejected = int((made["status"] == kernel.REJECTED).sum())
    assert (found["requests"], found["finished"], found["rejected"]) == (count, done.size, rejected)
    assert found["in_flight"] == count - done.size - rejected
    assert found["preemptions"] == made["preemptions"].sum()
    ttft_s = done["first_token_s"] - done["arrival_s"]
    expected = {
        "ttft_s": ttft_s,
        "tpot_s": (several["finish_s"] - several["first_token_s"]) / (several["output"] - 1),
        "e2e_s": done["finish_s"] - done["arrival_s"],
        "longest_wait_s": np.where(done["output"] > 1, np.maximum(ttft_s, done["itl_max_s"]), ttft_s),
    }
    for key, values in expected.items():
        if not values.size:
            assert set(found[key].values()) == {None}
            continue
        points = dict(zip(("p50", "p90", "p99"), np.quantile(values, [0.5, 0.9, 0.99]).tolist(), strict=True))
        assert found[key] == pytest.approx({**points, "mean": values.mean()})


def plainly_met(row: Any) -> dict[str, bool]:
    """Each objective of a row's class: whether it kept it. One request at a time, as the words say."""
    slo = LABELS.slos[row["request_class"]]
    if row["status"] != kernel.DONE:
        return dict.fromkeys(("ttft", "tpot_mean", "itl_p99", "e2e"), False)
    gaps = row["output"] - 1
    return {
        "ttft": slo.ttft_s is None or row["first_token_s"] - row["arrival_s"] <= slo.ttft_s,
        "tpot_mean": slo.tpot_mean_s is None
        or gaps == 0
        or (row["finish_s"] - row["first_token_s"]) / gaps <= slo.tpot_mean_s,
        "itl_p99": slo.itl_p99_s is None or gaps == 0 or row["itl_p99_s"] <= slo.itl_p99_s,
        "e2e": slo.e2e_s is None or row["finish_s"] - row["arrival_s"] <= slo.e2e_s,
    }


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 120), st.booleans())
def test_attainment_and_goodput_are_those_of_each_request(seed: int, count: int, in_flight: bool) -> None:
    made = rows(seed, count, in_flight)
    kept = [plainly_met(row) for row in made]
    met = np.array([all(each.values()) for each in kept])
    counted = made["status"] != kernel.IN_FLIGHT
    found = summary(made)
    assert found["slo_attainment"] == (pytest.approx(met[counted].mean()) if counted.any() else None)
    assert found["goodput_rps"] == pytest.approx(met.sum() / 7200.0)
    assert found["goodput_tokens_s"] == pytest.approx(made["output"][met].sum() / 7200.0)
    kinds = {"short": {"ttft", "tpot_mean"}, "long": {"itl_p99", "e2e"}, "none": set()}
    assert {name: set(shares) for name, shares in found["slo_attainment_by"].items()} == kinds
    for k, name in enumerate(LABELS.classes):
        mine = np.flatnonzero(counted & (made["request_class"] == k))
        for kind, share in found["slo_attainment_by"][name].items():
            expected = np.mean([kept[r][kind] for r in mine]) if mine.size else None
            assert share == (expected if expected is None else pytest.approx(expected))


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 120), st.booleans())
def test_violations_and_fairness_are_those_of_the_rows(seed: int, count: int, in_flight: bool) -> None:
    made = rows(seed, count, in_flight)
    counted = made["status"] != kernel.IN_FLIGHT
    late = (made["status"] == kernel.REJECTED) | (made["finish_s"] - made["arrival_s"] > 5.0 * made["lat_s"])
    found = summary(made)
    assert found["violation_rate"] == (pytest.approx(late[counted].mean()) if counted.any() else None)
    shares = [
        made["timely"][made["tenant"] == t].sum() / made["output"][made["tenant"] == t].sum()
        for t in set(made["tenant"].tolist())
    ]
    assert found["jain_tenants"] == (None if len(shares) < 2 else pytest.approx(jain(shares)))
    assert set(found["jain_lengths_by"]) == set(LABELS.classes)
    assert found["jain_lengths"] is None or 1.0 / 12.0 <= found["jain_lengths"] <= 1.0


def test_violation_rate_leaves_out_when_what_a_request_takes_alone_is_unknown() -> None:
    made = rows(3, 50)
    known = summary(made[:20])["violation_rate"]
    made["lat_s"][20:] = np.nan
    assert summary(made)["violation_rate"] == pytest.approx(known)
    assert summary(made[20:])["violation_rate"] is None


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 120))
def test_services_are_distinguished(seed: int, count: int) -> None:
    made = rows(seed, count)
    found = summary(made)["by_service"]
    assert set(found) == set(LABELS.services)
    for number, name in enumerate(LABELS.services):
        alone = summary(made[made["service"] == number])
        assert found[name]["requests"] == alone["requests"]
        assert same(found[name]["slo_attainment"], alone["slo_attainment"])
        assert same({k: found[name][k] for k in ("ttft_s", "tpot_s")}, {k: alone[k] for k in ("ttft_s", "tpot_s")})
        assert found[name]["energy_wh"] == pytest.approx(made["energy_j"][made["service"] == number].sum() / 3600.0)


def test_energy_is_reported_by_kind_and_is_json() -> None:
    found = summary(rows(5, 30))
    assert found["energy_wh"] == pytest.approx(3.0)
    assert found["energy_wh_by"] == pytest.approx({"prefill": 0.6, "decode": 1.5, "idle": 0.6, "transition": 0.3})
    assert found["mean_power_w"] == pytest.approx(1.5)
    assert set(found) >= KEYS
    json.dumps(found, allow_nan=False)


def test_power_is_that_of_whole_stretches_and_unknown_when_the_series_is_coarse() -> None:
    joules = [[60.0 * watts for watts in (1.0, 2.0, 3.0, 9.0)], [60.0] * 4]
    found = Figures(LABELS).summary(outcome(joules, bin_s=60.0, end_s=200.0), {})["power_w"]
    assert found["p50"] == pytest.approx(3.0)  # of 2, 3 and 4 W: the last stretch was cut short
    assert found["p99"] == pytest.approx(3.98)
    assert summary(rows(5, 30))["power_w"] == {"p50": None, "p90": None, "p99": None}


def test_figures_are_unknown_when_no_request_has_ended_and_no_time_has_passed() -> None:
    found = Figures(LABELS).summary(outcome([[0.0]], end_s=0.0), {})
    for key in ("slo_attainment", "goodput_rps", "violation_rate", "jain_lengths", "jain_tenants", "mean_power_w"):
        assert found[key] is None
    json.dumps(found, allow_nan=False)


def test_attainment_is_unknown_when_there_are_no_objectives() -> None:
    labels = replace(LABELS, slos=(Slo(),) * 3)
    found = summary(rows(1, 20), labels=labels)
    assert found["slo_attainment"] is None
    assert found["slo_attainment_by"] == {"short": {}, "long": {}, "none": {}}


def test_gaps_are_within_their_bins() -> None:
    found = summary()["itl_s"]
    assert found["p50"] == found["p99"] == pytest.approx(kernel.GAP_MIN_S * np.exp(1000.5 / 200.0))
    assert found["mean"] == pytest.approx((99 * found["p50"] + kernel.GAP_MIN_S * np.exp(1500.5 / 200.0)) / 100)


def test_decisions_are_counted_by_reason() -> None:
    taken = ((0.0, "scale", "up"), (1.0, "scale", "up"), (1.0, "frequency", "slo"))
    log = tuple(Decision(at_s, loop, reason, "", 1) for at_s, loop, reason in taken)
    found = Figures(LABELS).summary(outcome([[1.0]], decisions=log), {})
    assert found["decisions"] == {"scale": {"up": 2}, "frequency": {"slo": 1}}
    assert found["holds"] == {"scale": 3}


# -- sites -----------------------------------------------------------------------------------------

KWH_J = 3.6e6


def test_sites_are_distinguished_when_a_fleet_stands_at_several() -> None:
    specs = (instance("a", "east", tp=2), instance("b", "west"), instance("c", "east"))
    sites = {
        "east": Site("east", 1.5, None, Series((100.0, 300.0)), Series((0.1,)), 2.0),
        "west": Site("west", 1.0, None, Series((50.0,)), Series((0.2,))),
    }
    found = Figures(LABELS).summary(outcome([[KWH_J, KWH_J], [KWH_J, 0.0], [0.0, KWH_J]], specs), sites)
    east, west = found["by_site"]["east"], found["by_site"]["west"]
    assert east["carbon_g"] == pytest.approx(1.5 * (100.0 + 2 * 300.0))
    assert west["carbon_g"] == pytest.approx(50.0)
    assert found["carbon_g"] == pytest.approx(east["carbon_g"] + west["carbon_g"])
    assert (east["energy_wh"], west["energy_wh"]) == pytest.approx((3000.0, 1000.0))
    assert (east["gpu_hours"], west["gpu_hours"], found["gpu_hours"]) == pytest.approx((6.0, 2.0, 8.0))
    # a: 2 GPUs at 1,000 MHz, b: one at 2,000, c: one at 3,000
    assert (east["clock_mhz"], west["clock_mhz"], found["clock_mhz"]) == pytest.approx((5e3 / 3.0, 2e3, 7e3 / 4.0))
    assert east["cost_usd_by"] == pytest.approx({"electricity": 0.45, "gpu": 12.0})
    assert west["cost_usd_by"] == {"electricity": pytest.approx(0.2), "gpu": None}
    assert found["cost_usd_by"] == pytest.approx({"electricity": 0.65, "gpu": 12.0})
    assert found["cost_usd"] == pytest.approx(12.65)
    assert found["carbon_missing_wh"] == found["price_missing_wh"] == 0.0


def test_carbon_is_missing_when_energy_falls_where_there_is_no_value() -> None:
    gap = Site("site", 2.0, None, Series((100.0, float("nan"), 300.0), repeats=False), Series((0.1,)))
    found = Figures(LABELS).summary(outcome([[KWH_J, 0.5 * KWH_J, KWH_J, 0.25 * KWH_J]]), {"site": gap})
    assert found["carbon_g"] is None
    assert found["carbon_missing_wh"] == pytest.approx(750.0)
    assert found["cost_usd"] == pytest.approx(0.55)
    none_drawn = Figures(LABELS).summary(outcome([[KWH_J, 0.0, KWH_J, 0.0]]), {"site": gap})
    assert none_drawn["carbon_g"] == pytest.approx(800.0)
    assert none_drawn["carbon_missing_wh"] == 0.0


def test_carbon_and_cost_are_missing_when_a_site_with_energy_has_no_series() -> None:
    specs = (instance("a", "east"), instance("b", "west"))
    sites = {"east": Site("east", 1.0, None, Series((100.0,)), Series((0.1,)))}
    found = Figures(LABELS).summary(outcome([[KWH_J], [KWH_J]], specs), sites)
    assert (found["carbon_g"], found["cost_usd"]) == (None, None)
    assert found["carbon_missing_wh"] == found["price_missing_wh"] == pytest.approx(1000.0)
    off = Figures(LABELS).summary(outcome([[KWH_J], [0.0]], specs), sites)
    assert (off["carbon_g"], off["cost_usd"]) == pytest.approx((100.0, 0.1))


def test_carbon_is_missing_when_there_is_no_telling_when_energy_was_drawn() -> None:
    site = Site("site", 1.0, None, Series((100.0, 300.0)), Series((0.1,)))
    found = Figures(LABELS).summary(outcome([[KWH_J]], bin_s=float("inf"), end_s=10.0), {"site": site})
    assert found["carbon_g"] is None
    assert found["cost_usd"] == pytest.approx(0.1)


def test_pricing_refuses_when_the_energy_series_is_too_coarse() -> None:
    site = Site("site", carbon_g_per_kwh=Series((100.0, 300.0), step_s=900))
    with pytest.raises(ValueError, match="take bins that divide 900 s"):
        Figures(LABELS).summary(outcome([[KWH_J]]), {"site": site})


def test_gpus_without_an_engine_draw_their_idle_power_where_a_site_keeps_them_powered() -> None:
    spec = InstanceSpec("a", "Llama3-8B", "A100-80GB", 2, mhz=1410.0, site="east")
    hours = outcome([[KWH_J, 0.0]], (spec,), end_s=5400.0)
    carbon = Series((100.0, 300.0))
    off = Figures(LABELS).summary(hours, {"east": Site("east", 2.0, None, carbon)})
    powered = {"A100-80GB": 6, "H100-SXM-80GB": 4}
    on = Figures(LABELS).summary(hours, {"east": Site("east", 2.0, None, carbon, powered_gpus=powered)})
    each_h = 4 * gpu("A100-80GB").idle_w + 4 * gpu("H100-SXM-80GB").idle_w
    assert (off["energy_wh"], off["empty_gpu_hours"], "empty" in off["energy_wh_by"]) == (1000.0, 0.0, False)
    assert on["energy_wh_by"]["empty"] == pytest.approx(1.5 * each_h)
    assert on["energy_wh"] == pytest.approx(1000.0 + 1.5 * each_h)
    assert (on["gpu_hours"], on["empty_gpu_hours"]) == pytest.approx((3.0, 12.0))
    assert on["carbon_g"] - off["carbon_g"] == pytest.approx(2.0 * (each_h * 0.1 + 0.5 * each_h * 0.3))
    assert on["power_w"]["p50"] == off["power_w"]["p50"]  # bins of an hour are too coarse for either
