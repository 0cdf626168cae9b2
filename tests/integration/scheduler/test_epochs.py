"""The slow loops against PostgreSQL and Redis: plans become instances, and nothing breaks them."""

from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from django.db import connection

from core.algorithms.fleet.fleet_milp import solve_fleet
from core.controllers.fleet import carbon, scale
from core.controllers.fleet.explain import workers_text
from core.types import Limits, Loop
from pools import demo, wire
from pools.access.audit import Actor
from pools.models import Instance, InstanceGpu, Node, Pool, Profile, Service
from scheduler import tasks
from scheduler.control import clock_decisions, epochs, realised_figures
from scheduler.control.apply import publish
from scheduler.json_values import workers_from_json
from scheduler.models import Decision, Epoch
from scheduler.operations import engine_profiles
from telemetry.models import CarbonFeed, CarbonPoint, EnergyEntry
from tests.fakes.engine_profiles import rows as measured_rows
from tests.fakes.house import moment, published_fleet, refresh_feeds, report, report_all, requests_came, start_instance

pytestmark = pytest.mark.django_db
# Of the first carbon epoch of the demo's fleet, with decisions, instances and messages. By the hour's plan it was 135
# or 138, and two came with services that sleep and adapters, and one with the adapters that engines are started for;
# with what else a placement asks it was 144.
QUERIES = 144


def desired(client, node):
    return wire.decode(client.get(wire.desired_key(node)), wire.DesiredNode)


def held_gpus(instances):
    return sum(instance.gpu_holds.filter(released_at__isnull=True).count() for instance in instances)


def test_fleet_comes_up_when_there_is_no_traffic_yet(service, redis_client, now):
    epoch = epochs.run(service, Loop.CARBON, now)
    assert epoch.status == "applied"
    service.refresh_from_db()
    live = Instance.objects.filter(desired="running")
    wanted = {pool.request_class.name for pool in service.pools.all() if pool.workers}
    assert wanted == {"SS", "SL", "LS", "LL"}
    assert live.count() == sum(sum(pool.workers.values()) for pool in service.pools.all())
    assert all(instance.gpu_holds.count() == instance.tp for instance in live)
    assert not service.pools.exclude(request_class__partition=service.partition).exclude(gpu_budget={}).exists()
    published = {item.uid for node in Node.objects.all() for item in desired(redis_client, node.name).instances}
    assert published == {str(instance.uid) for instance in live}
    names = [node.name for node in Node.objects.all()]
    queued = {name for name in names if redis_client.llen(wire.celery_prefix(name) + wire.node_queue(name))}
    assert queued == {instance.node.name for instance in live}


def test_decisions_say_why_when_a_carbon_epoch_is_applied(service, now):
    epoch = epochs.run(service, Loop.CARBON, now)
    own = epoch.decisions.get(kind="carbon")
    assert own.reason == "optimal"
    assert "Location" in own.summary
    assert "location-" not in own.summary
    assert {row["label"] for row in own.alternatives} == {"Partition freesh-a", "Partition freesh-b"}
    assert [row["chosen"] for row in own.alternatives].count(True) == 1
    assert own.predicted["power_w"] > 0
    assert own.commands[0] == {"type": "ChoosePartition", "partition": Service.objects.get().partition.name}
    assert len(own.inputs["sites"]) == 3
    scale = epoch.decisions.filter(kind="scale")
    assert {d.pool_id for d in scale} == {pool.pk for pool in Pool.objects.all() if pool.workers}
    assert all(instance.decision_id in {d.pk for d in scale} for instance in Instance.objects.all())


def test_decision_explains_what_is_carried_out_when_the_solver_answers_otherwise_each_time(service, now, monkeypatch):
    """Within its time limit it may: here it uses the whole budget at first, and as little as it can later."""
    asked = set()

    def another(problem, *limits):
        pool = (problem.sites[0].name, problem.partitions[0].name)
        headroom = 0.01 if pool in asked else 20.0
        asked.add(pool)
        return solve_fleet(replace(problem, alpha=headroom), *limits)

    monkeypatch.setattr(scale, "solve_fleet", another)
    requests_came(now, count=300, over_s=60)
    decisions = epochs.run(service, Loop.CARBON, now).decisions.filter(kind="scale")
    assert decisions
    for decision in decisions:
        (command,) = decision.commands
        workers = workers_from_json(command["workers"])
        (chosen,) = [row["label"] for row in decision.alternatives if row["chosen"]]
        assert decision.pool.workers == command["workers"]
        assert chosen.endswith(f": {workers_text(workers)}")


