"""What an engine answers to those who have its key, and to those who have not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pools.vllm_scheduler.key_guard import KeyGuard, Scope, Send

KEY = "gs-engine-made"


async def _engine(scope: Scope, receive: Any, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200})


def asked(path: str, authorization: str = "", **scope: Any) -> Any:
    """The first message of the answer: its status where it has one, else its type."""
    said: list[dict[str, Any]] = []
    headers = [(b"authorization", authorization.encode())] if authorization else []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    asyncio.run(KeyGuard(_engine)({"type": "http", "path": path, "headers": headers, **scope}, None, send))
    return said[0].get("status", said[0]["type"])


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    return KEY


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/invocations", "/tokenize", "/sleep", "/openapi.json", "/health/../invocations", "/"]
)
def test_key_is_asked_for_wherever_something_can_be_had_or_changed(key: str, path: str) -> None:
    assert asked(path) == 401
    assert asked(path, "Bearer another") == 401
    assert asked(path, f"Basic {key}") == 401
    assert asked(path, f"bearer {key}") == 200


@pytest.mark.parametrize("path", ["/health", "/ping", "/load", "/version", "/metrics", "/metrics/"])
def test_health_and_metrics_are_open(key: str, path: str) -> None:
    assert asked(path) == 200
    assert asked(f"/prefix{path}", root_path="/prefix") == 200


def test_socket_is_closed_and_the_engines_own_start_goes_on(key: str) -> None:
    assert asked("/v1/realtime", type="websocket") == "websocket.close"
    assert asked("", type="lifespan") == 200


def test_engine_without_a_key_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert asked("/invocations") == 200
