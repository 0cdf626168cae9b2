from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from core.simulator.kernel.commands import (
    OFF,
    SERVING,
    Answer,
    Assign,
    Decision,
    Drain,
    FleetView,
    Placement,
    RequestView,
    Reshard,
    Start,
)
from core.simulator.kernel.simulated import Handover, InstanceSpec, SimulationError
from core.simulator.policies import Member, Plan, PoolPlan, SiteInfo, World, build
from core.simulator.policies.policy_registry import check, read_policy
from core.simulator.policies.service_lots import Lot, begin_in_lots, lots
from tests.unit.core.simulator.policies.worlds import A100, H100, service, templates, world


def two(gpus: int = 16, per_node: int = 8, infos: Sequence[SiteInfo] = ()) -> World:
    """Two services of two cells each."""
    infos = infos or [SiteInfo("east", {H100: gpus}, gpus_per_node=per_node)]
    found = world(infos, tps=(4, 8), classes=("short", "long", "short", "long"))
    chat = service("short", "long", name="chat")
    partition = chat.partitions[0]
    code = replace(chat, name="code", partitions=(replace(partition, cell_class={2: 0, 3: 1}),))
    return replace(found, services=(chat, code))


@dataclass
class Recorder:
    """Stands for a policy: keeps the views that it gets, and answers with `commands`."""

    commands: tuple[object, ...] = ()
    views: list[FleetView] = field(default_factory=list)
    requests: list[RequestView] = field(default_factory=list)
    name: str = "loop"
    period_s: float = 5.0
    tick_s: float = 0.25

    def step(self, view: FleetView) -> Answer:
        self.views.append(view)
        return Answer(self.commands, (Decision(view.now_s, self.name, "policy", "own", 0),))

    def place(self, request: RequestView, view: FleetView) -> Placement | None:
        self.requests.append(request)
        self.views.append(view)
        return Placement(0, 7, 1, self.commands)


def begun(found: World, *recorders: Recorder) -> Plan:
    """A plan of two pools and two instances a service, with a recorder for its loop and router."""
    left = iter(recorders)

    def begin(config: object, part: World) -> Plan:
        own, spec = next(left), part.templates[0]
        members = tuple(Member(replace(spec, name=f"tp-{n}"), "first") for n in range(2))
        pools = (PoolPlan("first", "round_robin", Handover("second")), PoolPlan("second", "round_robin"))
        return Plan(members, pools, ("first", "second"), (own,), own)

    return begin_in_lots(begin, read_policy({"name": "dynaserve"}), found, Lot.SITE)


def view_of(instances: tuple[InstanceSpec, ...]) -> FleetView:
    n = len(instances)
    ints, floats = np.arange(n), np.arange(n, dtype=float)
    return FleetView(
        0.0,
        instances,
        np.full(n, SERVING),
        np.array([0, 0, 2, -1][:n]),
        floats,
        ints,
        ints,
        ints,
        floats,
        floats,
        floats,
        (0, 1, 2, 3),
        np.array([5, 6, 7, 8]),
        np.arange(12).reshape(4, 1, 3),
    )


def test_service_that_is_alone_has_the_whole_fleet():
    one = world({"east": 8, "west": 24}, tps=(8,), rps=80.0)
    assert lots(one, Lot.SERVERS) == lots(one, Lot.SITE) == (one,)
    for name in ("dynamollm", "dynaserve"):
        plan = build(read_policy({"name": name, "tp": 8}), one)
        assert {member.spec.site for member in plan.members} == {"east", "west"}


def test_services_have_nodes_and_cells_of_their_own():
    parts = lots(two(), Lot.SERVERS)
    assert [part.sites[0].gpus for part in parts] == [{H100: 8}, {H100: 8}]
    assert [part.services[0].name for part in parts] == ["chat", "code"]
    assert all(part.cells == 2 and set(part.services[0].partitions[0].cell_class) == {0, 1} for part in parts)
    assert all({spec.owner for spec in part.templates} == {part.services[0].name} for part in parts)


