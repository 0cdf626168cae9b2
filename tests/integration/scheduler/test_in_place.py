"""One instance changes its TP degree: in rows, at its agent, in its simulated engine, while a stream runs through."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from contextlib import closing
from datetime import timedelta

import pytest
from django.utils import timezone

from core.types import ChangeKind, Loop
from pools.agent.devices.sim import SimEngineControl, SimFrequencyActuator, SimGpuMeter, SimInstanceRuntime
from pools.agent.http_client import HttpClient
from pools.agent.loop import AgentLoop
from pools.agent.vllm.vllm_metrics import VllmMetrics
from pools.models import Instance, InstanceGpu, Node, Service
from scheduler.control import epochs, service_policy
from scheduler.control.apply import apply
from scheduler.control.apply.desired_messages import desired_nodes
from scheduler.control.snapshot import measured_overheads
from scheduler.models import Decision
from telemetry.ingest.agent_batches import SampleWriter
from telemetry.storage import time_partitions
from tests.fakes.house import report_all, requests_came, second_service, start_instance
from tests.fakes.node import FakeLink
from tests.fakes.simnode import SimnodeProcess, eventually

pytestmark = pytest.mark.django_db
NODE, MODE4, MODE8 = "loc3-a100", "A100-80GB/TP4", "A100-80GB/TP8"
MODEL = "Llama3-70B"
SPEEDUP = 100.0


@pytest.fixture
def pool(demo_rows):
    """Of a service whose policy changes TP degrees in place."""
    service = Service.objects.get()
    service.policy, service.knobs = "scale_shard", {"partition": service.partition.name}
    service.save()
    return service.pools.filter(site__name="location-3", request_class__partition=service.partition).last()


def place(pool, workers, decisions=None):
    pool.workers = workers
    pool.save(update_fields=["workers"])
    return apply.apply_placement(pool.service, {NODE}, decisions or {})


def held(instance):
    return set(InstanceGpu.objects.filter(instance=instance, released_at=None).values_list("gpu__uuid", flat=True))


def message():
    return next(node for node in desired_nodes(timezone.now(), 1) if node.node == NODE)


class Live:
    """A simulated node as a process, its agent's loop, and what the ingester makes of its batches."""

    def __init__(self, folder):
        self.simnode = SimnodeProcess(folder, NODE, ("A100-80GB:8",), SPEEDUP).start()
        self._client, self._metrics = HttpClient(self.simnode.url, 2.0), VllmMetrics()
        self.agent()
        self._writer, self._written = SampleWriter(lambda *_: None), 0

    def agent(self):
        """Starts an agent anew: it knows nothing of what the last one did."""
        self._metrics.close()
        self.link, self._metrics = FakeLink(), VllmMetrics()
        self._loop = AgentLoop(
            NODE,
            f"boot-{time.time()}",
            meter=SimGpuMeter(self._client),
            actuator=SimFrequencyActuator(self._client),
            runtime=SimInstanceRuntime(self._client),
            control=SimEngineControl(self._client),
            metrics=self._metrics,
            link=self.link,
        )
        self._written = 0

    def tick(self):
        self.link.desired_node = message()
        state = self._loop.tick(time.time())
        self._writer.write(self.link.batches[self._written :])
        self._written = len(self.link.batches)
        return {one.uid: one for one in state.instances}

    def until(self, condition, what):
        return eventually(lambda: condition(self.tick()), 4.0, what)

    def close(self):
        self._metrics.close()
        self._client.close()
        self.simnode.stop()


@pytest.fixture
def live(tmp_path, demo_rows):
    time_partitions.ensure({timezone.now().date()})
    with closing(Live(tmp_path)) as found:
        yield found


def started(live, pool, workers):
    place(pool, workers)
    live.until(lambda states: states and all(one.state == "ready" for one in states.values()), "engines that are ready")
    return Instance.objects.exclude(state="stopped").get()


