"""Every policy on the demo's fleet: its loops run, its rules are published, and a change of policy takes effect."""

import importlib
import json
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise

import msgspec
import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.utils import timezone

from core.controllers.fleet.explain import workers_text
from core.observations.clock_given import ProfileClocks
from core.observations.fleet.right_size_given import ClassLengths, PoolLoad
from core.observations.limits import planned as limits_of_plans
from core.observations.mode_profile import Lengths
from core.observations.recording import recall
from core.observations.request.routing_weights import by_capacity
from core.policy.presets import PRESETS, policy
from core.ports import EngineLimits
from core.types import ChangeKind, Limits, Loop, Mode, PoolKey
from pools import wire
from pools.models import Instance, InstanceGpu, Node, Partition, Pool, Profile, RequestClass, Service, Site
from pools.writes import ensure_partition, ensure_pools
from scheduler import selectors, tasks
from scheduler.control import epochs, service_policy, turn_context
from scheduler.control.recordings import replay
from scheduler.control.snapshot import change_kinds, measured_overheads, snapshot
from scheduler.control.snapshot.recorded_demand import arrivals
from scheduler.control.steps import autoscale_step, threshold_steps
from scheduler.json_values import workers_from_json
from scheduler.models import ControllerState, Decision, Epoch
from scheduler.operations.configure import readiness
from telemetry.models import InstanceSample
from telemetry.storage import time_partitions
from tests.fakes.house import moment, published_fleet, refresh_feeds, report_all, requests_came, start_instance
from tests.representatives import first

from .each_preset import EACH, few

pytestmark = pytest.mark.django_db
LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)
A4, A2 = "A100-80GB/TP4", "A100-80GB/TP2"


def set_policy(service, name, **overrides):
    service_policy.change(service, name, overrides)
    service.refresh_from_db()


def run_all(service, at):
    found = [epochs.run(service, loop, at) for loop in LOOPS]
    service.refresh_from_db()
    return found


def later(redis_client, at, by_s):
    """The agents have done as they should, and report at that moment."""
    at += timedelta(seconds=by_s)
    report_all(redis_client, at=at)
    refresh_feeds(at)
    return at


def published_service():
    return published_fleet().services[0]


def desired(client):
    found = [wire.decode(client.get(wire.desired_key(node.name)), wire.DesiredNode) for node in Node.objects.all()]
    return {item.uid: item for node in found for item in node.instances}


def gpus(workers):
    found = {}
    for name, count in workers.items():
        mode = Mode.parse(name)
        found[mode.gpu] = found.get(mode.gpu, 0) + mode.tp * count
    return found


def explains_itself(decision):
    """A pool's row says what that pool is to have, and what was weighed for it alone."""
    (workers,) = {workers_text(workers_from_json(c["workers"])) for c in decision.commands if "workers" in c}
    place = str(decision.pool.site)
    alien = [site for site in Site.objects.values_list("name", flat=True) if site != decision.pool.site.name]
    return (
        workers in decision.summary
        and place in decision.summary
        and not any(site in row["label"] for row in decision.alternatives for site in alien)
    )


@EACH
def test_every_loop_runs_when_a_policy_is_in_force(service, redis_client, now, name):
    set_policy(service, name)
    requests_came(now, count=300, over_s=100)
    requests_came(now, count=100, over_s=100, prompt_tokens=100, output_tokens=400)
    ran = run_all(service, now)
    assert [epoch.status for epoch in ran if epoch.status not in ("applied", "held", "infeasible")] == []
    own = PRESETS[name].knobs
    for epoch in ran:
        assert epoch.period_s == own.period_s(Loop(epoch.kind), epoch.period_s)
        assert all(d.summary and d.reason for d in epoch.decisions.all())
        assert [d for d in epoch.decisions.exclude(pool=None) if not explains_itself(d)] == []
        assert epoch.decisions.exists()
    active = service.pools.filter(request_class__partition=service.partition)
    assert not service.pools.exclude(request_class__partition=service.partition).exclude(workers={}).exists()
    assert own.partition in ("", service.partition.name)
    for pool in active:
        assert all(count <= pool.gpu_budget[kind] for kind, count in gpus(pool.workers).items())
    live = list(Instance.objects.filter(desired="running"))
    assert live
    assert len(live) == sum(sum(pool.workers.values()) for pool in active)
    allocated = InstanceGpu.objects.filter(released_at__isnull=True).values_list("gpu", flat=True)
    assert len(allocated) == len(set(allocated)) == sum(instance.tp for instance in live)
    assert max(instance.tp for instance in live) <= own.tp
    assert set(desired(redis_client)) == {str(instance.uid) for instance in live}
    # Taken again, on what they were given, the steps decide the same.
    again = [step for epoch in Epoch.objects.all() for step in replay(epoch)]
    assert [step for step in again if not step.same] == []
    assert again


@few("greenserve", "dynamollm")
def test_loops_leave_no_row_or_hold_when_nothing_changes(service, redis_client, now, name):
    """A second turn on the same fleet and load: a loop without a choice leaves no row, and nobody restarts."""
    set_policy(service, name)
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    before = set(Instance.objects.filter(desired="running").values_list("uid", flat=True))
    at = later(redis_client, now, 61)
    requests_came(at, count=180, over_s=60)
    ran = run_all(service, at)
    own = PRESETS[name].knobs
    for loop, epoch in zip(LOOPS, ran, strict=True):
        only_changes = loop is Loop.SCALE and own.scale in ("right_size", "placement")  # each look is not worth a row
        still = own.has_no_choice(loop) or loop.value in own.frozen
        period = own.period_s(loop, 60.0)
        same_epoch = now.timestamp() // period == at.timestamp() // period  # thresholds have long ones
        assert (epoch is None) == (still or only_changes or same_epoch), loop
    if name not in (
        "greenserve_epochs",
        "freesh",
        "min_energy",
        "dynamollm",
        "scale_inst",
        "throttllem",
        "scale_shard",
    ):
        assert set(Instance.objects.filter(desired="running").values_list("uid", flat=True)) == before


