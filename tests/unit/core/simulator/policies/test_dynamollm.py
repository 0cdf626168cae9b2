"""DynamoLLM on the simulator itself: each knob does what it says, alone and with the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from core.engine.engine_model import gpu
from core.engine.overheads import clock_switch_s
from core.observations.fleet.dynamo_servers import Servers
from core.policy import presets
from core.predictors.load_template import WEEK_S, LoadHistory, observe
from core.simulator.fields import ScenarioError
from core.simulator.kernel import kernel
from core.simulator.kernel.commands import OFF, SERVING, STRETCH_S, Reshard, Start
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FleetSpec, PoolSpec, SimulationError, load
from core.simulator.policies import CellLoad, ClassInfo, PartitionInfo, ServiceInfo, SiteInfo, World, read_policy
from core.simulator.policies.config import Starting
from core.simulator.policies.dynamollm import config as dynamollm_config
from core.simulator.policies.dynamollm.demand import TEMPLATE
from core.simulator.policies.dynamollm.loops import Dynamollm
from core.simulator.policies.view_observations import first_view
from core.types import Limits, Mode, PoolKey, ReorderQueue, ReshardNode, ResteerRequests, SetSmClock, SquashRequests
from tests.representatives import first
from tests.unit.core.simulator.policies.worlds import A100, H100, MODEL, templates

TOP = gpu(H100).f_max
LIMITS = {"short": Limits(0.25, 0.1), "long": Limits(2.0, 0.1)}


def world(nodes=6, rps=(8.0, 8.0), **more):
    """Two classes by output: below 100 tokens, and the others."""
    classes = (
        ClassInfo("short", LIMITS["short"], output_max=100),
        ClassInfo("long", LIMITS["long"], output_min=100),
    )
    service = ServiceInfo("chat", MODEL, (PartitionInfo("only", classes, {0: 0, 1: 1}),))
    declared = tuple(CellLoad(rate, 600.0, tokens) for rate, tokens in zip(rps, (50.0, 300.0), strict=True))
    site = SiteInfo("east", {H100: 8 * nodes})
    return World((site,), (service,), templates(["east"], (2, 4, 8)), 2, declared, **more)


def settings(name="dynamollm", **keys):
    """Reads them as a scenario has them; `loops`: those that run."""
    return read_policy({"name": name, **keys})


def requests(rates, seed=5, seconds=300.0):
    """Stretches of equal length, each with a rate (requests a second, of both classes together)."""
    rng = np.random.default_rng(seed)
    at = np.concatenate(
        [n * seconds + np.sort(rng.uniform(0.0, seconds, int(seconds * rps))) for n, rps in enumerate(rates)]
    )
    output = np.where(rng.random(at.size) < 0.5, rng.integers(20, 99, at.size), rng.integers(100, 500, at.size))
    prompt = rng.integers(100, 1100, at.size)
    return load(at, prompt, output, request_class=(output >= 100).astype(np.int64))


def run(config, found, came, history=None):
    """The outcome, the commands as (time, command), and the policy."""
    policy = Dynamollm(config, found)
    if history is not None:
        policy.demand._history = history
    plan = policy.begin()
    log = []

    class Watched:
        def __init__(self, control):
            self.control, self.name, self.period_s = control, control.name, control.period_s

        def step(self, view):
            on = (view.state != OFF) & ((view.pool >= 0) | (view.state != SERVING))  # not what was just retired
            used = Counter()
            for slot in np.flatnonzero(on):
                spec = view.instances[slot]
                used[spec.site, spec.gpu] += spec.tp
            assert all(gpus <= found.site(site).gpus[name] for (site, name), gpus in used.items())
            answer = self.control.step(view)
            log.extend((view.now_s, command) for command in answer.commands)
            return answer

    fleet = FleetSpec(
        tuple(member.spec for member in plan.members),
        (PoolSpec("chat", tuple(range(len(plan.members))), "least_loaded"),),
        (0,) * found.cells,
    )
    outcome = simulate(
        fleet,
        came,
        controls=[Watched(control) for control in plan.controls],
        router=plan.router,
        clock_switch_s=lambda spec: clock_switch_s(found.overheads, spec.gpu, spec.tp),
    )
    assert outcome.refused == 0
    assert (outcome.rows["status"] == kernel.DONE).all()
    return outcome, log, policy


def of(log, kind):
    return [(at_s, command) for at_s, command in log if isinstance(command, kind)]


@pytest.fixture(scope="module")
def hour():
    """Quiet, busy, quiet: three minutes each."""
    return requests([3.0, 24.0, 3.0], seconds=120.0)


QUICK = {"scale_period_s": 90.0, "shard_period_s": 60.0, "down_after": 1}


@pytest.fixture(scope="module")
def whole(hour):
    return run(settings(**QUICK), world(rps=(3.0, 3.0)), hour)


def test_all_knobs_move_when_load_rises_and_falls(whole):
    outcome, log, _ = whole
    assert of(log, SetSmClock)
    assert of(log, Reshard)
    assert of(log, Start)
    assert {decision.loop for decision in outcome.decisions} == {"scale", "shard", "clock"}


def test_same_figures_when_run_again(whole, hour):
    first, log, _ = whole
    again, second_log, _ = run(settings(**QUICK), world(rps=(3.0, 3.0)), hour)
    assert log == second_log
    assert again.series_j.sum() == first.series_j.sum()
    np.testing.assert_array_equal(again.rows["finish_s"], first.rows["finish_s"])


def test_less_energy_than_fixed_nodes_when_all_loops_run(whole, hour):
    fixed, _, _ = run(settings(**QUICK, loops=[], emergency=True), world(rps=(3.0, 3.0)), hour)
    assert whole[0].series_j.sum() < 0.8 * fixed.series_j.sum()


@pytest.mark.parametrize(
    ("name", "moves", "stays"),
    [
        ("scale_inst", Start, (SetSmClock, Reshard)),
        ("scale_shard", Reshard, (SetSmClock,)),
        ("scale_freq", SetSmClock, (Start, Reshard)),
    ],
)
def test_baseline_turns_its_own_knob_alone(name, moves, stays, hour):
    _, log, _ = run(settings(name, **QUICK), world(rps=(3.0, 3.0)), hour)
    assert of(log, moves)
    assert not any(of(log, kind) for kind in stays)


def test_clock_falls_and_rises_again_with_the_load(hour):
    _, log, _ = run(settings("scale_freq"), world(2, rps=(15.0, 15.0)), hour)
    clocks = [(at_s, command.mhz) for at_s, command in of(log, SetSmClock)]
    quiet = [mhz for at_s, mhz in clocks if at_s < 180.0]
    busy = [mhz for at_s, mhz in clocks if 185.0 < at_s < 360.0]
    assert min(quiet) < max(busy) <= TOP


def test_clock_loop_has_shares_and_a_floor_of_its_own():
    came = requests([8.0], seconds=20.0)

    def clocks(**keys):
        _, log, _ = run(settings("scale_freq", **keys), world(1, rps=(4.0, 4.0)), came)
        return [command.mhz for _, command in of(log, SetSmClock)]

    lowest = min(clocks())
    assert lowest < min(clocks(clock_floor_mhz=1700.0)) == 1700.0
    assert set(clocks(tuning={"profile": {"step_mhz": 170.0}})) <= {*np.arange(800.0, TOP, 170.0), TOP}
    assert min(clocks(clock_tpot_share=0.15), default=TOP) > lowest


def three_sites(rps):
    """FREESH's testbed: servers are of four A100, since these are most, and not all on whole nodes of eight."""
    sites = (
        SiteInfo("one", {A100: 4, H100: 4}, 1.2, 4),
        SiteInfo("two", {A100: 12, H100: 2}, 1.1, sizes={A100: (8, 4), H100: (2,)}),
        SiteInfo("three", {A100: 8}, 1.3),
    )
    most = {("one", A100): 4, ("one", H100): 4, ("two", A100): 8, ("two", H100): 2, ("three", A100): 8}
    kinds = [
        spec for (site, name), tp in most.items() for spec in templates([site], (2, 4, 8)[: tp.bit_length() - 1], name)
    ]
    return replace(world(rps=rps), sites=sites, templates=tuple(kinds))


