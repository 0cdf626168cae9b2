"""DynaServe and its two ends on the simulator: requests are cut, handed over, and batches keep their limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.algorithms.split.split_point import finish_s
from core.engine.engine_model import engine_model
from core.simulator.fields import ScenarioError
from core.simulator.kernel import kernel
from core.simulator.kernel.commands import SERVING, FleetView, Placement, RequestView, Sequences
from core.simulator.kernel.driver import MACRO, simulate
from core.simulator.kernel.simulated import FleetSpec, PoolSpec, load
from core.simulator.policies import ClassInfo, PartitionInfo, ServiceInfo, SiteInfo, World, build, read_policy
from core.simulator.policies.dynaserve import DynaserveConfig
from core.simulator.policies.dynaserve.load_tracker import LoadTracker, Placed, PredictedInstance
from core.types import Limits
from tests.oracles.token_by_token import REFERENCE
from tests.unit.core.simulator.policies.worlds import templates

A100, MODEL = "A100-80GB", "Qwen2.5-14B"


def policy(name="dynaserve", **keys):
    return read_policy({"name": name, **keys})


def world(gpus=2, tpot_s=0.1, **more):
    """Qwen-2.5-14B on single A100s: the paper's smallest testbed."""
    service = ServiceInfo("chat", MODEL, (PartitionInfo("only", (ClassInfo("all", Limits(None, tpot_s)),), {0: 0}),))
    fields = {
        "sites": (SiteInfo("east", {A100: gpus}),),
        "services": (service,),
        "templates": templates(["east"], (1,), A100, MODEL),
        "cells": 1,
    }
    return World(**(fields | more))


