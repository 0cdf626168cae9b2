"""Makes known to this process what was measured of engines: published profiles, and residuals of those that serve.

Processes with the database read them here; gateways and agents get them with their messages.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from django.db import connection
from django.db.models.fields.json import KeyTextTransform

from core.engine import measured
from core.engine.corrections import Configuration, Correction
from core.engine.profiles import Profile, ProfileError
from pools.models import EngineProfile, EngineResidual

logger = logging.getLogger(__name__)


class _Seen(NamedTuple):
    """The tables' state when they were last read; each change of what counts changes one of these."""

    profiles: int
    published_at: object
    residuals: int
    at: object


_SEEN = f"""
SELECT profiles.count, profiles.newest, residuals.count, residuals.newest
FROM (SELECT count(*), max(published_at) AS newest FROM {EngineProfile._meta.db_table}
      WHERE published_at IS NOT NULL) AS profiles,
     (SELECT count(*), max(at) AS newest FROM {EngineResidual._meta.db_table}) AS residuals
"""

_seen: _Seen | None = None
_parsed: dict[int, Profile] = {}  # by the row's id: a version's content never changes


def refresh() -> None:
    """Reads what has changed since it was last read: one short query when nothing has."""
    global _seen
    with connection.cursor() as cursor:
        cursor.execute(_SEEN)
        now = _Seen(*cursor.fetchone())
    if now == _seen:
        return
    measured.publish(_profiles())
    measured.calibrate(_residuals())
    _seen = now


def forget() -> None:
    """Lets the next `refresh` read everything anew."""
    global _seen
    _seen = None
    _parsed.clear()


def _profiles() -> list[Profile]:
    published = EngineProfile.objects.filter(published_at__isnull=False).order_by()
    wanted = set(published.values_list("pk", flat=True))
    for pk in _parsed.keys() - wanted:
        del _parsed[pk]
    for row in published.filter(pk__in=wanted - _parsed.keys()):
        try:
            _parsed[row.pk] = row.measurements()
        except ProfileError as error:
            logger.warning("the profile of %s is left aside: %s", row, error)
    return list(_parsed.values())


def _residuals() -> dict[Configuration, Correction]:
    """Leaves aside those that are relative to another profile than the one in force: calibration begins them anew."""
    rows = EngineResidual.objects.order_by().defer("state").annotate(base=KeyTextTransform("base", "state"))
    found = {
        row.configuration: row.correction for row in rows if (row.base or "") == measured.version_of(row.configuration)
    }
    return {key: correction for key, correction in found.items() if correction is not None}
