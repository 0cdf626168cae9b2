"""From the streams into the tables: each row once, whatever happens in between."""

import math
import struct
import threading
import time
from datetime import UTC, datetime

import msgspec
import psycopg
import pytest
import redis
from django.db import DatabaseError, DataError, IntegrityError, OperationalError, connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools import wire
from pools.models import Gpu, Instance, Node, Service, Slo
from scheduler.control import clock_decisions
from scheduler.models import Decision
from telemetry.ingest import ingester as ingest
from telemetry.ingest import request_records
from telemetry.ingest.agent_batches import SampleWriter
from telemetry.ingest.ingester import Ingester
from telemetry.models import DeadRow, GpuSample, IngestedBatches, InstanceSample, RequestRecord
from tests.fakes.house import batch, gpu_row, instance_row, request_row, send, start_instance

pytestmark = pytest.mark.django_db
GPU = "SIM-loc1-a100-0"


@pytest.fixture(scope="module")
def instance_rows(demo_rows):
    start_instance(Service.objects.get().pools.first(), Node.objects.get(name="loc1-a100"), tp=2, state="pending")


@pytest.fixture
def instance(instance_rows, redis_client):
    return Instance.objects.get()


@pytest.fixture
def ingester(redis_client, instance):
    return new_ingester(redis_client)


def new_ingester(client):
    made = Ingester(client, clock_decisions.store)
    made.ensure_groups()
    return made


def drain(ingester):
    """Reads until nothing is left, what was pending included."""
    for _ in range(20):
        looked_for_new = not ingester._pending
        if not ingester.step(block_ms=1) and looked_for_new:
            return
    raise AssertionError("the ingester does not come to an end")


def backlog(client):
    pending = client.xpending(wire.BATCH_STREAM, wire.INGEST_GROUP)["pending"]
    return client.xlen(wire.BATCH_STREAM) + client.xlen(wire.REQUEST_STREAM) + pending


def test_rows_are_stored_and_the_stream_is_emptied_when_batches_arrive(ingester, instance, redis_client):
    now = time.time()
    uid = str(instance.uid)
    send(
        redis_client,
        wire.BATCH_STREAM,
        batch(
            1,
            [gpu_row(GPU, now, 12.5, power_w=300.0, instance_uid=uid, instance_state="ready", running=3)],
            [instance_row(uid, now, "ready", running=3, url="http://127.0.0.1:9", detail="warm", start="cold")],
            [wire.ClockDecision(now, uid, "slack", "Down", 1410.0, 1310.0, 0, {})],
        ),
    )
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("gateway", "b", 1, [request_row(now), request_row(now)]))
    drain(ingester)
    sample = GpuSample.objects.get()
    assert (sample.gpu.uuid, sample.energy_j, sample.power_w, sample.instance_id, sample.running) == (
        GPU,
        12.5,
        300.0,
        instance.pk,
        3,
    )
    assert sample.temperature_c is None
    assert InstanceSample.objects.get().instance_id == instance.pk
    assert RequestRecord.objects.count() == 2
    assert Decision.objects.get().source_key == "loc1-a100/boot-1/1/0"
    instance.refresh_from_db()
    assert (instance.state, instance.url, instance.detail) == ("ready", "http://127.0.0.1:9", "warm")
    assert instance.ready_at is not None
    assert instance.start_kind == "cold"
    assert backlog(redis_client) == 0


def test_waking_is_over_when_the_agent_says_ready_for_the_first_time_since_it_was_asked(
    ingester, instance, redis_client
):
    now, uid = math.floor(time.time()), str(instance.uid)
    for number, (at_s, state) in enumerate([(now - 9, "ready"), (now - 8, "sleeping")], start=1):
        send(redis_client, wire.BATCH_STREAM, batch(number, [], [instance_row(uid, at_s, state)]))
        drain(ingester)
    instance.refresh_from_db()
    assert instance.woken_at is None, "nobody asked it to wake"
    Instance.objects.filter(pk=instance.pk).update(wake_asked_at=datetime.fromtimestamp(now - 5, UTC))
    for number, (at_s, state) in enumerate([(now - 4, "starting"), (now - 3, "ready"), (now - 2, "ready")], start=3):
        send(redis_client, wire.BATCH_STREAM, batch(number, [], [instance_row(uid, at_s, state)]))
        drain(ingester)
    instance.refresh_from_db()
    assert (instance.woken_at - instance.wake_asked_at).total_seconds() == 2.0


