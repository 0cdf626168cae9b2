"""Says which control plane leads, as PostgreSQL knows it: whose session holds the leader's lock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from pools.database_locks import Lock

APPLICATION = "greenserve beat of "  # the beginning of the name that the leader's session has at PostgreSQL

_SQL = """
SELECT activity.application_name, activity.backend_start
FROM pg_locks AS locks JOIN pg_stat_activity AS activity USING (pid)
WHERE locks.locktype = 'advisory' AND locks.granted AND locks.objsubid = 1
  AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND ((locks.classid::bigint << 32) | locks.objid::bigint) = hashtext(%s)::bigint
"""


@dataclass(frozen=True, slots=True)
class Leader:
    """`name`: of the control plane whose beat sends periodic tasks. `since`: when its session began."""

    name: str
    since: datetime


def leader() -> Leader | None:
    """Returns who leads; None: nobody does just now."""
    with connection.cursor() as cursor:
        cursor.execute(_SQL, [Lock.LEADER])
        found = cursor.fetchone()
    return None if found is None else Leader(str(found[0]).removeprefix(APPLICATION), found[1])