def poisson(rps, seconds, prompt, output, seed=3, **more):
    """Lengths vary by half, up and down."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0.0, seconds, int(rps * seconds)))
    lengths = [np.maximum(1, (mean * rng.uniform(0.5, 1.5, at.size)).astype(np.int64)) for mean in (prompt, output)]
    return load(at, *lengths, **more)


def run(config, requests, gpus=2, stepping=MACRO, router=None, **more):
    plan = build(config, world(gpus, **more))
    members = [tuple(n for n, m in enumerate(plan.members) if m.pool == pool.name) for pool in plan.pools]
    pools = [PoolSpec(p.name, own, p.routing, p.handover) for p, own in zip(plan.pools, members, strict=True)]
    fleet = FleetSpec(tuple(m.spec for m in plan.members), tuple(pools))
    outcome = simulate(
        fleet,
        requests,
        stepping=stepping,
        controls=plan.controls,
        router=router(plan.router) if router else plan.router,
        keep_events=10**5,
    )
    assert (outcome.rows["status"] == kernel.DONE).all()
    assert outcome.refused == 0
    return outcome, plan


def handed_over(outcome):
    return {request for kind, request, _, _ in outcome.events if kind == kernel.HANDED_OVER}


class Spy:
    """Keeps what a router answered, and what it saw last."""

    def __init__(self, router):
        self.router, self.tick_s, self.placed = router, router.tick_s, {}

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        self.backlogs = [self.router.tracker.backlog(i, view) for i in range(len(view.instances))]
        found = self.router.place(request, view)
        self.placed[request.number] = found
        self.last, self.live = (request, found), len(self.router.tracker)
        return found


def spied(config, requests, **more):
    spies = []

    def spy(router):
        spies.append(Spy(router))
        return spies[-1]

    outcome, plan = run(config, requests, router=spy, **more)
    return outcome, plan, spies[-1]


def idle_view(now_s, specs):
    """Two instances at the top clock, with nothing to do."""
    none, nan = np.zeros(2, np.int64), np.full(2, np.nan)
    mhz, serving, arrived = np.full(2, 1410.0), np.full(2, SERVING), np.zeros((1, 1, 3), np.int64)
    return FleetView(now_s, specs, serving, none, mhz, none, none, none, nan, nan, nan, (0,), none, arrived)


# -- splits ----------------------------------------------------------------------------------------


SHORT_S = 0.03  # between tokens: a limit short beside a pass, at which cuts sustain more than whole requests


def test_requests_are_cut_and_handed_over_when_the_limit_is_short():
    requests = poisson(2.0, 60.0, 2500, 50)
    outcome, _, spy = spied(policy(itl_limit_s=SHORT_S), requests)
    split = {number for number, found in spy.placed.items() if found.split > 0}
    assert handed_over(outcome) == split
    assert split == set(range(len(requests)))
    cuts = np.array([spy.placed[n].split for n in range(len(requests))])
    assert (cuts < requests.prompt_tokens).mean() > 0.9  # prompts are nearly all the work
    assert len({(found.instance, found.second) for found in spy.placed.values()}) == 1  # one generates, one does not


def test_requests_stay_whole_when_the_limit_is_long():
    """A pass of 95 ms has room for all decodes and a chunk of prompts: no cut sustains clearly more."""
    outcome, _, spy = spied(policy(), poisson(3.0, 30.0, 2000, 200))
    assert not handed_over(outcome)
    assert {found.instance for found in spy.placed.values()} == {0, 1}


def test_both_instances_get_as_much_to_do_when_answers_are_long():
    """Prefill and decode apart leave the first one idle; a dynamic split does not (figure 5)."""
    requests = poisson(2.0, 60.0, 200, 800)

    def share(config):
        outcome, _ = run(config, requests)
        busy = outcome.spent_j["prefill"] + outcome.spent_j["decode"]
        return busy.min() / busy.max()

    assert share(policy("pd_disagg")) < 0.35
    assert share(policy()) > 0.75


def test_ends_are_coloc_and_disagg_when_the_split_says_so():
    requests = poisson(2.0, 30.0, 800, 100)
    whole, _, spy = spied(policy(split="colocated"), requests)
    assert not handed_over(whole)
    assert {found.instance for found in spy.placed.values()} == {0, 1}
    apart, _, spy = spied(policy(split="disaggregated"), requests)
    assert [spy.placed[n].split for n in range(len(requests))] == requests.prompt_tokens.tolist()
    assert len(handed_over(apart)) == len(requests)


def test_baselines_go_by_turns_when_named():
    requests = poisson(2.0, 30.0, 800, 100)
    whole, plan = run(policy("pd_coloc"), requests)
    assert (plan.router, plan.controls) == (None, ())
    assert whole.rows["instance"].tolist() == [n % 2 for n in range(len(requests))]
    apart, plan = run(policy("pd_disagg"), requests, gpus=4)
    assert [m.pool for m in plan.members] == ["first", "first", "second", "second"]
    assert len(handed_over(apart)) == len(requests)
    assert set(apart.rows["instance"].tolist()) == {2, 3}


def test_cached_prefix_counts_towards_the_split_when_there_is_one():
    requests = poisson(1.0, 30.0, 4000, 10, prefix_hit_ratio=0.75)
    _, _, spy = spied(policy(itl_limit_s=SHORT_S), requests)
    assert any(found.split > 0 for found in spy.placed.values())
    for number, found in spy.placed.items():
        assert found.split == 0 or found.split > requests.cached_tokens[number]


def test_request_is_held_back_when_it_fits_nowhere():
    plan = build(policy(), world())
    room = int(engine_model(MODEL, A100, 1).kv_capacity_tokens)
    view = idle_view(0.0, tuple(m.spec for m in plan.members))
    request = RequestView(0, 0.0, room, 0, 100, 9.0, 0, 0, 0)
    assert plan.router.place(request, view) is None
    assert plan.router.place(replace(request, prompt_tokens=100), view) is not None


# -- batches and transfers -------------------------------------------------------------------------


def test_gaps_keep_the_limit_when_batches_are_composed_for_it():
    requests = poisson(3.0, 60.0, 2000, 200)

    def long_gaps(config):
        outcome, _ = run(config, requests)
        return (outcome.rows["itl_p99_s"] > 0.1).mean()

    assert long_gaps(policy()) < 0.02
    assert long_gaps(policy(itl_limit_s=0)) > 0.5
    assert long_gaps(policy("pd_coloc")) > 0.5


def test_limit_is_the_classes_own_when_none_is_given():
    specs = [m.spec for m in build(policy(itl_margin=0.1), world(tpot_s=0.2)).members]
    assert [spec.scheduling.itl_limit_s for spec in specs] == pytest.approx([0.18, 0.18])
    specs = [m.spec for m in build(policy(itl_limit_s=0.05, itl_margin=0), world(tpot_s=0.2)).members]
    assert [spec.scheduling.itl_limit_s for spec in specs] == [0.05, 0.05]
    assert build(policy("pd_disagg"), world()).members[0].spec.scheduling.itl_limit_s == 0.0


def test_less_time_passes_between_instances_when_chunks_are_sent_meanwhile():
    requests = poisson(0.5, 60.0, 6000, 50)
    slow = {"split": "disaggregated", "link_gb_per_s": 2}
    ends = [run(policy(chunked=chunked, **slow), requests)[0].rows["finish_s"].mean() for chunked in (True, False)]
    sent_s = 6000 * engine_model(MODEL, A100, 1).constants.kv_bytes / 2e9
    assert ends[1] - ends[0] > 0.4 * sent_s  # all but the last of about three chunks


# -- the predictor ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rps", [1.0, 4.0])
def test_predicted_end_is_the_simulated_one_when_nothing_comes_after(rps):
    requests = poisson(rps, 40.0, 1500, 200)
    keys = {"split": "colocated", "margin_tokens": 0, "calibrate_s": 0, "itl_limit_s": 0}
    outcome, _, spy = spied(policy(**keys), requests)
    request, found = spy.last
    for i in (0, 1):
        part = (request.prompt_tokens, request.predicted_tokens - 1, 0) if found.instance == i else (0, 0, 0)
        end_s = request.arrival_s + finish_s(spy.backlogs[i], part)
        assert end_s == pytest.approx(outcome.rows["finish_s"][outcome.rows["instance"] == i].max(), abs=0.2)


def test_scale_comes_to_one_when_it_begins_wrong():
    requests = poisson(2.0, 60.0, 1000, 200)

    def misled(router):
        for engine in router.tracker.instances:
            engine.scale = 2.0
        return router

    _, plan = run(policy(), requests, router=misled)
    assert [engine.scale for engine in plan.router.tracker.instances] == pytest.approx([1.0, 1.0], abs=0.06)
    _, plan = run(policy(calibrate_s=0), requests, router=misled)
    assert [engine.scale for engine in plan.router.tracker.instances] == [2.0, 2.0]


def test_scale_stays_when_requests_wait_for_the_cache():
    """What waits has done nothing; it must not count as done."""
    requests = poisson(5.0, 90.0, 200, 1400)
    _, plan = run(policy(), requests)
    assert [engine.scale for engine in plan.router.tracker.instances] == pytest.approx([1.0, 1.0], abs=0.1)


def test_tracker_forgets_requests_when_they_are_over():
    requests = poisson(8.0, 80.0, 200, 30)
    predicted = np.maximum(1, requests.output_tokens * np.random.default_rng(1).integers(1, 8, len(requests)) // 4)
    outcome, _, spy = spied(policy(), replace(requests, predicted_tokens=predicted))
    now_s = requests.arrival_s[-1]
    in_flight = int((outcome.rows["finish_s"] > now_s).sum())
    assert in_flight <= spy.live <= in_flight + 3  # some have ended since the router last looked


def test_work_to_come_counts_until_it_has_landed_or_is_late():
    spec = build(policy(), world()).members[0].spec
    tracker = LoadTracker(
        (PredictedInstance(spec, 0.0), PredictedInstance(spec, 0.0)), link_token_s=0.001, latency_s=0.5
    )
    tracker.note(Placed(7, 1000, 1500, 1200, 1), 0)
    on = {0: [], 1: []}

    def sequences(i):
        number, kv, generated, left = np.array(on[i], np.int64).reshape(-1, 4).T
        times = np.zeros(number.size)
        return Sequences(number.size, number, kv, generated, left, number, times, times)

    def work(i, now_s):
        return tracker.backlog(i, replace(idle_view(now_s, (spec, spec)), sequences=sequences)).work.tolist()

    on[0] = [(7, 1000, 0, 400)]  # 400 tokens of its prompt are left
    assert work(0, 1.0) == [[400, 200, 600]]
    on[0] = [(7, 1100, 101, 0)]
    assert work(0, 2.0) == [[0, 100, 1100]]
    assert work(1, 2.0) == [[0, 299, 1200]]
    on[0] = []
    assert work(0, 3.0) == []
    assert work(1, 3.0) == [[0, 299, 1200]]  # on its way
    on[1] = [(7, 1200, 201, 1)]
    assert work(1, 4.0) == [[1, 298, 1200]]
    assert len(tracker) == 1
    on[1] = []
    assert work(1, 5.0) == []
    assert len(tracker) == 0
    tracker.note(Placed(8, 1000, 1500, 1200, 1), 0)
    assert work(0, 6.0) == []
    assert len(work(1, 7.9)) == 1  # 1.5 s of cache and 0.5 s
    assert work(1, 8.1) == []  # it had ended before it was to be handed over
    assert len(tracker) == 0


# -- the run, the words, the configuration ---------------------------------------------------------


def test_steppings_agree_and_runs_repeat():
    requests = poisson(3.0, 15.0, 900, 40)
    finish = [run(policy(), requests, stepping=stepping)[0].rows["finish_s"] for stepping in (MACRO, MACRO, REFERENCE)]
    assert finish[0].tolist() == finish[1].tolist()
    np.testing.assert_allclose(finish[0], finish[2], rtol=1e-9)


def test_decisions_count_every_request_when_reported():
    requests = poisson(2.0, 100.0, 500, 50)
    outcome, _ = run(replace(policy(), report_s=10.0), requests)
    counted = sum(int(decision.summary.split()[0]) for decision in outcome.decisions)
    assert counted == np.count_nonzero(requests.arrival_s < outcome.decisions[-1].at_s)
    assert {(d.loop, d.reason) for d in outcome.decisions} == {("split", "feasible")}
    outcome, _ = run(replace(policy(split="disaggregated"), report_s=10.0), requests)
    assert {d.reason for d in outcome.decisions} == {"policy"}


def test_larger_groups_share_requests_when_there_are_more_gpus():
    config = policy(first_share=0.25, split="disaggregated")
    _, _, spy = spied(config, poisson(16.0, 20.0, 800, 100), gpus=8)
    assert {found.instance for found in spy.placed.values()} == {0, 1}
    assert {found.second for found in spy.placed.values()} == set(range(2, 8))


def test_knobs_are_read_when_given():
    assert policy() == DynaserveConfig()
    found = policy("pd_disagg", routing="predicted", itl_limit_s=0.05, chunked=True, max_probes=3)
    assert (found.cut.policy, found.cut.max_probes) == ("disaggregated", 3)
    assert (found.routing, found.itl_limit_s, found.chunked) == ("predicted", 0.05, True)
    assert policy("pd_coloc").itl_limit_s == 0.0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"split": "half"}, "policy.split: unknown 'half'; known: none, prompt, any"),
        ({"routing": "round_robin"}, "policy.routing: must be predicted"),
        ({"itl_limit_s": -1}, "policy.itl_limit_s: must be at least 0"),
        ({"itl_margin": 1.0}, "policy.itl_margin: must be below 1"),
        ({"first_share": 1.5}, "policy.first_share: must be below 1"),
        ({"gain": 2}, "policy.gain: must be at most 1"),
        ({"max_probes": 0}, "policy.max_probes: must be at least 1"),
        ({"link_gb_per_s": 0}, "policy.link_gb_per_s: must be above 0"),
        ({"chunks": True}, "policy.chunks: unknown field; did you mean chunked"),
    ],
)
def test_error_names_the_field_when_wrong(keys, message):
    with pytest.raises(ScenarioError, match=message):
        policy(**keys)


@pytest.mark.parametrize("name", ["dynaserve", "pd_coloc", "pd_disagg"])
def test_one_instance_serves_alone(name):
    """As at a gateway; the simulator refused."""
    assert len(build(policy(name), world(gpus=1)).members) == 1
