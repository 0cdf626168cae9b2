"""The network over all feeds of the installation (`learned.carbon_gru`): learned once a day, kept in the database.

As the model of one feed it is learned from all that feeds measured but the last two weeks, on which back-tests then
judge it, feed by feed, with the others. Each grid is named by its feed's key. Neighbours count by what they had
measured before a forecast; one that has nothing new is unknown to the network, not zero.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from core.predictors.carbon_features import Floats, Grid
from core.predictors.carbon_training import MOST_DAYS, TooShort
from core.predictors.seasonal import Model
from telemetry.models import CarbonFeed, CarbonNetwork

from . import histories
from .learned import GRU, available
from .learned_carbon import AGAIN, HELD_BACK, HOUR_S, by_hours, can_have_one

if TYPE_CHECKING:
    from .learned.carbon_gru import CarbonGru

log = logging.getLogger(__name__)

MOST_FEEDS = 24  # of a network: those with the lowest keys, which are the oldest
SEEN_DAYS = histories.DAYS + HELD_BACK.days  # of neighbours: what forecasts within a back-test look back on


def learn_due(now: datetime) -> int:
    """Learns the network where it is a day old; returns 1, or 0 where there was none to learn.

    Why there was none is kept in its row. Without PyTorch nothing is tried.
    """
    if not available() or CarbonNetwork.objects.filter(model=GRU, tried_at__gt=now - AGAIN, tried_at__lte=now).exists():
        return 0
    try:
        return int(learn(now))
    except Exception:
        log.exception("learning a network of the carbon feeds")
        _note(now, "learning failed; the server's log says why")
        return 0


def learn(now: datetime) -> bool:
    """Learns a network of all feeds and stores it. False: too few have enough of a past, and the row says so."""
    from .learned.carbon_gru_training import learn as learned_from

    feeds = [feed for feed in CarbonFeed.objects.select_related("site").order_by("pk") if can_have_one(feed)]
    begun = time.monotonic()
    past = {str(feed.pk): _grid(feed, now - HELD_BACK, MOST_DAYS) for feed in feeds[:MOST_FEEDS]}
    try:
        network = learned_from({name: grid for name, grid in past.items() if grid.carbon.size})
    except TooShort as reason:
        _note(now, f"{reason}; the last {HELD_BACK.days} days are kept for back-tests")
        return False
    log.info("learned a network of %d carbon feeds in %.0f s", len(network.about.grids), time.monotonic() - begun)
    values = {
        "tried_at": now,
        "learned_at": now,
        "feeds": [int(name) for name in network.about.grids],
        "state": network.to_bytes(),
        "note": "",
    }
    CarbonNetwork.objects.update_or_create(model=GRU, defaults=values)
    return True


def _grid(feed: CarbonFeed, now: datetime, days: int) -> Grid:
    history = histories.carbon(feed, now, HOUR_S, days)
    return Grid(history.first_step, history.values)


def _note(now: datetime, note: str) -> None:
    CarbonNetwork.objects.update_or_create(model=GRU, defaults={"tried_at": now, "note": note})


def status(feed: CarbonFeed) -> CarbonNetwork | None:
    """Returns what a feed's page says of the network, without its numbers; None: nobody tried to learn one yet, or it
    is not for feeds such as this one."""
    return CarbonNetwork.objects.filter(model=GRU).defer("state").first() if can_have_one(feed) else None


def models(feed: CarbonFeed, now: datetime) -> Mapping[str, Model]:
    """Returns the network as a model of one feed; nothing where it is none of the feed's, or cannot be read."""
    row = CarbonNetwork.objects.filter(model=GRU, learned_at__isnull=False).defer("state").first()
    if row is None or feed.pk not in row.feeds or not available() or not can_have_one(feed):
        return {}
    try:
        network = _read(row.pk, row.learned_at)
    except ValueError as error:
        log.warning("the network of the carbon feeds is not used: %s", error)
        return {}
    return {GRU: by_hours(_OfFeed(feed, now, network, {}))}


@lru_cache(1)
def _read(pk: int, learned_at: datetime) -> CarbonGru:
    """Raises ValueError when it cannot be read. A network that was learned later is another one."""
    from .learned.carbon_gru import CarbonGru

    return CarbonGru.from_bytes(bytes(CarbonNetwork.objects.get(pk=pk).state or b""))


@dataclass(frozen=True, slots=True)
class _OfFeed:
    """The network as a model of one feed. Neighbours are read from the database when it is first asked."""

    feed: CarbonFeed
    now: datetime
    network: CarbonGru
    neighbours: dict[str, Grid]

    def forecast(self, grid: Grid, steps: int, quantiles: tuple[float, ...]) -> Floats:
        """Returns (quantiles, steps) in g/kWh from the feed's own hours `grid`; NaN beyond what it looks ahead."""
        if not self.neighbours:
            self.neighbours.update(self._seen())
        own = str(self.feed.pk)
        hour = grid.first_hour + grid.carbon.size
        known = {name: other.until(max(0, hour - other.first_hour)) for name, other in self.neighbours.items()}
        nothing = Grid(hour, np.empty(0))  # of a feed that is no more
        known = {name: known.get(name, nothing) for name in self.network.about.grids} | {own: grid}
        (said,) = self.network.forecasts(known, np.array([hour]), quantiles)[own].transpose(1, 0, 2)
        ahead = np.full((len(quantiles), steps), np.nan)
        ahead[:, : said.shape[1]] = said[:, :steps]
        return ahead

    def _seen(self) -> Mapping[str, Grid]:
        """Reads all feeds of the network but this one."""
        others = [int(name) for name in self.network.about.grids if name != str(self.feed.pk)]
        feeds = CarbonFeed.objects.select_related("site").filter(pk__in=others)
        return {str(feed.pk): _grid(feed, self.now, SEEN_DAYS) for feed in feeds}
