"""Schemathesis as each role: no 5xx, no answer that the OpenAPI document does not have, none beyond the role.

What is tried is aimed at rows that there are: one of each list, and whatever addresses may be made up besides.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import hypothesis
import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connection
from django.urls import resolve
from psycopg.pq import TransactionStatus
from rest_framework.serializers import ModelSerializer, SerializerMethodField
from schemathesis import GenerationMode, openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from frontend.api.resources import documents
from frontend.api.resources.configure import VIEWSETS
from frontend.api.rest.permissions import right_of
from pools.access import people, rights
from pools.access.audit import Actor
from pools.models import Job
from tests.fakes import several
from tests.representatives import first

pytestmark = pytest.mark.django_db
ROLES = ("viewer", "operator", "finance", "administrator")
MOST_ROWS = 5  # that are read one by one
EXAMPLES = 3  # of each operation in a round, in the slow suite
ROUNDS_S = 55.0  # how long further rounds begin for each role, in the slow suite
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
NAMES = {  # of path parameters that are no key of a row
    "/api/v1/modes/{service}/": {"service": "llama3-70b"},
    "/api/v1/modes/{service}/advice/": {"service": "llama3-70b"},
    "/api/v1/reports/{id}/files/{kind}/": {"kind": "pdf"},
    "/api/v1/series/{name}/": {"name": "power"},
    "/api/v1/studies/{id}/runs/{index}/apply/": {"index": "0"},
    "/api/v1/tenants/{name}/use/": {"name": "acme"},
    "/api/v1/experiments/{name}/": {"name": "common-sites"},
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return documents.document()


@pytest.fixture(scope="module")
def seeded(shared_rows) -> Any:
    user, _ = people.create(Actor(), "somebody", "administrator", password="a long pass phrase")
    found = several.of_everything(Actor(user, None, "api"))
    Job.objects.create(kind="report")  # whose maker is not known
    return found


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
    """Without a word on who may call them: each is called by somebody whose header is known."""
    plain = {
        path: {method: {**one, "security": []} for method, one in methods.items()}
        for path, methods in document["paths"].items()
    }
    schema = openapi.from_dict({**document, "paths": plain})
    schema.app = WSGIHandler()
    found = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in found if keep(operation.path)]


def rows_of(document: dict[str, Any], headers: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each list, by its path."""
    found = {}
    for operation in operations(document, lambda path: "{" not in path and "docs" not in path):
        if operation.method == "get" and "limit" in operation.query:
            found[operation.path] = operation.Case(query={"limit": 500}).call(headers=headers).json()["results"]
    return found


def keys(operation: Any, rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, str]]:
    """The path's parameters for each row that it may name."""
    path = operation.path
    if "{" not in path:
        return [{}]
    given = NAMES.get(path, {})
    head, _, rest = path.partition("{")
    name = rest.partition("}")[0]
    if name in given:
        return [given]
    found = []
    for row in rows[head]:
        key = row["url"].split("/")[-2] if name == "key" else str(row[name])
        found.append({name: key, **given})
    return found


def try_out(
    operation: Any,
    role: str,
    headers: dict[str, str],
    examples: int,
    seed: int = 0,
    mode: GenerationMode = POSITIVE,
    path_parameters: dict[str, str] | None = None,
) -> None:
    fixed = {"If-Match": "*"} if operation.method == "patch" and path_parameters else None

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy(mode, path_parameters=path_parameters or None, headers=fixed))
    def run(case: schemathesis.Case) -> None:
        answer = case.call(headers=headers)
        assert usable(connection), f"PostgreSQL was asked what it refuses: {case.as_curl_command()}"
        wrong = case.meta is not None and case.meta.generation.mode is NEGATIVE
        if wrong and answer.status_code == 200 and case.path.endswith("/validate/"):
            found = answer.json()
            assert not all(one["valid"] for one in (found if isinstance(found, list) else [found])), case
        else:
            case.validate_response(
                answer, checks=[*CHECKS, negative_data_rejection] if wrong and answer.status_code != 412 else CHECKS
            )
        view = resolve(case.formatted_path.split("?")[0]).func.cls
        if right_of(view, case.method) not in rights.RIGHTS[role] and view.authentication_classes:
            assert answer.status_code >= 400, f"{case.method} {case.formatted_path} as {role}"

    with suppress(hypothesis.errors.Unsatisfiable) if mode is NEGATIVE else nullcontext():
        run()  # of some operations nothing can be wrong but the key, which is given


