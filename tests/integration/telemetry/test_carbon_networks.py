"""The network over all feeds: learned once a day from what they share, scored feed by feed, and left when it is bad.

The network here is a stand-in that needs no PyTorch: it says what a neighbour had last. tests/vllm has the real one.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from core.predictors.carbon_training import TooShort
from pools.models import Site
from telemetry.forecasts import carbon_forecasts, carbon_networks, histories
from telemetry.models import CarbonFeed, CarbonNetwork, CarbonPoint
from tests.fakes.house import moment

pytestmark = pytest.mark.django_db
START_S = 1_767_225_600.0  # 2026-01-01 00:00
HOUR_S = 3_600.0
DAYS = 40
NOW = moment(START_S + DAYS * 24 * HOUR_S)


class Network:
    """East goes on as west did a day before; what else is asked is NaN."""

    def __init__(self, grids):
        self.about = SimpleNamespace(grids=tuple(grids))

    def forecasts(self, grids, at_hours, quantiles):
        east, west = self.about.grids[:2]
        assert all(grid.first_hour + grid.carbon.size <= at_hours[0] for grid in grids.values())
        found = {name: np.full((len(quantiles), 1, 96), np.nan) for name in self.about.grids}
        found[east][:, :, :24] = grids[west].carbon[-24:]
        return found

    def to_bytes(self):
        return " ".join(self.about.grids).encode()

    @classmethod
    def from_bytes(cls, packed):
        if packed == b"else":
            raise ValueError("no network")
        return cls(packed.decode().split())


@pytest.fixture(autouse=True)
def learned(monkeypatch, settings):
    """How many hours each network learned from, by feed. It stands in the place of the one that needs PyTorch."""
    settings.GREENSERVE_BATCHES = {**settings.GREENSERVE_BATCHES, "horizon_s": 86_400.0}
    found = []

    def learn(grids):
        if len(grids) < 2:
            raise TooShort("a network over neighbouring grids needs two")
        found.append({int(name): grid.carbon.size for name, grid in grids.items()})
        return Network(grids)

    for name, value in (("carbon_gru_training", ("learn", learn)), ("carbon_gru", ("CarbonGru", Network))):
        stand_in = ModuleType(name)
        setattr(stand_in, *value)
        monkeypatch.setitem(sys.modules, f"telemetry.forecasts.learned.{name}", stand_in)
    monkeypatch.setattr(carbon_networks, "available", lambda: True)
    carbon_networks._read.cache_clear()
    return found


def feed_of(site, days_late=0, **more):
    """East goes on as west did a day before, which no other model foresees."""
    feed = CarbonFeed.objects.create(site=Site.objects.create(name=site), provider="fake", **more)
    hours = np.arange(DAYS * 24)
    values = 300.0 + (hours - 24 * days_late) * 7919 % 101
    CarbonPoint.objects.bulk_create(
        CarbonPoint(
            feed=feed,
            start_at=moment(START_S + hour * HOUR_S),
            end_at=moment(START_S + (hour + 1) * HOUR_S),
            issued_at=moment(START_S + hour * HOUR_S),
            value_g_per_kwh=value,
            raw_value=value,
            raw_unit="gCO2e/kWh",
            factor="direct",
            forecast=False,
        )
        for hour, value in zip(hours.tolist(), values.tolist(), strict=True)
    )
    return feed


@pytest.fixture
def east():
    return feed_of("east", days_late=1)


@pytest.fixture
def west(east):
    return feed_of("west")


def test_a_feed_is_forecast_by_its_neighbours_when_that_does_best(east, west, learned):
    price = feed_of("price", signal="price")
    assert carbon_networks.learn_due(NOW) == 1
    assert learned == [{east.pk: (DAYS - 14) * 24, west.pk: (DAYS - 14) * 24}]
    row = CarbonNetwork.objects.get()
    assert (row.learned_at, row.feeds, row.note) == (NOW, [east.pk, west.pk], "")
    assert carbon_networks.status(price) is None
    scores = carbon_forecasts.score(east, NOW)
    assert (scores[0].model, scores[0].pinball) == ("gru", 0.0)
    assert "gru" not in {score.model for score in carbon_forecasts.score(west, NOW)}  # NaN has no score
    assert carbon_forecasts.extend(east, NOW) == 24
    made = east.points.filter(forecast=True, model="gru").order_by("start_at").values_list("value_g_per_kwh", flat=True)
    assert list(made) == histories.carbon(west, NOW, HOUR_S).values[-24:].tolist()


def test_a_network_is_learned_again_when_a_day_is_over(east, west):
    assert [carbon_networks.learn_due(NOW + timedelta(hours=after)) for after in (0, 23, 24)] == [1, 0, 1]
    assert CarbonNetwork.objects.get().learned_at == NOW + timedelta(hours=24)


def test_a_single_feed_has_no_network_and_the_row_says_why(east):
    assert carbon_networks.learn_due(NOW) == 0
    row = carbon_networks.status(east)
    assert row.note == "a network over neighbouring grids needs two; the last 14 days are kept for back-tests"
    assert (row.state, row.learned_at) == (None, None)
    assert carbon_networks.models(east, NOW) == {}


def test_an_older_network_stays_when_learning_fails(east, west, monkeypatch):
    carbon_networks.learn(NOW)
    monkeypatch.setattr(histories, "carbon", lambda *rest: 1 / 0)
    assert carbon_networks.learn_due(NOW + timedelta(days=1)) == 0
    row = CarbonNetwork.objects.get()
    assert (row.note, row.learned_at) == ("learning failed; the server's log says why", NOW)


def test_a_neighbour_that_is_gone_is_unknown(east, west, monkeypatch):
    north = feed_of("north")
    carbon_networks.learn(NOW)
    north.delete()
    assert carbon_networks.models(east, NOW)["gru"](histories.carbon(east, NOW, HOUR_S), 24, 0.5).size == 24


def test_other_models_are_used_when_it_cannot_be_read_or_pytorch_is_gone(east, west, monkeypatch, caplog):
    carbon_networks.learn(NOW)
    late = feed_of("late")
    assert carbon_networks.models(late, NOW) == {}  # it was not learned from this feed
    CarbonNetwork.objects.update(state=b"else")
    assert carbon_networks.models(east, NOW) == {}
    assert "is not used: no network" in caplog.text
    monkeypatch.setattr(carbon_networks, "available", lambda: False)
    assert carbon_networks.models(east, NOW) == {}
    assert carbon_networks.learn_due(NOW + timedelta(days=9)) == 0


def test_a_feed_s_page_says_what_its_network_is_from_or_why_there_is_none(east, admin_client):
    def said():
        page = admin_client.get(f"/feeds/{east.pk}/").content.decode()
        return page.partition("The model <code>gru</code>")[2] or page.partition("no model <code>gru</code>")[2]

    assert said() == ""
    carbon_networks.learn(NOW)
    assert "a network over neighbouring grids needs two" in said()
    feed_of("west")
    carbon_networks.learn(NOW)
    assert "from 2 feeds" in said()
