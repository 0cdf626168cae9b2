"""Operations, with the real epochs: pauses, advice, approvals, and overrides that plans are made around."""

from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.utils import timezone

from core.controllers.fleet import carbon
from core.types import Effects, ForwardLoad, Loop, Mode, PoolKey, Rationale, Reason, ScaleTo
from pools import wire
from pools.access.audit import Actor
from pools.models import AuditEntry, Instance, Membership, Node, Partition, Site
from scheduler import tasks
from scheduler.control import active_operations, advising, epochs, pending_plans, service_policy
from scheduler.control.steps.policy_steps import Result
from scheduler.models import Approval, ControllerState, Decision, Epoch, LoopPause, Override, ServiceMode
from scheduler.operations import approvals, overrides, pauses, undoing
from tests.fakes.house import refresh_feeds, report_all, requests_came

pytestmark = pytest.mark.django_db


def later(redis_client, at, by_s=61):
    at += timedelta(seconds=by_s)
    report_all(redis_client, at=at)
    refresh_feeds(at)
    return at


def workers(service):
    return {pool.pk: pool.workers for pool in service.pools.exclude(workers={})}


def desired(client):
    found = [wire.decode(client.get(wire.desired_key(node.name)), wire.DesiredNode) for node in Node.objects.all()]
    return [item for node in found for item in node.instances]


def test_loop_decides_nothing_when_it_is_paused(service, redis_client, operator, now):
    epochs.run(service, Loop.CARBON, now)
    paused = pauses.pause(operator, service, "carbon", "the grid operator rings", now + timedelta(hours=1))
    at = later(redis_client, now)
    requests_came(at, count=1500, over_s=100)
    for by_s in (0, 61, 122):
        assert epochs.run(service, Loop.CARBON, at + timedelta(seconds=by_s)) is None
    assert Decision.objects.filter(summary__startswith="olga paused").count() == 1
    assert Epoch.objects.filter(kind="carbon").count() == 1
    assert epochs.run(service, Loop.SHARD, at) is not None
    LoopPause.objects.update(expires_at=timezone.now() - timedelta(seconds=1))  # it ends by itself
    assert epochs.run(service, Loop.CARBON, at) is not None
    again = pauses.pause(operator, service, "carbon", "once more")
    assert pauses.resume(operator, again).ended_at
    assert paused.reason in AuditEntry.objects.filter(action="paused").earliest("pk").after["reason"]


def test_clocks_go_to_the_top_when_the_clock_loop_is_paused(service, redis_client, operator, now):
    epochs.run(service, Loop.CARBON, now)
    tasks.publish()
    assert not any(item.clock.paused for item in desired(redis_client))
    pauses.pause(operator, service, "clock", "measuring")
    tasks.publish()
    assert all(item.clock.paused for item in desired(redis_client))


def test_nothing_is_carried_out_when_a_service_is_advised(service, operator, now):
    pauses.set_control_mode(operator, service, "advise")
    assert epochs.run(service, Loop.CARBON, now) is None
    epoch = advising.run(service, now)[0]
    assert epoch.status == "advised"
    decision = epoch.decisions.get(kind="carbon")
    assert decision.commands
    assert not workers(service)
    assert not Instance.objects.exists()
    assert not epochs.has_plan(service)
    assert advising.run(service, now) == []


def test_plan_is_carried_out_when_it_is_approved(service, redis_client, operator, now):
    pauses.set_control_mode(operator, service, "approve", approve_within_s=600)
    epoch = epochs.run(service, Loop.CARBON, now)
    assert (epoch.status, Instance.objects.count()) == ("waiting", 0)
    assert approvals.approve(operator, epoch.approval).status == "approved"
    epoch.refresh_from_db()
    assert epoch.status == "applied"
    assert epochs.has_plan(service)
    assert Instance.objects.filter(desired="running").count() == sum(sum(w.values()) for w in workers(service).values())
    budgets = {f"{c['pool']}": c["gpus"] for c in epoch.decisions.get(kind="carbon").commands if "gpus" in c}
    active = service.pools.exclude(gpu_budget={})
    assert {f"{p.site.name}/{p.request_class.name}": p.gpu_budget for p in active} == budgets
    with pytest.raises(ValidationError, match="approved already"):
        approvals.approve(operator, epoch.approval)


