"""Keeps the BRIN indexes over samples' times summed up to the present, so that what is newest is found in a few pages.

PostgreSQL sums up a range of pages that was filled when autovacuum next comes by, up to a minute later. Until then each
query for the newest samples reads all that came since: of 16,000 GPUs up to a million rows for the 48,000 it wants.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from django.db import OperationalError, connection, transaction

from telemetry.storage import time_partitions

log = logging.getLogger(__name__)

PAGES = 32  # of a range, as the indexes were made
FIRST_PAGES = 32_768  # that a process which has just begun looks back: some minutes of a large fleet
LOCK_TIMEOUT_MS = 50
FILLED_SQL = """
SELECT i.indexrelid, pg_relation_size(i.indrelid) / current_setting('block_size')::int
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam AND a.amname = 'brin'
WHERE i.indrelid = to_regclass(%s)
"""
SUM_UP_SQL = f"SELECT telemetry_sum_up_brin(%s, %s, %s, {PAGES})"  # what only the indexes' owner may do


class Summaries:
    """Of today's partitions, as far as this process knows them to be summed up. Several processes do no harm."""

    def __init__(self) -> None:
        self._until: dict[int, int] = {}  # index -> page

    def keep_up(self, now: datetime) -> None:
        """Sums up the ranges that were filled since the last time; some milliseconds for a second of a large fleet.

        A vacuum of the table keeps others from doing that: then it is left for the next time, or done by the vacuum.
        """
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
                reached = {}
                for table in time_partitions.SAMPLES:
                    cursor.execute(FILLED_SQL, [f"{table}_{now.astimezone(UTC):%Y%m%d}"])
                    for index, pages in cursor.fetchall():
                        upto = pages // PAGES * PAGES
                        since = max(self._until.get(index, 0), upto - FIRST_PAGES)
                        cursor.execute(SUM_UP_SQL, [index, since, upto])
                        reached[index] = upto
        except OperationalError as error:
            log.debug("times of samples are summed up later: %s", str(error).strip())
            return
        self._until = reached
