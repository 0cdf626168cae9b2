"""Rows that cannot be stored are set aside by row, shown with their reason, and stored when they are replayed."""

import json
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from click.testing import CliRunner

from greenserve.cli import cli
from pools import wire
from pools.models import AuditEntry, Instance
from scheduler.control import clock_decisions
from telemetry import tasks
from telemetry.alerts import alert_settings, upkeep_sources
from telemetry.ingest import dead_rows, replaying
from telemetry.ingest.ingester import Ingester
from telemetry.models import DeadRow, GpuSample, IngestedBatches, RequestRecord
from tests.fakes.house import batch, gpu_row, instance_row, request_row, send, start_instance

pytestmark = pytest.mark.django_db
GPU, OTHER = "SIM-loc1-a100-0", "SIM-loc1-a100-1"
TWO_HOURS_S = 7_200.0


@pytest.fixture
def ingester(demo_rows, redis_client):
    made = Ingester(redis_client, clock_decisions.store)
    made.ensure_groups()
    return made


def drain(ingester):
    while ingester._pending or ingester.step(block_ms=1):
        ingester.step(block_ms=1)


def later(monkeypatch, by_s):
    """Sets the clock of whoever stores rows."""
    from telemetry.ingest import row_writer

    moment = datetime.now(UTC) + timedelta(seconds=by_s)
    monkeypatch.setattr(row_writer.timezone, "now", lambda: moment)


def replay():
    return replaying.replay(DeadRow.objects.values_list("pk", flat=True), clock_decisions.store)


def test_44_records_are_stored_and_one_set_aside_when_one_of_45_is_of_the_future(ingester, redis_client):
    now = time.time()
    rows = [request_row(now - n, request_id=f"r{n}") for n in range(44)]
    rows.insert(20, request_row(now + TWO_HOURS_S, request_id="ahead"))
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("gateway", "b", 1, rows))
    drain(ingester)
    assert set(RequestRecord.objects.values_list("request_id", flat=True)) == {f"r{n}" for n in range(44)}
    row = DeadRow.objects.get()
    assert (row.kind, row.source, row.rows, row.stream) == ("request", "gateway", 1, wire.REQUEST_STREAM)
    assert "s ahead, not of the last 60 days: is a clock wrong?" in row.why
    assert [one.request_id for one in wire.decode(bytes(row.body), wire.RequestBatch).rows] == ["ahead"]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"request_id": "a\0b"}, "not text"),
        ({"max_tokens": 2**40}, "out of range"),
        ({"max_tokens": 2**70}, "out of range"),
        ({"status": 7}, "status"),
        ({"attempts": -1}, "check constraint"),
    ],
    ids=["nul", "too large", "beyond 64 bits", "wrong type", "below zero"],
)
def test_one_row_that_cannot_be_stored_takes_no_other_with_it(ingester, redis_client, bad, why):
    import re

    rows = [msgspec.to_builtins(request_row(time.time(), request_id=f"r{n}")) for n in range(3)]
    rows[1] |= bad
    body = json.dumps({"gateway": "gateway", "boot": "b", "seq": 1, "rows": rows}).encode()
    redis_client.xadd(wire.REQUEST_STREAM, {"b": body})
    drain(ingester)
    assert set(RequestRecord.objects.values_list("request_id", flat=True)) == {"r0", "r2"}
    assert re.search(why, DeadRow.objects.get().why)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"output_tokens": 10**15}, "1000000000000000 output tokens"),
        ({"prompt_tokens": 10**30}, f"{10**30} prompt tokens"),
        ({"output_tokens": -7}, "-7 output tokens"),
    ],
)
def test_record_is_stored_without_token_counts_that_cannot_be(ingester, redis_client, counts, said):
    rows = [msgspec.to_builtins(request_row(time.time(), request_id=f"r{n}")) for n in range(32)]
    rows[3] |= counts
    body = json.dumps({"gateway": "gateway", "boot": "b", "seq": 1, "rows": rows}).encode()
    redis_client.xadd(wire.REQUEST_STREAM, {"b": body})
    drain(ingester)
    assert (RequestRecord.objects.count(), DeadRow.objects.count()) == (32, 0)
    found = RequestRecord.objects.get(request_id="r3")
    assert (found.prompt_tokens, found.output_tokens, found.timely_tokens, found.tokens_source) == (None,) * 4
    assert found.error == f"the token counts are not credible: {said}"
    assert RequestRecord.objects.get(request_id="r4").error == ""