def test_approval_is_out_of_date_when_the_state_has_moved(service, redis_client, operator, now):
    pauses.set_control_mode(operator, service, "approve", approve_within_s=600)
    first = epochs.run(service, Loop.CARBON, now).approval
    service.pools.filter(pk=service.pools.first().pk).update(workers={"A100-80GB/TP4": 1})
    assert approvals.approve(operator, first).status == "outdated"
    assert not epochs.has_plan(service)
    second = epochs.run(service, Loop.CARBON, later(redis_client, now)).approval
    third = epochs.run(service, Loop.CARBON, later(redis_client, now, 122))
    assert Approval.objects.filter(status="pending").count() == 1  # the same plan is not asked for twice, or renewed
    pending = Approval.objects.get(status="pending")
    assert pending in (second, getattr(third, "approval", None))
    assert approvals.reject(operator, pending, "not now").note == "not now"
    Approval.objects.filter(pk=pending.pk).update(status="pending", expires_at=timezone.now())
    pending_plans.lapse(timezone.now())
    pending.refresh_from_db()
    assert pending.status == "expired"


def test_nobody_is_asked_when_hand_down_alone_changes(service, redis_client, operator, now):
    service_policy.change(service, "dynamollm", {})
    requests_came(now, count=300, over_s=100, prompt_tokens=100, output_tokens=50)
    requests_came(now, count=300, over_s=100, prompt_tokens=2000, output_tokens=500)
    for loop in (Loop.CARBON, Loop.SCALE):
        epochs.run(service, loop, now)
    shares, before = hand_down(0.9), workers(service)
    assert shares["cluster/SS"] not in (0.0, 0.9)
    pauses.set_control_mode(operator, service, "approve")
    at = later(redis_client, now, 62)
    epochs.run_now(service, at)
    assert hand_down() == shares
    assert (Approval.objects.count(), workers(service)) == (0, before)


def test_plan_that_waits_is_the_same_when_its_hand_down_alone_has_changed(service, redis_client, operator, now):
    epoch = epochs.run(service, Loop.CARBON, now)
    pauses.set_control_mode(operator, service, "approve")
    state = ControllerState.objects.get(kind="carbon")
    pending_plans.offer(epoch, state, scaled(2, 0.3), active_operations.control_mode_of(service), now)
    assert pending_plans.still_waits(service, state, "carbon", scaled(2, 0.7))
    assert not pending_plans.still_waits(service, state, "carbon", scaled(3, 0.3))


def scaled(count, share):
    small, large = (PoolKey("cluster", name) for name in ("SS", "LL"))
    commands = ScaleTo(small, {Mode("A100-80GB", 8): count}), ForwardLoad(small, large, share)
    return Result(Effects(commands, None, Rationale(Reason.POLICY, "It grows.")), {})


def hand_down(share=None):
    """Returns the shares that scale has decided, before they are set to another one."""
    state = ControllerState.objects.get(kind="scale")
    found = dict(state.value["shares"])
    if share is not None:
        state.value["shares"] = dict.fromkeys(found, share)
        state.save()
    return found