@few("greenserve", "dynamollm")
def test_gateways_keep_the_limits_that_plans_keep(service, redis_client, now, name):
    set_policy(service, name)
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    tasks.publish()
    own, published = PRESETS[name].knobs, {item.name: item.limits for item in published_service().classes}
    if not own.class_limits:
        assert set(published.values()) == {None}, "the service's objectives"
        return
    context = turn_context.resolve(service, now, ())
    seen = arrivals(service, now, context.times.look_back_s)
    planned = snapshot.classes_now(context, service.partition, seen, 1)
    limits = {item.request_class.name: item.demand.limits for item in planned if not item.failed}
    assert limits
    shares = own.plan_ttft_share, own.plan_tpot_share
    assert limits == {
        name: limits_of_plans(Limits(*msgspec.structs.astuple(published[name])), *shares) for name in limits
    }


@pytest.mark.parametrize(
    ("overrides", "limits"),
    [
        ({}, Limits(0.45 * 2.0, 0.9 * 0.1, 60.0)),
        ({"plan_ttft_share": 0.4, "plan_tpot_share": 0.8}, Limits(0.4 * 2.0, 0.8 * 0.1, 60.0)),
        ({"slo_factor": 10.0}, Limits(0.45 * 4.0, 0.9 * 0.2, 120.0)),
    ],
)
def test_dynamollm_plans_with_a_share_of_the_limits(service, redis_client, now, overrides, limits):
    """The largest class's limits; those of the simulator are in its own test of the same name."""
    set_policy(service, "dynamollm", **overrides)
    run_all(service, now)
    service.refresh_from_db()
    context = turn_context.resolve(service, now, ())
    seen = arrivals(service, now, 300.0)
    assert snapshot.classes_now(context, service.partition, seen, 1)[-1].demand.limits == limits


@pytest.mark.slow("two loads")
def test_frozen_loops_hold_what_they_decided_when_the_load_grows(service, redis_client, now):
    set_policy(service, "freesh_baseline")
    requests_came(now, count=100, over_s=100)
    first = run_all(service, now)
    assert {epoch.status for epoch in first} <= {"applied", "held"}
    before = list(Pool.objects.order_by("pk").values_list("gpu_budget", "workers"))
    assert any(workers for _, workers in before)
    at = later(redis_client, now, 1900)
    requests_came(at, count=9000, over_s=100)
    assert run_all(service, at) == [None, None, None]
    assert list(Pool.objects.order_by("pk").values_list("gpu_budget", "workers")) == before
    set_policy(service, "freesh_baseline", frozen=["carbon"])
    assert run_all(service, later(redis_client, at, 1)) != [None, None, None], "the policy came into force anew"


@few("greenserve_epochs", "greenserve", "dynamollm")
def test_policy_is_published_to_gateways_and_agents_when_it_is_in_force(service, redis_client, now, name):
    set_policy(service, name)
    run_all(service, now)
    tasks.publish()
    published, own = published_service().policy, PRESETS[name].knobs
    assert (published.route, published.order, published.split, published.admission) == (
        own.route,
        own.order,
        own.split,
        own.admission,
    )
    assert (published.by_share, published.engine_priority) == (own.by_share, own.engine_priority)
    assert (published.emergencies, published.emergencies_up_to) == (own.emergencies, own.emergencies_up_to)
    tuning = service.own_policy().tuning
    assert (published.tuning.split_chunked, published.tuning.throttle_retry_s) == (tuning.split.chunked, 0.1)
    assert published.tuning.ladder == tuning.ladder
    flags = {name: getattr(published, name) for name in ("throttle", "retail", "deadline", "iteration")}
    assert flags == {name: own.clock == name for name in flags}
    assert (published.clock_ttft_share, published.clock_tpot_share) == (own.clock_ttft_share, own.clock_tpot_share)
    assert (published.clock_floor, published.clock_floor_mhz) == (own.clock_floor, own.clock_floor_mhz)
    assert published.tuning.profile_step_mhz == tuning.profile.step_mhz
    instances = desired(redis_client).values()
    assert instances
    assert {item.clock.policy for item in instances} == {own.clock}
    assert {item.clock.period_s for item in instances} == {own.clock_period_s or 1.0}
    itl_s = own.itl_limit_s
    if itl_s is None:
        itl_s = service.slos.get(kind="tpot").objective_s * (1.0 - tuning.split.itl_margin)
    assert {item.engine_limits for item in instances} == {
        EngineLimits(
            itl_limit_s=itl_s or None,
            chunk_tokens=own.chunk_tokens,
            preempts_s=own.preempts_s if own.order != "fcfs" else 0.0,
        )
    }
    assert all(item.options.by_priority for item in instances)
    assert all(item.limits.tpot_s for item in instances)


def test_plans_count_on_the_chunks_that_engines_make(service, redis_client, now):
    set_policy(service, "greenserve", chunk_tokens=512)
    assert service_policy.chunk_in_force(service, []) == 512
    pool = service.pools.first()

    def state(uid, chunk_tokens, pool_id=pool.pk, state="ready"):
        limits = None if chunk_tokens is None else EngineLimits(chunk_tokens=chunk_tokens)
        own = wire.InstanceState(
            uid, pool_id, None, state, "m", "vllm-v1", "A100-80GB", 4, None, 210.0, 1410.0, engine_limits=limits
        )
        return wire.AgentState("node", "boot", now.timestamp(), None, [own])

    assert service_policy.chunk_in_force(service, [state("a", 256), state("b", 128)]) == 256
    assert service_policy.chunk_in_force(service, [state("a", 256), state("b", None)]) == 0
    others = [state("b", 0, pool_id=10**6), state("c", 0, state="starting")]
    assert service_policy.chunk_in_force(service, [state("a", 256), *others]) == 256


def test_number_of_requests_to_run_is_published_to_engines_when_the_policy_says_so(service, redis_client, now):
    set_policy(service, "dynaserve", max_num_seqs=4, itl_limit_s=0.1, tuning={"split": {"itl_margin": 0.1}})
    run_all(service, now)
    tasks.publish()
    assert {item.engine_limits for item in desired(redis_client).values()} == {
        EngineLimits(max_num_seqs=4, itl_limit_s=0.1 * (1.0 - 0.1))
    }


