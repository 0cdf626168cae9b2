"""Asks for the engine's key wherever something can be had or changed: an ASGI middleware, for vLLM's `--middleware`.

vLLM itself asks for it only where a path begins with /v1, /v2, /inference or /cohere (0.32.0). `/invocations`, which
generates as /v1 does, and what vLLM has for developers are none of these.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"
OPEN = frozenset(("/health", "/ping", "/load", "/version", "/metrics"))  # they say how the engine is, and no more
_REFUSAL = b'{"error":"Unauthorized"}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_REFUSAL)).encode())]

Scope = MutableMapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


class KeyGuard:
    """Lets requests with the key through. An engine without a key asks for none."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._key = os.environ.get(KEY_VARIABLE, "").encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope) or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": _REFUSAL})

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        return not self._key or path.rstrip("/") in OPEN

    def _knows(self, scope: Scope) -> bool:
        shown = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = shown.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key, self._key)