def test_lot_of_servers_has_a_type_of_gpu_at_all_sites():
    sites = [SiteInfo(name, {H100: 8, A100: 16}, sizes={A100: (8, 4, 4)}) for name in ("east", "west")]
    found = two(infos=sites)
    found = replace(found, templates=(*found.templates, *templates(["east", "west"], (4, 8), A100)))
    parts = lots(found, Lot.SERVERS)
    gpus = [{site.name: dict(site.gpus) for site in part.sites} for part in parts]
    assert sorted(gpus, key=str) == [
        {name: {gpu: n} for name in ("east", "west")} for gpu, n in ((A100, 16), (H100, 8))
    ]
    assert all({spec.gpu for spec in part.templates} == set(part.sites[0].gpus) for part in parts)
    plan = build(read_policy({"name": "dynamollm"}), found)
    kinds = {(spec.owner, spec.gpu, spec.tp) for spec in (member.spec for member in plan.members)}
    assert {(gpu, tp) for _, gpu, tp in kinds} == {(A100, 4), (H100, 8)}


def test_service_is_named_when_there_is_no_server_for_it():
    with pytest.raises(SimulationError, match="service code finds no part of the fleet"):
        check(read_policy({"name": "dynamollm"}), two(gpus=8))
    with pytest.raises(SimulationError, match="service chat finds no part of the fleet"):
        check(read_policy({"name": "dynamollm"}), two(gpus=8, per_node=2))


def test_policy_of_a_service_sees_its_own_part_only():
    chat, code = Recorder(), Recorder()
    plan = begun(two(), chat, code)
    specs = tuple(member.spec for member in plan.members)
    assert [spec.name for spec in specs] == ["chat/tp-0", "chat/tp-1", "code/tp-0", "code/tp-1"]
    assert [pool.name for pool in plan.pools] == ["chat/first", "chat/second", "code/first", "code/second"]
    assert plan.pools[2].handover == Handover("code/second")
    assert plan.cell_pool == ("chat/first", "chat/second", "code/first", "code/second")
    answer = plan.controls[1].step(view_of(specs))
    seen = code.views[0]
    assert seen.instances == specs[2:]
    assert seen.pool.tolist() == [0, -1]
    assert seen.running.tolist() == [2, 3]
    assert seen.cell_pool == (0, 1)
    assert seen.unplaced.tolist() == [7, 8]
    assert seen.arrived.tolist() == [[[6, 7, 8]], [[9, 10, 11]]]
    assert "code has 8 H100-SXM-80GB at east for itself" in answer.decisions[0].summary
    assert len(answer.decisions) == 2
    assert len(plan.controls[1].step(view_of(specs)).decisions) == 1


def test_commands_are_for_the_whole_fleet():
    spec = replace(templates(["east"])[0], owner="code")
    commands = (
        Start(replace(spec, name="new"), "first", 9.0),
        Reshard(("code/tp-0",), (replace(spec, name="into"),), 1.0, 1.0),
        Assign({0: "second"}),
        Drain("code/tp-1"),
    )
    plan = begun(two(), Recorder(), Recorder(commands))
    answer = plan.controls[1].step(view_of(tuple(member.spec for member in plan.members)))
    start, reshard, assign, drain = answer.commands
    assert start == Start(replace(spec, name="code/new"), "code/first", 9.0)
    assert reshard == Reshard(("code/tp-0",), (replace(spec, name="code/into"),), 1.0, 1.0)
    assert assign == Assign({2: "code/second"})
    assert drain == Drain("code/tp-1")


def test_request_goes_to_the_router_of_its_service():
    chat, code = Recorder(), Recorder()
    plan = begun(two(), chat, code)
    assert plan.router is not None
    request = RequestView(4, 0.0, 10, 0, 10, 9.0, 3, 1, 0)
    found = plan.router.place(request, view_of(tuple(member.spec for member in plan.members)))
    assert found == Placement(2, 7, 3)
    assert chat.requests == []
    assert (code.requests[0].cell, code.requests[0].service) == (1, 0)


def test_instances_that_appear_later_are_their_owners():
    code = Recorder()
    plan = begun(two(), Recorder(), code)
    specs = tuple(member.spec for member in plan.members)
    plan.controls[1].step(view_of(specs[:3]))
    plan.controls[1].step(replace(view_of(specs), state=np.full(4, OFF)))
    assert [len(view.instances) for view in code.views] == [1, 2]