def test_nodes_own_stream_is_read_from_when_the_node_is_there(ingester, instance, redis_client):
    node = Node.objects.create(cluster=Node.objects.first().cluster, name="late")
    Gpu.objects.create(
        node=node, uuid="GPU-late", index=0, gpu_type="A100-80GB", memory_gb=80, min_mhz=210, max_mhz=1410, tdp_w=400
    )
    ingester.ensure_groups()
    samples = wire.GpuSamples.pack([gpu_row("GPU-late", time.time())])
    send(redis_client, wire.batch_stream("late"), wire.AgentBatch("late", "b", 1, time.time(), samples))
    send(redis_client, wire.batch_stream("loc1-a100"), batch(1, [gpu_row(GPU, time.time())]))
    drain(ingester)
    assert {sample.gpu.uuid for sample in GpuSample.objects.all()} == {GPU, "GPU-late"}
    assert redis_client.xlen(wire.batch_stream("late")) == 0
    Gpu.objects.filter(node=node).update(node=Node.objects.get(name="loc1-a100"), index=99)
    node.delete()
    ingester.ensure_groups()
    ingester._streams = (*ingester._streams, wire.batch_stream("late"))
    ingester._follow_nodes()
    assert not redis_client.exists(wire.batch_stream("late"))


def test_batch_is_refused_when_it_is_of_another_node_than_its_stream(ingester, instance, redis_client):
    other = Node.objects.exclude(name="loc1-a100").first().name
    send(redis_client, wire.batch_stream(other), batch(1, [gpu_row(GPU, time.time())]))
    drain(ingester)
    assert not GpuSample.objects.exists()
    assert not IngestedBatches.objects.exists(), "else the node's own batch of that number would be taken for known"
    assert "of 'loc1-a100', whose stream this is not" in DeadRow.objects.get().why


def test_rows_are_set_aside_when_a_node_reports_what_other_nodes_have(ingester, instance, redis_client):
    now, other = time.time(), Node.objects.exclude(name="loc1-a100").filter(gpus__isnull=False).first()
    own = other.gpus.first().uuid
    samples = wire.GpuSamples.pack(
        [gpu_row(GPU, now), gpu_row(own, now), gpu_row(own, now + 1, instance_uid=str(instance.uid))]
    )
    states = [instance_row(str(instance.uid), now, "failed", detail="forged"), instance_row("of-nobody", now)]
    clocks = [wire.ClockDecision(now, str(instance.uid), "slack", "Down", 1410.0, 1310.0, 0, {})]
    for seq in (1, 2):  # the second by what was looked up for the first
        forged = wire.AgentBatch(other.name, "b", seq, now, samples, states, clocks)
        send(redis_client, wire.batch_stream(other.name), forged)
        drain(ingester)
    assert {sample.gpu.uuid for sample in GpuSample.objects.all()} == {own}
    assert GpuSample.objects.count() == 2
    instance.refresh_from_db()
    assert instance.detail != "forged"
    assert not Decision.objects.exists()
    assert [(row.rows, row.why) for row in DeadRow.objects.all()] == [(4, f"GPU {GPU} is not of this node")] * 2


def test_nothing_is_added_when_the_same_batch_comes_twice(ingester, instance, redis_client):
    now = time.time()
    message = batch(1, [gpu_row(GPU, now)], [instance_row(str(instance.uid), now)])
    rows = wire.RequestBatch("gateway", "b", 1, [request_row(now, request_id="one")])
    for _ in range(2):
        send(redis_client, wire.BATCH_STREAM, message)
        send(redis_client, wire.REQUEST_STREAM, rows)
        drain(ingester)
    for _ in range(2):
        send(redis_client, wire.BATCH_STREAM, message)  # twice within one read, too
    drain(ingester)
    assert (GpuSample.objects.count(), InstanceSample.objects.count(), RequestRecord.objects.count()) == (1, 1, 1)
    assert backlog(redis_client) == 0


def test_nothing_is_lost_or_doubled_when_killed_between_commit_and_acknowledgement(
    ingester, instance, redis_client, monkeypatch
):
    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, time.time())]))
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("g", "b", 1, [request_row()]))

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    ingester.step(block_ms=1)  # nothing was pending
    with monkeypatch.context() as patch:
        patch.setattr(ingester, "_acknowledge", die)
        with pytest.raises(Killed):
            ingester.step(block_ms=1)
    assert GpuSample.objects.count() == 1
    assert backlog(redis_client) > 0
    drain(new_ingester(redis_client))
    assert (GpuSample.objects.count(), RequestRecord.objects.count()) == (1, 1)
    assert backlog(redis_client) == 0