def test_what_the_model_card_and_the_operator_say_of_a_service_is_published_to_gateways(service, redis_client, now):
    card = service.model_card
    card.tokenizer, card.hugging_face_id = "/models/llama3/tokenizer.json", "meta-llama/Meta-Llama-3-70B-Instruct"
    card.save()
    tasks.publish()
    published = published_service()
    assert (published.tokenizer, published.hugging_face_id) == (card.tokenizer, card.hugging_face_id)
    lengths = (service.expected_prompt_tokens, service.expected_output_tokens)
    assert (published.expected_prompt_tokens, published.expected_output_tokens) == lengths


def test_shares_of_a_class_add_up_when_a_plan_is_published(service, redis_client, now):
    set_policy(service, "freesh")
    run_all(service, now)
    shares = {}
    for pool in published_service().pools:
        shares.setdefault(pool.request_class, []).append(pool.share or 0.0)
    assert {name: pytest.approx(1.0) for name in shares} == {name: sum(own) for name, own in shares.items()}


@pytest.mark.parametrize("name", first(1, ["greenserve", "freesh", "single_pool"], "other presets"))
def test_gateways_get_what_instances_can_do_by_the_plan(service, redis_client, now, name):
    set_policy(service, name)
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    tasks.publish()
    served = {pool.pk: pool.workers for pool in Pool.objects.all() if any(pool.workers.values())}
    pools = [pool for pool in published_service().pools if pool.id in served]
    weights = {pool.id: pool.weights for pool in pools}
    assert served
    if name == "single_pool":
        assert not any(weights.values()), "as its simulated instances, they weigh the same"
        return
    assert all(set(workers) <= set(weights[pk]) for pk, workers in served.items())
    if name == "freesh":
        obs = snapshot.scale(turn_context.resolve(service, now, frozenset()))
        rates = {(p.key.site, p.key.request_class): by_capacity(p.profiles) for p in obs.pools}
        for pool in pools:
            own = rates[pool.site, pool.request_class]
            assert pool.weights == {mode.name: pytest.approx(weight) for mode, weight in own.items()}
    else:
        assert min(weight for own in weights.values() for weight in own.values()) > 0.0


def test_policy_decision_is_left_once_when_a_loop_rests(service, redis_client, now):
    set_policy(service, "single_pool")
    run_all(service, now)
    kinds = [(d.kind, d.reason) for d in Decision.objects.order_by("pk")]
    assert ("shard", "policy") in kinds
    assert ("carbon", "policy") in kinds
    count = Decision.objects.count()
    for _ in range(3):
        now = later(redis_client, now, 61)
        assert run_all(service, now) == [None, None, None]
    assert Decision.objects.count() == count
    states = {run.kind: run.no_choice for run in selectors.loop_runs()}
    assert states == {"carbon": True, "scale": True, "shard": True, "clock": True}


def test_plan_of_one_pool_follows_when_a_node_is_lost(service, redis_client, now):
    set_policy(service, "single_pool")
    run_all(service, now)
    before = sum(sum(pool.workers.values()) for pool in Pool.objects.all())
    now = later(redis_client, now, 61)
    Node.objects.filter(name="loc3-a100").update(schedulable=False)
    assert run_all(service, now)[0].status == "applied"
    after = sum(sum(pool.workers.values()) for pool in Pool.objects.all())
    assert after == before - 1


def test_change_takes_effect_at_once_when_a_policy_is_set(service, redis_client, now, monkeypatch):
    tasks.publish()
    run_all(service, now)
    report_all(redis_client)
    sent = []
    monkeypatch.setattr(tasks.take_up_policy, "delay", sent.append)
    tasks.publish()
    assert sent == []
    set_policy(service, "multi_pool", tp=4)
    tasks.publish()
    assert published_service().policy.route == "least_loaded"
    tasks.publish()
    assert sent == [service.pk]
    count = Epoch.objects.count()
    tasks.take_up_policy(service.pk)
    service.refresh_from_db()
    assert service.partition.name == "dynamo"
    extra = Epoch.objects.order_by("-pk")[: Epoch.objects.count() - count]
    assert {epoch.kind for epoch in extra} == {"carbon", "scale", "shard"}
    assert all(epoch.index < 0 for epoch in extra)
    published = published_service()
    assert published.partition == "dynamo"
    assert len(published.classes) == 9
    running = Instance.objects.filter(desired="running")
    assert running.filter(state="ready").exists()  # moved from pool to pool, or a bridge


def test_one_ready_instance_goes_on_when_no_instance_fits_the_new_partition(service, redis_client, now):
    run_all(service, now)
    report_all(redis_client)
    set_policy(service, "single_pool", tp=1)
    Profile.objects.all().delete()
    epochs.run_now(service, now)
    tasks.publish()
    assert Instance.objects.filter(desired="running", state="ready").count() >= 1


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("nonsense", {}, "unknown policy 'nonsense'"),
        ("freesh", {"clocks": "fixed"}, "unknown knob 'clocks'"),
        ("freesh", {"clock": "slow"}, "clock: unknown 'slow'; known: fixed, miad"),
        ("freesh", {"carbon": "off"}, "name it, for example partition=whole"),
        ("single_pool", {"partition": "nowhere"}, "there is no partition 'nowhere'"),
    ],
)
def test_policy_is_refused_with_words_when_it_makes_no_sense(service, name, overrides, words):
    with pytest.raises(ValidationError, match=words):
        service_policy.change(service, name, overrides)
    service.refresh_from_db()
    assert (service.policy, service.knobs) == ("greenserve_epochs", {})


