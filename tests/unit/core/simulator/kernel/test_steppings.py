"""The laws: the compiled kernel and the oracle give the same run, energy is conserved, nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.engine.engine_model import GPUS
from core.simulator.kernel.driver import MACRO, WALK, Stepping, simulate
from core.simulator.kernel.kernel import (
    ADMITTED,
    DONE,
    FINISHED,
    FIRST_TOKEN,
    HANDED_OVER,
    OWN_BINS,
    PREEMPTED,
    REJECTED,
)
from core.simulator.kernel.outcome import Outcome
from core.simulator.kernel.simulated import FleetSpec, Handover, Load, SimulationError
from core.types import SetSmClock
from tests.oracles.token_by_token import REFERENCE
from tests.unit.core.simulator.kernel.scenarios import (
    Schedule,
    Turns,
    emergencies,
    finished,
    fleets,
    loads,
    schedules,
    total_j,
)
from tests.unit.laws import examples, thorough

# The reference goes token by token, so that a few small scenarios are taken here; `make test-thorough` takes 200 of any
# size (profile `thorough`).
LAW = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
LOADS = loads() if thorough() else loads(most=12, longest=60)
EVENTS = 20_000
OFFERS = 30  # of what no instance of a scenario can hold, before it is refused


def run(
    fleet: FleetSpec,
    load: Load | list[Load],
    stepping: Stepping,
    control: Schedule,
    switch_s: float = 0.0,
    router: Turns | None = None,
) -> Outcome | None:
    try:
        return simulate(
            fleet,
            load,
            stepping=stepping,
            controls=[control] if control.commands else [],
            clock_switch_s=lambda spec: switch_s,
            router=router,
            keep_events=EVENTS,
            offers=OFFERS,
        )
    except SimulationError:
        return None  # nothing fits


def by_instance(outcome: Outcome) -> dict[int, list[tuple[int, int]]]:
    order: dict[int, list[tuple[int, int]]] = {}
    for kind, request, instance, _ in outcome.events:
        order.setdefault(instance, []).append((kind, request))
    return order


@LAW
@given(st.data())
def test_macro_stepping_equals_the_reference_when_scenarios_are_random(data: st.DataObject) -> None:
    fleet, load = data.draw(fleets()), data.draw(LOADS)
    control, switch_s = data.draw(schedules(fleet)), data.draw(st.sampled_from([0.0, 0.2]))
    macro, reference = (run(fleet, load, stepping, control, switch_s) for stepping in (MACRO, REFERENCE))
    assert (macro is None) == (reference is None)
    if macro is None or reference is None:
        return
    assert len(macro.events) < EVENTS
    assert by_instance(macro) == by_instance(reference)
    for name in ("number", "status", "pool", "instance", "generated", "preemptions", "retries", "timely", "handed"):
        np.testing.assert_array_equal(macro.rows[name], reference.rows[name], name)
    for name in ("first_token_s", "finish_s", "itl_max_s", "energy_j"):
        np.testing.assert_allclose(macro.rows[name], reference.rows[name], rtol=1e-9, atol=1e-12, err_msg=name)
    # Of those within the range of the bins.
    longest_s = reference.rows["itl_max_s"]
    whole = finished(reference) & (longest_s > 1e-3) & (longest_s < 160.0)
    for name in ("itl_p50_s", "itl_p99_s"):
        np.testing.assert_allclose(macro.rows[name][whole], reference.rows[name][whole], rtol=0.0101)
    for kind, spent_j in macro.spent_j.items():
        # Idle energy is a difference of times, so that it is held against the energy of the whole run.
        np.testing.assert_allclose(spent_j, reference.spent_j[kind], rtol=1e-9, atol=1e-9 * total_j(reference))
    assert macro.iterations == reference.iterations
    assert macro.refused == reference.refused
    assert macro.end_s == pytest.approx(reference.end_s, rel=1e-9)
    np.testing.assert_allclose(macro.on_s, reference.on_s, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(macro.mhz_s, reference.mhz_s, rtol=1e-9, atol=1e-6)
    assert macro.gaps.sum() == reference.gaps.sum()
    assert OWN_BINS == 600


@LAW
@given(st.data())
def test_laws_hold_when_scenarios_are_random(data: st.DataObject) -> None:
    fleet, load = data.draw(fleets()), data.draw(LOADS)
    control = data.draw(schedules(fleet))
    stepping = data.draw(st.sampled_from([MACRO, WALK]))
    controls = [control] if control.commands else []
    try:
        out = simulate(
            fleet, load, stepping=stepping, controls=controls, keep_events=EVENTS, keep_segments=EVENTS, bin_s=1.7
        )
    except SimulationError:
        return
    rows = out.rows
    # Energy: requests + idle + transition, the integral of power over segments, and the series by time agree.
    resting_j = out.spent_j["idle"].sum() + out.spent_j["transition"].sum()
    assert rows["energy_j"].sum() + resting_j == pytest.approx(total_j(out), rel=1e-9)
    assert out.series_j.sum() == pytest.approx(total_j(out), rel=1e-9)
    assert out.segments is not None
    assert out.segments[:, 8].sum() + resting_j == pytest.approx(total_j(out), rel=1e-9)
    # No request is lost or served twice.
    np.testing.assert_array_equal(rows["number"], np.arange(len(load)))
    assert set(np.unique(rows["status"])) <= {DONE, REJECTED}
    done = rows["status"] == DONE
    np.testing.assert_array_equal(rows["generated"][done], load.output_tokens[done])
    assert (rows["timely"] <= rows["generated"]).all()
    times = Counter((kind, request) for kind, request, _, _ in out.events)
    for request, row in enumerate(rows):
        if row["status"] == DONE:
            assert times[FIRST_TOKEN, request] == times[FINISHED, request] == 1
            assert times[PREEMPTED, request] == row["preemptions"]
            # Once at first, and again after each preemption and move that found it admitted.
            most = 1 + row["preemptions"] + times[HANDED_OVER, request]
            assert 1 <= times[ADMITTED, request] <= most
            if not control.commands:
                assert times[ADMITTED, request] == most
        elif not row["handed"]:
            assert not row["generated"]
            assert not times[ADMITTED, request]
    # The cache is never over-full, nor the batch; clocks stay within the GPU's range by the engine model.
    for row in out.segments:
        spec = out.instances[int(row[0])]
        assert row[6] <= spec.kv_capacity
        assert row[4] <= spec.max_sequences
        assert row[4] + row[5] <= max(spec.tokens_per_iteration, row[4])
    assert (out.on_s <= out.end_s + 1e-9).all()
    again = simulate(fleet, load, stepping=stepping, controls=controls)
    np.testing.assert_array_equal(rows["finish_s"], again.rows["finish_s"])
    np.testing.assert_array_equal(rows["energy_j"], again.rows["energy_j"])


@LAW
@given(st.data())
def test_run_is_the_same_when_requests_come_in_blocks(data: st.DataObject) -> None:
    fleet, load = data.draw(fleets()), data.draw(LOADS)
    control, size = data.draw(schedules(fleet)), data.draw(st.integers(1, 10))
    whole = run(fleet, load, MACRO, control)
    parts = run(fleet, [load[k : k + size] for k in range(0, len(load), size)], MACRO, control)
    if whole is None or parts is None:  # the first block alone may not fit anywhere
        return
    for name in ("number", "status", "instance", "finish_s", "energy_j", "itl_p99_s"):
        np.testing.assert_array_equal(whole.rows[name], parts.rows[name], name)
    assert total_j(whole) == pytest.approx(total_j(parts), rel=1e-12)
    assert by_instance(whole) == by_instance(parts)


@LAW
@given(st.data())
def test_steppings_agree_and_show_the_same_when_a_router_places_requests(data: st.DataObject) -> None:
    fleet, load = data.draw(fleets()), data.draw(LOADS)
    pools = tuple(replace(pool, handover=Handover(pool.name, "routed", 1e-4, 0.01)) for pool in fleet.pools)
    fleet = replace(fleet, pools=pools)
    split, most = data.draw(st.booleans()), data.draw(st.sampled_from([1, 3, 100]))
    routers = [Turns(split, most) for _ in range(2)]
    names = st.sampled_from([spec.name for spec in fleet.instances])
    drawn = st.lists(st.tuples(st.integers(0, 20), emergencies(names)), max_size=8)
    control = Schedule(tuple(data.draw(drawn)))
    macro, reference = (
        run(fleet, load, stepping, control, router=router)
        for stepping, router in zip((MACRO, REFERENCE), routers, strict=True)
    )
    assert (macro is None) == (reference is None)
    if macro is None or reference is None:
        return
    assert by_instance(macro) == by_instance(reference)
    np.testing.assert_array_equal(macro.rows["status"], reference.rows["status"])
    np.testing.assert_allclose(macro.rows["finish_s"], reference.rows["finish_s"], rtol=1e-9)
    np.testing.assert_allclose(total_j(macro), total_j(reference), rtol=1e-9)
    assert [seen[1:] for seen in routers[0].seen] == [seen[1:] for seen in routers[1].seen]


def test_clock_is_the_nearest_one_in_range_when_a_control_asks_for_too_much() -> None:
    from core.simulator.kernel.simulated import InstanceSpec, PoolSpec, load

    gpu = GPUS["A100-80GB"]
    spec = InstanceSpec("i0", "Llama3-70B", "A100-80GB", 4, gpu.f_max)
    fleet = FleetSpec((spec,), (PoolSpec("all", (0,)),))
    requests = load([0.0], [100], [200])
    for asked, effective in ((9999.0, gpu.f_max), (1.0, gpu.f_min)):
        runs = [
            simulate(fleet, requests, controls=[Schedule(((0, SetSmClock("i0", mhz)),))]) for mhz in (asked, effective)
        ]
        assert runs[0].rows["finish_s"][0] == runs[1].rows["finish_s"][0]
        assert total_j(runs[0]) == pytest.approx(total_j(runs[1]))
