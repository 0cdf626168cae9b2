"""Exchanges with a real Envoy, recorded: the same messages get the same answers in the same order.

exchanges/*.json hold, beside the messages, what the client got; docs/picker.md says how they were recorded. The picker
of that time left the engine's own name of the model in the answer: in its place the service's is expected.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.envoy import as_json, parsed
from tests.fakes.fleet import ENGINE_MODEL, MODEL
from tests.unit.pools.gateway.picker.picker_bench import running

FOLDER = Path(__file__).parent / "exchanges"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.json")))
async def test_answers_are_those_that_envoy_took_when_an_exchange_is_played_again(tmp_path: Path, name: str) -> None:
    from pools.gateway.picker.processing import Processing

    recorded = json.loads((FOLDER / f"{name}.json").read_bytes())
    coming = [message["envoy"] for message in recorded["messages"] if "envoy" in message]
    played: list[dict[str, Any]] = []

    async def receive() -> Any:
        if not coming:
            return None
        played.append({"envoy": coming.pop(0)})
        return parsed(played[-1]["envoy"])

    async def send(message: Any) -> None:
        played.append({"picker": as_json(message)})

    async with running(tmp_path / "spool", [f"http://{recorded['endpoint']}"]) as picker:
        await Processing(picker.server.context, receive, send).run()
        assert [without_ids(m) for m in before_the_body(played)] == [
            without_ids(m) for m in before_the_body(recorded["messages"])
        ]
        assert answered(played) == answered(recorded["messages"]).replace(ENGINE_MODEL, MODEL)
        assert [row.http_status for row in picker.rows()] == [recorded["client"]["status"]] * (name != "wrong-key")


def before_the_body(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in messages if "response_body" not in message.get("picker", message.get("envoy"))]


def answered(messages: list[dict[str, Any]]) -> str:
    """The answer's body as the picker lets it pass: what came, or what stands in its place."""
    text, came = b"", b""
    for message in messages:
        piece = message.get("envoy", {}).get("response_body")
        if piece is not None:
            came = base64.b64decode(piece.get("body", ""))
        reply = message.get("picker", {}).get("response_body")
        if reply is not None:
            mutation = reply["response"].get("body_mutation")
            if mutation is None:
                text += came
            else:
                text += base64.b64decode(mutation.get("streamed_response", mutation).get("body", ""))
    return text.decode()


def without_ids(message: Any) -> Any:
    """The message with the request's own id, which is new each time, made equal."""
    head = message.get("picker", {})
    for part in (head.get("request_headers"), head.get("request_body")):
        for option in (part or {}).get("response", {}).get("header_mutation", {}).get("set_headers", ()):
            if option["header"]["key"] == "x-request-id":
                option["header"]["raw_value"] = "id"
    return message