def stream(url, texts, tokens):
    body = {"model": MODEL, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        texts += [json.loads(line[6:])["choices"][0]["text"] for line in answer if line.startswith(b"data: {")]


def test_one_instance_has_another_tp_degree_while_a_stream_runs_through(live, pool):
    one = started(live, pool, {MODE4: 1})
    before = live.tick()[str(one.uid)]
    assert (before.tp, before.reshards, one.reshards) == (4, True, True)
    texts: list[str] = []
    client = threading.Thread(target=stream, args=(before.url, texts, 40))
    client.start()
    live.until(lambda states: states[str(one.uid)].running, "the stream")
    decided_at = timezone.now()
    decision = decided(pool, decided_at, (4,), (8,))
    place(pool, {MODE8: 1}, {pool.pk: decision.pk})
    one.refresh_from_db()
    assert (one.tp, len(held(one)), one.resharded_at) == (8, 8, None)
    after = live.until(lambda states: (own := states[str(one.uid)]).tp == 8 and own, "TP8")
    live.tick()
    one.refresh_from_db()
    assert (after.url, after.state, one.desired) == (before.url, "ready", "running")
    assert Instance.objects.exclude(state="stopped").count() == 1
    (status,) = live.simnode.get("/instances")
    assert (status["uid"], set(status["gpu_uuids"])) == (str(one.uid), held(one))
    client.join(10.0)
    assert len(texts) == 40
    assert decided_at < one.resharded_at <= timezone.now()
    ((change, took_s),) = measured_overheads.table(pool.service, timezone.now()).seconds.items()
    assert change == f"re-shard of {MODEL} on A100-80GB from TP4 to TP8"  # and no start at the degree that it has now
    assert took_s == pytest.approx((one.resharded_at - decision.at).total_seconds())


@pytest.mark.slow("a node starts twice")
def test_engine_starts_at_its_new_degree_when_its_node_dies_on_the_way(live, pool):
    one = started(live, pool, {MODE4: 1})
    place(pool, {MODE8: 1})
    live.tick()
    live.simnode.kill()
    live.simnode.start()
    live.agent()
    state = live.until(
        lambda states: (own := states.get(str(one.uid))) and own.state == "ready" and own, "an engine that is ready"
    )
    (status,) = live.simnode.get("/instances")
    assert (state.tp, set(status["gpu_uuids"])) == (8, held(one))


def test_agent_that_comes_anew_lets_the_change_go_on(live, pool):
    one = started(live, pool, {MODE4: 1})
    place(pool, {MODE8: 1})
    live.tick()
    live.agent()
    live.until(lambda states: states[str(one.uid)].tp == 8, "TP8")
    assert live.simnode.log().count("goes from TP4 to TP8") == 1


def test_gpus_that_an_instance_gives_back_are_free_and_it_may_have_them_again(pool):
    one = start_instance(pool, Node.objects.get(name=NODE), tp=8)
    Instance.objects.filter(pk=one.pk).update(reshards=True)
    every = held(one)
    place(pool, {MODE4: 1})
    one.refresh_from_db()
    assert one.tp == len(held(one)) == 4
    assert {item.uid: set(item.gpu_uuids) for item in message().instances} == {str(one.uid): held(one)}
    place(pool, {MODE4: 2})
    other = Instance.objects.latest("pk")
    assert held(one) | held(other) == every
    Instance.objects.filter(pk=other.pk).update(state="ready", reshards=True)
    place(pool, {MODE8: 1})
    gone, kept = Instance.objects.get(desired="draining"), Instance.objects.get(desired="running")
    assert (kept.tp, gone.tp) == (4, 4)  # it serves on until the other has ended
    InstanceGpu.objects.filter(instance=gone).update(released_at=timezone.now())
    Instance.objects.filter(pk=gone.pk).update(state="stopped", desired="stopped")
    place(pool, {MODE8: 1})
    kept.refresh_from_db()
    assert (kept.tp, held(kept)) == (8, every)


def test_instances_end_and_start_when_the_engine_or_the_policy_cannot_change_in_place(pool):
    one = start_instance(pool, Node.objects.get(name=NODE), tp=8)
    place(pool, {MODE4: 1})
    one.refresh_from_db()
    assert (one.tp, one.desired, one.reshard_at) == (8, "draining", None)
    Instance.objects.filter(pk=one.pk).update(desired="running", reshards=True)
    pool.service.policy, pool.service.knobs = "greenserve", {}
    pool.service.save()
    place(pool, {MODE4: 1})
    one.refresh_from_db()
    assert (one.tp, one.desired) == (8, "draining")


@pytest.mark.parametrize(
    ("change", "key"), [("restart", "restart of {} on A100-80GB from TP8 to TP4"), ("shadow", None), (None, None)]
)
def test_restart_is_measured_from_its_decision_to_the_last_start(pool, change, key):
    decision = decided(pool, timezone.now(), (8,), (4,), change)
    new = start_instance(pool, Node.objects.get(name=NODE), tp=4)
    ready_at = decision.at + timedelta(seconds=50)
    Instance.objects.filter(pk=new.pk).update(decision_id=decision.pk, created_at=decision.at, ready_at=ready_at)
    found = measured_overheads.table(pool.service, timezone.now()).seconds
    restarts = {name: took_s for name, took_s in found.items() if not name.startswith("warm start")}
    assert restarts == ({key.format(MODEL): 50.0} if key else {})


def decided(pool, at, source, target, change=ChangeKind.IN_PLACE.value):
    command = {"type": "ReshardNode", "gpu": "A100-80GB", "source": source, "target": target, "change": change}
    return Decision.objects.create(kind=Loop.SHARD, service=pool.service, pool=pool, at=at, commands=[command])


def test_epoch_of_the_full_program_changes_instances_in_place(new_service, redis_client, now):
    """Eq. 1 with all clocks, live: a server gets another mix, and an instance of it another TP degree."""
    service = second_service("scale_shard")
    service_policy.change(
        service, "scale_shard", {"partition": "whole", "tuning": {"dynamo": {"clocks": "all", "wave": 1}}}
    )
    service.refresh_from_db()
    for loop in (Loop.CARBON, Loop.SCALE):
        epochs.run(service, loop, now)
    report_all(redis_client)
    Instance.objects.update(reshards=True)
    before = dict(Instance.objects.filter(desired="running").values_list("uid", "tp"))
    requests_came(now, count=30, over_s=100, service=service.name)
    epoch = epochs.run(service, Loop.SHARD, now)
    decided_on = [one for one in epoch.decisions.all() if any(c["type"] == "ReshardNode" for c in one.commands)]
    commands = [one for decision in decided_on for one in decision.commands if one["type"] == "ReshardNode"]
    assert {one.inputs["clocks"] for one in decided_on} == {"all"}
    assert {(one["change"], one["measured"]) for one in commands} == {("in_place", False)}
    turned = Instance.objects.filter(reshard_at__isnull=False)
    assert turned
    assert {one.decision_id for one in turned} <= {one.pk for one in decided_on}
    assert all(before[one.uid] != one.tp and one.tp == len(held(one)) for one in turned)
