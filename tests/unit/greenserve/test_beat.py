"""Beat goes by monotonic time: the wall clock may be set as anybody likes."""

from __future__ import annotations

import datetime as real
from datetime import UTC, timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from greenserve import beat
from greenserve.celery import app as product
from pools import wire

WALL = real.datetime(2026, 11, 27, 12, tzinfo=UTC)


class Store:
    """Stands in for Redis: what was stored last, or an outage."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.beats: list[wire.Heartbeat] = []

    def set(self, key: str, data: bytes, ex: int) -> None:
        if self.away:
            raise redis.ConnectionError("away")
        assert (key, ex) == (wire.alive_key("beat"), wire.HEARTBEAT_TTL_S)
        self.beats.append(wire.decode(data, wire.Heartbeat))


class Leading:
    """Leads or stands by, as a test sets it."""

    def __init__(self, leads: bool = True, fault: str = "") -> None:
        self.now, self.fault = leads, fault

    def leads(self) -> bool:
        return self.now


class Clocks:
    """A monotonic clock that is handed in, and a wall clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, app: Celery) -> None:
        self.mono_s, self.wall = 1_000.0, WALL
        monkeypatch.setattr(beat.time, "monotonic", lambda: self.mono_s)
        monkeypatch.setattr(app, "now", lambda: self.wall)

    def run(self, scheduler: beat.MonotonicScheduler, seconds: int) -> None:
        for _ in range(seconds):
            while scheduler.tick() == 0:
                pass
            self.mono_s += 1.0
            self.wall += timedelta(seconds=1)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    found = Store()
    monkeypatch.setattr(beat, "_client", lambda url: found)
    return found


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def send(self: Any, name: str, *_: Any, **__: Any) -> None:
        names.append(name)

    monkeypatch.setattr(Celery, "send_task", send)
    monkeypatch.setattr(beat.MonotonicScheduler, "producer", None)
    return names


def made(app: Celery, **periods_s: float) -> None:
    app.conf.beat_schedule = {
        name: {"task": name, "schedule": beat.every(period_s)} for name, period_s in periods_s.items()
    }


@pytest.mark.parametrize("step", [timedelta(hours=-2), timedelta(hours=2), timedelta(days=-30)], ids=str)
def test_periods_go_on_when_the_wall_clock_is_set(
    step: timedelta, store: Store, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("t", set_as_current=False)
    made(app, often=5.0, seldom=60.0)
    clocks = Clocks(monkeypatch, app)
    scheduler = beat.MonotonicScheduler(app, leading=Leading())
    clocks.run(scheduler, 300)
    before = sent.count("often"), sent.count("seldom")
    clocks.wall += step
    clocks.run(scheduler, 300)
    after = sent.count("often") - before[0], sent.count("seldom") - before[1]
    assert after == pytest.approx((60, 5), abs=1)
    assert before == pytest.approx((60, 5), abs=1)


def test_hourly_tasks_run_within_a_minute_of_beats_start(
    store: Store, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("t", set_as_current=False)
    made(app, hourly=3_600.0)
    clocks = Clocks(monkeypatch, app)
    scheduler = beat.MonotonicScheduler(app, leading=Leading())
    clocks.run(scheduler, 59)
    assert sent == []
    clocks.run(scheduler, 3)
    assert sent == ["hourly"]
    clocks.run(scheduler, 3_500)
    assert sent == ["hourly"]


def test_heartbeat_says_that_beat_sends(store: Store, sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    app = Celery("t", set_as_current=False)
    made(app, often=1.0)
    clocks = Clocks(monkeypatch, app)
    clocks.run(beat.MonotonicScheduler(app, leading=Leading()), 20)
    assert [found.process for found in store.beats] == ["beat"] * 4


def test_beat_sends_on_when_its_heartbeat_cannot_be_stored(
    store: Store, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.away = True
    app = Celery("t", set_as_current=False)
    made(app, often=1.0)
    clocks = Clocks(monkeypatch, app)
    clocks.run(beat.MonotonicScheduler(app, leading=Leading()), 10)
    assert len(sent) >= 9


def test_beat_sends_nothing_while_it_does_not_lead_and_all_that_is_due_once_it_does(
    store: Store, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("t", set_as_current=False)
    made(app, often=5.0, seldom=600.0)
    clocks, leading = Clocks(monkeypatch, app), Leading(leads=False)
    scheduler = beat.MonotonicScheduler(app, leading=leading)
    clocks.run(scheduler, 300)
    assert sent == []
    assert {found.detail for found in store.beats} == {"stands by"}
    assert len(store.beats) == 60, "it shows that it is there"
    leading.now = True
    clocks.run(scheduler, 1)
    assert sorted(sent) == ["often", "seldom"]
    assert store.beats[-1].detail in ("leads", "stands by")
    leading.now, leading.fault = False, "connection refused"
    clocks.run(scheduler, 10)
    assert sorted(sent) == ["often", "seldom"]
    assert "PostgreSQL cannot be asked who leads (connection refused)" in store.beats[-1].detail


def test_every_period_of_the_product_is_monotonic() -> None:
    product.finalize()
    product.loader.import_default_modules()
    entries = beat.MonotonicScheduler(product, leading=Leading(), lazy=False).schedule
    assert len(entries) > 20
    assert {entry.schedule.nowfun for entry in entries.values()} == {beat.monotonic_now}
    assert product.conf.beat_scheduler == "greenserve.beat:MonotonicScheduler"
