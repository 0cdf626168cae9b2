"""Alerts of disks that are full or fail: who cannot write, what is lost, what fills up."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from pools import wire
from pools.models import Job, JobState, Node
from telemetry.alerts import alert_settings, disks, evaluation
from telemetry.alerts.alert_state_machine import Level, Reading
from telemetry.alerts.sources import Source
from telemetry.models import Alert, Report
from telemetry.reports.report_requests import NOT_WRITTEN
from tests.fakes import seed

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 27, 4, 0, tzinfo=UTC)
FULL = "No space left on device"


@pytest.fixture(autouse=True)
def _redis(redis_client: redis.Redis) -> None:
    """Without our keys before and after."""


def read(source: Source, now: datetime = NOW) -> dict[tuple[str, str], Reading]:
    return {reading.key: reading for reading in source.read(now, alert_settings.all_rules())}


def beat(client: redis.Redis, process: str, disk: wire.DiskState | None) -> None:
    client.set(wire.alive_key(process), wire.encode(wire.Heartbeat(process, NOW.timestamp(), 2.0, "", disk)))


@pytest.fixture
def node() -> Node:
    seed.fleet(NOW)
    found = Node.objects.first()
    assert found is not None
    return found


def test_gateways_and_nodes_are_named_when_their_disks_take_nothing(redis_client: redis.Redis, node: Node) -> None:
    redis_client.zadd(wire.GATEWAYS_KEY, {"gateway.1": 1.0, "gateway.2": 1.0, "gateway.3": 1.0})
    beat(redis_client, "gateway.1", wire.DiskState(FULL, 72))
    beat(redis_client, "gateway.2", wire.DiskState())
    beat(redis_client, "gateway.3", None)
    beat(redis_client, wire.node_queue(node.name), wire.DiskState(FULL, 600, 9, NOW.timestamp() - 60.0))
    found = read(disks.RECORDS)
    one = found["records_in_memory", "gateway.1"]
    assert one.value == 1.0
    assert one.summary == f"Gateway gateway.1: its disk takes nothing ({FULL}); 72 request records are in memory alone"
    assert found["records_in_memory", "gateway.2"].value == 0.0
    assert ("records_in_memory", "gateway.3") not in found, "it says nothing of its disk"
    assert found["records_in_memory", node.name].value == 1.0
    lost = found["records_lost", node.name]
    assert (lost.value, lost.summary) == (
        9.0,
        f"Node {node.name} has lost 9 batches since its start; disk: {FULL}",
    )
    assert found["records_lost", "gateway.1"].value == 0.0
    later = read(disks.RECORDS, NOW + disks.LOST_SPAN)
    assert later["records_lost", node.name].value == 0.0, "it was a while ago"


def test_alert_is_raised_and_ends_when_a_gateway_writes_again(redis_client: redis.Redis) -> None:
    redis_client.zadd(wire.GATEWAYS_KEY, {"gateway": 1.0})
    for minutes, disk in ((0, wire.DiskState(FULL, 3, 2, NOW.timestamp())), (1, wire.DiskState(FULL, 3, 2, 1.0))):
        beat(redis_client, "gateway", disk)
        evaluation.run(NOW + timedelta(minutes=minutes))
    assert set(Alert.objects.exclude(state="resolved").values_list("rule", "level")) >= {
        ("records_in_memory", "warn"),
        ("records_lost", "bad"),
    }
    beat(redis_client, "gateway", wire.DiskState(lost=2, lost_at_s=1.0))
    for seconds in range(75, 180, 15):
        evaluation.run(NOW + timedelta(seconds=seconds))
    assert set(Alert.objects.filter(subject="gateway").values_list("state", flat=True)) == {"resolved"}


@pytest.mark.parametrize(("most", "share", "level"), [(10, 0.4, None), (5, 0.8, None), (4, 1.0, Level.BAD)])
def test_stream_is_measured_against_its_bound(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch, most: int, share: float, level: Level | None
) -> None:
    for _ in range(4):
        redis_client.xadd(wire.REQUEST_STREAM, {"b": b""})
    monkeypatch.setattr(wire, "REQUEST_STREAM_MOST", most)
    reading = read(disks.STREAM_ROOM)["stream_filling", "requests"]
    assert (reading.value, reading.level) == (share, level)
    assert f"4 of at most {most} batches" in reading.summary


def test_samples_are_measured_by_the_fullest_stream(
    redis_client: redis.Redis, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "NODE_STREAM_MOST", 4)
    for stream in (wire.BATCH_STREAM, *[wire.batch_stream(node.name)] * 3):
        redis_client.xadd(stream, {"b": b""})
    reading = read(disks.STREAM_ROOM)["stream_filling", "samples"]
    assert reading.value == 0.75
    assert reading.summary.startswith("4 batches of samples wait in Redis to be stored, at the fullest stream 75%")


@pytest.mark.parametrize(("free", "level"), [(8, None), (2, Level.BAD)])
def test_folders_on_one_disk_are_one_subject(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: Level | None
) -> None:
    (tmp_path / "log").mkdir()
    settings.GREENSERVE_FOLDERS = {"data": tmp_path, "log": tmp_path / "log", "database": None, "x": tmp_path / "none"}
    usage = shutil.disk_usage(tmp_path)._replace(total=200 * 10**9, used=(100 - free) * 10**9, free=free * 10**9)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    (reading,) = read(disks.FOLDERS).values()
    assert (reading.key, reading.level) == (("disk_filling", "data"), level)
    assert reading.value == pytest.approx(1.0 - free / 100)
    assert reading.summary == (f"The disk of {tmp_path} (data, log) is {100 - free}% full: {free}.0 GB are free")


def test_reports_that_could_not_be_written_are_named_until_they_are(settings: Any, tmp_path: Path) -> None:
    settings.GREENSERVE_REPORTS_DIR = tmp_path

    def report(error: str) -> Report:
        job = Job.objects.create(kind="report", state=JobState.FAILED, error=error, finished_at=NOW)
        return Report.objects.create(
            asked={}, period_start=NOW, period_end=NOW + timedelta(days=1), revision=1, job=job
        )

    failed, _ = report(f"{NOT_WRITTEN}{tmp_path}: {FULL}"), report("period: nothing was settled")
    (reading,) = read(disks.REPORT_FILES).values()
    assert reading.key == ("report_not_written", f"report-{failed.pk}")
    assert FULL in reading.summary
    assert f"Make room in {tmp_path}" in reading.step
    assert not read(disks.REPORT_FILES, NOW + disks.FAILED_SPAN)
    Job.objects.update(state=JobState.DONE, error="")
    assert not read(disks.REPORT_FILES)