PACED = [
    ("throttllem", {}, ("ttft",), "clock=throttle with admission=projection goes by a limit on E2E latency or TPOT"),
    ("freesh", {"admission": "projection"}, ("ttft",), "admission=projection goes by"),
    ("retail", {"tuning": {"throttle": {"tbt_s": 0.1}}}, (), "clock=retail goes by"),
    ("throttllem", {"tuning": {"throttle": {"tbt_s": 0.1}}}, ("ttft",), ""),
    ("throttllem", {}, ("ttft", "tpot"), ""),
    ("throttllem", {}, ("e2e",), ""),
    ("triton", {}, (), ""),
]


@pytest.mark.parametrize(("name", "overrides", "kinds", "words"), PACED)
def test_policy_is_refused_when_there_is_no_objective_that_it_goes_by(service, name, overrides, kinds, words):
    service.slos.all().delete()
    for kind in kinds:
        service.slos.create(kind=kind, objective_s=1.0)
    with pytest.raises(ValidationError, match=words) if words else nullcontext():
        service_policy.change(service, name, overrides)
    service.refresh_from_db()
    assert service.policy == ("greenserve_epochs" if words else name)


def test_service_can_be_changed_otherwise_when_its_policy_has_lost_the_objective_that_it_goes_by(service):
    set_policy(service, "throttllem")
    service.slos.all().delete()
    service.refresh_from_db()
    service.description = "for the shop"
    service.full_clean()
    step = next(own for own in readiness.steps(timezone.now()) if own.name == "SLO")
    assert not step.done
    service.slos.create(kind="ttft", objective_s=1.0)
    step = next(own for own in readiness.steps(timezone.now()) if own.name == "SLO")
    assert not step.done
    assert "clock=throttle" in step.words


def test_partitions_of_policies_are_made_once_when_asked_for(service):
    assert ensure_partition("dynamo") == Partition.objects.get(name="dynamo")
    assert RequestClass.objects.filter(partition__name="dynamo").count() == 9
    request_class = RequestClass.objects.get(partition__name="dynamo", name="MS")
    assert (request_class.input_min, request_class.input_max, request_class.output_max) == (256, 1024, 100)
    assert (request_class.ttft_threshold_s, request_class.tpot_threshold_s) == (0.4, 0.1)
    count = Pool.objects.count()
    ensure_pools(service, ensure_partition("whole"))
    assert Pool.objects.count() == count
    with pytest.raises(Partition.DoesNotExist):
        ensure_partition("nowhere")


# -- the known faults ------------------------------------------------------------------------------


def test_fleet_is_planned_for_what_it_carries_when_demand_is_beyond_it(service, redis_client, now):
    requests_came(now, count=6000, over_s=60)
    epoch = epochs.run(service, Loop.CARBON, now)
    decision = epoch.decisions.get(kind="carbon")
    assert epoch.status == "infeasible"
    assert decision.reason == "infeasible"
    assert "Planned for" in decision.summary
    assert decision.commands
    assert [row["chosen"] for row in decision.alternatives].count(True) == 1
    epoch.refresh_from_db()
    (again,) = [step for step in replay(epoch) if step.step.endswith("carbon:step")]
    assert again.same
    assert "SetGpuBudget" in again.now
    allocated = InstanceGpu.objects.filter(released_at__isnull=True).count()
    assert allocated >= 20


def test_class_is_planned_without_its_limits_when_no_mode_keeps_them(service, redis_client, now):
    Profile.objects.filter(request_class__name="LL").update(max_rps=0)
    epoch = epochs.run(service, Loop.CARBON, now)
    decision = epoch.decisions.get(kind="carbon")
    assert decision.reason == "infeasible"
    assert "LL: no mode keeps its limits" in decision.summary
    assert {pool.request_class.name for pool in Pool.objects.all() if pool.workers} == {"SS", "SL", "LS", "LL"}


def test_shard_looks_back_as_far_as_scale_when_its_period_is_shorter(service, settings, now):
    settings.GREENSERVE_LOOPS = {
        kind: {**loop, "period_s": {"carbon": 1800.0, "scale": 1800.0, "shard": 300.0, "clock": 1.0}[kind]}
        for kind, loop in settings.GREENSERVE_LOOPS.items()
    }
    epochs.run(service, Loop.CARBON, now)
    requests_came(now - timedelta(seconds=900), count=300, over_s=30)  # a peak of the half hour, then a lull
    service.refresh_from_db()
    context = turn_context.resolve(service, now, ())
    peaks = [
        max(max(pool.demand.demand_rps) for pool in observed(context).pools)
        for observed in (snapshot.scale, snapshot.shard)
    ]
    assert peaks[0] == peaks[1] > 0


# -- thresholds ------------------------------------------------------------------------------------