def test_nothing_is_lost_when_killed_before_the_commit(ingester, instance, redis_client, monkeypatch):
    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, time.time())]))
    ingester.step(block_ms=1)
    with monkeypatch.context() as patch:
        patch.setattr(request_records, "insert", lambda *_: (_ for _ in ()).throw(OperationalError("gone")))
        with pytest.raises(OperationalError):
            ingester.step(block_ms=1)
    assert not IngestedBatches.objects.exists()
    drain(new_ingester(redis_client))
    assert GpuSample.objects.count() == 1


def test_newest_state_stands_when_batches_come_out_of_order(ingester, instance, redis_client):
    now, uid = time.time(), str(instance.uid)
    send(redis_client, wire.BATCH_STREAM, batch(2, [], [instance_row(uid, now, "ready", url="http://new")]))
    drain(ingester)
    send(redis_client, wire.BATCH_STREAM, batch(1, [], [instance_row(uid, now - 1, "starting", url=None)]))
    drain(ingester)
    instance.refresh_from_db()
    assert (instance.state, instance.url) == ("ready", "http://new")
    assert InstanceSample.objects.count() == 2


def test_stopped_instance_stays_stopped_when_a_late_report_comes(ingester, instance, redis_client):
    Instance.objects.update(state="stopped", desired="stopped")
    send(redis_client, wire.BATCH_STREAM, batch(1, [], [instance_row(str(instance.uid), time.time(), "ready")]))
    drain(ingester)
    instance.refresh_from_db()
    assert (instance.state, instance.ready_at) == ("stopped", None)


def test_known_rows_are_kept_when_others_are_unknown(ingester, instance, redis_client):
    now = time.time()
    rows = [gpu_row(GPU, now), gpu_row("GPU-of-nobody", now), gpu_row(GPU, now + 1, instance_uid="of-nobody")]
    send(redis_client, wire.BATCH_STREAM, batch(1, rows, [instance_row("of-nobody", now)]))
    drain(ingester)
    assert list(GpuSample.objects.order_by("at").values_list("instance_id", flat=True)) == [None, None]
    assert ingester._rows.samples.unknown == {"GPU": 1, "instance": 1}
    assert not DeadRow.objects.exists()


@given(reads=st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 12)), max_size=15), max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_batch_is_in_once_when_reads_overlap_and_repeat_in_any_order(db, reads):
    IngestedBatches.objects.all().delete()
    writer, taken = SampleWriter(lambda *_: None), 0
    for read in reads:
        taken += writer.write(batch(seq, boot=boot) for boot, seq in read)
    asked = {key for read in reads for key in read}
    assert taken == len(asked)
    kept = dict(IngestedBatches.objects.values_list("boot", "seqs"))
    assert {(boot, n) for boot, found in kept.items() for one in found for n in range(one.lower, one.upper)} == asked


def test_rows_are_stored_when_batches_are_of_agents_of_other_versions(ingester, redis_client):
    now, of = time.time(), wire.GpuLabels([GPU], [None], [None])
    for seq, numbers in ((2, (now - 2, 2.5)), (3, (now - 1, 3.5, *[math.nan] * 6, 42.0))):
        samples = wire.GpuSamples(msgspec.msgpack.encode(of), struct.pack(f"<{len(numbers)}d", *numbers))
        send(redis_client, wire.BATCH_STREAM, wire.AgentBatch("other", "b", seq, now, samples))
    drain(ingester)
    found = GpuSample.objects.order_by("at").values_list("energy_j", "power_w", "running")
    assert list(found) == [(2.5, None, None), (3.5, None, None)]


def samples(numbers, states=(None,)):
    """A batch whose samples are as they should not be."""
    labels = msgspec.msgpack.encode({"gpu_uuids": [GPU], "instance_uids": [None], "instance_states": list(states)})
    made = {"agent": "a", "boot": "b", "seq": 1, "sent_at_s": 0.0, "gpus": {"labels": labels, "numbers": numbers}}
    return msgspec.msgpack.encode(made)


