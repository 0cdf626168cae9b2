"""The endpoint picker, asked by an Envoy that holds it to the protocol, in both body modes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pools import wire
from pools.agent.vllm.engine_access import new_key
from tests.fakes.envoy import BUFFERED, DUPLEX, STREAMED, Answered, EnvoyStream, Sent, http_headers
from tests.fakes.fleet import ENGINE_MODEL, EXPIRED_SECRET, MODEL, SECRET, key
from tests.unit.pools.gateway.conftest import completion, until
from tests.unit.pools.gateway.picker.picker_bench import HERE, THERE, Picker, running

AUTH = {"authorization": f"Bearer {SECRET}"}
REQUEST_MODES = pytest.mark.parametrize("mode", [DUPLEX, BUFFERED])
MODES = pytest.mark.parametrize(("mode", "back"), [(DUPLEX, DUPLEX), (BUFFERED, BUFFERED), (BUFFERED, STREAMED)])


@pytest.fixture
async def picker(tmp_path: Path) -> AsyncIterator[Picker]:
    async with running(tmp_path / "spool", [f"http://{HERE}", f"http://{THERE}"]) as bench:
        yield bench


def event(n: int, **more: Any) -> bytes:
    choice = {"index": 0, "text": f"tok{n} ", "finish_reason": None}
    chunk = {"id": "cmpl-1", "object": "text_completion", "choices": [choice]} | more
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


USAGE = {"prompt_tokens": 300, "completion_tokens": 3, "total_tokens": 303}
TOKENS = [event(n) for n in range(3)]
LAST_WORD = event(0, choices=[], usage=USAGE)
DONE = b"data: [DONE]\n\n"
STREAM = [*TOKENS, LAST_WORD, DONE]
WHOLE = json.dumps({"id": "cmpl-1", "choices": [{"index": 0, "text": "tok tok tok"}], "usage": USAGE}).encode()


async def asked(envoy: EnvoyStream, **fields: Any) -> Sent:
    sent = await envoy.ask(completion(**fields))
    assert isinstance(sent, Sent)
    return sent


# -- what goes to the engine -----------------------------------------------------------------------


@MODES
async def test_header_and_metadata_name_the_same_endpoint_when_a_place_is_found(
    picker: Picker, mode: str, back: str
) -> None:
    async with picker.envoy(mode, back).stream() as stream:
        sent = await asked(stream)
        assert sent.endpoint == HERE
        assert sent.metadata == {"x-gateway-destination-endpoint": HERE}
        assert picker.in_flight == 1
        await stream.answer([WHOLE], content_type="application/json")
    row = await picker.row()
    assert (row.status, row.http_status, row.instance_uid) == ("ok", 200, "00000000-0000-4000-8000-000000000000")


@REQUEST_MODES
async def test_engine_gets_its_own_model_name_and_not_the_clients_key(picker: Picker, mode: str) -> None:
    async with picker.envoy(mode).stream() as stream:
        sent = await stream.ask(completion(seed=7), headers=AUTH | {"accept-encoding": "gzip", "x-request-id": "mine"})
        assert isinstance(sent, Sent)
        assert (sent.json["model"], sent.json["seed"]) == (ENGINE_MODEL, 7)
        assert "authorization" not in sent.headers
        assert "accept-encoding" not in sent.headers
        assert sent.headers["x-request-id"] != "mine"
        answered = await stream.answer([WHOLE], content_type="application/json")
        assert answered.headers["x-request-id"] == "mine"


@REQUEST_MODES
async def test_engine_that_asks_for_a_key_gets_its_own_in_place_of_the_clients(picker: Picker, mode: str) -> None:
    picker.fleet.engine_key = new_key()
    picker.publish()
    async with picker.envoy(mode).stream() as stream:
        sent = await stream.ask(completion(), headers=AUTH)
        assert isinstance(sent, Sent)
        assert sent.headers["authorization"] == f"Bearer {picker.fleet.engine_key}"
        await stream.answer([WHOLE], content_type="application/json")
    assert (await picker.row()).request_id == sent.headers["x-request-id"]


@REQUEST_MODES
async def test_body_arrives_whole_when_it_is_large(picker: Picker, mode: str) -> None:
    text = "word " * 60_000
    async with picker.envoy(mode).stream() as stream:
        sent = await stream.ask(completion(prompt="hello", suffix=text), pieces=7)
        assert isinstance(sent, Sent)
        assert sent.json["suffix"] == text
        await stream.answer([WHOLE], content_type="application/json")


async def test_body_goes_before_its_trailers_when_the_client_sends_some(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        sent = await stream.ask(completion(), trailers=True, pieces=3)
        assert isinstance(sent, Sent)
        assert sent.json["model"] == ENGINE_MODEL


async def test_full_duplex_is_taken_when_envoy_does_not_tell_its_modes(picker: Picker) -> None:
    async with picker.envoy(tells_modes=False).stream() as stream:
        assert (await asked(stream)).endpoint == HERE


async def test_chat_is_placed_as_well(picker: Picker) -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    async with picker.envoy().stream() as stream:
        sent = await stream.ask(chat, path="/v1/chat/completions?x=1")
        assert isinstance(sent, Sent)
        await stream.answer([WHOLE], content_type="application/json")
    assert (await picker.row()).endpoint == "chat"


# -- which endpoint --------------------------------------------------------------------------------


async def test_only_an_allowed_endpoint_is_named_when_the_proxy_gives_a_subset(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        sent = await stream.ask(completion(), subset=["10.0.0.9:80", THERE])
        assert isinstance(sent, Sent)
        assert sent.endpoint == THERE


@pytest.mark.parametrize("subset", [[], ["10.0.0.9:80"]])
async def test_503_when_no_allowed_endpoint_is_ready(picker: Picker, subset: list[str]) -> None:
    async with picker.envoy().stream() as stream:
        answered = await stream.ask(completion(), subset=subset)
        assert isinstance(answered, Answered)
        assert answered.status == 503
    assert (await picker.row()).status == "rejected"


async def test_place_and_record_follow_when_another_endpoint_has_served(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream, stream=True)
        got = await stream.begin_answer(served=THERE)
        by_uid = {instance.uid: instance.in_flight for instance in picker.server.runtime.fleet.instances()}
        assert sorted(by_uid.values()) == [0, 1]
        assert by_uid["00000000-0000-4000-8000-000000000001"] == 1
        await stream.answer_piece(got, DONE, end=True)
    assert (await picker.row()).instance_uid == "00000000-0000-4000-8000-000000000001"


async def test_next_request_goes_elsewhere_when_an_endpoint_refused_the_connection(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream)
        refused = "upstream_reset_before_response_started{remote_connection_failure}"
        answered = await stream.answer([b"upstream connect error"], 503, "text/plain", details=refused)
        assert json.loads(answered.body)["error"]["code"] == "upstream_error"
        assert answered.headers["content-type"] == "application/json"
    row = await picker.row()
    assert (row.status, row.http_status) == ("upstream_error", 503)
    async with picker.envoy().stream() as stream:
        assert (await asked(stream)).endpoint == THERE


async def test_address_is_looked_up_when_an_instance_has_a_name(picker: Picker) -> None:
    picker.fleet.urls = ["http://localhost:8001"]
    picker.publish()
    async with picker.envoy().stream() as stream:
        assert (await asked(stream)).endpoint in ("127.0.0.1:8001", "[::1]:8001")


async def test_503_when_an_instances_name_has_no_address(picker: Picker) -> None:
    picker.fleet.urls = ["http://nowhere.invalid:8001"]
    picker.publish()
    async with picker.envoy().stream() as stream:
        answered = await stream.ask(completion())
        assert isinstance(answered, Answered)
        assert answered.status == 503
    await picker.row()


async def test_request_waits_and_goes_when_there_is_room(picker: Picker) -> None:
    picker.fleet.urls = [f"http://{HERE}"]
    picker.fleet.policy = wire.RequestPolicy(engine_queue=1)
    picker.publish()
    async with picker.envoy().stream() as first, picker.envoy().stream() as second:
        await asked(first, stream=True)
        waiting = asyncio.ensure_future(asked(second, stream=True))
        await until(lambda: picker.server.runtime.dispatcher.waiting == 1)
        got = await first.begin_answer()
        await first.answer_piece(got, TOKENS[0])
        assert (await waiting).endpoint == HERE


def narrow(picker: Picker, **may: Any) -> None:
    """Puts one key in force, in the place of all others."""
    made, fleet = key(SECRET, 1), picker.fleet.fleet()
    own = wire.FleetKey(made.key_hash, 1, "acme", 1, **may)
    fleet = wire.Fleet(fleet.version, fleet.at_s, fleet.services, [own], fleet.nodes)
    picker.server.runtime.fleet.apply(fleet, picker.fleet.states(), time.monotonic())


@MODES
async def test_answer_says_what_is_left_of_the_callers_limits(picker: Picker, mode: str, back: str) -> None:
    narrow(picker, limits=wire.RequestLimits(requests_per_minute=10))
    async with picker.envoy(mode, back).stream() as envoy:
        await asked(envoy, stream=True)
        answered = await envoy.answer(STREAM)
    assert answered.headers["x-ratelimit-limit-requests"] == "10"
    assert answered.headers["x-ratelimit-remaining-requests"] == "9"


@pytest.mark.parametrize(
    ("source", "status"),
    [("192.0.2.7:41234", 0), ("[2001:db8::7]:41234", 0), ("198.51.100.1:41234", 401), (None, 401), ("192.0.2.7", 401)],
)
async def test_key_may_be_used_from_its_networks_when_envoy_says_where_the_client_is(
    picker: Picker, source: str | None, status: int
) -> None:
    narrow(picker, addresses=["192.0.2.0/24", "2001:db8::/48"])
    async with picker.envoy().stream() as envoy:
        answered = await envoy.ask(completion(), source=source)
    assert (answered.status if isinstance(answered, Answered) else 0) == status


async def test_429_with_retry_after_when_the_line_is_full(picker: Picker) -> None:
    picker.fleet.urls = [f"http://{HERE}"]
    picker.fleet.policy = wire.RequestPolicy(engine_queue=1, max_queued_requests=0)
    picker.publish()
    async with picker.envoy().stream() as first, picker.envoy().stream() as second:
        await asked(first, stream=True)  # of others the prompt counts as computed when it should be, by the clock
        answered = await second.ask(completion())
        assert isinstance(answered, Answered)
        assert (answered.status, answered.error["code"]) == (429, "queue_full")
        assert int(answered.headers["retry-after"]) >= 1
    await until(lambda: len(picker.rows()) == 2)
    assert {row.status for row in picker.rows()} == {"rejected", "client_gone"}


# -- refusals --------------------------------------------------------------------------------------


@REQUEST_MODES
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer no"}, {"authorization": f"Bearer {EXPIRED_SECRET}"}])
async def test_401_when_the_key_is_missing_wrong_or_expired(picker: Picker, mode: str, headers: dict[str, str]) -> None:
    async with picker.envoy(mode).stream() as stream:
        answered = await stream.ask(completion(), headers=headers)
        assert isinstance(answered, Answered)
        assert (answered.status, answered.error["code"]) == (401, "invalid_api_key")
        assert answered.headers["content-type"] == "application/json"
    assert picker.rows() == []
    assert picker.server.runtime.metrics.refusals == {401: 1}


@REQUEST_MODES
@pytest.mark.parametrize(
    ("body", "status", "rows"),
    [
        (completion(max_tokens=0), 400, 1),
        (completion(model="nope"), 404, 0),
        (completion(model="other-model"), 404, 0),
        (b'{"model": "llama3-70b", "prompt": 7}', 400, 1),
        (b"no JSON", 400, 0),
        (None, 400, 0),
        (b"x" * (1 << 20) + b"x", 413, 0),
    ],
    ids=["limit", "unknown", "not theirs", "type", "garbage", "empty", "too large"],
)
async def test_refusal_has_openais_shape_when_the_body_is_wrong(
    picker: Picker, mode: str, body: Any, status: int, rows: int
) -> None:
    async with picker.envoy(mode).stream() as stream:
        answered = await stream.ask(body)
        assert isinstance(answered, Answered)
        assert answered.status == status
        assert set(answered.error) == {"message", "type", "param", "code"}
    assert [row.status for row in picker.rows()] == ["client_error"] * rows


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("GET", "/", 404)]
)
async def test_path_is_refused_when_nothing_is_to_be_placed(
    picker: Picker, method: str, path: str, status: int
) -> None:
    async with picker.envoy().stream() as stream:
        answered = await stream.ask(None, path, method)
        assert isinstance(answered, Answered)
        assert answered.status == status


async def test_models_are_listed_when_asked_for(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        answered = await stream.ask(None, "/v1/models", "GET")
        assert isinstance(answered, Answered)
        models = json.loads(answered.body)["data"]
        assert [model["id"] for model in models] == [MODEL]
    async with picker.envoy().stream() as stream:
        answered = await stream.ask(None, f"/v1/models/{MODEL}", "GET")
        assert isinstance(answered, Answered)
        assert json.loads(answered.body) == models[0]


async def test_503_when_no_instance_is_ready(picker: Picker) -> None:
    picker.fleet.state = "draining"
    picker.publish()
    async with picker.envoy().stream() as stream:
        answered = await stream.ask(completion())
        assert isinstance(answered, Answered)
        assert (answered.status, answered.error["code"]) == (503, "no_instance_available")
    assert (await picker.row()).status == "rejected"


@pytest.mark.parametrize(("mode", "back"), [(STREAMED, DUPLEX), ("NONE", DUPLEX), (DUPLEX, "NONE")])
async def test_stream_is_refused_with_the_remedy_when_a_mode_shows_too_little(
    picker: Picker, mode: str, back: str
) -> None:
    async with picker.envoy(mode, back).stream() as stream:
        await stream.send(request_headers={})
        await stream.call.done_writing()
        assert "FULL_DUPLEX_STREAMED" in await stream.call.details()


# -- what comes back -------------------------------------------------------------------------------


@MODES
async def test_usage_is_recorded_and_taken_out_when_the_client_did_not_ask_for_it(
    picker: Picker, mode: str, back: str
) -> None:
    async with picker.envoy(mode, back).stream() as stream:
        sent = await asked(stream, stream=True)
        assert sent.json["stream_options"] == {"include_usage": True}
        answered = await stream.answer(STREAM)
        assert answered.body == b"".join([*TOKENS, DONE])
    row = await picker.row()
    assert (row.prompt_tokens, row.output_tokens, row.tokens_source, row.stream) == (300, 3, "usage", True)
    assert row.ttft_s is not None
    assert row.tpot_s is not None


@MODES
async def test_usage_stays_when_the_client_asked_for_it(picker: Picker, mode: str, back: str) -> None:
    async with picker.envoy(mode, back).stream() as stream:
        await asked(stream, stream=True, stream_options={"include_usage": True})
        assert (await stream.answer(STREAM)).body == b"".join(STREAM)


@MODES
async def test_stream_is_read_right_when_events_are_split_over_pieces(picker: Picker, mode: str, back: str) -> None:
    whole = b"".join(STREAM)
    async with picker.envoy(mode, back).stream() as stream:
        await asked(stream, stream=True)
        answered = await stream.answer([whole[n : n + 50] for n in range(0, len(whole), 50)])
        assert answered.body == b"".join([*TOKENS, DONE])
    assert (await picker.row()).output_tokens == 3


async def test_tokens_pass_at_once_and_the_end_only_after_the_record(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream, stream=True)
        got = await stream.begin_answer()
        await stream.answer_piece(got, TOKENS[0])
        passed = (await stream.read()).response_body.response.body_mutation.streamed_response
        assert (passed.body, passed.end_of_stream) == (TOKENS[0], False)
        assert picker.rows() == []
        await stream.answer_piece(got, LAST_WORD + DONE)
        assert (await stream.read()).response_body.response.body_mutation.streamed_response.body == DONE
        assert len(picker.rows()) == 1
        await stream.answer_piece(got, b"", end=True)
        await stream.done()
    assert (await picker.row()).status == "ok"


async def test_trailers_of_the_response_come_after_all_of_its_body(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream, stream=True)
        answered = await stream.answer([*TOKENS, LAST_WORD, DONE[:8]], trailers=True)
        assert answered.body == b"".join(TOKENS) + DONE[:8]
    assert (await picker.row()).tokens_source == "usage"


@pytest.mark.parametrize(("mode", "back"), [(DUPLEX, DUPLEX), (BUFFERED, BUFFERED)])
async def test_whole_response_carries_energy_when_asked_for(picker: Picker, mode: str, back: str) -> None:
    async with picker.envoy(mode, back).stream() as stream:
        await stream.ask(completion(), headers=AUTH | {"x-greenserve-energy": "true"})
        answered = await stream.answer([WHOLE[:40], WHOLE[40:]], content_type="application/json")
        assert json.loads(answered.body)["usage"]["energy_j"] > 0
    assert (await picker.row()).output_tokens == 3


@MODES
async def test_stream_carries_energy_when_asked_for(picker: Picker, mode: str, back: str) -> None:
    async with picker.envoy(mode, back).stream() as stream:
        await stream.ask(completion(stream=True), headers=AUTH | {"x-greenserve-energy": "true"})
        answered = await stream.answer(STREAM)
        assert b'"energy_j"' in answered.body
        assert answered.body.endswith(DONE)


async def test_engines_refusal_passes_in_openais_shape_and_is_recorded(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream)
        said = b'{"error":{"message":"too long"}}'
        answered = await stream.answer([said], 400, "application/json")
        assert answered.status == 400
        assert json.loads(answered.body)["error"] == {
            "message": "too long",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_request",
        }
    row = await picker.row()
    assert (row.status, row.http_status) == ("client_error", 400)
    assert "too long" in row.error


async def test_error_event_is_an_upstream_error_in_the_record(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream, stream=True)
        await stream.answer([TOKENS[0], b'data: {"error":{"message":"out of memory"}}\n\n', DONE])
    assert (await picker.row()).status == "upstream_error"


async def test_timeout_of_the_proxy_is_a_timeout_in_the_record(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream)
        await stream.answer([b"upstream request timeout"], 504, "text/plain", details="response_timeout")
    assert (await picker.row()).status == "timeout"


# -- streams that break ----------------------------------------------------------------------------


async def test_a_row_is_left_when_the_stream_breaks_mid_response(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream, stream=True)
        got = await stream.begin_answer()
        await stream.answer_piece(got, TOKENS[0] + TOKENS[1])
        await stream.read()
    row = await picker.row()
    assert (row.status, row.http_status, row.output_tokens, row.tokens_source) == ("client_gone", 200, 2, "chunks")


async def test_a_row_is_left_when_the_client_leaves_before_the_response(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream)
    row = await picker.row()
    assert (row.status, row.http_status) == ("client_gone", 499)


async def test_line_is_left_when_the_client_leaves_while_it_waits(picker: Picker) -> None:
    picker.fleet.urls = [f"http://{HERE}"]
    picker.fleet.policy = wire.RequestPolicy(engine_queue=1)
    picker.publish()
    async with picker.envoy().stream() as first:
        await asked(first, stream=True)
        async with picker.envoy().stream() as second:
            waiting = asyncio.ensure_future(second.ask(completion()))
            await until(lambda: picker.server.runtime.dispatcher.waiting == 1)
            waiting.cancel()
        await until(lambda: picker.server.runtime.dispatcher.waiting == 0)
        await until(lambda: len(picker.rows()) == 1)
        assert picker.rows()[0].status == "client_gone"


async def test_nothing_is_left_when_the_stream_breaks_before_the_body(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await stream.send(request_headers={})
        await stream.call.done_writing()
        assert (await stream.read()).immediate_response.status.code == 404
    assert picker.in_flight == 0


async def test_a_row_is_left_when_the_picker_itself_fails(
    picker: Picker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> str:
        raise RuntimeError("a fault")

    monkeypatch.setattr("pools.gateway.picker.endpoints.Endpoints.of", broken)
    with caplog.at_level(logging.CRITICAL):
        async with picker.envoy().stream() as stream:
            await stream.send(request_headers=_head(), request_body=None)
            await stream.send(request_body={"body": json.dumps(completion()).encode(), "end_of_stream": True})
            await stream.call.done_writing()
            assert await stream.call.code()
    row = await picker.row()
    assert (row.status, row.http_status) == ("upstream_error", 500)


def _head() -> Any:
    return http_headers({":method": "POST", ":path": "/v1/completions", **AUTH})


async def test_rows_are_kept_when_the_picker_is_stopped(picker: Picker) -> None:
    async with picker.envoy().stream() as stream:
        await asked(stream)
        await picker.server.stop()
    assert [row.status for row in picker.rows()] == ["client_gone"]


# -- health ----------------------------------------------------------------------------------------


async def test_health_follows_the_fleet(picker: Picker) -> None:
    assert await picker.envoy().serving()
    picker.fleet.state = "draining"
    picker.publish()
    assert not await picker.envoy().serving()


# -- metrics ---------------------------------------------------------------------------------------


async def test_metrics_and_readiness_are_shown_when_asked_over_http(picker: Picker) -> None:
    url = f"http://127.0.0.1:{picker.server.status_page.port}"
    async with picker.envoy().stream() as stream:
        sent = await asked(stream)
        assert sent.endpoint == HERE
        async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as response:
            assert "greenserve_gateway_requests_in_flight 1\n" in await response.text()
        await stream.answer([WHOLE], content_type="application/json")
    await picker.row()
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/metrics") as response:
            page = await response.text()
        labels = f'service="{MODEL}",endpoint="completions",status="ok"'
        assert f"greenserve_gateway_requests_total{{{labels}}} 1\n" in page
        assert "greenserve_gateway_instances_ready 2\n" in page
        answers = {}
        for path in ("/live", "/ready", "/elsewhere"):
            async with http.get(url + path) as response:
                answers[path] = response.status
        async with http.post(url + "/metrics") as response:
            answers["POST"] = response.status
        assert answers == {"/live": 200, "/ready": 200, "/elsewhere": 404, "POST": 405}
        picker.fleet.urls = []
        picker.publish()
        async with http.get(f"{url}/ready") as response:
            assert response.status == 503
            assert (await response.json())["reason"] == "no instance is ready"
