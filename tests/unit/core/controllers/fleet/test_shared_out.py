"""GPUs shared out by load: nobody is forgotten, nothing is given twice, and what stands still stays."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from core.controllers.fleet.shared_out import NodeView, SharedOutConfig, SharedOutObservation, step, units
from core.types import (
    ChoosePartition,
    ClassDemand,
    Mode,
    ModeProfile,
    PartitionOption,
    PoolKey,
    Reason,
    SetGpuBudget,
    Source,
)

A = "A100-80GB"
NODES = (NodeView("x", A, 8), NodeView("y", A, 4), NodeView("y", A, 4))


def option(demand, rate=1.0, tps=(1, 2, 4, 8)):
    profiles = {
        (name, Mode(A, tp)): ModeProfile(rate * tp, 100.0 * tp, None, None, None, Source.MODELLED)
        for name in demand
        for tp in tps
    }
    return PartitionOption("p", tuple(ClassDemand(name, (rps,)) for name, rps in demand.items()), profiles)


def seen(demand, nodes=NODES, **kinds):
    return SharedOutObservation(0.0, 60.0, nodes, option(demand, **kinds))


def by_class(plan):
    counts = Counter()
    for (_, name, mode), count in plan.workers.items():
        counts[name] += mode.tp * count
    return counts


def test_one_pool_gets_every_node_in_its_largest_instances():
    plan, effects = step(None, seen({"ALL": 1.0}), SharedOutConfig())
    assert plan.workers == {("x", "ALL", Mode(A, 8)): 1, ("y", "ALL", Mode(A, 4)): 2}
    assert effects.commands == (
        ChoosePartition("p"),
        SetGpuBudget(PoolKey("x", "ALL"), {A: 8}),
        SetGpuBudget(PoolKey("y", "ALL"), {A: 8}),
    )
    assert effects.rationale.reason is Reason.POLICY


def test_instances_are_no_larger_than_allowed():
    assert units(NODES, option({"ALL": 1.0}), 2) == {("x", Mode(A, 2)): 4, ("y", Mode(A, 2)): 4}
    assert units((NodeView("x", A, 7),), option({"ALL": 1.0}), 4) == {
        ("x", Mode(A, 4)): 1,
        ("x", Mode(A, 2)): 1,
        ("x", Mode(A, 1)): 1,
    }
    assert units(NODES, option({"ALL": 1.0}, tps=(4,)), 8) == {("x", Mode(A, 4)): 2, ("y", Mode(A, 4)): 2}


def test_busy_class_gets_most_and_the_largest_is_never_without():
    plan, _ = step(None, seen({"S": 9.0, "M": 0.0, "L": 0.0}), SharedOutConfig(tp=4))
    assert by_class(plan) == {"S": 12, "L": 4}


def test_room_is_left_when_enough_is_enough():
    plan, effects = step(None, seen({"ALL": 3.0}), SharedOutConfig(tp=4, fill="enough", alpha=1.0, whole_sites=True))
    assert by_class(plan) == {"ALL": 4}
    assert effects.commands[1:] == (
        SetGpuBudget(PoolKey("x", "ALL"), {A: 8}),
        SetGpuBudget(PoolKey("y", "ALL"), {A: 8}),
    )


def test_each_epoch_says_what_scale_may_choose_among_and_what_the_sites_emit():
    config = SharedOutConfig(whole_sites=True)
    obs = replace(seen({"ALL": 1.0}), g_per_kwh={"x": 412.4, "y": None})
    plan, effects = step(None, obs, config)
    assert effects.commands[1:] == (
        SetGpuBudget(PoolKey("x", "ALL"), {A: 8}),
        SetGpuBudget(PoolKey("y", "ALL"), {A: 8}),
    )
    envelope = f"8 {A} at x (412 g/kWh ahead), 8 {A} at y (carbon not known)"
    assert effects.rationale.summary == f"Partition p, scale chooses among {envelope}."
    assert effects.rationale.inputs["g_per_kwh"] == {"x": 412.4, "y": None}
    cleaner = replace(obs, now_s=60.0, g_per_kwh={"x": 300.0, "y": 90.0})
    same, effects = step(plan, cleaner, config)
    assert same == plan
    assert (effects.commands, effects.rationale.reason) == ((), Reason.NO_CHANGE)
    assert "8 A100-80GB at y (90 g/kWh ahead)" in effects.rationale.summary
    less = replace(cleaner, nodes=NODES[:2])
    _, effects = step(plan, less, config)
    assert effects.commands[1:] == (
        SetGpuBudget(PoolKey("x", "ALL"), {A: 8}),
        SetGpuBudget(PoolKey("y", "ALL"), {A: 4}),
    )


def test_plan_stays_until_nodes_or_load_change_much():
    config = SharedOutConfig(tp=4)
    plan, _ = step(None, seen({"S": 9.0, "L": 3.0}), config)
    same, effects = step(plan, seen({"S": 8.0, "L": 3.5}), config)
    assert same == plan
    assert not effects.commands
    turned, effects = step(plan, seen({"S": 1.0, "L": 14.0}), config)
    assert by_class(turned)["L"] > by_class(plan)["L"]
    assert effects.commands
    fewer, effects = step(plan, seen({"S": 9.0, "L": 3.0}, nodes=NODES[:2]), config)
    assert sum(by_class(fewer).values()) == 12
    assert effects.commands


def test_last_plan_stays_when_no_node_can_serve():
    plan, _ = step(None, seen({"ALL": 1.0}), SharedOutConfig())
    for obs, reason in (
        (seen({"ALL": 1.0}, nodes=()), Reason.NO_DATA),
        (replace(seen({"ALL": 1.0}), partition=option({"ALL": 1.0}, rate=0.0)), Reason.INFEASIBLE),
    ):
        kept, effects = step(plan, obs, SharedOutConfig())
        assert kept == plan
        assert effects.rationale.reason is reason


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 8)), min_size=1, max_size=6),
    st.dictionaries(st.sampled_from(["A", "B", "C"]), st.floats(0, 50), min_size=1),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["all", "enough"]),
)
def test_no_gpu_is_given_twice_and_all_are_given_when_all_are_to_be(nodes, demand, tp, fill):
    views = tuple(NodeView(site, A, count) for site, count in nodes)
    plan, effects = step(None, seen(demand, nodes=views), SharedOutConfig(tp=tp, fill=fill))
    used, offered = Counter(), Counter()
    for (site, _, mode), count in plan.workers.items():
        used[site] += mode.tp * count
    for view in views:
        offered[view.site] += view.gpus
    assert used <= offered
    if fill == "all":
        assert used == offered
    largest = effects.rationale.inputs["classes"][-1]["name"]
    assert by_class(plan)[largest] > 0
    again, effects = step(plan, seen(demand, nodes=views), SharedOutConfig(tp=tp, fill=fill))
    assert again == plan
    assert not effects.commands
