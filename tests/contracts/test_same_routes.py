"""The contract of both worlds on routes: of the same instances, with the same loads, gateways and the simulator choose
the same one for each request.

What waits at an instance is known to a gateway by its prompts, and to the simulator by the mean of the class's prompts:
the requests of a class have prompts of one length here. Ties go by name, since no draw is made. A simulated pool keeps
requests until it has an instance, and refuses what none of its instances holds; a gateway asks the next class.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from core.policy import presets
from core.simulator.kernel.commands import FleetView, RequestView
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FleetSpec, InstanceSpec, PoolSpec, load
from core.simulator.policies import Plan, build, read_policy
from core.types import Limits, Mode
from pools import wire
from pools.gateway.accounts.gateway_metrics import Metrics
from pools.gateway.classify.classified import Classified
from pools.gateway.fleet.view import FleetView as LiveFleet
from pools.gateway.http.request import Request
from pools.gateway.placing import instance_choice
from pools.gateway.placing.dispatch import Dispatcher
from pools.gateway.placing.instance_choice import Router
from pools.gateway.requests.call import Call
from pools.gateway.requests.endpoint import COMPLETIONS
from scheduler.control import service_policy
from tests.fakes import minute as minutes
from tests.fakes.fleet import key
from tests.fakes.minute import FOUR, MINUTE, MIXED

NODES = (8, 8, 8, 8)
PROMPTS = (180, 120, 6_000, 21_000)  # of each class; what is longest is more than TP2 holds
OUTPUTS = ((30, 60), (300, 700), (40, 90), (250, 3_500))
REQUESTS = [(n * 7 + n // 3) % 4 for n in range(120)]  # their classes, by rank
# A simulated DynamoLLM passes over an instance that has just got more than a second of its largest load. Gateways do
# not know that load, so requests are so far apart here that it makes no difference.
APART_S = 60.0
PUE = {own.name: own.pue for own in MINUTE.places}
ENDS = 5  # an instance's requests but for so many have ended


@dataclass(frozen=True)
class Place:
    """An instance: the rank of its class, its TP degree and clock, what it weighs in routing, its site and its GPUs."""

    rank: int
    tp: int
    mhz: float = 1410.0
    weight: float = 1.0
    site: str = "east"
    gpu: str = MINUTE.gpu


UNEQUAL = tuple(Place(rank, tp, weight=weight) for rank in range(4) for tp, weight in ((2, 1.25), (4, 5.0)))
CLOCKED = tuple(Place(rank, 4, mhz) for rank in (0, 2, 3) for mhz in (900.0, 1410.0))


def request(n: int) -> tuple[int, int, int]:
    """Returns the class of the n-th request by its rank, and its prompt and output tokens."""
    rank = REQUESTS[n]
    return rank, PROMPTS[rank], OUTPUTS[rank][n // 5 % 2]


# -- at a gateway ------------------------------------------------------------------------------------


class Gateway:
    """A gateway's dispatcher in a fleet of these places."""

    def __init__(self, places: Sequence[Place], policy: str, hands_on: Sequence[float] = (0.0,) * 4) -> None:
        known, slo = presets.policy(policy), MINUTE.objective
        classes = [
            wire.FleetClass(c.name, c.rank, c.input_min, c.input_max, c.output_min, c.output_max, None, hands_on[n])
            for n, c in enumerate(FOUR)
        ]
        weights = [{Mode(p.gpu, p.tp).name: p.weight for p in places if p.rank == own.rank} for own in FOUR]
        service = wire.FleetService(
            *("chat", MINUTE.model, MINUTE.engine, 200_000, wire.LatencyLimits(slo.ttft_s, slo.tpot_s, slo.e2e_s)),
            partition="four",
            classes=classes,
            pools=[
                wire.FleetPool(_pool(site, n), site, c.name, PUE[site], weights=weights[n])
                for site in PUE
                for n, c in enumerate(FOUR)
            ],
            policy=service_policy.request_policy(known.knobs, known.tuning),
        )
        self.fleet = LiveFleet()
        states = [_state(n, own) for n, own in enumerate(places)]
        agent = wire.AgentState("node-1", "boot", time.time(), 1, states)
        self.fleet.apply(wire.Fleet(1, time.time(), [service], [], ["node-1"]), {"node-1": agent}, time.monotonic())
        draws = random.Random(0)
        draws.random = lambda: 0.0  # type: ignore[method-assign]
        self.dispatcher = Dispatcher(self.fleet, Router(Metrics().routing_s, draws))

    def choices(self, *, stay: bool, begin: bool = True) -> list[int]:
        """Returns the instance of each request. They all `stay`, or else those that came before the last ENDS have
        ended. They `begin` at once, or else all of their prompts wait."""
        found, held = [], {}
        for n in range(len(REQUESTS)):
            rank, prompt, output = request(n)
            asked = Request(b"POST", COMPLETIONS.path, {}, b"", keep_alive=True)
            call = Call(asked, self.fleet.services["chat"], key("secret", 1), COMPLETIONS, stream=True)
            call.classified = Classified(prompt, True, output, "history", FOUR[rank].name, output)
            slot = self.dispatcher.place_now(call)
            assert slot is not None
            found.append(int(slot.instance.uid))
            slots = held.setdefault(found[-1], [])
            slots.append(slot)
            if begin:
                slot.started()
            if not stay and len(slots) > ENDS:
                slots.pop(0).end()
        return found


