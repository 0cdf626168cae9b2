"""Networks for load: one that forecasts best is learned from all that is known, kept, read again, and left when bad.

The network here is a stand-in that needs no PyTorch: it knows the load's course. tests/vllm has the real one.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType

import numpy as np
import pytest

from telemetry.forecasts import learned, load_forecasts, load_networks
from telemetry.models import ForecastScore, LoadNetwork, LoadPoint
from tests.fakes.house import moment

pytestmark = pytest.mark.django_db
STEP_S = 3_600.0
DAYS = 6
NOW_S = 1_767_225_600.0 + DAYS * 86_400.0
NOW = moment(NOW_S)


def course(step):
    """A load that no statistical model foresees."""
    return 2.0 + np.asarray(step) * 7919 % 11


class Network:
    def __init__(self, learned_from):
        self.learned_from = learned_from

    def forecast(self, history, steps, quantile):
        return course(history.next_step + np.arange(steps)).astype(float)

    def about(self):
        return {"learned_from": self.learned_from}

    def state(self):
        return b"numbers"


@pytest.fixture
def lengths(monkeypatch):
    """How much each network learned from. It stands in the place of the one that needs PyTorch."""
    found = []

    def learn(history, steps, anchors):
        if history.values.size < 48:
            raise ValueError("too short")
        found.append(history.values.size)
        return Network(history.values.size)

    def restored(about, state, models):
        if state != b"numbers":
            raise ValueError("no network")
        return Network(about["learned_from"])

    stand_in = ModuleType("load_lstm")
    stand_in.learn, stand_in.restored = learn, restored
    monkeypatch.setitem(sys.modules, "telemetry.forecasts.learned.load_lstm", stand_in)
    for module in (learned, load_networks):
        monkeypatch.setattr(module, "available", lambda: True)
    load_networks._read.cache_clear()
    return found


@pytest.fixture
def service(settings, monkeypatch):
    settings.DEMO_SPEEDUP = 1.0
    monkeypatch.setattr("telemetry.forecasts.histories.load_step_s", lambda: STEP_S)
    name = "chat"
    first = round(NOW_S / STEP_S) - DAYS * 24
    LoadPoint.objects.bulk_create(
        LoadPoint(
            service=name,
            request_class="SS",
            start_at=moment(step * STEP_S),
            step_s=STEP_S,
            peak_rps=float(course(step)),
            requests=1,
        )
        for step in range(first, first + DAYS * 24)
    )
    return name


def expected(service):
    return load_forecasts.expected(service, "SS", NOW)


def test_the_best_network_learns_from_all_and_forecasts(service, lengths):
    load_forecasts.score(service, "SS", NOW)
    scored, kept = lengths
    assert scored <= DAYS * 24 // 2  # nothing of what it was scored on
    assert kept == DAYS * 24
    assert ForecastScore.objects.get(chosen=True).model == "lstm"
    assert {row.model for row in ForecastScore.objects.all()} > {"lstm", "persistence", "profile"}
    found = expected(service)
    assert found.model == "lstm"
    assert found.median_rps == tuple(course(round(NOW_S / STEP_S) + np.arange(6)).astype(float))


def test_a_newer_network_takes_the_older_one_s_place(service, lengths):
    load_networks.keep(service, "SS", load_forecasts.histories.load(service, "SS", NOW), 6, STEP_S, NOW)
    load_networks.keep("gone", "", load_forecasts.histories.load(service, "SS", NOW), 6, STEP_S, NOW)
    later = NOW + load_networks.KEPT + timedelta(hours=1)
    load_networks.keep(service, "SS", load_forecasts.histories.load(service, "SS", NOW), 6, STEP_S, later)
    row = LoadNetwork.objects.get()
    assert (row.service, row.learned_at) == (service, later)


def test_the_newest_value_is_carried_forward_when_the_network_cannot_be_read(service, lengths, caplog):
    load_forecasts.score(service, "SS", NOW)
    LoadNetwork.objects.update(state=b"else")
    assert expected(service).model == "persistence"
    assert "is not used: no network" in caplog.text


def test_the_newest_value_is_carried_forward_when_pytorch_is_gone(service, lengths, monkeypatch):
    load_forecasts.score(service, "SS", NOW)
    monkeypatch.setattr(load_networks, "available", lambda: False)
    assert expected(service).model == "persistence"


def test_statistical_models_are_scored_alone_when_too_little_is_known_for_a_network(service, lengths):
    LoadPoint.objects.filter(start_at__lt=NOW - timedelta(days=3)).delete()
    load_forecasts.score(service, "SS", NOW)
    assert ForecastScore.objects.exists()
    assert not ForecastScore.objects.filter(model="lstm").exists()
    assert not LoadNetwork.objects.exists()
