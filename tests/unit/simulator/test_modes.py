"""The laws: both modes give the same run, energy is conserved, nothing is lost."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.simulator.fleet import FleetSpec, Load, SimulationError
from scheduler.simulator.kernel import ADMITTED, DONE, FINISHED, FIRST_TOKEN, PREEMPTED, REJECTED
from scheduler.simulator.outcome import Outcome
from scheduler.simulator.run import ClockSchedule, simulate
from tests.unit.simulator.scenarios import fleets, loads, schedules

LAW = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
EVENTS = 20_000


def run(fleet: FleetSpec, load: Load, mode: str, control: ClockSchedule | None) -> Outcome | None:
    try:
        return simulate(fleet, load, mode=mode, control=control, keep_events=EVENTS)
    except SimulationError:
        return None  # nothing fits


def by_instance(outcome: Outcome) -> dict[int, list[tuple[int, int]]]:
    order: dict[int, list[tuple[int, int]]] = {}
    for kind, request, instance, _ in outcome.events:
        order.setdefault(instance, []).append((kind, request))
    return order


@LAW
@given(st.data())
def test_macro_mode_equals_the_reference_when_scenarios_are_random(data: st.DataObject) -> None:
    fleet, load = data.draw(fleets()), data.draw(loads())
    control = data.draw(schedules(fleet))
    macro, reference = run(fleet, load, "macro", control), run(fleet, load, "reference", control)
    assert (macro is None) == (reference is None)
    if macro is None or reference is None:
        return
    assert len(macro.events) < EVENTS
    assert by_instance(macro) == by_instance(reference)
    for name in ("status", "instance", "generated", "preemptions", "timely_tokens"):
        np.testing.assert_array_equal(getattr(macro, name), getattr(reference, name), name)
    for name in ("first_token_s", "finish_s", "itl_max_s", "energy_j"):
        np.testing.assert_allclose(getattr(macro, name), getattr(reference, name), rtol=1e-9, err_msg=name)
    whole = reference.finished & (reference.itl_max_s > 1e-3) & (reference.itl_max_s < 160.0)  # the bins' range
    for name in ("itl_p50_s", "itl_p99_s"):
        np.testing.assert_allclose(getattr(macro, name)[whole], getattr(reference, name)[whole], rtol=0.0101)
    for kind, spent_j in macro.spent_j.items():
        # Idle energy is a difference of times, so that it is held against the energy of the whole run.
        np.testing.assert_allclose(spent_j, reference.spent_j[kind], rtol=1e-9, atol=1e-9 * reference.total_j)
    assert macro.iterations == reference.iterations
    assert macro.end_s == pytest.approx(reference.end_s, rel=1e-9)
    assert macro.gaps.sum() == reference.gaps.sum()


@LAW
@given(st.data())
def test_laws_hold_when_scenarios_are_random(data: st.DataObject) -> None:
    fleet, load = data.draw(fleets()), data.draw(loads())
    control = data.draw(schedules(fleet))
    mode = data.draw(st.sampled_from(["macro", "walk"]))
    try:
        out = simulate(fleet, load, mode=mode, control=control, keep_events=EVENTS, keep_segments=EVENTS, bin_s=1.7)
    except SimulationError:
        return
    # Energy: requests + idle, the integral of power over segments, and the series by time all tell the same.
    assert out.energy_j.sum() + out.spent_j["idle"].sum() == pytest.approx(out.total_j, rel=1e-9)
    assert out.series_j.sum() == pytest.approx(out.total_j, rel=1e-9)
    assert out.segments is not None
    assert out.segments[:, 8].sum() + out.spent_j["idle"].sum() == pytest.approx(out.total_j, rel=1e-9)
    # No request is lost or served twice.
    assert set(np.unique(out.status)) <= {DONE, REJECTED}
    done = out.status == DONE
    np.testing.assert_array_equal(out.generated[done], load.output_tokens[done])
    assert not out.generated[~done].any()
    times = Counter((kind, request) for kind, request, _, _ in out.events)
    for request, preemptions in enumerate(out.preemptions.tolist()):
        assert times[FIRST_TOKEN, request] == times[FINISHED, request] == int(done[request])
        assert times[PREEMPTED, request] == preemptions
        assert times[ADMITTED, request] == (1 + preemptions) * int(done[request])
    assert (out.timely_tokens <= out.generated).all()
    # The cache is never over-full, nor the batch.
    for row in out.segments:
        spec = fleet.instances[int(row[0])]
        assert row[6] <= spec.kv_capacity
        assert row[4] <= spec.max_sequences
        assert row[4] + row[5] <= max(spec.tokens_per_iteration, row[4])
    again = simulate(fleet, load, mode=mode, control=control)
    np.testing.assert_array_equal(out.finish_s, again.finish_s)
    np.testing.assert_array_equal(out.energy_j, again.energy_j)