def usable(connection: Any) -> bool:
    """False where PostgreSQL refused something outside of a savepoint: what came should have been checked before."""
    return bool(connection.connection.info.transaction_status != TransactionStatus.INERROR)


def test_every_row_is_as_described(document, bearer):
    headers, seen = bearer("administrator"), 0
    rows = rows_of(document, headers)
    for operation in operations(document, lambda path: "docs" not in path):
        if operation.method != "get":
            continue
        for given in keys(operation, rows)[:MOST_ROWS]:
            query = {"limit": 500} if operation.path in rows and "limit" in operation.query else {}
            if "request_id" in given:
                row = next(one for one in rows["/api/v1/requests/"] if one["request_id"] == given["request_id"])
                query = {"started_at": row["started_at"]}
            case = operation.Case(path_parameters=given, query=query)
            answer = case.call(headers=headers)
            case.validate_response(answer, checks=CHECKS)
            seen += answer.status_code == 200
    assert seen > 150


def test_what_may_be_null_is_said_to_be(document):
    """A column, or a relation on the way to it, that may be null is null in some answer."""
    seen = 0
    for serializer in _serializers(ModelSerializer):
        if "Meta" not in vars(serializer):
            continue
        for name, field in serializer().fields.items():
            if isinstance(field, SerializerMethodField) or field.source == "*" or field.write_only:
                continue
            assert field.allow_null or not _may_be_null(serializer.Meta.model, field.source), f"{serializer} {name}"
            seen += field.allow_null
    assert seen > 60


def _serializers(base: type) -> Iterator[type]:
    for one in base.__subclasses__():
        yield one
        yield from _serializers(one)


def _may_be_null(model: Any, source: str) -> bool:
    for step in source.split("."):
        if isinstance(getattr(model, step, None), property):
            return False
        column = model._meta.get_field(step)
        if getattr(column, "null", False) and not column.auto_created:
            return True
        model = column.related_model
    return False


@pytest.mark.parametrize(
    ("role", "half"),
    first(
        2,
        [("viewer", 0), ("administrator", 1), ("viewer", 1), ("administrator", 0)]
        + [(role, half) for role in ROLES if role not in ("viewer", "administrator") for half in (0, 1)],
        "other roles, and the other half of what may be asked",
    ),
)
def test_answers_are_as_described_and_within_the_role(document, bearer, role, half):
    """All addresses, in two halves; of what operators own, which one view serves, a part for each role."""
    mine = set(itertools.islice(VIEWSETS, ROLES.index(role), None, len(ROLES)))
    others = set(VIEWSETS) - mine
    headers = bearer(role)
    for operation in operations(document, lambda path: path.split("/")[3] not in others)[half::2]:
        try_out(operation, role, headers, examples=1)


@pytest.mark.slow("many wrong requests for each operation")
def test_what_is_not_as_described_is_refused(document, bearer):
    """What operators own has one view: some of it. Aimed at a row, so that it is read what was sent."""
    headers = bearer("administrator")
    rows = rows_of(document, headers)
    others = set(VIEWSETS) - {"sites", "services", "tariffs"}
    for operation in operations(document, lambda path: path.split("/")[3] not in others):
        for given in keys(operation, rows)[-1:]:
            try_out(operation, "administrator", headers, 1, mode=NEGATIVE, path_parameters=given)


@pytest.mark.slow("a minute of random requests for each role")
@pytest.mark.parametrize("role", ROLES)
def test_answers_stay_so_when_many_are_tried(document, bearer, role):
    """As many rounds as there is time for, at least one; each has a seed of its own."""
    headers = bearer(role)
    rows = rows_of(document, bearer("administrator")) if role != "administrator" else rows_of(document, headers)
    found = operations(document, lambda path: True)
    began_s = time.monotonic()
    for number in itertools.count(1):
        for operation in found:
            for given, mode in itertools.product([{}, *keys(operation, rows)[:1]], [POSITIVE, NEGATIVE]):
                try_out(operation, role, headers, EXAMPLES, number, mode, given)
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