@pytest.mark.slow("plans, several times")
def test_plans_are_made_around_a_pool_when_its_workers_are_pinned(service, redis_client, operator, now):
    requests_came(now, count=300, over_s=100)
    epochs.run(service, Loop.CARBON, now)
    service.refresh_from_db()
    assert not service_policy.taken_up(service, now)
    pool = service.pools.filter(request_class__partition=service.partition, workers={}).exclude(site__clusters=None)[0]
    mode = next(iter(Instance.objects.filter(node__cluster__site=pool.site).values_list("gpu_type", flat=True)), None)
    mode = mode or Node.objects.filter(cluster__site=pool.site).first().gpus.first().gpu_type
    own = {f"{mode}/TP2": 1}
    override = overrides.pin_workers(operator, pool, own, timezone.now() + timedelta(hours=1), "a trial")
    assert service_policy.taken_up(service, now)
    at = later(redis_client, now)
    assert [epoch.status for epoch in epochs.run_now(service, at) if epoch.status == "failed"] == []
    pool.refresh_from_db()
    assert (pool.workers, pool.gpu_budget) == (own, {mode: 2})
    for _ in range(4):  # where the site is full, others drain first
        report_all(redis_client, at=at)  # what nodes say is valid for seconds
        epochs.settle(redis_client, at)
    assert Instance.objects.filter(pool=pool, desired="running").count() == 1
    planned = service.pools.exclude(workers={}).filter(site=pool.site)
    assert sum(sum(p.gpu_budget.values()) for p in planned) <= sum(n.gpus.count() for n in _nodes(pool.site))
    service.refresh_from_db()
    assert service.partition == pool.request_class.partition
    # The next turns leave it alone; when it has ended by itself, it is the plan's again.
    for loop in (Loop.CARBON, Loop.SCALE, Loop.SHARD):
        epochs.run(service, loop, later(redis_client, at))
    pool.refresh_from_db()
    assert pool.workers == own
    assert not service_policy.taken_up(service, at)
    Override.objects.filter(pk=override.pk).update(
        created_at=timezone.now() - timedelta(hours=2), expires_at=timezone.now() - timedelta(seconds=1)
    )
    assert service_policy.taken_up(service, at)


def test_epoch_is_decided_again_when_an_override_ends_while_it_is_solved(service, operator, now, monkeypatch):
    """Otherwise it would be planned around a pinned pool, and carried out as if nobody had pinned it."""
    epochs.run(service, Loop.CARBON, now)
    service.refresh_from_db()
    pool = service.pools.filter(request_class__partition=service.partition).exclude(workers={}).first()
    until = timezone.now() + timedelta(hours=1)
    override = overrides.pin_workers(operator, pool, pool.workers, until, "a trial")
    closed, solve = [], carbon.step

    def ended_meanwhile(state, obs, config):
        answer = solve(state, obs, config)
        closed.append([site.closed for site in obs.sites if site.name == pool.site.name])
        Override.objects.filter(pk=override.pk).update(ended_at=timezone.now())
        return answer

    monkeypatch.setattr(carbon, "step", ended_meanwhile)
    (epoch, *_) = epochs.run_now(service, now)
    assert closed == [[(pool.request_class.name,)], [()]]
    assert epoch.status in ("applied", "held")
    assert Epoch.objects.filter(kind="carbon", index__lt=0).count() == 1


def _nodes(site):
    return Node.objects.filter(cluster__site=site)


def test_plans_leave_a_site_when_it_is_drained(service, redis_client, operator, now):
    epochs.run(service, Loop.CARBON, now)
    site = Instance.objects.first().node.cluster.site
    override = overrides.drain_site(operator, site, timezone.now() + timedelta(hours=1), "new transformer")
    service.refresh_from_db()
    assert service_policy.taken_up(service, now)
    epochs.run_now(service, later(redis_client, now))
    assert not service.pools.filter(site=site).exclude(workers={}).exists()
    assert service.pools.exclude(workers={}).exists()
    assert overrides.end(operator, override).ended_at


def test_partition_stays_when_it_is_pinned(service, redis_client, operator, now):
    epochs.run(service, Loop.CARBON, now)
    service.refresh_from_db()
    other = service.partitions.exclude(pk=service.partition_id).get()
    until = timezone.now() + timedelta(hours=1)
    overrides.pin_partition(operator, service, other, until, "compare")
    epochs.run_now(service, later(redis_client, now))
    service.refresh_from_db()
    assert service.partition == other
    with pytest.raises(ValidationError, match="may use"):
        overrides.pin_partition(operator, service, Partition.objects.create(name="elsewhere"), until, "no")