def test_samples_of_a_wrong_clock_are_set_aside_and_the_others_of_the_batch_stored(ingester, redis_client):
    now = time.time()
    rows = [gpu_row(GPU, now), gpu_row(OTHER, now + TWO_HOURS_S), gpu_row(OTHER, now - 1)]
    send(redis_client, wire.BATCH_STREAM, batch(1, rows))
    drain(ingester)
    assert GpuSample.objects.count() == 2
    row = DeadRow.objects.get()
    assert (row.kind, row.source, row.rows) == ("samples", "loc1-a100", 1)
    assert [one.gpu_uuid for one in wire.decode(bytes(row.body), wire.AgentBatch).gpus.unpack()] == [OTHER]


def test_state_that_is_too_long_is_set_aside_and_the_other_rows_of_the_batch_stored(ingester, redis_client):
    rows = [gpu_row(GPU, time.time()), gpu_row(OTHER, time.time(), instance_state="x" * 11)]
    send(redis_client, wire.BATCH_STREAM, batch(1, rows))
    drain(ingester)
    assert GpuSample.objects.get().gpu.uuid == GPU
    assert DeadRow.objects.get().rows == 1


def test_nothing_is_set_aside_twice_when_a_batch_comes_again(ingester, redis_client):
    message = batch(1, [gpu_row(GPU, time.time()), gpu_row(GPU, time.time() + TWO_HOURS_S)])
    for _ in range(2):
        send(redis_client, wire.BATCH_STREAM, message)
        drain(ingester)
    assert (GpuSample.objects.count(), DeadRow.objects.count()) == (1, 1)


def test_replay_stores_each_row_once_when_its_time_has_come(ingester, redis_client, monkeypatch):
    now = time.time()
    ahead = request_row(now + TWO_HOURS_S, request_id="ahead")
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("gateway", "b", 1, [ahead, request_row(now)]))
    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, now), gpu_row(GPU, now + TWO_HOURS_S)]))
    drain(ingester)
    assert [bool(one.why) for one in replay()] == [True, True]
    assert (RequestRecord.objects.count(), GpuSample.objects.count(), DeadRow.objects.count()) == (1, 1, 2)
    later(monkeypatch, TWO_HOURS_S)
    kept = list(DeadRow.objects.all())
    assert [(one.rows, one.why) for one in replay()] == [(1, ""), (1, "")]
    assert (RequestRecord.objects.count(), GpuSample.objects.count(), DeadRow.objects.count()) == (2, 2, 0)
    DeadRow.objects.bulk_create([row for row in kept if row.kind == "request"])
    replay()
    assert RequestRecord.objects.count() == 2


def test_rows_ahead_of_a_clock_that_was_set_back_are_stored_by_themselves_and_once(ingester, redis_client, monkeypatch):
    """The server's clock is set back by two hours; agents and gateways have stamped what is under way before that."""
    now = time.time()
    rows = [request_row(now + TWO_HOURS_S, request_id=f"ahead-{n}") for n in range(6)]
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("gateway", "b", 1, [*rows, request_row(0.0)]))
    send(redis_client, wire.BATCH_STREAM, batch(1, [gpu_row(GPU, now + TWO_HOURS_S)]))
    send(redis_client, wire.BATCH_STREAM, batch(2, [gpu_row(GPU, now + TWO_HOURS_S), gpu_row(GPU, 0.0)]))
    drain(ingester)
    assert (RequestRecord.objects.count(), GpuSample.objects.count(), DeadRow.objects.count()) == (0, 0, 9)
    assert DeadRow.objects.filter(due_at=None).count() == 2, "what is not only ahead of the clock waits for somebody"

    def replay_at(ahead_s):
        moment = datetime.fromtimestamp(now + ahead_s, UTC)
        monkeypatch.setattr(replaying.timezone, "now", lambda: moment)
        return sum(one.rows for one in replaying.replay_due(moment, clock_sink=clock_decisions.store))

    assert replay_at(TWO_HOURS_S - 1.0) == 0
    kept = list(DeadRow.objects.exclude(due_at=None))
    assert replay_at(TWO_HOURS_S + 1.0) == 7
    assert set(RequestRecord.objects.values_list("request_id", flat=True)) == {f"ahead-{n}" for n in range(6)}
    assert (GpuSample.objects.count(), DeadRow.objects.count()) == (1, 2)
    assert replay_at(TWO_HOURS_S + 301.0) == 0
    DeadRow.objects.bulk_create([row for row in kept if row.kind == "request"])  # as after a shipping that came again
    replay_at(TWO_HOURS_S + 601.0)
    assert RequestRecord.objects.count() == 6
    noted = AuditEntry.objects.filter(kind=replaying.KIND).order_by("pk").first()
    assert (noted.action, noted.label) == ("replay", "7 rows that were ahead of the clock: their time has come")


