"""Disks that are full or fail, read from processes' heartbeats, Redis, reports' jobs and this machine's folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from pools import agent_states, redis_address, wire
from pools.models import Node
from telemetry.models import Report
from telemetry.reports.report_requests import NOT_WRITTEN, folder_of

from .alert_state_machine import Level, Reading, Rule
from .sources import REDIS_TIMEOUT_S, Source

LOST_SPAN = timedelta(minutes=15)
FAILED_SPAN = timedelta(days=1)
NEARLY_FULL = 0.97  # of a disk: then the alert is critical


def _records(now: datetime, _: Mapping[str, Rule]) -> Iterator[Reading]:
    """Yields what gateways, by their names, and nodes, by theirs, say of their disks."""
    nodes = list(Node.objects.values_list("name", flat=True))
    with _client() as client:
        members = [str(name, "utf-8") for name in client.zrange(wire.GATEWAYS_KEY, 0, -1)]
        gateways = list(dict.fromkeys(map(wire.gateway_process, members)))
        whose = {**{wire.node_queue(node): node for node in nodes}, **{gateway: gateway for gateway in gateways}}
        values: Any = client.mget([wire.alive_key(process) for process in whose]) if whose else []
    for (process, subject), value in zip(whose.items(), values, strict=True):
        disk = _disk_state(value)
        if disk is None:
            continue
        kind, who = ("request records", f"Gateway {subject}") if process in gateways else ("batches", f"Node {subject}")
        words = f"{who}: its disk takes nothing ({disk.fault}); {disk.held} {kind} are in memory alone"
        yield Reading("records_in_memory", subject, float(bool(disk.fault)), words)
        recent = disk.lost_at_s is not None and disk.lost_at_s > (now - LOST_SPAN).timestamp()
        why = f"disk: {disk.fault}" if disk.fault else "its disk works again"
        words = f"{who} has lost {disk.lost} {kind} since its start; {why}"
        yield Reading("records_lost", subject, float(disk.lost) if recent else 0.0, words)


def _disk_state(value: bytes | None) -> wire.DiskState | None:
    try:
        return None if value is None else wire.decode(value, wire.Heartbeat).disk
    except msgspec.DecodeError:
        return None  # what cannot be read was not said


def _streams(now: datetime, rules: Mapping[str, Rule]) -> Iterator[Reading]:
    with _client() as client:
        requests: Any = client.xlen(wire.REQUEST_STREAM)
        samples = agent_states.waiting_batches(client, Node.objects.values_list("name", flat=True))
    most = wire.REQUEST_STREAM_MOST
    words = f"{requests} of at most {most} batches of requests wait in Redis to be stored; request records then wait"
    yield _filling("requests", requests / most, f"{words} at the gateways")
    words = f"{samples.count} batches of samples wait in Redis to be stored, at the fullest stream {samples.share:.0%}"
    yield _filling("samples", samples.share, f"{words} of what it takes; samples then wait at the agents")


def _filling(subject: str, share: float, summary: str) -> Reading:
    return Reading("stream_filling", subject, share, summary, Level.BAD if share >= 1.0 else None)


def _reports(now: datetime, rules: Mapping[str, Rule]) -> Iterator[Reading]:
    """One that is being made again counts until it is done: it keeps its error so long."""
    failed = Report.objects.filter(job__error__startswith=NOT_WRITTEN, job__finished_at__gt=now - FAILED_SPAN)
    for report in failed.select_related("job"):
        step = (
            f"Make room in {folder_of(report).parent}; schedules ask again each hour, other reports are to be asked for"
        )
        words = f"Report {report.pk}: {report.job.error}"
        yield Reading("report_not_written", f"report-{report.pk}", 1.0, words, step=step)


def _folders(now: datetime, rules: Mapping[str, Rule]) -> Iterator[Reading]:
    """Folders on one disk are one subject, called after the first of them."""
    folders: Mapping[str, Path | None] = settings.GREENSERVE_FOLDERS
    disks: dict[int, list[str]] = {}
    for name, folder in folders.items():
        if folder is not None and (device := _device(folder)) is not None:
            disks.setdefault(device, []).append(name)
    for names in disks.values():
        folder = folders[names[0]]
        assert folder is not None
        used = shutil.disk_usage(folder)
        share = used.used / (used.used + used.free)  # as df has it: what only root may use does not count
        words = f"The disk of {folder} ({', '.join(names)}) is {share:.0%} full: {used.free / 1e9:.1f} GB are free"
        yield Reading("disk_filling", names[0], share, words, Level.BAD if share >= NEARLY_FULL else None)


def _device(folder: Path) -> int | None:
    """Returns None of a folder that is not there yet, or not ours to look into."""
    try:
        return os.stat(folder).st_dev
    except OSError:
        return None


def _client() -> redis.Redis:
    return redis_address.connect(
        settings.REDIS_URL,
        socket_timeout=REDIS_TIMEOUT_S,
        socket_connect_timeout=REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


RECORDS = Source(("records_in_memory", "records_lost"), _records)
STREAM_ROOM = Source(("stream_filling",), _streams)
REPORT_FILES = Source(("report_not_written",), _reports)
FOLDERS = Source(("disk_filling",), _folders)
