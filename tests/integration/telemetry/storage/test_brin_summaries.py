"""The BRIN indexes over samples' times, summed up to the present."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
import pytest
from django.db import connection

from telemetry.storage import brin_summaries, time_partitions

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
NAME = "telemetry_gpusample_20261120"
FILL_SQL = """
INSERT INTO telemetry_gpusample (at, gpu_id)
SELECT %s::timestamptz + n * interval '1 millisecond', n FROM generate_series(1, 20000) n
"""


def summed_up() -> int:
    """Ranges of which the index knows the times."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(brin_summarize_new_values(indexrelid)), sum(brin_summarize_new_values(indexrelid)) "
            "FROM pg_index WHERE indrelid = %s::regclass",
            [NAME],
        )
        return int(cursor.fetchone()[1])


def fill() -> int:
    """Returns how many whole ranges the table has then."""
    with connection.cursor() as cursor:
        cursor.execute(FILL_SQL, [NOW])
        cursor.execute("SELECT pg_relation_size(%s::regclass) / 8192", [NAME])
        return int(cursor.fetchone()[0]) // brin_summaries.PAGES


@pytest.mark.django_db
def test_whole_ranges_are_summed_up_and_only_once_when_time_goes_on():
    time_partitions.ensure([NOW.date()])
    keeper = brin_summaries.Summaries()
    assert fill() > 2
    keeper.keep_up(NOW)
    assert summed_up() <= 1, "but for the last one, which still fills"
    ranges = fill()
    keeper.keep_up(NOW)
    keeper.keep_up(NOW)
    assert list(keeper._until.values()) == [ranges * brin_summaries.PAGES, 0, 0]


@pytest.mark.django_db(transaction=True)
def test_it_is_left_for_the_next_time_when_the_table_is_locked():
    time_partitions.ensure([NOW.date()])
    ranges, keeper = fill(), brin_summaries.Summaries()
    settings = connection.get_connection_params()
    settings.pop("cursor_factory"), settings.pop("context")
    with psycopg.connect(**settings) as other:
        other.execute(f"LOCK TABLE {NAME} IN SHARE UPDATE EXCLUSIVE MODE")  # as a vacuum has it
        keeper.keep_up(NOW)
        assert keeper._until == {}
    keeper.keep_up(NOW)
    assert ranges * brin_summaries.PAGES in keeper._until.values()


@pytest.mark.django_db
def test_nothing_is_done_when_there_is_no_table_of_the_day():
    keeper = brin_summaries.Summaries()
    keeper.keep_up(datetime(2030, 1, 1, tzinfo=UTC))
    assert keeper._until == {}
