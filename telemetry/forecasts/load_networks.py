"""Networks for the load of services by class: learned when forecasts are scored, kept in the database, asked again.

A network earns its place as every model does, by back-test: the one that is scored has learned only from what lay
before the first origin. The one that forecasts learned from all that is known.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from core.predictors.seasonal import History, Model
from telemetry.models import LoadNetwork

from . import forecast_record as record
from .learned import LSTM, available, load_learners

log = logging.getLogger(__name__)

KEPT = timedelta(days=28)  # unless a newer one takes its place
MOST_READ = 256  # networks that a process keeps at hand


def to_score(history: History, origins: Sequence[int], steps: int) -> Mapping[str, Model]:
    """Learns from what was known at the first origin; none: too little was, or PyTorch is not there."""
    found: dict[str, Model] = {}
    for name, learn in load_learners(record.models(), steps).items() if origins else ():
        try:
            found[name] = learn(history.until(origins[0]))
        except ValueError as error:
            log.info("%s does not learn this load yet: %s", name, error)
    return found


def keep(service: str, request_class: str, history: History, steps: int, step_s: float, now: datetime) -> None:
    """Learns a network from the whole series and puts it in the older one's place."""
    from .learned.load_lstm import learn

    network = learn(history, steps, record.models())
    values = {"step_s": step_s, "learned_at": now, "about": network.about(), "state": network.state()}
    LoadNetwork.objects.filter(learned_at__lt=now - KEPT).delete()  # of services and classes that are no more
    LoadNetwork.objects.update_or_create(service=service, request_class=request_class, model=LSTM, defaults=values)


def kept(service: str, request_class: str, step_s: float) -> Mapping[str, Model]:
    """Returns the networks of a series; none: none was learned for steps of this length, or PyTorch is not there."""
    if not available():
        return {}
    rows = LoadNetwork.objects.filter(service=service, request_class=request_class, model=LSTM, step_s=step_s)
    row = rows.values_list("pk", "learned_at").first()
    try:
        return {} if row is None else {LSTM: _read(*row)}
    except ValueError as error:
        log.warning("the network for the load of %s %s is not used: %s", service, request_class, error)
        return {}


@lru_cache(MOST_READ)
def _read(pk: int, learned_at: datetime) -> Model:
    """Raises ValueError when it cannot be read. A network that was learned later is another one."""
    from .learned.load_lstm import restored

    row = LoadNetwork.objects.get(pk=pk)
    return restored(row.about, bytes(row.state), record.models()).forecast