def test_workers_of_a_plan_are_solved_while_others_may_take_the_lock(service, now, monkeypatch):
    free = []

    def watched(problem, *limits):
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext('scheduler.placement'))")
            free.append(cursor.fetchone()[0])
        other.close()
        return solve_fleet(problem, *limits)

    monkeypatch.setattr(scale, "solve_fleet", watched)
    assert epochs.run(service, Loop.CARBON, now).status == "applied"
    assert free
    assert all(free)


def test_plan_is_made_again_when_a_pool_changed_before_it_is_carried_out(service, now, monkeypatch):
    solved = []

    def meanwhile(problem, *limits):
        if not solved:  # another loop, whose mix the plan's workers do not know
            Pool.objects.filter(request_class__partition=service.partition).update(workers={"A100-80GB/TP1": 1})
        solved.append(problem.sites[0].name)
        return solve_fleet(problem, *limits)

    monkeypatch.setattr(scale, "solve_fleet", meanwhile)
    pools = service.pools.exclude(gpu_budget={})
    assert epochs.run(service, Loop.CARBON, now).status == "applied"
    assert len(solved) == 2 * pools.count()
    assert not pools.filter(workers__has_key="A100-80GB/TP1").exists()
    assert Epoch.objects.count() == 1


def test_epoch_asks_the_database_a_limited_number_of_times(service, now, django_assert_max_num_queries):
    with django_assert_max_num_queries(QUERIES):
        assert epochs.run(service, Loop.CARBON, now).status == "applied"


def test_decision_names_what_was_measured_and_when(service, now):
    card = service.model_card
    given = measured_rows(
        model=card.engine_model_name,
        gpu="A100-80GB",
        tp=8,
        batches=(1, 64, 256),
        contexts=(64, 8192),
        measured_at="2026-11-02T08:30:00Z",
    )
    engine_profiles.bring_in(Actor(), given, publish=True)
    epoch = epochs.run(service, Loop.CARBON, now)
    kinds = {}
    for name, profile in _profiles(Decision.objects.filter(epoch=epoch, kind=Loop.CARBON).first().inputs):
        kinds.setdefault(name.rpartition(" ")[2], set()).add((profile["source"], profile.get("measured_at_s")))
    at_s = datetime(2026, 11, 2, 8, 30, tzinfo=UTC).timestamp()
    found = kinds.pop("A100-80GB/TP8")
    assert {at for _, at in found} == {at_s}
    assert ("interpolated", at_s) in found  # at the mean batch, which is between those that were measured
    assert {source for source, _ in found} <= {"measured", "interpolated", "modelled"}
    assert {own for found in kinds.values() for own in found} <= {("published", None), ("modelled", None)}


def _profiles(value):
    """Yields name and figures of each profile among a decision's inputs."""
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, dict) and "max_rps" in inner:
            yield str(name), inner
        elif isinstance(inner, dict | list):
            yield from _profiles(inner)


def test_epoch_is_not_run_again_when_its_index_is_done(service, now):
    assert epochs.run(service, Loop.CARBON, now) is not None
    assert epochs.run(service, Loop.CARBON, now) is None
    assert Epoch.objects.count() == 1


def test_plan_follows_demand_when_traffic_grows(service, redis_client, now):
    epochs.run(service, Loop.CARBON, now)
    before = sum(sum(p.workers.values()) for p in Pool.objects.all())
    later = now + timedelta(seconds=60)
    report_all(redis_client, at=later)
    requests_came(now, count=1500, over_s=100)
    refresh_feeds(later)
    epoch = epochs.run(service, Loop.CARBON, later)
    assert epoch.status == "applied"
    for pool in Pool.objects.all():
        for kind, gpus in _gpus(pool.workers).items():
            assert gpus <= pool.gpu_budget[kind]
    assert held_gpus(Instance.objects.filter(desired="running")) > before
    classes = epoch.decisions.get(kind="carbon").inputs["partitions"][0]["classes"]
    busy = next(c for c in classes if max(c["demand_rps"]) > 0)
    assert busy["name"] == "LS"
    assert busy["demand_rps"][0] == pytest.approx(15.0, rel=0.1)


def _gpus(workers):
    found = {}
    for name, count in workers.items():
        kind, tp = name.split("/TP")
        found[kind] = found.get(kind, 0) + count * int(tp)
    return found


