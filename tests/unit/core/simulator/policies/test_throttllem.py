"""throttLL'eM, Triton and ReTail on the simulator itself: each part of them has its effect."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from core.engine.engine_model import gpu
from core.engine.overheads import clock_switch_s
from core.simulator.fields import ScenarioError
from core.simulator.kernel import kernel
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, PoolSpec, SimulationError, load
from core.simulator.policies import CellLoad, ClassInfo, PartitionInfo, ServiceInfo, SiteInfo, World, build
from core.simulator.policies.policy_registry import check, read_policy
from core.simulator.policies.throttllem import ThrottllemConfig
from core.types import Limits, SetSmClock

MODEL, A100, TOP_MHZ = "Llama2-13B", "A100-40GB", 1410.0
SLO = Limits(e2e_s=31.3, tpot_s=0.2)  # table II, TP4; V-A
PLAIN = ThrottllemConfig(autoscale=False, engines=1, predictor_error=0.0, clock_floor="gpu")
RATES = {1: 1.125, 2: 4.0, 4: 7.5}  # table II


def world(gpus=8, limits=SLO, tps=(1, 2, 4), kv_tokens=None):
    assert gpu(A100).f_max == TOP_MHZ
    kinds = tuple(
        InstanceSpec(f"tp{tp}", MODEL, A100, tp, TOP_MHZ, engine="trtllm", kv_capacity_tokens=kv_tokens) for tp in tps
    )
    service = ServiceInfo("chat", MODEL, (PartitionInfo("all", (ClassInfo("all", limits),), {0: 0}),), "trtllm")
    return World((SiteInfo("site", {A100: gpus}),), (service,), kinds, 1, (CellLoad(3.0, 1000.0, 200.0),))


def steady(rps, from_s, to_s, prompt=800, output=200):
    """Evenly spaced arrivals."""
    at = np.arange(from_s, to_s, 1.0 / rps)
    return load(at, np.full(at.size, prompt), np.full(at.size, output))


def two(first, second):
    return load(*(np.concatenate([getattr(part, name) for part in (first, second)]) for name in LENGTHS))


LENGTHS = ("arrival_s", "prompt_tokens", "output_tokens")


@dataclass
class Watched:
    """A router that keeps what it answered: (now, request, placement)."""

    inner: object
    answers: list

    @property
    def tick_s(self):
        return self.inner.tick_s

    def place(self, request, view):
        found = self.inner.place(request, view)
        self.answers.append((view.now_s, request.number, found))
        return found


@dataclass(frozen=True)
class Ran:
    outcome: object
    answers: list

    @property
    def placed(self):
        return [(at_s, number, found) for at_s, number, found in self.answers if found is not None]

    @property
    def clocks_mhz(self):
        return [c.mhz for _, _, found in self.placed for c in found.commands if isinstance(c, SetSmClock)]

    def reasons(self, loop):
        return {d.reason for d in self.outcome.decisions if d.loop == loop}

    @property
    def late(self):
        rows = self.outcome.rows
        return float(np.mean(rows["finish_s"] - rows["arrival_s"] > SLO.e2e_s))


def run(config, requests, found=None):
    found = found or world()
    plan = build(config, found)
    fleet = FleetSpec(
        tuple(member.spec for member in plan.members),
        (PoolSpec("chat", tuple(range(len(plan.members))), plan.pools[0].routing),),
        (0,),
    )
    answers: list = []
    outcome = simulate(
        fleet,
        requests,
        controls=plan.controls,
        router=None if plan.router is None else Watched(plan.router, answers),
        clock_switch_s=lambda spec: clock_switch_s(found.overheads, spec.gpu, spec.tp),
    )
    assert outcome.refused == 0
    return Ran(outcome, answers)


# -- clocks -------------------------------------------------------------------------------------------


def test_clock_goes_down_at_an_admission_and_energy_with_it_when_deadlines_are_far():
    requests = steady(3.0, 0.0, 60.0)
    slow, fast = run(PLAIN, requests), run(replace(PLAIN, clock=False), requests)
    assert slow.clocks_mhz[0] < TOP_MHZ / 2
    assert not fast.clocks_mhz
    assert slow.late == fast.late == 0.0
    spent = [sum(kind.sum() for kind in ran.outcome.spent_j.values()) for ran in (slow, fast)]
    assert spent[0] < 0.9 * spent[1]
    assert slow.reasons("clock") >= {"within_limits"}
    assert fast.reasons("clock") == set()


def test_clock_is_higher_when_the_predictor_is_taken_to_err_more():
    one, tight = steady(1.0, 0.0, 1.0, output=400), world(limits=Limits(e2e_s=10.0))
    assert run(replace(PLAIN, predictor_error=0.5), one, tight).clocks_mhz[0] > run(PLAIN, one, tight).clocks_mhz[0]


def test_predictions_are_raised_by_their_error_on_what_has_ended_when_none_is_set():
    requests, tight = steady(3.0, 0.0, 70.0), world(limits=Limits(e2e_s=8.0))
    requests = replace(requests, predicted_tokens=requests.output_tokens // 2)
    measured, default, known = (
        run(replace(PLAIN, predictor_error=own), requests, tight).clocks_mhz for own in (None, 0.3, 1.0)
    )
    assert measured[:2] == default == [210.0, TOP_MHZ], "before enough have ended"
    assert measured[-8:] == known[-8:], "each answer is twice as long as predicted"


def test_clock_is_higher_when_objectives_are_tighter():
    one = steady(1.0, 0.0, 1.0)
    loose, *tight = (
        run(PLAIN, one, world(limits=own)).clocks_mhz[0] for own in (SLO, Limits(e2e_s=5.0), Limits(tpot_s=0.02))
    )
    assert min(tight) > loose


def test_clock_stays_above_its_floor_when_one_is_given():
    assert min(run(replace(PLAIN, clock_floor_mhz=1050.0), steady(1.0, 0.0, 20.0)).clocks_mhz) == 1050.0


def test_clock_stays_at_the_voltages_knee_when_nobody_says_from_where():
    found, lower = (run(replace(PLAIN, clock_floor=floor), steady(1.0, 0.0, 9.0)) for floor in ("voltage", "gpu"))
    assert min(found.clocks_mhz) == gpu(A100).f_v > min(lower.clocks_mhz)
    assert ThrottllemConfig().clock_floor == read_policy({"name": "throttllem"}).clock_floor == "voltage"


def test_clock_rises_for_those_who_wait_when_there_is_no_limit_on_e2e():
    """The time between tokens by itself is kept at a clock at which prompts pile up."""
    crowd = two(steady(1.0, 0.0, 10.0), steady(8.0, 10.0, 40.0))
    paced, blind = (run(PLAIN, crowd, world(limits=own)) for own in (Limits(1.0, 0.05), Limits(None, 0.05, 1e6)))
    assert max(paced.clocks_mhz) > max(blind.clocks_mhz)
    waits_s = [
        float(np.mean(ran.outcome.rows["first_token_s"] - ran.outcome.rows["arrival_s"])) for ran in (paced, blind)
    ]
    assert waits_s[0] < 0.5 * waits_s[1]


@pytest.mark.parametrize(
    ("config", "limits", "named"),
    [
        (PLAIN, Limits(ttft_s=1.0), ("clock=throttle", "admission=projection")),
        (PLAIN, Limits(), ("e2e", "tpot")),
        (replace(PLAIN, clock=False), Limits(ttft_s=1.0), ("admission=projection",)),
        (replace(PLAIN, admission=False, tbt_s=0.1, name="retail"), Limits(ttft_s=1.0), ("clock=retail",)),
        (replace(PLAIN, tbt_s=0.1), Limits(ttft_s=1.0), None),
        (PLAIN, Limits(e2e_s=30.0), None),
        (PLAIN, Limits(tpot_s=0.1), None),
        (replace(PLAIN, clock=False, admission=False), Limits(), None),
    ],
)
def test_service_is_refused_when_it_has_no_objective_that_the_policy_goes_by(config, limits, named):
    if named is None:
        check(config, world(limits=limits))
        return
    for begins in (check, build):
        with pytest.raises(SimulationError) as refused:
            begins(config, world(limits=limits))
        assert all(word in str(refused.value) for word in ("slo", "chat", *named))


@pytest.mark.parametrize(("e2e_s", "said"), [(0.5, ["E2E of 0.5 s"]), (31.3, [])])
def test_limit_that_no_engine_keeps_is_said_once(e2e_s, said):
    ran = run(ThrottllemConfig(), steady(1.0, 0.0, 40.0), world(limits=Limits(e2e_s=e2e_s, tpot_s=0.2)))
    found = [own.summary for own in ran.outcome.decisions if own.reason == "infeasible"]
    assert found == [f"ALL: no mode keeps its limits ({words}), planned without them." for words in said]


def test_top_clock_is_taken_when_a_request_is_lost():
    ran = run(PLAIN, steady(1.0, 0.0, 12.0), world(limits=Limits(e2e_s=0.5)))
    assert set(ran.clocks_mhz) <= {TOP_MHZ}
    assert "lost" in ran.reasons("admission")
    assert ran.reasons("clock") == {"lost"}
    assert (ran.outcome.rows["status"] == kernel.DONE).all()


@pytest.fixture(scope="module")
def learned():
    """A run by trees, which are learned in it."""
    return run(replace(PLAIN, ips="trees"), steady(2.0, 0.0, 20.0, prompt=20))


def test_trees_choose_clocks_near_the_engine_models_when_prompts_are_short(learned):
    closed = run(replace(PLAIN, ips="engine"), steady(2.0, 0.0, 20.0, prompt=20))
    assert np.mean(learned.clocks_mhz) == pytest.approx(np.mean(closed.clocks_mhz), rel=0.1)


# -- admission ----------------------------------------------------------------------------------------


def test_request_is_held_back_in_order_when_the_cache_would_overflow():
    burst = two(steady(1000.0, 0.0, 0.01, prompt=1000), steady(1.0, 0.5, 1.0, prompt=10, output=10))
    small = world(kv_tokens=3300)  # room for three prompts, and for two of their answers
    ran = run(PLAIN, burst, small)
    assert [number for _, number, _ in ran.placed] == list(range(11))  # the small one might fit, and waits
    assert len([at_s for at_s, _, _ in ran.placed if at_s < 0.02]) == 2
    assert ran.outcome.rows["preemptions"].sum() == 0
    assert "would_violate" in ran.reasons("admission")
    open_to_all = run(replace(PLAIN, admission=False), burst, small)
    assert [at_s for at_s, _, _ in open_to_all.placed][-1] == 0.5
    assert open_to_all.outcome.rows["preemptions"].sum() > 0


def test_request_is_refused_and_blocks_nobody_when_it_fits_no_engine():
    ran = run(PLAIN, two(steady(1.0, 0.0, 1.0, prompt=5000), steady(1.0, 1.0, 12.0)), world(kv_tokens=3200))
    assert ran.outcome.rows["status"].tolist() == [kernel.REJECTED] + [kernel.DONE] * 11
    assert "infeasible" in ran.reasons("admission")


def test_request_is_refused_when_it_outgrows_the_engine_unforeseen():
    wrong = load([0.0, 1.0], [3000, 500], [400, 100], predicted_tokens=[50, 100])
    ran = run(PLAIN, wrong, world(kv_tokens=3200))
    assert ran.outcome.rows["status"].tolist() == [kernel.REJECTED, kernel.DONE]


def test_requests_go_to_the_less_loaded_engine():
    ran = run(replace(PLAIN, engines=2), steady(10.0, 0.0, 1.0))
    assert np.bincount(ran.outcome.rows["instance"]).tolist() == [5, 5]


# -- autoscaler ---------------------------------------------------------------------------------------

SCALES = ThrottllemConfig(engines=1, predictor_error=0.0, max_rps=RATES)


def test_shadow_takes_over_when_the_load_changes_the_size():
    ran = run(SCALES, two(steady(3.0, 0.0, 90.0), steady(6.0, 90.0, 150.0)))
    assert [spec.tp for spec in ran.outcome.instances] == [4, 2]  # TP4's place is used again
    rows = ran.outcome.rows
    served = [rows["instance"][rows["arrival_s"].searchsorted(at_s)] for at_s in (0.0, 60.0, 85.0, 140.0)]
    assert served == [0, 1, 1, 0]
    assert ran.outcome.spent_j["transition"].sum() > 0.0
    assert ran.reasons("autoscale") == {"slack", "congested"}
    assert (rows["status"] == kernel.DONE).all()


def test_smaller_engine_waits_for_the_grace_of_the_present_one():
    ran = run(SCALES, steady(3.0, 0.0, 60.0))
    ((at_s),) = [d.at_s for d in ran.outcome.decisions if d.loop == "autoscale"]
    assert at_s == 30.0  # spawning takes 20.8 s, and the load is looked at each 10 s


def test_shadow_is_called_off_when_the_present_engine_is_needed_again():
    ran = run(SCALES, two(steady(3.0, 0.0, 31.0), steady(6.5, 31.0, 90.0)))
    assert [(d.at_s, d.reason) for d in ran.outcome.decisions if d.loop == "autoscale"] == [
        (30.0, "slack"),
        (40.0, "congested"),
    ]
    assert set(ran.outcome.rows["instance"].tolist()) == {0}


def test_larger_engine_waits_when_no_node_has_room_for_both():
    requests = two(steady(3.0, 0.0, 30.0), steady(4.3, 30.0, 90.0))
    ran = run(SCALES, requests, world(gpus=3))
    assert "at_limit" in ran.reasons("autoscale")
    assert 4 not in {spec.tp for spec in ran.outcome.instances}
    assert (ran.outcome.rows["status"] == kernel.DONE).all()


# -- the others, and all of them ----------------------------------------------------------------------


def test_triton_only_batches():
    plan = build(read_policy({"name": "triton", "engines": 1, "tp": 2}), world())
    assert (plan.router, plan.controls) == (None, ())
    assert [(member.spec.tp, member.spec.mhz) for member in plan.members] == [(2, TOP_MHZ)]


def test_triton_scales_without_a_router_when_configured_so():
    plan = build(read_policy({"name": "triton", "autoscale": True}), world())
    assert plan.router is None
    assert [control.name for control in plan.controls] == ["autoscale"]


def test_retail_moves_the_clock_and_holds_nobody_back():
    requests = two(steady(3.0, 0.0, 30.0), steady(9.0, 30.0, 60.0))
    ran = run(read_policy({"name": "retail", "engines": 1, "predictor_error": 0.3}), requests)
    assert len(ran.answers) == len(requests)
    assert len(set(ran.clocks_mhz)) > 3
    assert ran.late == 0.0


@pytest.mark.parametrize("config", [SCALES, ThrottllemConfig("retail", False, True, False, engines=2)])
def test_runs_are_equal_when_the_load_is(config):
    rng = np.random.default_rng(5)
    requests = load(np.sort(rng.uniform(0, 90.0, 400)), rng.integers(20, 2000, 400), rng.integers(5, 400, 400))
    runs = [run(config, requests) for _ in range(2)]
    assert runs[0].outcome.rows.tobytes() == runs[1].outcome.rows.tobytes()
    assert runs[0].answers == runs[1].answers
    assert runs[0].outcome.decisions == runs[1].outcome.decisions


def test_engines_are_as_many_as_the_declared_peak_needs():
    found = replace(world(gpus=64), declared=(CellLoad(20.0, 1000.0, 200.0),))
    assert len(build(ThrottllemConfig(max_rps=RATES), found).members) == 3
    assert len(build(ThrottllemConfig(max_rps=RATES), world(gpus=64)).members) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"admision": True}, "policy.admision: unknown field; did you mean admission"),
        ({"clock": 1}, "policy.clock: must be a text, not 1"),
        ({"period_s": 12}, "policy.period_s: must be a multiple of 5"),
        ({"predictor_error": -0.1}, "policy.predictor_error: must be at least 0"),
        ({"ips": "xgboost"}, "policy.ips: unknown 'xgboost'; known: engine, trees"),
        ({"max_rps": {"2": 4.0}}, r"policy.max_rps.2: is not a TP degree; write tp1"),
        ({"max_rps": {"tp1": 4.0, "tp2": 1.0}}, "policy.max_rps: must ascend with the TP degree"),
        ({"engines": 0}, "policy.engines: must be at least 1"),
    ],
)
def test_error_names_the_field_when_it_is_wrong(values, message):
    with pytest.raises(ScenarioError, match=message):
        read_policy({"name": "throttllem", **values})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            replace(SCALES, max_rps={1: 0.0, 2: 0.0, 4: 0.0}),
            "no engine carries any load at site: give larger tp_choices",
        ),
        (replace(SCALES, engines=3), "room for 2 engines only"),
    ],
)
def test_error_says_what_is_lacking_when_the_engines_do_not_fit(config, message):
    with pytest.raises(SimulationError, match=message):
        build(config, world())