BAD = [
    (wire.BATCH_STREAM, b"\x81", "truncated"),
    (wire.BATCH_STREAM, msgspec.msgpack.encode({"agent": 3}), r"\$.agent"),
    (wire.BATCH_STREAM, wire.encode(batch(1, [gpu_row(GPU, 0.0)])), "not of the last 14 days"),
    (wire.BATCH_STREAM, wire.encode(batch(1, [gpu_row(GPU, 9e9)])), "is a clock wrong"),
    (wire.BATCH_STREAM, wire.encode(batch(2**63, [])), ""),
    (wire.BATCH_STREAM, samples(struct.pack("<2d", math.nan, 1.0)), "time nan"),
    (wire.BATCH_STREAM, samples(bytes(12)), "12 bytes are not the numbers of 1 GPUs"),
    (wire.BATCH_STREAM, samples(struct.pack("<2d", time.time(), 1.0), states=[]), "0 values for 1 GPUs"),
    (wire.BATCH_STREAM, samples(struct.pack("<2d", time.time(), 1.0), states=["x" * 11]), "too long"),
    (wire.REQUEST_STREAM, b'{"gateway": "g", "boot": "b", "seq": 1, "rows": [{}]}', "missing required field"),
    (wire.REQUEST_STREAM, wire.encode(wire.RequestBatch("g", "b", 1, [request_row(status="fine")])), "unknown status"),
    (wire.REQUEST_STREAM, wire.encode(wire.RequestBatch("g", "b", 1, [request_row(request_id="")])), "request id"),
    (wire.REQUEST_STREAM, wire.encode(wire.RequestBatch("g", "b", 1, [request_row(instance_uid="x")])), "not a uid"),
    (wire.REQUEST_STREAM, wire.encode(wire.RequestBatch("g", "b", 1, [request_row(attempts=-1)])), "check"),
    (wire.REQUEST_STREAM, wire.encode(wire.RequestBatch("g", "b", 1, [request_row(max_tokens=2**40)])), "range"),
]


@pytest.mark.parametrize(("stream", "data", "why"), BAD)
def test_message_is_put_aside_and_the_others_stored_when_one_is_bad(ingester, redis_client, stream, data, why):
    import re

    send(redis_client, wire.BATCH_STREAM, batch(50, [gpu_row(GPU, time.time())]))
    redis_client.xadd(stream, {"b": data})
    send(redis_client, wire.BATCH_STREAM, batch(51, [gpu_row(GPU, time.time())]))
    drain(ingester)
    assert GpuSample.objects.count() == 2
    aside = DeadRow.objects.get()
    assert aside.stream == stream
    assert re.search(why, aside.why, re.IGNORECASE)
    assert aside.kind != "message" or bytes(aside.body) == data
    assert backlog(redis_client) == 0


def test_text_is_cut_and_cleaned_when_the_database_would_refuse_it(ingester, redis_client):
    row = request_row(error="x\0y" * 400, route_reason="z" * 300, adapter="a" * 200)
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("g", "b", 1, [row]))
    drain(ingester)
    record = RequestRecord.objects.get()
    assert record.error.startswith("xyxy")
    assert (len(record.error), len(record.route_reason), record.adapter) == (500, 200, "a" * 100)


def test_record_goes_to_its_day_when_it_comes_late(ingester, redis_client):
    late = time.time() - 9 * 86_400
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("g", "b", 1, [request_row(late)]))
    drain(ingester)
    assert RequestRecord.objects.get().started_at.timestamp() == pytest.approx(late, abs=1e-5)


JUDGED = [
    ({}, True, ""),
    ({"ttft_s": 2.1}, False, "ttft"),
    ({"ttft_s": 3.0, "e2e_s": 61.0}, False, "e2e,ttft"),
    ({"ttft_s": 2.0, "tpot_s": 0.15, "e2e_s": 60.0}, True, ""),
    ({"tpot_s": None}, True, ""),
    ({"ttft_s": None, "tpot_s": None, "e2e_s": None}, None, ""),
    ({"status": "client_error"}, None, ""),
    ({"status": "client_gone", "ttft_s": 9.0}, None, ""),
    ({"status": "upstream_error"}, False, "e2e,tpot,ttft"),
    ({"status": "timeout"}, False, "e2e,tpot,ttft"),
    ({"status": "rejected"}, False, "e2e,tpot,ttft"),
    ({"service": "unknown"}, None, ""),
]


@pytest.mark.parametrize(("values", "met", "failed"), JUDGED)
def test_request_is_judged_by_its_services_objectives_when_stored(ingester, redis_client, values, met, failed):
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("g", "b", 1, [request_row(**values)]))
    drain(ingester)
    record = RequestRecord.objects.get()
    assert (record.slo_met, record.slo_failed) == (met, failed)


def test_request_is_not_judged_when_its_service_has_no_objectives(ingester, redis_client):
    Slo.objects.all().delete()
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("g", "b", 1, [request_row()]))
    drain(ingester)
    assert RequestRecord.objects.get().slo_met is None