def test_mode_rate_is_the_models_when_requests_are_longer_than_the_papers(service, now):
    requests_came(now, count=60, over_s=60, prompt_tokens=8000, output_tokens=100)
    inputs = epochs.run(service, Loop.CARBON, now).decisions.get(kind="carbon").inputs
    profiles = next(p for p in inputs["partitions"] if p["name"] == "freesh-a")["profiles"]
    profile = profiles["LS A100-80GB/TP8"]
    assert profile["source"] == "modelled"
    assert 0 < profile["max_rps"] < 11.97
    assert profiles["SS A100-80GB/TP8"]["source"] == "published"


def test_scale_and_shard_hold_with_a_reason_when_nothing_changes(service, redis_client, now):
    epochs.run(service, Loop.CARBON, now)
    report_all(redis_client)
    for loop in (Loop.SCALE, Loop.SHARD):
        epoch = epochs.run(service, loop, now)
        assert epoch.status == "held"
        assert epoch.decisions.get().summary
        assert epoch.decisions.get().commands == []


def test_loops_hold_for_want_of_data_when_there_is_no_plan(service, now):
    epoch = epochs.run(service, Loop.SCALE, now)
    assert (epoch.status, epoch.decisions.get().reason) == ("held", "no_data")


def test_last_plan_is_kept_when_an_epoch_is_infeasible(service, redis_client, now):
    epochs.run(service, Loop.CARBON, now)
    plan, pools = epochs.carbon_plan(service), list(Pool.objects.values("id", "workers", "gpu_budget"))
    instances = set(Instance.objects.values_list("id", "desired"))
    Profile.objects.update(max_rps=0)
    later = now + timedelta(seconds=60)
    refresh_feeds(later)
    epoch = epochs.run(service, Loop.CARBON, later)
    assert epoch.status == "infeasible"
    decision = epoch.decisions.get()
    assert decision.reason == "infeasible"
    assert decision.summary.startswith("No plan carries the demand")
    assert epochs.carbon_plan(service) == plan
    assert list(Pool.objects.values("id", "workers", "gpu_budget")) == pools
    assert set(Instance.objects.values_list("id", "desired")) == instances


def test_last_plan_is_kept_and_the_error_stored_when_a_controller_fails(service, now, monkeypatch):
    epochs.run(service, Loop.CARBON, now)
    plan = epochs.carbon_plan(service)

    def broken(*_):
        raise ZeroDivisionError("no such luck")

    monkeypatch.setattr(carbon, "step", broken)
    epoch = epochs.run(service, Loop.CARBON, now + timedelta(seconds=60))
    assert epoch.status == "failed"
    assert epoch.error == "ZeroDivisionError: no such luck"
    assert "no such luck" in epoch.decisions.get().summary
    assert epochs.carbon_plan(service) == plan


def test_plan_is_rolled_back_and_the_error_stored_when_applying_fails(service, now, monkeypatch):
    def broken(*_):
        raise TypeError("no form in JSON")

    monkeypatch.setattr(epochs.apply, "apply_placement", broken)
    epoch = epochs.run(service, Loop.CARBON, now)
    assert (epoch.status, epoch.error) == ("failed", "TypeError: no form in JSON")
    assert Epoch.objects.count() == 1
    assert not epochs.has_plan(service)
    assert not Pool.objects.exclude(gpu_budget={}).exists()
    assert epochs.run(service, Loop.CARBON, now) is None


def test_due_epoch_waits_for_the_first_plan_when_there_is_none(service, redis_client):
    """A loop that beat wakes before nodes and feeds are there must not use up the first epoch."""
    tasks.run_epochs("shard")
    assert Epoch.objects.count() == 0
    tasks.bootstrap()
    assert Epoch.objects.count() == 3


