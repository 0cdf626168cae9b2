"""Every error under /api/ is a problem document, also where no view of the API was reached."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from tests.fakes.people import person

pytestmark = pytest.mark.django_db
JSON = "application/json"


def problem(answer: Any, status: int) -> dict[str, Any]:
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "application/problem+json"), answer.content
    found: dict[str, Any] = json.loads(answer.content)
    assert found["status"] == status
    assert found["detail"]
    return found


def test_host_that_the_dashboard_does_not_go_by_is_a_problem_with_its_remedy() -> None:
    answer = Client().post("/api/v1/nodes/join/", "{}", content_type=JSON, headers={"host": "control.example"})
    found = problem(answer, 400)
    assert found["type"] == "urn:greenserve:problem:unknown_host"
    assert "GREENSERVE_WEB_NAMES" in found["remedy"]
    assert found["request_id"] == answer.headers["X-Request-ID"]
    assert "control.example" not in answer.content.decode()  # nothing of a stranger's header comes back
    assert Client().get("/login/", headers={"host": "control.example"}).headers["Content-Type"].startswith("text/html")


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v2/nodes/", "/api/v1/nothing/", "/api/v1/nothing"])
def test_address_without_anything_is_a_problem(path: str) -> None:
    client = Client()
    client.force_login(person("viewer"))
    assert "end in a slash" in problem(client.get(path), 404)["remedy"]


def test_method_body_and_size_are_problems_when_they_are_wrong(settings: Any) -> None:
    path = "/api/v1/nodes/join/"
    assert "Allow" in problem(Client().get(path), 405)["remedy"]
    assert "JSON parse error" in problem(Client().post(path, "{", content_type=JSON), 400)["detail"]
    assert problem(Client().post(path, "<a>", content_type="text/xml"), 415)["remedy"].startswith("Send JSON")
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    assert problem(Client().post(path, json.dumps(["x" * 200]), content_type=JSON), 413)["remedy"].startswith(
        "Send less"
    )


def test_failed_csrf_check_and_database_are_problems(redis_client: Any) -> None:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(person("operator"))
    assert "CSRF" in problem(client.post("/api/v1/sites/", "{}", content_type=JSON), 403)["detail"]

    def refuse(*_: object) -> None:
        raise OperationalError("connection refused")

    with connection.execute_wrapper(refuse):  # before any view: the session is read by a middleware
        assert "does not answer" in problem(client.get("/api/v1/sites/"), 503)["detail"]


def test_fault_of_a_middleware_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("pools.engine_knowledge.refresh_if_due", fail)
    client = Client(raise_request_exception=False)
    client.force_login(person("viewer"))
    found = problem(client.get("/api/v1/sites/"), 500)
    assert "request_id" in found["detail"]
    assert "planted" not in json.dumps(found)
