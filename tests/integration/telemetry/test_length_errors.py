"""How far off predicted lengths were, by service and source, as Health shows it."""

import pytest

from telemetry.ingest import request_records
from telemetry.selectors import length_errors
from telemetry.selectors.length_errors import SPAN_S, LengthSourceError
from telemetry.storage import time_partitions
from tests.fakes.house import moment, request_row

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0 + 43_200.0


@pytest.fixture
def ended(db):
    time_partitions.ensure({moment(START).date()})

    def insert(*rows: dict[str, object]) -> None:
        usual = {"service": "chat", "tokens_source": "usage", "prediction_source": "text", "status": "ok"}
        made = [
            request_row(**{"request_id": f"r{n}", "started_at_s": START - n, **usual, **row})
            for n, row in enumerate(rows)
        ]
        request_records.insert(made, request_records.Objectives())

    return insert


def lengths(said: int, was: int, **more: object) -> dict[str, object]:
    return {"predicted_output_tokens": said, "output_tokens": was, **more}


def test_errors_are_of_each_source_and_service_the_most_used_first(ended):
    right = {"request_class": "SL", "actual_class": "SL", "class_probability": 0.75}
    wrong = {"request_class": "SL", "actual_class": "SS", "class_probability": 0.5}
    ended(
        *(lengths(100, 80, **right), lengths(100, 160, **wrong)),
        lengths(50, 50, prediction_source="cache", request_class=None),
        *(lengths(10, 20, service="other", prediction_source="history", **right) for _ in range(3)),
    )
    assert length_errors.length_errors(START) == (
        LengthSourceError("chat", "text", 2, 40.0, 0.5, 0.625),
        LengthSourceError("chat", "cache", 1, 0.0, None, None),
        LengthSourceError("other", "history", 3, 10.0, 1.0, 0.75),
    )


def test_only_requests_count_whose_answer_came_to_its_end_and_was_counted_by_the_engine(ended):
    ended(
        lengths(100, 80, status="client_gone"),
        lengths(100, 80, tokens_source="chunks"),
        lengths(100, 80, prediction_source="bound"),
        lengths(100, 80, prediction_source=None),
        lengths(0, 0),
        lengths(100, 80, started_at_s=START - SPAN_S - 1.0),
    )
    assert length_errors.length_errors(START) == ()


def test_of_many_the_newest_count_and_of_some_pools_theirs(ended, monkeypatch):
    ended(lengths(100, 80, pool_id=1), lengths(100, 90, pool_id=2), lengths(100, 64, pool_id=None))
    assert [row.error_tokens for row in length_errors.length_errors(START, [2])] == [10.0]
    assert length_errors.length_errors(START, []) == ()
    monkeypatch.setattr(length_errors, "NEWEST", 1)
    assert [row.error_tokens for row in length_errors.length_errors(START)] == [20.0]