def test_first_plan_is_of_least_energy_until_the_feeds_answer(service, redis_client, now):
    now = moment(int(now.timestamp()) // 60 * 60.0)  # a period's start: all of this is within one
    feeds = CarbonPoint.objects.all()
    kept = list(feeds)
    feeds.delete()
    assert epochs.run(service, Loop.CARBON, now).decisions.get(kind="carbon").inputs["objective"] == "energy"
    assert epochs.has_plan(service)
    assert epochs.run(service, Loop.CARBON, now + timedelta(seconds=10)) is None  # the plan stays within its period
    assert Epoch.objects.count() == 1
    CarbonPoint.objects.bulk_create(kept)
    found = epochs.run(service, Loop.CARBON, now + timedelta(seconds=20))
    assert found.decisions.get(kind="carbon").inputs["objective"] == "carbon"
    assert epochs.run(service, Loop.CARBON, now + timedelta(seconds=30)) is None


def test_start_is_put_off_when_no_node_reports(service, redis_client, monkeypatch):
    for node in Node.objects.all():
        redis_client.delete(wire.agent_key(node.name))
    sent = []
    monkeypatch.setattr(tasks.bootstrap, "apply_async", lambda **kwargs: sent.append(kwargs["kwargs"]))
    tasks.bootstrap()
    assert sent == [{"attempt": 1}]
    tasks.bootstrap(attempt=tasks.BOOTSTRAP_PATIENCE)
    assert len(sent) == 1
    assert Epoch.objects.count() == 0


def test_start_goes_on_with_the_nodes_there_are_when_others_do_not_come(service, redis_client):
    redis_client.delete(wire.agent_key("loc3-a100"))
    tasks.bootstrap(attempt=tasks.BOOTSTRAP_PATIENCE)
    assert epochs.has_plan(service)


def test_site_is_left_out_when_its_feed_has_no_value(service, now):
    site = service.pools.first().site
    for feed in CarbonFeed.objects.filter(site=site):
        points = list(feed.points.filter(end_at__gt=now))
        CarbonPoint.objects.bulk_create(
            CarbonPoint(
                feed=feed,
                start_at=p.start_at,
                end_at=p.end_at,
                value_g_per_kwh=None,
                raw_unit=p.raw_unit,
                forecast=p.forecast,
                issued_at=now + timedelta(seconds=1),
            )
            for p in points
        )
    epoch = epochs.run(service, Loop.CARBON, now)
    inputs = epoch.decisions.get(kind="carbon").inputs
    assert next(s for s in inputs["sites"] if s["name"] == site.name)["intensity_g_per_kwh"] == [None] * 6
    assert not Pool.objects.filter(site=site).exclude(gpu_budget={}).exists()
    assert Pool.objects.exclude(gpu_budget={}).exists()


def test_node_is_not_counted_when_its_agent_is_silent(service, redis_client, now):
    redis_client.delete(wire.agent_key("loc2-a100-8"), wire.agent_key("loc3-a100"))
    Node.objects.filter(name="loc2-a100-4").update(schedulable=False)
    inputs = epochs.run(service, Loop.CARBON, now).decisions.get(kind="carbon").inputs
    gpus = {site["name"]: site["gpus"] for site in inputs["sites"]}
    assert gpus == {
        "location-1": {"A100-80GB": 4, "H100-SXM-80GB": 4},
        "location-2": {"H100-SXM-80GB": 2},
        "location-3": {},
    }


def test_plan_changes_without_restarts_when_the_partition_changes(service, redis_client, now):
    epochs.run(service, Loop.CARBON, now)
    report_all(redis_client, at=now + timedelta(seconds=60))
    service.refresh_from_db()
    other = service.partitions.exclude(pk=service.partition_id).get()
    before = set(Instance.objects.values_list("pk", flat=True))
    service.partitions.set([other])
    epoch = epochs.run(service, Loop.CARBON, now + timedelta(seconds=60))
    assert epoch.status == "applied"
    service.refresh_from_db()
    assert service.partition == other
    running = Instance.objects.filter(desired="running")
    bridges = running.exclude(pool__request_class__partition=other)  # until another of their class is ready
    assert bridges.count() < running.count()
    routable = {pool.id for pool in published_fleet().services[0].pools}
    assert routable >= set(running.values_list("pool_id", flat=True))
    assert before & set(running.filter(state="ready").values_list("pk", flat=True))
    assert published_fleet().services[0].partition == other.name


def test_gpus_are_released_when_the_agent_no_longer_lists_a_draining_instance(service, redis_client, now):
    pool = service.pools.first()
    node = Node.objects.get(cluster__site=pool.site, name="loc1-a100")
    instance = start_instance(pool, node, tp=4)
    report_all(redis_client)
    tasks.publish()
    instance.refresh_from_db()
    assert instance.desired == "draining"
    assert desired(redis_client, "loc1-a100").instances[0].state == "draining"
    report(redis_client, "loc1-a100", [instance])
    tasks.publish()
    assert InstanceGpu.objects.filter(released_at__isnull=True).count() == 4
    report(redis_client, "loc1-a100", [], error="the simulated node does not answer")
    tasks.publish()
    assert InstanceGpu.objects.filter(released_at__isnull=True).count() == 4
    report(redis_client, "loc1-a100", [])
    tasks.publish()
    instance.refresh_from_db()
    assert (instance.state, instance.desired) == ("stopped", "stopped")
    assert InstanceGpu.objects.filter(released_at__isnull=True).count() == 0
    assert desired(redis_client, "loc1-a100").instances == []


def test_start_follows_when_the_gpus_it_waits_for_are_free(service, redis_client, now):
    cell = service.partition.classes.get(name="LL")
    pool = service.pools.get(site__name="location-3", request_class=cell)
    old = [start_instance(pool, Node.objects.get(name="loc3-a100"), tp=4) for _ in range(2)]
    Node.objects.exclude(name="loc3-a100").update(schedulable=False)  # else another one serves there meanwhile
    Pool.objects.filter(pk=pool.pk).update(gpu_budget={"A100-80GB": 8}, workers={"A100-80GB/TP8": 1})
    report_all(redis_client)
    tasks.publish()
    assert Instance.objects.filter(desired="draining").count() == 2
    assert not Instance.objects.filter(tp=8).exists()
    report(redis_client, "loc3-a100", old[:1])
    tasks.publish()
    assert not Instance.objects.filter(tp=8).exists()
    report(redis_client, "loc3-a100", [])
    tasks.publish()
    assert Instance.objects.get(tp=8).gpu_holds.count() == 8


def test_snapshot_for_the_gateway_is_whole_when_published(service, redis_client, now, tmp_path):
    found = demo.ensure_demo_credentials(tmp_path)
    epochs.run(service, Loop.CARBON, now)
    published = published_fleet()
    item = published.services[0]
    assert (item.name, item.model, item.max_model_len) == ("llama3-70b", "Llama3-70B", 16384)
    assert (item.objectives.ttft_s, item.objectives.tpot_s, item.objectives.e2e_s) == (2.0, 0.15, 60.0)
    assert [c.name for c in item.classes] == ["SS", "SL", "LS", "LL"]
    assert len(item.pools) == 12
    assert {p.site for p in item.pools} == {"location-1", "location-2", "location-3"}
    assert all(p.intensity_g_per_kwh is None or p.intensity_g_per_kwh > 100 for p in item.pools)
    assert len(published.keys) == len(found["api_keys"]) == 4
    assert len(published.nodes) == 6


def test_key_is_not_published_when_revoked_or_expired(service, redis_client, now, tmp_path):
    demo.ensure_demo_credentials(tmp_path)
    from pools.models import ApiKey

    ApiKey.objects.filter(tenant__name="acme").update(revoked_at=now)
    ApiKey.objects.filter(tenant__name="birch").update(expires_at=now - timedelta(seconds=1))
    publish.publish(redis_client, now)
    assert {key.tenant for key in published_fleet().keys} == {"cobalt", "dune"}


def test_desired_instance_carries_what_clocks_act_at_when_published(service, redis_client, now):
    """Of each limit the policy's share, or the class's threshold where that is tighter."""
    slo = Limits(**{f"{own.kind}_s": own.objective_s for own in service.slos.all()})
    tighter = set()
    epochs.run(service, Loop.CARBON, now)
    for node in Node.objects.all():
        for item in desired(redis_client, node.name).instances:
            cell = Pool.objects.get(pk=item.pool_id).request_class
            kept = [
                min(0.8 * objective, threshold)
                for objective, threshold in zip(astuple(slo), astuple(cell.thresholds), strict=True)
            ]
            assert item.limits == wire.LatencyLimits(*kept)
            tighter |= {own < 0.8 * objective for own, objective in zip(kept, astuple(slo), strict=True)}
            assert (item.clock.ttft_share, item.clock.tpot_share) == (0.8, 0.8)
            assert item.max_model_len == 16384
            assert all(uuid.startswith(f"SIM-{node.name}-") for uuid in item.gpu_uuids)
    assert tighter == {True, False}


def test_fleet_starts_at_once_when_the_worker_is_up(service, redis_client):
    tasks.bootstrap()
    assert {e.kind for e in Epoch.objects.all()} == {"carbon", "scale", "shard"}
    assert epochs.has_plan(service)
    count = Epoch.objects.count()
    tasks.bootstrap()
    assert Epoch.objects.count() == count


def test_decisions_are_joined_with_what_happened_when_their_horizon_has_passed(service, redis_client, now):
    at = moment(int(now.timestamp()) // 60 * 60.0)
    epoch = epochs.run(service, Loop.CARBON, at)
    decision = epoch.decisions.get(kind="carbon")
    instance = Instance.objects.first()
    gpu = instance.gpu_holds.first().gpu
    for cell in range(-1, 7):
        EnergyEntry.objects.create(
            gpu=gpu,
            site=instance.pool.site,
            pool=instance.pool,
            instance_id=instance.pk,
            start_at=at + timedelta(seconds=10 * cell),
            end_at=at + timedelta(seconds=10 * cell + 10),
            kind="serving",
            energy_uj=1_000_000_000,
            carbon_gco2e=0.5,
        )
    requests_came(at + timedelta(seconds=60), count=30, over_s=60)
    assert realised_figures.fill(at + timedelta(seconds=60)) == 0
    assert realised_figures.fill(at + timedelta(seconds=120)) >= 1
    decision.refresh_from_db()
    assert decision.realised["energy_j"] == pytest.approx(6000.0)
    assert decision.realised["mean_power_w"] == pytest.approx(100.0)
    assert decision.realised["carbon_gco2e"] == pytest.approx(3.0)
    assert decision.realised["requests"] == 30
    assert decision.realised["slo_attainment"] is None
    assert realised_figures.fill(at + timedelta(seconds=180)) == 0


def test_carbon_stays_unknown_when_a_part_of_it_is(service, redis_client, now):
    at = moment(int(now.timestamp()) // 60 * 60.0)
    decision = epochs.run(service, Loop.CARBON, at).decisions.get(kind="carbon")
    instance = Instance.objects.first()
    gpus = [one.gpu for one in instance.gpu_holds.all()]
    for gpu, grams in zip(gpus, [0.5, None], strict=False):
        EnergyEntry.objects.create(
            gpu=gpu,
            site=instance.pool.site,
            pool=instance.pool,
            start_at=at,
            end_at=at + timedelta(seconds=10),
            kind="serving",
            energy_uj=1_000_000_000,
            carbon_gco2e=grams,
        )
    assert realised_figures.outcome(decision, at, at + timedelta(seconds=60))["carbon_gco2e"] is None


def test_clock_decision_is_stored_once_when_its_batch_comes_twice(service, now):
    instance = start_instance(service.pools.first(), Node.objects.get(name="loc1-a100"), tp=2)
    rows = [
        wire.ClockDecision(now.timestamp(), str(instance.uid), "slack", "Down", 1410.0, 1310.0, 0, {"waiting": 0}),
        wire.ClockDecision(now.timestamp(), str(instance.uid), "at_limit", "Held", 210.0, 210.0, 30, {"waiting": 0}),
        wire.ClockDecision(now.timestamp(), "not-a-uid", "slack", "Down", 1410.0, 1310.0, 0, {}),
    ]
    for _ in range(2):
        clock_decisions.store(rows, "loc1-a100", "boot-1", 7)
    found = list(Decision.objects.filter(kind="clock").order_by("source_key"))
    assert [d.source_key for d in found] == [f"loc1-a100/boot-1/7/{n}" for n in range(3)]
    assert [d.held for d in found] == [0, 30, 0]
    assert found[0].commands == [{"type": "SetSmClock", "instance": str(instance.uid), "mhz": 1310.0}]
    assert found[1].commands == []
    assert (found[0].pool_id, found[0].service_id) == (instance.pool_id, service.pk)
    assert found[2].instance_uid is None


def test_heartbeat_is_left_when_a_worker_publishes(service, redis_client):
    tasks.publish()
    beat = wire.decode(redis_client.get(wire.alive_key("epochs")), wire.Heartbeat)
    assert beat.process == "epochs"
    assert redis_client.ttl(wire.alive_key("epochs")) > 0


def test_declared_load_is_planned_for_when_no_request_was_ever_made(service, now):
    epochs.run(service, Loop.CARBON, now)
    for partition in Decision.objects.get(kind="carbon").inputs["partitions"]:
        demand = {cell["name"]: cell["demand_rps"] for cell in partition["classes"]}
        assert demand.pop("LS") == [5.0] * 6
        assert {max(rates) for rates in demand.values()} == {0.0}


def test_slower_loops_run_first_when_periods_end_together(service, now, monkeypatch):
    monkeypatch.setattr(tasks, "timezone", SimpleNamespace(now=lambda: now))  # else a period may end in between
    epochs.run(service, Loop.CARBON, now - timedelta(hours=1))  # a plan is in force
    Epoch.objects.all().delete()
    tasks.run_epochs("shard")
    kinds = list(Epoch.objects.order_by("pk").values_list("kind", flat=True))
    assert kinds == ["carbon", "scale", "shard"]
    tasks.run_epochs("scale")
    assert Epoch.objects.count() == 3