def test_row_that_cannot_be_stored_when_its_time_has_come_waits_for_somebody(ingester, redis_client, monkeypatch):
    now = time.time()
    ahead = request_row(now + TWO_HOURS_S, max_tokens=2**40)
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("gateway", "b", 1, [ahead]))
    drain(ingester)
    assert DeadRow.objects.get().due_at is not None
    later(monkeypatch, TWO_HOURS_S + 1.0)
    assert tasks.replay_dead_rows() == 1
    assert "out of range" in DeadRow.objects.get().why
    assert tasks.replay_dead_rows() == 0


def test_replay_of_a_whole_message_adds_nothing_when_it_was_sent_again_meanwhile(ingester, redis_client):
    message = batch(7, [gpu_row(GPU, time.time())])
    send(redis_client, wire.BATCH_STREAM, message)
    drain(ingester)
    DeadRow.objects.create(
        received_at=datetime.now(UTC),
        stream=wire.BATCH_STREAM,
        entry_id="1-1",
        place=0,
        kind="message",
        rows=0,
        why="?",
        body=wire.encode(message),
    )
    assert [one.why for one in replay()] == [""]
    assert GpuSample.objects.count() == 1


def test_commands_list_and_replay(ingester, redis_client, monkeypatch):
    now = time.time()
    rows = [request_row(now + TWO_HOURS_S, request_id=f"r{n}") for n in range(2)]
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("gateway", "b", 1, rows))
    drain(ingester)
    runner = CliRunner()
    listed = json.loads(runner.invoke(cli, ["dead", "list", "--json"]).stdout)
    assert listed["count"] == 2
    newest = listed["rows"][0]
    assert newest.keys() == {"id", "received_at", "source", "kind", "rows", "why", "due_at"}
    assert (newest["source"], newest["kind"]) == ("gateway", "request")
    shown = runner.invoke(cli, ["dead", "list"]).stdout
    assert "is a clock wrong?" in shown
    assert f"tried again at {newest['due_at']}" in shown
    assert runner.invoke(cli, ["dead", "replay"]).exit_code == 2
    assert runner.invoke(cli, ["dead", "replay", "9999999"]).exit_code == 2
    still = runner.invoke(cli, ["dead", "replay", str(newest["id"])])
    assert (still.exit_code, "still set aside" in still.stdout) == (1, True)
    later(monkeypatch, TWO_HOURS_S)
    done = runner.invoke(cli, ["dead", "replay", "--all"])
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "2 of 2 stored.")
    assert RequestRecord.objects.count() == 2
    assert runner.invoke(cli, ["dead", "list"]).stdout == "Nothing is set aside.\n"


def test_as_many_are_kept_as_there_is_room_for_and_old_ones_forgotten(ingester, monkeypatch):
    monkeypatch.setattr(dead_rows, "KEPT", 3)
    now = datetime.now(UTC)
    message = batch(1, [gpu_row(GPU, 0.0)])
    from telemetry.ingest import batch_rows

    for n in range(6):
        dead_rows.keep(wire.BATCH_STREAM, f"{n}-0", [batch_rows.aside(message, "old")], now)
    assert list(DeadRow.objects.values_list("entry_id", flat=True)) == ["3-0", "4-0", "5-0"]
    assert dead_rows.forget(now + dead_rows.KEPT_FOR + timedelta(seconds=1)) == 3


def test_alert_names_who_sent_rows_that_were_set_aside_until_they_are_replayed(ingester, redis_client, monkeypatch):
    now = time.time()
    send(redis_client, wire.REQUEST_STREAM, wire.RequestBatch("gateway", "b", 1, [request_row(now + TWO_HOURS_S)]))
    drain(ingester)

    def read():
        return list(upkeep_sources.DEAD_ROWS.read(datetime.now(UTC), alert_settings.all_rules()))

    (reading,) = read()
    assert (reading.rule, reading.subject, reading.value) == ("rows_set_aside", "gateway", 1.0)
    assert reading.summary.startswith("1 rows of gateway could not be stored: time ")
    later(monkeypatch, TWO_HOURS_S)
    replay()
    assert read() == []


def test_states_are_applied_on_when_the_clock_is_set_back(ingester, redis_client, monkeypatch):
    from pools.models import Node, Service

    instance = start_instance(Service.objects.get().pools.first(), Node.objects.get(name="loc1-a100"), tp=2)
    now, uid = time.time(), str(instance.uid)
    send(redis_client, wire.BATCH_STREAM, batch(1, [], [instance_row(uid, now, "ready")]))
    drain(ingester)
    later(monkeypatch, -TWO_HOURS_S)
    send(redis_client, wire.BATCH_STREAM, batch(2, [], [instance_row(uid, now - TWO_HOURS_S + 5.0, "failed")]))
    drain(ingester)
    assert Instance.objects.get(pk=instance.pk).state == "failed"
    assert IngestedBatches.objects.count() == 1