@pytest.mark.parametrize(
    ("name", "types"),
    [("dynamollm", {A100}), ("scale_inst", {A100}), ("scale_shard", {A100, H100}), ("scale_freq", {A100, H100})],
)
def test_three_sites_with_two_types_of_gpu_serve_everything(name, types):
    """Servers of several sites take part, and without the scale loop what stands beside them."""
    came = requests([14.0, 4.0], seconds=15.0)
    outcome, log, policy = run(settings(name, **QUICK), three_sites((12.0, 12.0)), came)
    served = [spec for spec, spent_j in zip(outcome.instances, outcome.spent_j["decode"], strict=True) if spent_j > 0.0]
    assert {spec.gpu for spec in served} == types
    assert len({spec.site for spec in served}) > 1
    assert policy.cluster is None or policy.cluster.at == {"one": 1, "two": 3, "three": 2}
    assert name == "scale_inst" or log


def test_server_starts_ahead_when_the_template_knows_a_peak():
    """A week ago minutes 10 to 15 were busy. The template allows for five minutes more or less: nodes are up at 5."""
    history = LoadHistory()
    for name in ("short", "long"):
        amounts = [0.0] * 120 + [30.0 * 600.0 * STRETCH_S] * 60
        history = observe(history, name, -WEEK_S, amounts, TEMPLATE)
    config = {"scale_period_s": 300.0, "loops": ["scale"]}
    came = requests([2.0], seconds=600.0)
    _, log, _ = run(settings(**config), world(rps=(2.0, 2.0)), came, history)
    starts = of(log, Start)
    assert starts
    assert {at_s for at_s, _ in starts} == {300.0 - 35.0}  # 33 s in whole ticks of 5 s
    _, late, _ = run(settings(**config, proactive=False), world(rps=(2.0, 2.0)), came, history)
    assert {at_s for at_s, _ in of(late, Start)} == {300.0}


