"""Schemathesis as each role: no 5xx, no answer that the OpenAPI document does not have, none beyond the role."""

from __future__ import annotations

import itertools
import time
from typing import Any

import hypothesis
import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection
from django.urls import resolve
from psycopg.pq import TransactionStatus
from schemathesis import openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from frontend.api.resources import documents
from frontend.api.resources.configure import VIEWSETS
from frontend.api.rest.permissions import right_of
from pools.access import people, rights
from pools.access.audit import Actor
from tests.fakes import seed

pytestmark = pytest.mark.django_db
ROLES = ("viewer", "operator", "finance", "administrator")
EXAMPLES = 3  # of each operation in a round, in the slow suite
ROUNDS_S = 55.0  # how long further rounds begin for each role, in the slow suite
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return documents.document()


@pytest.fixture(scope="module")
def seeded(shared_rows) -> seed.Seeded:
    return seed.everything(minutes=3, rps=0.2)


@pytest.fixture
def bearer(settings, redis_client, seeded) -> Any:
    """The header of a person of that role, in a fleet with something of everything."""
    settings.GREENSERVE_API_LIMITS = {"reads": 1_000_000, "writes": 1_000_000}

    def header(role: str) -> dict[str, str]:
        user, _ = people.create(Actor(), role, role, password="a long pass phrase")
        _, secret = people.new_token(Actor(), user, role, [right.value for right in rights.RIGHTS[role]])
        return {"Authorization": f"Bearer {secret}"}

    return header


@pytest.fixture(autouse=True)
def _connection_of_the_test() -> Any:
    """As Django's own test client does: a request's end does not close the connection that the test's data are in."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def operations(document: dict[str, Any], keep: Any) -> list[Any]:
    schema = openapi.from_dict(document)
    schema.app = WSGIHandler()
    found = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in found if keep(operation.path)]


def try_out(operation: Any, role: str, headers: dict[str, str], examples: int, seed: int = 0) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy())
    def run(case: schemathesis.Case) -> None:
        answer = case.call(headers=headers)
        assert usable(connection), f"PostgreSQL was asked what it refuses: {case.as_curl_command()}"
        case.validate_response(answer, checks=CHECKS)
        view = resolve(case.formatted_path.split("?")[0]).func.cls
        if right_of(view, case.method) not in rights.RIGHTS[role] and view.authentication_classes:
            assert answer.status_code >= 400, f"{case.method} {case.formatted_path} as {role}"

    run()


def usable(connection: Any) -> bool:
    """False where PostgreSQL refused something outside of a savepoint: what came should have been checked before."""
    return bool(connection.connection.info.transaction_status != TransactionStatus.INERROR)


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("role", ROLES)
def test_answers_are_as_described_and_within_the_role(document, bearer, role, half):
    """All addresses; of what operators own, which one view serves, a part for each role."""
    mine = set(itertools.islice(VIEWSETS, ROLES.index(role), None, len(ROLES)))
    others = set(VIEWSETS) - mine
    headers = bearer(role)
    for operation in operations(document, lambda path: path.split("/")[3] not in others)[half::2]:
        try_out(operation, role, headers, examples=1)


@pytest.mark.slow("a minute of random requests for each role")
@pytest.mark.parametrize("role", ROLES)
def test_answers_stay_so_when_many_are_tried(document, bearer, role):
    """As many rounds as there is time for, at least one; each has a seed of its own."""
    headers = bearer(role)
    found = operations(document, lambda path: True)
    began_s = time.monotonic()
    for number in itertools.count(1):
        for operation in found:
            try_out(operation, role, headers, EXAMPLES, number)
        if time.monotonic() - began_s > ROUNDS_S:
            break


def test_document_describes_every_operation_with_problems_and_examples(document, bearer, client):
    served = client.get("/api/v1/schema/?format=json", headers=bearer("viewer"))
    assert served.json()["info"]["title"] == "GreenServe"
    assert client.get("/api/v1/schema/").status_code == 401
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["description"], where
            assert operation["responses"]["400"] == {"$ref": "#/components/responses/Problem"}, where
            for body in [operation.get("requestBody", {})]:
                assert all("example" in one for kind, one in body.get("content", {}).items() if "json" in kind), where