def _pool(site: str, rank: int) -> int:
    return list(PUE).index(site) * len(FOUR) + rank


def _state(n: int, own: Place) -> wire.InstanceState:
    return wire.InstanceState(
        uid=f"{n:03d}",
        pool_id=_pool(own.site, own.rank),
        url=f"http://127.0.0.1:{n + 1}",
        state="ready",
        model=MINUTE.model,
        engine=MINUTE.engine,
        gpu_type=own.gpu,
        tp=own.tp,
        sm_clock_mhz=own.mhz,
        min_mhz=210.0,
        max_mhz=1410.0,
        running=0,
        waiting=0,
        kv_usage=0.0,
    )


# -- in the simulator --------------------------------------------------------------------------------


def begun(policy: str, places: Sequence[minutes.Place] = (), **knobs: object) -> Plan:
    """Returns what the policy begins with, at one site with as many servers as there are, or at `places`."""
    here = replace(MINUTE.places[0], nodes=NODES)
    minute = replace(MINUTE, places=tuple(places) or (here,), partitions={"four": FOUR})
    return build(read_policy({"name": policy, **knobs}), minutes.world(minute))


def by_pools(places: Sequence[Place], routing: str, limits: tuple[Limits, ...]) -> list[int]:
    """Returns the instance of each request in pools that are routed so. No request ends.

    Args:
        limits: Those that clocks keep, by class.
    """
    specs = tuple(_spec(n, own) for n, own in enumerate(places))
    pools = tuple(
        PoolSpec(c.name, tuple(n for n, own in enumerate(places) if own.rank == c.rank), routing) for c in FOUR
    )
    fleet = FleetSpec(
        specs, pools, cell_pool=(0, 1, 2, 3), weights=tuple(own.weight for own in places), cell_limits=limits
    )
    ranks, prompts, outputs = zip(*map(request, range(len(REQUESTS))), strict=True)
    rows = simulate(fleet, load([1e-6 * n for n in range(len(ranks))], prompts, outputs, cell=ranks)).rows
    return [int(n) for n in rows["instance"]]


def _spec(n: int, own: Place) -> InstanceSpec:
    return InstanceSpec(f"i{n}", MINUTE.model, own.gpu, own.tp, own.mhz, engine=MINUTE.engine, site=own.site)


def by_router(plan: Plan, seen: FleetView) -> list[int]:
    """Returns the same of a policy with a router of its own."""
    assert plan.router is not None
    running, found = np.zeros(len(seen.instances), np.int64), []
    for n in range(len(REQUESTS)):
        rank, prompt, output = request(n)
        now_s = seen.now_s + APART_S * n
        asked = RequestView(n, now_s, prompt, 0, output, now_s, cell=rank, service=0, tenant=0)
        placed = plan.router.place(asked, replace(seen, now_s=now_s, running=running.copy()))
        assert placed is not None
        found.append(placed.instance)
        running[placed.instance] = min(ENDS, running[placed.instance] + 1)
    return found