def test_starts_take_longer_when_nothing_stands_ready(whole, hour):
    _, cold, _ = run(settings(**QUICK, warm_pool=0, weights_cached=False), world(rps=(3.0, 3.0)), hour)
    ready = {}
    for key, log in (("warm", whole[1]), ("cold", cold)):
        starts = [start.ready_in_s for _, start in of(log, Start) if start.spec.tp == 8]
        ready[key] = min(starts)
    assert ready == {"warm": 33.0, "cold": pytest.approx(423.0)}


def test_small_pool_hands_on_when_it_has_less_than_a_node():
    policy = Dynamollm(settings(), world(rps=(2.0, 20.0)))
    plan = policy.begin()
    assert policy.demand.shares[0] == 1.0
    assert policy.demand.pool_limits(1).ttft_s == 0.25  # the strictest present
    apart = Dynamollm(settings(hand_down=False), world(rps=(20.0, 20.0)))
    assert len(apart.begin().members) > len(plan.members)
    assert apart.demand.shares == [0.0, 0.0]


def test_clock_is_ramped_when_requests_would_be_late():
    """No clock loop: the instance was left at a low clock, and a burst comes."""
    came = requests([1.0, 60.0, 1.0], seconds=10.0)
    found = world(1, rps=(1.0, 1.0))
    slow = replace(found, templates=tuple(replace(spec, mhz=800.0) for spec in found.templates))
    outcome, log, _ = run(settings(loops=[]), slow, came)
    assert next(command.mhz for _, command in of(log, SetSmClock)) == TOP
    assert any(decision.reason == "clock_ramped" for decision in outcome.decisions)
    without = run(settings(loops=["clock"], emergency=False), slow, came)[0].decisions
    assert not any(decision.reason == "clock_ramped" for decision in without)


@pytest.fixture(scope="module")
def spike():
    """Twenty seconds of more short answers than their pool's server can carry."""
    came = requests([2.0, 70.0, 2.0], seconds=20.0)
    return load(came.arrival_s, came.prompt_tokens, came.output_tokens % 99 + 1)


@pytest.mark.parametrize(
    ("up_to", "kinds"),
    first(
        1,
        [
            ("squash", {ReorderQueue, SetSmClock, ResteerRequests, SquashRequests}),
            ("reorder", {ReorderQueue}),
            ("ramp", {ReorderQueue, SetSmClock}),
            ("resteer", {ReorderQueue, SetSmClock, ResteerRequests}),
        ],
        "a part of the ladder",
    ),
)
def test_ladder_climbs_as_far_as_it_may_when_load_spikes(up_to, kinds, spike):
    """No other loop: servers were left at a low clock."""
    found = world(2, rps=(1.0, 1.0))
    slow = replace(found, templates=tuple(replace(spec, mhz=1200.0) for spec in found.templates))
    config = settings(loops=[], routing="least_loaded", emergency_up_to=up_to)
    outcome, log, _ = run(config, slow, spike)
    assert {type(command) for _, command in log} == kinds
    moved = [move for _, command in of(log, ResteerRequests) for move in command.moves]
    squashed = sum(len(command.requests) for _, command in of(log, SquashRequests))
    assert outcome.rows["retries"].sum() == squashed
    assert bool(moved) == (up_to in ("resteer", "squash"))
    assert bool(squashed) == (up_to == "squash")


def test_retry_is_a_new_request_to_the_ladder_when_one_was_squashed(spike):
    """Its wait begins anew, so that it is not squashed again at once; its latency is that of its first arrival."""
    outcome, log, _ = run(settings(loops=[]), world(1, rps=(1.0, 1.0)), spike)
    when = {}
    for at_s, command in of(log, SquashRequests):
        for name in command.requests:
            when.setdefault(int(name), []).append(at_s + command.retry_after_s)
    assert when
    for number, again_s in when.items():
        row = outcome.rows[number]
        assert row["retries"] == len(again_s)
        assert all(later - earlier > 10.0 for earlier, later in pairwise(again_s))
        assert row["first_token_s"] >= again_s[-1]
        assert row["arrival_s"] == spike.arrival_s[number]