def test_clock_is_published_to_agents_when_it_is_fixed(service, redis_client, operator, now):
    epochs.run(service, Loop.CARBON, now)
    instance = Instance.objects.first()
    until = timezone.now() + timedelta(hours=1)
    overrides.fix_clock(operator, instance.pool, 1005.0, until, "measuring", instance)
    tasks.publish()
    assert {item.uid for item in desired(redis_client) if item.clock.fixed_mhz == 1005.0} == {str(instance.uid)}
    with pytest.raises(ValidationError, match="MHz"):
        overrides.fix_clock(operator, instance.pool, 9000.0, until, "too fast")


def test_clocks_stay_at_the_top_until_a_floor_is_approved_when_no_loop_has_acted(service, redis_client, operator, now):
    epochs.run(service, Loop.CARBON, now)
    pool, until = Instance.objects.first().pool, timezone.now() + timedelta(hours=1)

    def published():
        tasks.publish()
        return {(item.pool_id == pool.pk, item.clock.advise, item.clock.floor_mhz) for item in desired(redis_client)}

    pauses.set_control_mode(operator, service, "approve")
    assert {advise for _, advise, _ in published()} == {False}
    ServiceMode.objects.update(gateways_only=True)
    assert {advise for _, advise, _ in published()} == {True}
    override = overrides.let_clocks_down(operator, pool, 900.0, until, "quiet night")
    assert (True, False, 900.0) in published()
    assert {advise for mine, advise, _ in published() if not mine} <= {True}
    pauses.set_control_mode(operator, service, "advise")
    assert (True, False, 900.0) in published()
    overrides.end(operator, override)
    assert {(advise, floor) for _, advise, floor in published()} == {(True, None)}
    with pytest.raises(ValidationError, match="from 210 to"):
        overrides.let_clocks_down(operator, pool, 1.0, until, "too slow")


def test_what_was_before_comes_back_when_a_decision_is_undone(service, redis_client, operator, now):
    epochs.run(service, Loop.CARBON, now)
    first = Decision.objects.filter(kind="scale", pool__isnull=False).first()
    row = {**first.commands[0], "workers": {"A100-80GB/TP8": 1}}
    decision = Decision.objects.create(
        kind="scale", at=now, service=service, pool=first.pool, reason="optimal", commands=[row]
    )
    assert "keeps" in undoing.undoable(decision)
    (override,) = undoing.undo(operator, decision, timezone.now() + timedelta(hours=1), "I would not have")
    assert override.value == first.commands[0]["workers"]
    assert override.decision == decision
    with pytest.raises(ValidationError, match="nothing"):
        undoing.undo(operator, Decision.objects.create(kind="scale", at=now, reason="x"), now, "y")


def test_it_is_refused_when_the_role_or_the_words_are_missing(service, operator, now):
    until = timezone.now() + timedelta(hours=1)
    with pytest.raises(ValidationError, match="say why"):
        pauses.pause(operator, service, "carbon", " ")
    with pytest.raises(ValidationError, match="an override ends"):
        overrides.drain_site(operator, Site.objects.first(), until + timedelta(days=90), "for ever")
    Membership.objects.filter(user=operator.user).update(role=Membership.Role.VIEWER)
    viewer = Actor(type(operator.user).objects.get(pk=operator.user.pk), None, "page")
    for act in (
        lambda: pauses.pause(viewer, service, "carbon", "no"),
        lambda: pauses.set_control_mode(viewer, service, "advise"),
        lambda: overrides.drain_site(viewer, Site.objects.first(), until, "no"),
    ):
        with pytest.raises(PermissionDenied):
            act()
    assert not LoopPause.objects.exists()
