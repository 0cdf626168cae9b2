"""mu-Serve and its baselines on the simulated fleet: each part does what it is there for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from core.algorithms.placement.model_placement import PlacementConfig
from core.engine.engine_model import engine_model, gpu
from core.engine.overheads import clock_switch_s
from core.simulator.fields import ScenarioError
from core.simulator.kernel.driver import MACRO, simulate
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, PoolSpec, SimulationError, load
from core.simulator.policies import CellLoad, ClassInfo, PartitionInfo, ServiceInfo, SiteInfo, World, build
from core.simulator.policies.muserve import MuServeConfig
from core.simulator.policies.muserve.device_placement import Placer
from core.simulator.policies.muserve.replicas import Slot, clock_domains
from core.simulator.policies.policy_registry import read_policy
from core.simulator.policies.view_observations import first_view
from core.types import Limits
from tests.oracles.token_by_token import REFERENCE

V100 = "V100-16GB"
EAGER = "eager-2023-a100"
TOP = gpu(V100).f_max


def cluster(services, gpus=4, per_node=2, e2e_s=60.0, max_sequences=4):
    """`services`: {name: (model, rps, prompt, output)}; a cell each. gpt2 on 1 or 2 GPUs, Qwen on 2 or 4."""
    tps = {"gpt2-large": (1, 2), "Qwen3-8B": (2, 4)}
    models = dict.fromkeys(model for model, *_ in services.values())
    templates = tuple(
        InstanceSpec(f"{model}-tp{tp}", model, V100, tp, TOP, EAGER, "lab", max_sequences=max_sequences)
        for model in models
        for tp in tps[model]
    )
    limits = Limits(e2e_s=e2e_s)
    infos = tuple(
        ServiceInfo(name, model, (PartitionInfo("only", (ClassInfo("all", limits),), {n: 0}),), EAGER)
        for n, (name, (model, *_)) in enumerate(services.items())
    )
    declared = tuple(CellLoad(rps, prompt, output) for _, rps, prompt, output in services.values())
    return World((SiteInfo("lab", {V100: gpus}, gpus_per_node=per_node),), infos, templates, len(infos), declared)


CHAT = {"chat": ("gpt2-large", 0.3, 100.0, 100.0)}
# Two models that share a group of two GPUs: short prompts and long answers, and the other way round.
MIX = {"chat": ("gpt2-large", 0.3, 30.0, 200.0), "scoring": ("gpt2-large", 0.3, 900.0, 2.0)}


def config(name="muserve", **keys):
    return read_policy({"name": name, **keys})


def run(world, policy, requests):
    plan = build(policy, world)
    names = [pool.name for pool in plan.pools]
    fleet = FleetSpec(
        tuple(member.spec for member in plan.members),
        tuple(
            PoolSpec(pool.name, tuple(n for n, m in enumerate(plan.members) if m.pool == pool.name), pool.routing)
            for pool in plan.pools
        ),
        tuple(names.index(name) for name in plan.cell_pool),
    )
    switch = lambda spec: clock_switch_s(world.overheads, spec.gpu, spec.tp)  # noqa: E731
    outcome = simulate(fleet, requests, controls=plan.controls, clock_switch_s=switch)
    assert outcome.refused == 0
    assert len(outcome.rows) == len(requests)
    return outcome


def requests_of(world, span_s=240.0, seed=5):
    rng = np.random.default_rng(seed)
    parts_ = []
    for cell, declared in enumerate(world.declared):
        count = int(declared.rps * span_s)
        lengths = [np.maximum(1, rng.exponential(m, count)).round() for m in declared_means(declared)]
        parts_.append((np.sort(rng.uniform(0, span_s, count)), *lengths, np.full(count, cell)))
    at, prompt, output, cell = (np.concatenate(column) for column in zip(*parts_, strict=True))
    order = np.argsort(at)
    return load(at[order], prompt[order], output[order], cell=cell[order].astype(np.int64))


def declared_means(declared):
    return declared.prompt_tokens, declared.output_tokens


def energy_j(outcome):
    return float(sum(spent.sum() for spent in outcome.spent_j.values()))


def clocks(outcome):
    return [d for d in outcome.decisions if d.loop == "clock"]


# -- the policy's effects --------------------------------------------------------------------------


def test_clock_falls_and_energy_with_it_when_requests_have_slack():
    world = cluster(CHAT)
    requests = requests_of(world)
    top, scaled = run(world, config("alpaserve"), requests), run(world, config("muserve"), requests)
    assert not clocks(top)
    assert {d.reason for d in clocks(scaled)} >= {"slack"}
    assert energy_j(scaled) < 0.8 * energy_j(top)
    e2e_s = scaled.rows["finish_s"] - scaled.rows["arrival_s"]
    assert np.mean(e2e_s <= 60.0) >= 0.99


def test_clock_doubles_when_a_latency_has_too_little_slack():
    world = cluster(CHAT, e2e_s=12.0)
    outcome = run(world, config(goal=0.5), requests_of(world))
    assert "congested" in {d.reason for d in clocks(outcome)}


def test_replicas_are_asked_for_when_the_top_clock_is_not_enough():
    world = cluster({"chat": ("gpt2-large", 3.0, 100.0, 300.0)}, gpus=1, per_node=1, e2e_s=5.0)
    outcome = run(world, config(goal=0.01), requests_of(world, 100.0))
    assert [d for d in clocks(outcome) if d.reason == "at_limit" and "add replicas" in d.summary]


def test_starved_model_gets_a_replica_when_gpus_are_free():
    """The load is four times what was declared, on one of four GPUs."""
    world = cluster({"chat": ("gpt2-large", 0.2, 100.0, 300.0)}, gpus=4, e2e_s=25.0)
    more = replace(world, declared=(replace(world.declared[0], rps=0.8),))
    outcome = run(world, config(goal=0.5, group_gpus=[1]), requests_of(more, 900.0))
    grown = [d for d in outcome.decisions if d.loop == "placement" and d.reason == "congested"]
    assert grown
    assert "chat gets another replica" in grown[0].summary
    first = np.unique(outcome.rows["instance"][outcome.rows["arrival_s"] < grown[0].at_s])
    assert len(np.unique(outcome.rows["instance"])) == len(first) + len(grown)


def test_short_answers_go_first_when_the_scheduler_is_on():
    world = cluster({"chat": ("gpt2-large", 1.2, 50.0, 150.0)}, gpus=1, per_node=1, e2e_s=500.0)
    requests = requests_of(world)
    short = requests.output_tokens < 60
    mean_s = {}
    for name in ("alpaserve", "alpaserve_sched"):
        rows = run(world, config(name), requests).rows
        rows = rows[np.argsort(rows["number"])]
        mean_s[name] = float((rows["finish_s"] - rows["arrival_s"])[short].mean())
    assert mean_s["alpaserve_sched"] < 0.8 * mean_s["alpaserve"]


def test_nobody_starves_when_short_requests_keep_coming():
    """One long request, then a stream of short ones that would keep a lone place busy for ever."""
    world = cluster({"chat": ("gpt2-large", 0.5, 10.0, 20.0)}, gpus=1, per_node=1, e2e_s=500.0, max_sequences=1)
    at = np.concatenate([[0.0, 0.01], np.arange(0.02, 200.0, 0.55)])
    output = np.concatenate([[20, 400], np.full(at.size - 2, 20)])
    requests = load(at, np.full(at.size, 10), output)
    waits_s = {}
    for aging in (0.0, 20.0):
        rows = run(world, config("alpaserve_sched", aging_tokens_per_s=aging), requests).rows
        long = rows[rows["output"] == 400][0]
        waits_s[aging] = float(long["first_token_s"] - long["arrival_s"])
    assert waits_s[20.0] < 30.0 < waits_s[0.0]


def test_scaling_baseline_lowers_the_clock_by_the_same_algorithm():
    world = cluster(CHAT)
    requests = requests_of(world)
    scaled = run(world, config("alpaserve_scaling"), requests)
    assert {d.reason for d in clocks(scaled)} >= {"slack"}
    assert energy_j(scaled) < energy_j(run(world, config("alpaserve_sched"), requests))


def test_weights_hold_the_clock_back_less_than_without_sensitivity():
    """Insensitive decodes allow steps that a loop which takes all latency to go with the clock does not."""
    world = cluster({"chat": ("gpt2-large", 0.3, 30.0, 200.0)}, e2e_s=14.0)
    requests = requests_of(world)
    energies = [energy_j(run(world, config(sensitivity=on, in_flight=False), requests)) for on in (True, False)]
    assert energies[0] != energies[1]


# -- placement -------------------------------------------------------------------------------------


def devices_of(placed):
    return {r.spec.name: set(r.slot.devices) for r in placed.replicas}


def test_models_share_all_devices_of_a_group_under_alpaserve_and_one_clock():
    placed = Placer(cluster(MIX, gpus=2), (2,), 0.9, None).alpaserve()
    assert devices_of(placed) == {"chat-1": {"lab/0", "lab/1"}, "scoring-1": {"lab/0", "lab/1"}}
    assert placed.domains == ((0, 1),)
    assert sum(r.spec.gpu_share for r in placed.replicas) == pytest.approx(1.0)


def test_models_get_devices_and_clocks_of_their_own_when_placed_by_sensitivity():
    placer = Placer(cluster(MIX, gpus=2), (2,), 0.9, None)
    placed = placer.power_aware(PlacementConfig(2, 0.0))
    assert placed.attainment >= 0.9
    assert sorted(devices_of(placed).values(), key=str) == [{"lab/0"}, {"lab/1"}]
    assert len(placed.domains) == 2


def test_like_models_meet_when_there_are_more_models_than_devices():
    """Of four models on two devices the two that decode meet, and the two that score prompts."""
    services = {f"{name}{k}": load_ for name, load_ in MIX.items() for k in (1, 2)}
    placer = Placer(cluster(services, gpus=2), (2,), 0.5, None)
    placed = placer.power_aware(PlacementConfig(2))
    where = {name.split("-")[0]: devices for name, devices in devices_of(placed).items()}
    assert where["chat1"] == where["chat2"] != where["scoring1"] == where["scoring2"]


def test_alpaserves_placement_stays_when_devices_by_sensitivity_would_be_late():
    """Two GPUs hold the model, and are too few for its prompts; four do."""
    world = cluster({"scoring": ("Qwen3-8B", 8.0, 900.0, 1.0)}, per_node=4, e2e_s=5.0)
    placer = Placer(world, (4,), 0.9, None)
    both, one = placer.alpaserve(), placer.power_aware(PlacementConfig(4, 0.0))
    assert one.attainment < 0.89 <= both.attainment
    plan = build(config(group_gpus=[4], goal=0.9), world)
    assert [member.spec for member in plan.members] == [
        replace(replica.spec, scheduling=member.spec.scheduling)
        for replica, member in zip(both.replicas, plan.members, strict=True)
    ]
    (decision,) = plan.controls[0].step(first_view(world)).decisions
    assert decision.reason == "would_violate"


def test_plans_of_muserve_and_alpaserve_scaling_differ_when_two_models_share_a_group():
    """AlpaServe has both models on both GPUs, under one clock; mu-Serve each on one of its own, at its own clock."""
    world = cluster(MIX, gpus=2)
    own = {"group_gpus": [2], "goal": 0.9}
    groups, apart = (build(config(name, **own), world) for name in ("alpaserve_scaling", "muserve"))
    assert [(m.spec.tp, round(m.spec.gpu_share, 2)) for m in apart.members] == [(1, 1.0), (1, 1.0)]
    assert [m.spec.tp for m in groups.members] == [2, 2]
    assert sum(m.spec.gpu_share for m in groups.members) == pytest.approx(1.0)


def test_model_takes_the_gpus_that_hold_it_when_one_is_too_small():
    services = CHAT | {"assistant": ("Qwen3-8B", 0.2, 100.0, 100.0)}
    placed = Placer(cluster(services), (2,), 0.9, None).power_aware(PlacementConfig(2, 0.0))
    assert len(devices_of(placed)["assistant-1"]) == 2
    for device in {d for r in placed.replicas for d in r.slot.devices}:
        own = [r.spec for r in placed.replicas if device in r.slot.devices]
        held = sum(
            engine_model(s.model, s.gpu, 1).weight_bytes / s.tp
            + s.kv_capacity * engine_model(s.model, s.gpu, 1).constants.kv_bytes / s.tp
            for s in own
        )
        assert held <= engine_model("gpt2-large", V100, 1).memory_bytes * (1 + 1e-9)
        assert sum(s.gpu_share for s in own) <= 1.0 + 1e-9


def test_more_replicas_when_the_load_needs_them():
    counts = [
        len(Placer(cluster({"chat": ("gpt2-large", rps, 100.0, 200.0)}), (1,), 0.99, None).alpaserve().replicas)
        for rps in (0.2, 1.2)
    ]
    assert counts[0] < counts[1] <= 4


def test_groups_stay_within_a_node():
    placed = Placer(cluster(CHAT, gpus=4, per_node=2), (), 0.99, None).alpaserve()
    assert all(len(r.slot.devices) <= 2 for r in placed.replicas)


def test_nodes_are_those_that_the_site_lists():
    listed = cluster(CHAT, gpus=4, per_node=4)
    site = replace(listed.sites[0], sizes={V100: (1, 3)})
    nodes = Placer(replace(listed, sites=(site,)), (), 0.99, None).node
    assert Counter(nodes.values()) == {("lab", 0): 1, ("lab", 1): 3}


def test_domains_join_devices_that_a_third_replica_spans():
    template = cluster(CHAT).templates[0]
    slots = [
        Slot(0, ("a",), template),
        Slot(0, ("b",), template),
        Slot(0, ("a", "b"), template),
        Slot(0, ("c",), template),
    ]
    assert clock_domains(slots) == ((0, 1, 2), (3,))


def test_two_halves_of_a_gpu_draw_what_a_whole_one_does():
    whole = engine_model("gpt2-large", V100, 1, EAGER)
    half = engine_model("gpt2-large", V100, 1, EAGER, 0.5)
    assert 2.0 * half.idle_watts(900.0) == pytest.approx(whole.idle_watts(900.0))
    assert 2.0 * half.memory_bytes == pytest.approx(whole.memory_bytes)
    one, two = (e.iteration(TOP, [(2000, 0)]) for e in (whole, half))
    assert one.t_s < two.t_s < 2.0 * one.t_s
    spec = replace(cluster(CHAT).templates[0], gpu_share=0.5)
    assert spec.kv_capacity == int(half.kv_capacity_tokens)


def test_compiled_and_reference_agree_when_a_gpu_is_shared():
    world = cluster(CHAT)
    spec = replace(world.templates[0], gpu_share=0.4, kv_capacity_tokens=2000)
    fleet = FleetSpec((spec,), (PoolSpec("chat", (0,)),))
    requests = requests_of(world, 60.0)
    macro, reference = (simulate(fleet, requests, stepping=stepping) for stepping in (MACRO, REFERENCE))
    assert energy_j(macro) == pytest.approx(energy_j(reference), rel=1e-9)
    whole = simulate(replace(fleet, instances=(replace(spec, gpu_share=1.0),)), requests)
    assert energy_j(macro) < energy_j(whole)


# -- what cannot be --------------------------------------------------------------------------------


def test_type_of_which_there_are_most_is_taken_when_there_are_two():
    world = cluster(CHAT)
    other = InstanceSpec("big", world.services[0].model, "A100-80GB", 1, 1410.0, EAGER, "lab")
    site = replace(world.sites[0], gpus={**world.sites[0].gpus, "A100-80GB": 2})
    placed = build(config(), replace(world, sites=(site,), templates=(other, *world.templates)))
    assert {member.spec.gpu for member in placed.members} == {"V100-16GB"}
    answer = placed.controls[0].step(first_view(world))
    assert "Placed on V100-16GB only; A100-80GB stay idle." in answer.decisions[0].summary


def test_services_are_refused_when_no_type_is_offered_to_all():
    world = cluster(CHAT)
    other = InstanceSpec("big", "Qwen3-8B", "A100-80GB", 1, 1410.0, EAGER, "lab")
    second = replace(world.services[0], name="other", model="Qwen3-8B")
    several = replace(world, services=(*world.services, second), templates=(*world.templates, other))
    with pytest.raises(SimulationError, match="offer every service on one of A100-80GB, V100-16GB"):
        build(config(), several)


def test_model_is_refused_when_no_group_holds_it():
    with pytest.raises(SimulationError, match="no group of V100-16GB takes assistant"):
        build(config(group_gpus=[1]), cluster({"assistant": ("Qwen3-8B", 0.2, 100.0, 100.0)}))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"placement": "best"}, "policy.placement: unknown 'best'"),
        ({"order": "llf"}, "policy.order: unknown 'llf'"),
        ({"scaling": "yes"}, "policy.scaling: must be true or false"),
        ({"aging_tokens_per_s": -1}, "policy.aging_tokens_per_s: must be at least 0"),
        ({"clock_increase": 1}, "policy.clock_increase: must be above 1"),
        ({"reserve": 1}, "policy.reserve: must be below 1"),
        ({"sample_s": 2, "act_s": 1}, "policy.act_s: must be at least 2"),
        ({"group_gpus": [1.5]}, "policy.group_gpus: must be whole numbers"),
        ({"goal": 1.2}, "policy.goal: must be at most 1"),
        ({"step_mhz": 100}, "policy.step_mhz: unknown field; did you mean tuning.slack.step_mhz?"),
    ],
)
def test_bad_key_is_named(keys, words):
    with pytest.raises(ScenarioError) as error:
        config(**keys)
    assert words in str(error.value)


def test_floor_is_refused_when_the_gpu_cannot_go_there():
    with pytest.raises(SimulationError, match="clock_floor_mhz: must be from 135 to 1380"):
        build(config(clock_floor_mhz=50), cluster(CHAT))


def test_each_name_is_the_same_stack_with_knobs():
    expected = {
        "muserve": ("power_aware", "sjf", True),
        "alpaserve": ("alpaserve", "fcfs", False),
        "alpaserve_sched": ("alpaserve", "sjf", False),
        "alpaserve_scaling": ("alpaserve", "sjf", True),
    }
    assert {name: (c.placement, c.order, c.scaling) for name in expected for c in (config(name),)} == expected
    assert config() == MuServeConfig()


def test_same_world_gives_the_same_run():
    world = cluster(MIX)
    requests = requests_of(world)
    first, second = (run(world, config(), requests) for _ in range(2))
    assert energy_j(first) == energy_j(second)
    assert (first.rows["finish_s"] == second.rows["finish_s"]).all()
    assert first.decisions == second.decisions