def test_old_instances_serve_on_when_gpus_have_room_for_both():
    policy = Dynamollm(settings("scale_shard"), world(2))
    view = _view_of_first(policy)
    policy.nodes.sync(view)
    change = ReshardNode(PoolKey("east", "short"), "server-0", H100, (8,), (4, 4), 0.05, 0.95, 0.6, True, 0.0)
    (command,) = policy.nodes.reshard(change, view)
    assert (command.transfer_s, command.sync_s, command.kv_share) == (1.0, 0.0, 0.6)
    assert policy.nodes.reshard(change, view) == []  # already under way
    down = replace(change, node="server-1", serves_on=False, target=(2, 2, 2, 2))
    (command,) = policy.nodes.reshard(down, view)
    assert (command.transfer_s, command.sync_s) == (0.05, 0.95)


def _view_of_first(policy):
    plan = policy.begin()
    ints = np.zeros(2, np.int64)
    return replace(
        first_view(policy.world),
        instances=tuple(member.spec for member in plan.members),
        state=np.full(2, SERVING),
        pool=ints,
        mhz=np.full(2, TOP),
        running=ints,
        waiting=ints,
    )


_SHARES = {"plan_ttft_share": 0.4, "plan_tpot_share": 0.8, "clock_ttft_share": 0.4, "clock_tpot_share": 0.8}


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        ({}, Limits(0.45 * 2.0, 0.9 * 0.1)),
        (_SHARES, Limits(0.4 * 2.0, 0.8 * 0.1)),
        ({"slo_factor": 10.0}, Limits(0.45 * 4.0, 0.9 * 0.2)),
    ],
)
def test_dynamollm_plans_with_a_share_of_the_limits(overrides, limits):
    """Those of live plans are in the integration tests under the same name."""
    policy = Dynamollm(dynamollm_config.of(presets.policy("dynamollm", overrides)), world())
    assert policy.demand.planned(policy.demand.limits[-1]) == limits


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"slo_factor": 7}, "policy.slo_factor: must be one of 5, 10, 20, not 7"),
        ({"loops": ["carbon"]}, "policy.loops: unknown 'carbon'; known: scale, shard, clock"),
        ({"wait_share": 1.5}, "policy.wait_share: must be at most 1"),
        ({"wave": 0}, "policy.wave: must be at least 1"),
        ({"clocks": "low"}, "policy.clocks: unknown 'low'; known: top, all"),
        ({"headrom": 1.1}, "policy.headrom: unknown field; did you mean headroom"),
    ],
)
def test_error_names_the_field_when_wrong(values, message):
    with pytest.raises(ScenarioError, match=message):
        read_policy({"name": "dynamollm", **values})


def test_baselines_are_settings_of_the_same_knobs():
    assert read_policy({"name": "dynamollm"}).loops == ("scale", "shard", "clock")
    assert read_policy({"name": "scale_freq"}).loops == ("clock",)
    assert read_policy({"name": "scale_inst"}).starting == Starting(0, weights_cached=False)
    assert read_policy({"name": "scale_shard", "wave": 4}).shard.wave == 4
    assert read_policy({"name": "dynamollm", "loops": ["clock", "scale"]}).loops == ("scale", "clock")


def test_scenario_is_refused_when_no_node_has_room_for_a_server():
    with pytest.raises(SimulationError, match="no node has GPUs for one"):
        Dynamollm(settings(), replace(world(), sites=(SiteInfo("east", {H100: 12}, gpus_per_node=1),)))
    assert Dynamollm(settings("scale_freq"), world()).cluster is None


def test_plan_says_which_limit_no_instance_keeps_and_keeps_the_others():
    found = world()
    short, long = found.services[0].partitions[0].classes
    partition = PartitionInfo("only", (short, replace(long, limits=replace(long.limits, e2e_s=0.5))), {0: 0, 1: 1})
    found = replace(found, services=(ServiceInfo("chat", MODEL, (partition,)),))
    outcome, *_, policy = run(settings(), found, requests([1.0], seconds=20.0))
    first = next(own for own in outcome.decisions if own.loop == "scale")
    assert first.reason == "infeasible"
    assert first.summary.endswith("long: no mode keeps its limits (E2E of 0.5 s), planned without them.")
    assert policy.demand.seen[1].demand.limits == Limits(0.45 * 2.0, 0.9 * 0.1)


def test_servers_are_smaller_when_no_instance_takes_a_whole_node():
    found = world(2)
    policy = Dynamollm(settings(), replace(found, templates=found.templates[:2]))
    assert policy.cluster == Servers(Mode(H100, 4), {"east": 4})
    assert Dynamollm(settings(tp=2), found).cluster == Servers(Mode(H100, 2), {"east": 8})