def used(service, at, kv_usage, running, over_s=60):
    """The agents' samples of each ready instance."""
    time_partitions.ensure({at.date(), (at - timedelta(seconds=over_s)).date()})
    for instance in Instance.objects.filter(pool__service=service, desired="running"):
        for n in range(over_s // 10):
            InstanceSample.objects.create(
                at=at - timedelta(seconds=10 * n + 1),
                instance=instance,
                state="ready",
                kv_usage=kv_usage,
                running=running,
            )


def wanted(service):
    return sum(sum(pool.workers.values()) for pool in service.pools.all())


@pytest.mark.slow("hours of a baseline")
def test_fleet_grows_under_load_and_shrinks_when_idle_by_thresholds(service, redis_client, now):
    set_policy(service, "threshold", scale_period_s=300.0, shard_period_s=100.0)
    requests_came(now, count=60, over_s=60)
    ran = run_all(service, now)
    assert [epoch.status for epoch in ran] == ["applied", "held", "held"]
    first = wanted(service)
    assert first >= 1
    at = later(redis_client, now, 301)
    requests_came(at, count=3000, over_s=60)
    run_all(service, at)
    decision = Decision.objects.filter(kind="scale").exclude(pool=None).latest("pk")
    assert "at a use that is not known" in decision.summary, "no engine has reported it"
    grown = wanted(service)
    assert grown > first
    at = later(redis_client, at, 3700)  # the peak is out of every window
    used(service, at, kv_usage=0.6, running=2)
    requests_came(at, count=10, over_s=60)
    run_all(service, at)
    assert wanted(service) == grown, "busy instances stay"
    assert "at 60% use" in Decision.objects.filter(kind="scale").latest("pk").summary
    at = later(redis_client, at, 301)
    used(service, at, kv_usage=0.1, running=2)
    run_all(service, at)
    assert wanted(service) < grown
    assert "at 10% use" in Decision.objects.filter(kind="scale").latest("pk").summary
    again = [step for epoch in Epoch.objects.all() for step in replay(epoch)]
    assert {step.step for step in again} >= {
        "core.controllers.fleet.scale_threshold:step",
        "core.controllers.fleet.shard_threshold:step",
    }
    assert [step for step in again if not step.same] == []


@pytest.mark.slow("hours of a baseline")
def test_class_is_helped_between_scale_epochs_by_thresholds(service, redis_client, now):
    at = moment(now.timestamp() // 1800 * 1800 + 10.0)
    report_all(redis_client, at=at)
    refresh_feeds(at)
    set_policy(service, "threshold")
    requests_came(at, count=60, over_s=60)
    run_all(service, at)
    first = wanted(service)
    at = later(redis_client, at, 301)
    requests_came(at, count=1500, over_s=60)
    assert [epoch is None for epoch in run_all(service, at)] == [True, True, False], "it is shard's turn alone"
    assert wanted(service) > first
    decision = Decision.objects.filter(kind="shard").exclude(pool=None).latest("pk")
    assert decision.reason == "heuristic"
    assert any(row["chosen"] for row in decision.alternatives)


def test_modes_of_sites_without_instances_are_remembered_by_thresholds(service, redis_client, now):
    set_policy(service, "threshold")
    requests_came(now, count=60, over_s=60)
    run_all(service, now)
    sites = {pool.site.name for pool in service.pools.all() if pool.gpu_budget}
    known = recall(ControllerState.objects.get(kind="scale", service=service).value["state"]).modes["ALL"]
    assert set(known) == sites
    assert recall(ControllerState.objects.get(kind="shard", service=service).value["state"]).modes["ALL"] == known


def test_use_is_that_of_the_busier_of_cache_and_batch_where_engines_tell_both(service, redis_client, now):
    set_policy(service, "threshold", max_num_seqs=10)
    requests_came(now, count=60, over_s=60)
    run_all(service, now)
    context = turn_context.resolve(service, now, ())
    assert threshold_steps.use(context, 300.0) == {}
    used(service, now, kv_usage=None, running=9)
    assert threshold_steps.use(context, 300.0) == {}
    used(service, now, kv_usage=0.2, running=5)
    assert threshold_steps.use(context, 300.0) == {"ALL": pytest.approx(0.5)}


# -- shadows ---------------------------------------------------------------------------------------


def shadow_pool(service, workers):
    set_policy(service, "throttllem")
    service.partition = Partition.objects.get(name="whole")
    service.save()
    pool = service.pools.get(site__name="location-2", request_class__name="ALL")
    Pool.objects.filter(pk=pool.pk).update(gpu_budget={"A100-80GB": 12}, workers=workers)
    pool.refresh_from_db()
    return pool


def test_old_instance_serves_until_its_shadow_is_ready_when_gpus_are_free(service, redis_client, now):
    pool = shadow_pool(service, {A2: 1})
    old = start_instance(pool, Node.objects.get(name="loc2-a100-8"), tp=4)
    report_all(redis_client)
    tasks.publish()
    new = Instance.objects.get(tp=2)
    old.refresh_from_db()
    assert old.desired == "running"
    assert new.replaces == [str(old.uid)]
    assert desired(redis_client)[str(new.uid)].shadow_of == str(old.uid)
    assert InstanceGpu.objects.filter(released_at__isnull=True).count() == 6  # both are metered
    tasks.publish()
    old.refresh_from_db()
    assert old.desired == "running"
    report_all(redis_client)
    tasks.publish()
    old.refresh_from_db()
    assert old.desired == "draining"
    assert desired(redis_client)[str(old.uid)].state == "draining"
    report_all(redis_client)
    tasks.publish()
    old.refresh_from_db()
    assert old.state == "stopped"
    assert desired(redis_client)[str(new.uid)].shadow_of == ""
    assert InstanceGpu.objects.filter(released_at__isnull=True).count() == 2


def test_old_instance_drains_first_when_no_gpus_are_free_for_a_shadow(service, redis_client, now):
    pool = shadow_pool(service, {"A100-80GB/TP8": 1})
    nodes = [Node.objects.get(name="loc2-a100-8"), Node.objects.get(name="loc2-a100-4")]
    olds = [start_instance(pool, nodes[0], tp=4), start_instance(pool, nodes[0], tp=4)]
    Node.objects.exclude(pk=nodes[0].pk).update(schedulable=False)  # else another one serves there meanwhile
    report_all(redis_client)
    tasks.publish()
    assert not Instance.objects.filter(tp=8).exists()
    assert {Instance.objects.get(pk=old.pk).desired for old in olds} == {"draining"}
    report_all(redis_client)
    tasks.publish()
    assert Instance.objects.get(tp=8).replaces == []


def test_shadow_is_called_off_when_the_old_one_is_wanted_again(service, redis_client, now):
    pool = shadow_pool(service, {A2: 1})
    old = start_instance(pool, Node.objects.get(name="loc2-a100-8"), tp=4)
    report_all(redis_client)
    tasks.publish()
    Pool.objects.filter(pk=pool.pk).update(workers={A4: 1})
    tasks.publish()
    old.refresh_from_db()
    assert (old.desired, Instance.objects.get(tp=2).desired) == ("running", "draining")


def test_engine_grows_by_a_shadow_when_load_outgrows_it(service, redis_client, now):
    service.expected_rps = 1.0
    service.save()
    requests_came(now, count=60, over_s=30)
    set_policy(service, "throttllem")
    run_all(service, now)
    report_all(redis_client)
    engine = Instance.objects.get(desired="running")
    pool = engine.pool
    assert pool.site.name == "location-2"  # where there is room beside it
    mode = Mode(engine.gpu_type, 2)
    Pool.objects.filter(pk=pool.pk).update(workers={mode.name: 1})
    tasks.publish()
    report_all(redis_client)
    tasks.publish()
    small = Instance.objects.get(tp=2, desired="running")
    at = later(redis_client, now, 11)
    requests_came(at, count=30, over_s=15)
    tasks.publish()
    epoch = epochs.run(service, Loop.SCALE, at)
    decision = epoch.decisions.get()
    assert (epoch.status, decision.reason) == ("applied", "congested")
    shadow = Instance.objects.get(tp=4, desired="running", state="pending")
    assert shadow.replaces == [str(small.uid)]
    small.refresh_from_db()
    assert small.desired == "running"
    assert desired(redis_client)[str(shadow.uid)].shadow_of == str(small.uid)


# -- DynamoLLM's epochs ----------------------------------------------------------------------------


def test_forecasts_are_remembered_when_dynamo_scales(service, redis_client, now):
    set_policy(service, "dynamollm")
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    stored = ControllerState.objects.get(kind="loads", service=service).value
    assert "dynamo/MM" in stored or "dynamo/LM" in stored
    value = ControllerState.objects.get(kind="scale", service=service).value
    assert value["_"]["step"] == "dynamo"
    assert value["_"]["next_tick_s"] > now.timestamp()
    kinds = {Mode.parse(name).gpu for pool in Pool.objects.all() for name in pool.workers}
    assert kinds == {"A100-80GB"}


def test_what_pools_hand_on_is_published_to_gateways_and_agents(service, redis_client, now):
    set_policy(service, "dynamollm")
    requests_came(now, count=300, over_s=100, prompt_tokens=100, output_tokens=50)
    requests_came(now, count=300, over_s=100, prompt_tokens=2000, output_tokens=500)
    run_all(service, now)
    tasks.publish()
    state = ControllerState.objects.get(kind="scale", service=service)
    shares = {name.removeprefix("cluster/"): share for name, share in state.value["shares"].items()}
    assert shares["SS"] > 0.0
    published = {item.name: item for item in published_service().classes}
    assert {name: item.hands_on for name, item in published.items()} == shares
    # An instance keeps the limits of the strictest class that comes to its pool.
    names = list(published)
    of_pool = {pool.pk: pool.request_class.name for pool in service.pools.select_related("request_class")}
    comes_from = {"SS": {"SS"}}
    for smaller, name in pairwise(names):
        comes_from[name] = {name} | (comes_from[smaller] if shares[smaller] > 0.0 else set())
    instances = list(desired(redis_client).values())
    assert any(len(comes_from[of_pool[item.pool_id]]) > 1 for item in instances)
    for item in instances:
        limits_s = [published[name].limits.ttft_s for name in comes_from[of_pool[item.pool_id]]]
        assert item.limits.ttft_s == 0.45 * min(limits_s)  # the share of it that a predicted mean may take
    # Shares of another partition are not those of this one's classes.
    state.value["partition"] = "freesh-a"
    state.save()
    tasks.publish()
    assert {item.hands_on for item in published_service().classes} == {0.0}
    state.value["partition"] = "dynamo"
    state.save()
    # Where scale hands on nothing, a class without instances hands on everything, but for the largest.
    set_policy(service, "dynamollm", scale="static")
    tasks.publish()
    there = {pool.request_class.name for pool in service.pools.select_related("request_class") if pool.workers}
    expected = {name: float(name not in there) for name in names[:-1]} | {names[-1]: 0.0}
    assert {item.name: item.hands_on for item in published_service().classes} == expected
    assert set(expected.values()) == {0.0, 1.0}


def test_step_has_its_turn_before_its_next_epoch_when_it_asks_for_it(service, redis_client, now):
    at = moment(now.timestamp() // 60 * 60 + 5.0)  # well within an epoch
    report_all(redis_client, at=at)
    refresh_feeds(at)
    set_policy(service, "dynamollm")
    run_all(service, at)
    state = ControllerState.objects.get(kind="scale", service=service)
    state.value["_"]["next_tick_s"] = at.timestamp() + 1
    state.save()
    at = later(redis_client, at, 2)
    epoch = epochs.run(service, Loop.SCALE, at)
    assert epoch.index == -round(1000 * (at.timestamp() - 1))
    assert epochs.run(service, Loop.SCALE, at) is None


# -- GreenServe's fleet loop -----------------------------------------------------------------------


def serving(service):
    """GPUs wanted, by site."""
    pools = service.pools.select_related("site")
    return {pool.site.name: sum(gpus(pool.workers).values()) for pool in pools if pool.workers}


def test_fleet_follows_the_load_at_once_and_goes_back_later_when_it_sizes_itself(service, redis_client, now):
    # Energy, since the carbon curve has its own ups and downs; half a minute, for fewer turns.
    set_policy(service, "greenserve", objective="energy", scale_period_s=30.0)
    requests_came(now, count=60, over_s=60)
    run_all(service, now)
    first = serving(service)
    at = later(redis_client, now, 31)
    requests_came(at, count=500, over_s=32)
    epoch = epochs.run(service, Loop.SCALE, at)
    decision = epoch.decisions.first()
    assert epoch.status == "applied"
    assert decision.reason in ("congested", "at_limit")
    assert any(weighed["chosen"] for weighed in decision.alternatives)
    grown = serving(service)
    assert grown != first
    kept = []
    for _ in range(5):  # the burst leaves the look-back after a minute, and less must have done for another
        at = later(redis_client, at, 30)
        requests_came(at, count=30, over_s=30)
        epochs.run(service, Loop.SCALE, at)
        kept.append(serving(service))
    assert kept[1] == grown
    assert len(kept[-1]) == 1, "one site is enough, though it may be another: a move would have to save a tenth"
    assert sum(kept[-1].values()) < sum(grown.values())


def test_site_is_left_when_its_power_cap_allows_no_instance(service, redis_client, now):
    set_policy(service, "greenserve")
    requests_came(now, count=60, over_s=60)
    run_all(service, now)
    best = next(iter(serving(service)))
    Site.objects.filter(name=best).update(power_cap_w=100.0)
    at = later(redis_client, now, 11)
    requests_came(at, count=10, over_s=10)
    run_all(service, at)
    assert serving(service)
    assert best not in serving(service)


@pytest.mark.parametrize("share", first(1, [0.35, 0.7], "another share"))
def test_plan_keeps_the_simulators_share_of_the_limits_by_the_worst_iteration(service, redis_client, now, share):
    set_policy(service, "greenserve", plan_ttft_share=share, chunk_tokens=512, clock_floor="voltage")
    requests_came(now, count=60, over_s=60)
    run_all(service, now)
    _, seen, _ = recall(Epoch.objects.get(kind=Loop.SCALE, service=service).recording[0]["given"])
    card, objectives = service.model_card, service.slos.values_list("kind", "objective_s")
    whole = Limits(**{f"{kind}_s": objective_s for kind, objective_s in objectives})
    lengths, mhz = Lengths(300.0, 200.0), ProfileClocks(60.0, "voltage", None)
    load = PoolLoad(card.name, card.engine, lengths, (ClassLengths(whole, lengths),), 512, mhz)
    assert seen.limits.ttft_s == share * whole.ttft_s
    assert {offer.profile.mhz.tolist() == load.profile(offer.mode).mhz.tolist() for offer in seen.offers} == {True}
    at_full = {offer.mode: load.profile(offer.mode).ttft_s[-1, 0] for offer in seen.offers}
    assert {offer.mode: offer.profile.ttft_s[-1, 0] for offer in seen.offers} == pytest.approx(at_full, rel=0.02)


@pytest.mark.slow("two policies")
def test_fleet_is_taken_over_as_it_stands_when_the_policy_changes(service, redis_client, now):
    set_policy(service, "single_pool")
    requests_came(now, count=60, over_s=60)
    run_all(service, now)
    every = sum(serving(service).values())
    set_policy(service, "greenserve", scale_period_s=30.0)
    at = now
    for _ in range(4):
        at = later(redis_client, at, 30)
        requests_came(at, count=30, over_s=30)
        run_all(service, at)
    assert 0 < sum(serving(service).values()) < every


def test_measured_times_replace_published_ones_when_instances_have_started(service, redis_client, now):
    set_policy(service, "dynamollm")
    run_all(service, now)
    assert measured_overheads.table(service, now).seconds == {}
    for instance in Instance.objects.all():
        Instance.objects.filter(pk=instance.pk).update(
            ready_at=instance.created_at + timedelta(seconds=7), state="ready"
        )
    assert list(measured_overheads.table(service, timezone.now()).seconds.values()) == [pytest.approx(7.0)]


def test_engines_carry_what_was_profiled_when_the_policy_says_so(service, redis_client, now):
    set_policy(service, "throttllem", max_rps={"tp2": 1.5, "tp4": 2.5})
    context = turn_context.resolve(service, now, ())
    seen = arrivals(service, now, context.times.look_back_s)
    planned = {own.request_class.name: own for own in snapshot.classes_now(context, service.partition, seen, 1)}
    found = autoscale_step.sizes(context, planned)
    rates = {(size.mode.tp, size.max_rps) for own in found.values() for size in own}
    assert rates & {(2, 1.5), (4, 2.5)}
    assert rates <= {(2, 1.5), (4, 2.5)} | {(1, size.max_rps) for own in found.values() for size in own}


@pytest.mark.parametrize("frozen", [True, False])
def test_scale_chooses_among_the_tp_degrees_that_stand_when_they_are_frozen(service, redis_client, now, frozen):
    set_policy(service, "greenserve_epochs", freeze_tp=frozen)
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    views = [view for view in snapshot.pool_views(turn_context.resolve(service, now, ()), 1) if view.workers]
    assert views
    kept = [{mode.tp for mode in view.profiles} == {mode.tp for mode in view.workers} for view in views]
    assert all(kept) == frozen


def test_no_loop_begins_anew_when_policies_are_renamed(service, redis_client, now):
    set_policy(service, "greenserve", alpha=1.5)
    assert service_policy.taken_up(service, now)
    run_all(service, now)
    of_services = importlib.import_module("pools.migrations.0004_policy_names")
    of_loops = importlib.import_module("scheduler.migrations.0003_policy_names")

    def noted():
        states = ControllerState.objects.filter(service=service)
        found = [state.value.get("signature") or state.value["_"]["policy"] for state in states]
        return {json.loads(text)[0] for text in found}, set(found)

    of_loops._backwards(apps, None)
    of_services._backwards(apps, None)
    service.refresh_from_db()
    assert (service.policy, noted()[0]) == ("right_size", {"right_size"})
    Service.objects.update(knobs={**service.knobs, "itl_limit_s": None, "tp": 4})
    of_services._forwards(apps, None)
    of_loops._forwards(apps, None)
    service.refresh_from_db()
    assert (service.policy, service.knobs) == ("greenserve", {"alpha": 1.5, "itl_limit_s": 0.0, "tp": 4})
    service.knobs = {"alpha": 1.5}
    assert noted() == ({"greenserve"}, {service_policy.signature(service)})


def test_services_of_one_pool_keep_their_route_when_the_preset_gets_another():
    names = importlib.import_module("pools.migrations.0004_policy_names")
    stored = [("single_pool", {}), ("single_pool", {"route": "least_energy"}), ("multi_pool", {})]
    renamed = [names.renamed(*own) for own in stored]
    assert [policy(*own).knobs.route for own in renamed] == ["least_loaded", "least_energy", "least_loaded"]
    assert PRESETS["single_pool"].knobs.route == "round_robin"
    assert [names.named_before(*own) for own in renamed] == stored


def given_to_shard(service):
    """The observation of the newest shard epoch."""
    epoch = Epoch.objects.filter(kind=Loop.SHARD, service=service).latest("pk")
    _, observation, _ = recall(epoch.recording[-1]["given"])
    return observation


@pytest.mark.slow("two policies")
def test_changes_are_priced_as_what_they_are(service, redis_client, now):
    """By starts, which are measured; and with shadows only where free GPUs hold them."""
    set_policy(service, "dynamollm", shadow=False)
    requests_came(now, count=300, over_s=100)
    run_all(service, now)
    pools = given_to_shard(service).pools
    assert {pool.change for pool in pools} == {ChangeKind.RESTART}, "the policy has no shadows"
    assert all(pool.drain_s > 0.0 for pool in pools)
    set_policy(service, "dynamollm", shadow=True)
    at = later(redis_client, now, 400)
    run_all(service, at)
    assert ChangeKind.SHADOW in {pool.change for pool in given_to_shard(service).pools}, "some servers are idle"
    Node.objects.update(schedulable=False)
    at = later(redis_client, at, 400)
    context = turn_context.resolve(service, at, set(Node.objects.values_list("name", flat=True)))
    needs = {PoolKey(site.name, "SS"): {Mode("A100-80GB", 4): 1} for site in Site.objects.all()}
    assert set(change_kinds.kinds(context, needs).values()) == {ChangeKind.RESTART}


def test_gpus_that_one_pool_needs_are_not_free_for_the_next(service, redis_client, now):
    set_policy(service, "dynamollm", shadow=True)
    context = turn_context.resolve(service, now, set(Node.objects.values_list("name", flat=True)))

    def kinds(*needs):
        """Of pools at one site, in the order of their names."""
        return list(
            change_kinds.kinds(
                context, {PoolKey("location-2", f"{n}"): {Mode("A100-80GB", tp): 1} for n, tp in enumerate(needs)}
            ).values()
        )

    shadow, restart = ChangeKind.SHADOW, ChangeKind.RESTART
    assert kinds(4, 4, 4, 4) == [shadow, shadow, shadow, restart]
    assert kinds(4, 8, 4) == [shadow, shadow, restart], "the first stands where it leaves the large node whole"
    assert kinds(16, 1) == [restart, shadow], "no node has so many, and none is taken for it"


def test_command_shows_and_sets_when_it_is_called(service, redis_client):
    from click.testing import CliRunner

    from greenserve.commands.policy import policy as command

    runner = CliRunner()
    assert "llama3-70b: greenserve_epochs" in runner.invoke(command, []).output
    shown = runner.invoke(command, ["llama3-70b", "single_pool", "--preview"])
    assert (shown.exit_code, "then, predicted: single_pool (whole), " in shown.output) == (0, True), shown.output
    service.refresh_from_db()
    assert service.policy == "greenserve_epochs"
    done = runner.invoke(command, ["llama3-70b", "dynamollm", "clock=fixed", "shadow=false"])
    assert done.exit_code == 0, done.output
    assert "dynamollm with clock=fixed, shadow=false" in done.output
    service.refresh_from_db()
    assert (service.policy, service.knobs) == ("dynamollm", {"clock": "fixed", "shadow": False})
    assert redis_client.llen("epochs") >= 1
    assert runner.invoke(command, ["nobody"]).exit_code == 1
    old = runner.invoke(command, ["llama3-70b", "right_size"])
    assert old.exit_code == 0
    assert "'right_size' is called greenserve now" in old.stderr
    tuned = runner.invoke(command, ["llama3-70b", "freesh", "eq1.min_saving=0.1", "placement.spread=0.9"])
    assert "placement.spread has no effect live: a live GPU is one instance's" in tuned.stderr
    assert "freesh with eq1.min_saving=0.1, placement.spread=0.9" in tuned.stdout
    service.refresh_from_db()
    assert service.knobs == {"tuning": {"eq1": {"min_saving": 0.1}, "placement": {"spread": 0.9}}}
    for setting, words in (("clock=slow", "clock: unknown 'slow'"), ("eq1.steps=0", "eq1.steps: must be at least 1")):
        wrong = runner.invoke(command, ["llama3-70b", "dynamollm", setting])
        assert wrong.exit_code == 2
        assert words in wrong.stderr


def test_policy_is_listed_and_checked_when_it_goes_through_the_api(service, client):
    from django.contrib.auth import get_user_model

    set_policy(service, "dynamollm", clock="fixed")
    client.force_login(get_user_model().objects.create_superuser("admin", password="secret"))
    (row,) = client.get("/api/v1/services/").json()["results"]
    assert (row["name"], row["policy"], row["knobs"]) == ("llama3-70b", "dynamollm", {"clock": "fixed"})
    assert client.get("/api/v1/services/llama3-70b/").json() == row

    def patch(**changed):
        headers = {"If-Match": client.get(row["url"]).headers["ETag"]}
        return client.patch(row["url"], changed, content_type="application/json", headers=headers)

    (wrong,) = patch(knobs={"clock": "slow"}).json()["errors"]
    assert wrong["field"] == "knobs"
    assert "known: fixed, miad" in wrong["detail"]
    (wrong,) = patch(knobs={"tuning": {"dynamo": {"wave": 0}}}).json()["errors"]
    assert "tuning.dynamo.wave: must be at least 1" in wrong["detail"]
    tuned = {"alpha": 1.5, "tuning": {"dynamo": {"wave": 4}, "placement": {"spread": 0.9}}}
    tried = client.post(f"{row['url']}validate/", {"knobs": tuned}, content_type="application/json").json()
    assert "placement.spread has no effect live: a live GPU is one instance's" in str(tried)
    service.slos.exclude(kind="ttft").delete()
    (wrong,) = patch(policy="throttllem", knobs={}).json()["errors"]
    assert wrong["field"] == "policy"
    assert "give the service an objective" in wrong["detail"]
    paceless = {"policy": "throttllem", "knobs": {}}
    tried = client.post(f"{row['url']}validate/", paceless, content_type="application/json").json()
    assert "give the service an objective" in str(tried)
    assert patch(knobs=tuned).json()["knobs"] == tuned
    service.refresh_from_db()
    assert turn_context.resolve(service, timezone.now(), ()).tuning.dynamo.wave == 4
    assert patch(policy="freesh", knobs={}).json()["policy"] == "freesh"
