"""Pages while PostgreSQL refuses: what is wrong and the remedy, with 503, in the place of a traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, InternalError, OperationalError, ProgrammingError, connection
from django.test import Client

from greenserve import plain_errors
from tests.fakes.people import person

pytestmark = pytest.mark.django_db
REFUSALS: list[tuple[type[DatabaseError], psycopg.Error, str]] = [
    (OperationalError, psycopg.errors.DiskFull("could not extend file"), "disk is full: make room on it"),
    (OperationalError, psycopg.errors.TooManyConnections("sorry"), "raise max_connections"),
    (OperationalError, psycopg.errors.QueryCanceled("timeout"), "statement_timeout"),
    (InternalError, psycopg.errors.ReadOnlySqlTransaction("read-only"), "takes no writes"),
]
AWAY = (OperationalError, psycopg.OperationalError("connection refused"), "does not answer")


def refusing(kind: type[DatabaseError], cause: psycopg.Error) -> Callable[..., Any]:
    def execute(*_: object) -> None:
        raise kind(str(cause)) from cause

    return execute


@pytest.fixture
def reader() -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(person("viewer"))
    return client


@pytest.mark.parametrize(("kind", "cause", "words"), [*REFUSALS, AWAY], ids=lambda value: type(value).__name__)
def test_page_and_rest_say_what_is_wrong_when_the_database_refuses(
    reader: Client, kind: type[DatabaseError], cause: psycopg.Error, words: str
) -> None:
    with connection.execute_wrapper(refusing(kind, cause)):
        page = reader.get("/")
        rest = reader.get("/api/v1/sites/")
    assert page.status_code == rest.status_code == 503
    assert page["Retry-After"]
    assert words in page.content.decode()
    assert "Traceback" not in page.content.decode()
    assert words in rest.content.decode()


def test_page_is_a_fault_of_the_product_when_a_statement_is_wrong(reader: Client) -> None:
    with connection.execute_wrapper(refusing(ProgrammingError, psycopg.errors.UndefinedTable("no such table"))):
        assert reader.get("/").status_code == 500


@pytest.mark.parametrize(("kind", "cause", "words"), REFUSALS, ids=lambda value: type(value).__name__)
def test_command_says_the_same_in_one_line(kind: type[DatabaseError], cause: psycopg.Error, words: str) -> None:
    try:
        refusing(kind, cause)()
    except DatabaseError as error:
        said = plain_errors.explain(error)
        assert said is not None
        assert words in said
        assert str(cause) in said