def viewed(plan: Plan, places: Sequence[Place]) -> FleetView:
    """Returns these places, as a router sees them before anything comes."""
    n, never = len(places), np.full(len(places), np.nan)
    nothing = np.zeros(n, np.int64)
    return replace(
        minutes.view(MINUTE, plan),
        instances=tuple(_spec(k, own) for k, own in enumerate(places)),
        state=np.full(n, 2, np.int64),
        pool=np.array([own.rank for own in places]),
        mhz=np.array([own.mhz for own in places]),
        **dict.fromkeys(("running", "waiting", "kv_used_tokens"), nothing),
        **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s"), never),
    )


# -- the same ----------------------------------------------------------------------------------------

# What has the simulator lay out a fleet by itself, where that is the scenario's by the preset.
CUT = {"single_pool": {"alpha": 1.3}, "multi_pool": {"alpha": 1.3}, "least_loaded": {"alpha": 1.3}}
BY_POOLS = (*CUT, "freesh", "min_energy", "freesh_baseline", "greenserve", "threshold")


@pytest.mark.parametrize("policy", BY_POOLS)
def test_gateways_and_simulated_pools_choose_the_same(policy):
    plan = begun(policy, **CUT.get(policy, {}))
    (routing,) = {pool.routing for pool in plan.pools}
    # In the simulator no prompt is done with before the last request has come, which backlogs alone look at.
    chosen = Gateway(UNEQUAL, policy).choices(stay=True, begin=routing != "least_backlog")
    assert len(set(chosen)) == len(UNEQUAL)
    assert chosen == by_pools(UNEQUAL, routing, plan.cell_limits)


@pytest.mark.parametrize("places", [UNEQUAL, CLOCKED])
def test_gateways_and_simulated_epochs_choose_the_same_by_energy(places):
    plan = begun("greenserve_epochs")
    chosen = Gateway(places, "greenserve_epochs").choices(stay=False)
    assert len(set(chosen)) > 3
    assert chosen == by_router(plan, viewed(plan, places))


def dynamo(policy: str) -> tuple[list[int], list[int]]:
    """Returns what a gateway and the simulator choose of one class's servers at two clocks, of which the slow one is
    late by the share of a limit that plans keep, and in time by all of it."""
    plan = begun(policy, scale="static", shard="off")
    seen = replace(minutes.view(MINUTE, plan), mhz=np.array([600.0, 1410.0, 600.0, 1410.0]))
    places = [Place(3, spec.tp, mhz) for spec, mhz in zip(seen.instances, seen.mhz.tolist(), strict=True)]
    return Gateway(places, "dynamollm", (1.0, 1.0, 1.0, 0.0)).choices(stay=False), by_router(plan, seen)


def test_gateways_and_simulated_dynamollm_choose_the_same():
    chosen, expected = dynamo("dynamollm")
    assert chosen == expected
    assert len(set(chosen)) > 1


def test_gateways_and_simulated_dynamollm_choose_the_same_on_several_sites_and_types_of_gpu(monkeypatch):
    """The instances of a class are one pool, wherever they are: the least energy decides, PUE included."""
    plan = begun("dynamollm", MIXED.places, scale="static", shard="off")
    seen = minutes.view(MIXED, plan)
    places = [Place(3, own.tp, own.mhz, site=own.site, gpu=own.gpu) for own in seen.instances]
    chosen = Gateway(places, "dynamollm", (1.0, 1.0, 1.0, 0.0)).choices(stay=False)
    assert chosen == by_router(plan, seen)
    assert len({places[n].site for n in set(chosen)}) == len({own.gpu for own in places}) == 2
    monkeypatch.setattr(plan.router, "_pue", dict.fromkeys(PUE, 1.0))
    assert chosen != by_router(plan, seen)


def test_routes_differ_when_a_share_of_limits_is_changed_in_one_world(monkeypatch):
    monkeypatch.setattr(instance_choice, "planned", lambda limits, *shares: limits)
    chosen, expected = dynamo("dynamollm")
    assert chosen != expected