def test_loop_goes_on_when_postgresql_and_redis_were_away(ingester, redis_client, monkeypatch):
    """The loop's own course: failures are waited out, nothing is acknowledged before it is written."""
    monkeypatch.setattr(ingest, "BACK_OFF_S", (0.01,))
    monkeypatch.setattr(ingest, "GATHER_S", 0.01)
    monkeypatch.setattr(ingest.connection, "close", lambda: None)
    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, time.time())]))
    faults = iter([OperationalError("PostgreSQL is away"), redis.ConnectionError("Redis is away"), None])
    real, stop = ingester.step, threading.Event()

    def step():
        fault = next(faults, None)
        if fault:
            raise fault
        handled = real(block_ms=1)
        if GpuSample.objects.exists():
            stop.set()
        return handled

    monkeypatch.setattr(ingester, "step", step)
    ingester.run(stop)
    assert GpuSample.objects.count() == 1
    beat = wire.decode(redis_client.get(wire.alive_key("ingester")), wire.Heartbeat)
    assert beat.process == "ingester"


def test_groups_are_made_again_when_redis_forgot_them(ingester, redis_client, monkeypatch):
    monkeypatch.setattr(ingest, "BACK_OFF_S", (0.01,))
    monkeypatch.setattr(ingest.connection, "close", lambda: None)
    drain(ingester)
    redis_client.delete(wire.BATCH_STREAM, wire.REQUEST_STREAM)
    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, time.time())]))
    stop = threading.Event()
    real = ingester.step

    def step():
        handled = real(block_ms=1)
        if GpuSample.objects.exists():
            stop.set()
        return handled

    monkeypatch.setattr(ingester, "step", step)
    ingester.run(stop)
    assert GpuSample.objects.count() == 1


def test_message_is_kept_when_the_schema_is_not_there_yet(ingester, redis_client, monkeypatch):
    """A database that is not migrated says nothing about the message: it must not be put aside."""
    from django.db import ProgrammingError

    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, time.time())]))
    ingester.step(block_ms=1)
    with monkeypatch.context() as patch:
        patch.setattr(request_records, "insert", lambda *_: (_ for _ in ()).throw(ProgrammingError("no such table")))
        with pytest.raises(ProgrammingError):
            ingester.step(block_ms=1)
    assert not DeadRow.objects.exists()
    drain(new_ingester(redis_client))
    assert GpuSample.objects.count() == 1


def test_refused_value_is_the_databases_own_error_when_a_number_is_too_large():
    """What the dead-letter rule rests on: psycopg's data errors reach us as Django's DataError."""
    with pytest.raises(DataError) as caught, connection.cursor() as cursor:
        cursor.execute("SELECT %s::integer", [2**40])
    assert isinstance(caught.value.__cause__, psycopg.DataError)


@pytest.mark.parametrize("state", ["53100", "53200", "25006", "57014", "58030"])
def test_rows_wait_in_the_stream_and_are_stored_once_when_postgresql_cannot_write(ingester, redis_client, state):
    """A full disk, no memory, read-only, a statement's time limit, an I/O error: none is the rows' own fault."""
    now = time.time()
    ingester.step(block_ms=1)  # nothing is pending
    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, now, 1.0)]))
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("gw", "b", 1, [request_row(now)]))
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END $$"
        )
        cursor.execute("CREATE TRIGGER refuse BEFORE INSERT ON telemetry_requestrecord EXECUTE FUNCTION refuse()")
    for _ in range(2):
        with pytest.raises(DatabaseError) as refused:
            ingester.step(block_ms=1)
        assert not isinstance(refused.value, DataError | IntegrityError)
        ingester._pending = True  # as `run` goes on
        assert redis_client.xlen(wire.REQUEST_STREAM) == redis_client.xlen(wire.BATCH_STREAM) == 1
        assert not GpuSample.objects.exists()
        assert not DeadRow.objects.exists()
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER refuse ON telemetry_requestrecord")
    drain(ingester)
    assert RequestRecord.objects.count() == GpuSample.objects.count() == 1
    assert backlog(redis_client) == 0


def test_rows_are_stored_when_another_ingester_read_them_and_is_gone(ingester, redis_client, monkeypatch):
    drain(ingester)
    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, time.time())]))
    redis_client.xreadgroup(wire.INGEST_GROUP, ingest.CONSUMER, {wire.BATCH_STREAM: ">"})  # as that one did
    drain(ingester)
    assert GpuSample.objects.count() == 0, "it may be at work on them"
    monkeypatch.setattr(ingest, "CLAIM_EVERY_S", 0.0)
    monkeypatch.setattr(ingest, "CLAIM_AFTER_S", 0.0)
    ingester.step(block_ms=1)
    assert GpuSample.objects.count() == 1
    assert backlog(redis_client) == 0
