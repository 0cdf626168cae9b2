"""Calls over HTTP: retries and their bounds, idempotency, time limits, errors by type; sync and async alike."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from greenserve import client as api
from greenserve.client import Client, Retries
from greenserve.client.calls import Call
from greenserve.client.transport import Transport

from .fake_api import TOKEN, URL, FakeApi, answer, problem

GET = Call("GET", "sites/")
POST = Call("POST", "sites/", body={"name": "dublin"}, key="k1")
CHANGE = Call("PATCH", "sites/dublin/", body={"pue": 1.2}, etag='"a"')
DELETE = Call("DELETE", "sites/dublin/", etag='"a"')
VALIDATE = Call("POST", "sites/validate/", body={}, harmless=True)
LOST = httpx2.ReadError("reset")
SLOW = httpx2.ReadTimeout("slow")
CLOSED = httpx2.ConnectError("refused")
LATER = problem(503, "unavailable")
FULL = problem(429, "throttled", retry_after="7")


@pytest.fixture(params=["sync", "async"])
def send(request):
    """Sends a call through either transport."""

    def sync(fake: FakeApi, call: Call, retries: Retries | None = None):
        return fake.transport(retries).send(call)

    def asynchronous(fake: FakeApi, call: Call, retries: Retries | None = None):
        return asyncio.run(fake.async_transport(retries).send(call))

    return sync if request.param == "sync" else asynchronous


@pytest.mark.parametrize("call", [GET, POST, CHANGE, DELETE, VALIDATE])
@pytest.mark.parametrize("first", [CLOSED, LATER, httpx2.ConnectTimeout("slow"), httpx2.PoolTimeout("busy")])
def test_call_is_sent_again_when_nothing_was_done(send, call, first):
    fake = FakeApi(first, answer(200, {"ok": True}))
    assert send(fake, call).content == b'{"ok":true}'
    assert len(fake.requests) == 2
    assert len(fake.waits_s) == 1
    assert fake.requests[0].content == fake.requests[1].content
    assert fake.requests[0].headers == fake.requests[1].headers


@pytest.mark.parametrize("lost", [LOST, SLOW, answer(502), answer(504), httpx2.RemoteProtocolError("closed")])
@pytest.mark.parametrize("call", [GET, POST, VALIDATE])
def test_call_is_sent_again_when_its_answer_is_lost_and_a_second_time_does_no_harm(send, call, lost):
    fake = FakeApi(lost, answer(200, {}))
    assert send(fake, call).status == 200
    assert len(fake.requests) == 2


@pytest.mark.parametrize("call", [CHANGE, DELETE, Call("POST", "nodes/join/", body={})])
def test_call_is_not_sent_again_when_its_answer_is_lost_and_it_may_have_been_carried_out(send, call):
    fake = FakeApi(LOST, answer(200, {}))
    with pytest.raises(api.NoAnswerError) as error:
        send(fake, call)
    assert error.value.sent
    assert len(fake.requests) == 1


def test_key_of_idempotency_is_the_same_in_each_attempt_and_another_for_each_call():
    fake = FakeApi(LATER, LOST, answer(201, {"secret": None}))
    with Client(URL, TOKEN) as client:
        client.transport = fake.transport()
        client.call("POST", "keys/", {"tenant": "acme"})
        client.call("POST", "keys/", {"tenant": "acme"})
        client.call("POST", "keys/", {"tenant": "acme"}, idempotency_key="mine")
        client.call("GET", "keys/")
        client.call("POST", "sites/validate/", {})
    keys = [request.headers.get("Idempotency-Key") for request in fake.requests]
    assert keys[0] == keys[1] == keys[2]
    assert len({keys[0], keys[3]}) == 2
    assert keys[4:] == ["mine", None, None]


def test_wait_is_as_long_as_the_api_asks_when_there_are_too_many_requests(send):
    fake = FakeApi(FULL, answer(200, {}))
    send(fake, POST)
    assert fake.waits_s == [7.0]


def test_wait_is_up_to_a_time_when_retry_after_is_one(send):
    at = datetime.now(UTC) + timedelta(seconds=20)
    fake = FakeApi(problem(503, "unavailable", retry_after=format_datetime(at, usegmt=True)), answer(200, {}))
    send(fake, GET)
    assert 15 < fake.waits_s[0] <= 20


def test_error_is_raised_at_once_when_the_api_asks_for_a_longer_wait_than_allowed(send):
    fake = FakeApi(FULL)
    with pytest.raises(api.RateLimitedError) as error:
        send(fake, GET, Retries(longest_wait_s=5))
    assert error.value.retry_after_s == 7
    assert fake.waits_s == []


@pytest.mark.parametrize("outcome", [LATER, CLOSED])
def test_attempts_are_bounded_and_waits_grow_when_it_never_answers(send, outcome):
    fake = FakeApi(outcome)
    with pytest.raises((api.UnavailableError, api.NoAnswerError)):
        send(fake, GET, Retries(attempts=5, first_wait_s=1.0, longest_wait_s=5.0))
    assert len(fake.requests) == 5
    for wait_s, usual_s in zip(fake.waits_s, [1, 2, 4, 8], strict=True):
        assert min(5.0, 0.5 * usual_s) <= wait_s <= min(5.0, 1.5 * usual_s)


def test_nothing_is_sent_again_when_one_attempt_is_allowed(send):
    fake = FakeApi(LATER)
    with pytest.raises(api.UnavailableError):
        send(fake, GET, Retries(attempts=1))
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid", api.InvalidError),
        (400, "parse_error", api.InvalidError),
        (401, "not_authenticated", api.NotSignedInError),
        (401, "authentication_failed", api.NotSignedInError),
        (403, "permission_denied", api.NotAllowedError),
        (404, "not_found", api.NotFoundError),
        (409, "conflict", api.ConflictError),
        (412, "precondition_failed", api.StaleError),
        (422, "unprocessable", api.UnprocessableError),
        (500, "error", api.ProblemError),
    ],
)
def test_error_has_the_class_of_its_problem_and_is_not_tried_again(send, status, kind, expected):
    fake = FakeApi(problem(status, kind, "no such thing"))
    with pytest.raises(expected, match="no such thing") as error:
        send(fake, GET)
    assert type(error.value) is expected
    assert (error.value.status, error.value.request_id, len(fake.requests)) == (status, "r1", 1)


def test_message_names_fields_and_remedies_when_a_body_is_wrong(send):
    errors = [
        {"field": "0.pue", "detail": "It is below 1.", "remedy": "Give the ratio, such as 1.2."},
        {"field": "", "detail": "The list is odd."},
    ]
    fake = FakeApi(problem(400, "invalid", "0.pue: It is below 1. (and 1 more)", errors=errors, remedy="Read docs."))
    with pytest.raises(api.InvalidError) as error:
        send(fake, POST)
    expected = "0.pue: It is below 1. Give the ratio, such as 1.2. The list is odd. Read docs."
    assert str(error.value) == expected
    assert error.value.errors[0].field == "0.pue"
    assert error.value.errors[1].remedy is None


@pytest.mark.parametrize(
    "strange",
    [
        httpx2.Response(404, text="<h1>Not Found</h1>"),
        httpx2.Response(502, text=""),
        httpx2.Response(301, headers={"Location": "https://elsewhere.example.org/"}),
        httpx2.Response(400, json={"error": "another API's"}),
    ],
)
def test_error_says_so_when_something_else_answers(send, strange):
    fake = FakeApi(strange)
    with pytest.raises(api.UnexpectedAnswerError, match=r"GET http://greenserve.test/api/v1/sites/") as error:
        send(fake, GET, Retries(attempts=1))
    assert error.value.status == strange.status_code


def test_token_is_sent_and_never_shown():
    fake = FakeApi(httpx2.ConnectError("refused"))
    transport = fake.transport(Retries(attempts=1))
    with pytest.raises(api.NoAnswerError) as error:
        transport.send(GET)
    assert fake.requests[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in f"{error.value} {transport!r} {error.value.__context__}"


def test_error_comes_in_time_when_the_server_is_silent():
    """A real socket that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(10_000):
                    pass

        silent = threading.Thread(target=accept, daemon=True)
        silent.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        transport = Transport(url, TOKEN, timeout_s=0.2, retries=Retries(attempts=1))
        began = time.monotonic()
        with pytest.raises(api.NoAnswerError) as error:
            transport.send(GET)
        assert time.monotonic() - began < 3
        assert error.value.sent
        transport.close()
        silent.join()


def test_connection_that_is_refused_counts_as_not_sent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    transport = Transport(f"http://127.0.0.1:{port}", TOKEN, retries=Retries(attempts=1))
    with pytest.raises(api.NoAnswerError) as error:
        transport.send(DELETE)
    assert not error.value.sent
    transport.close()


@pytest.mark.parametrize("url", ["greenserve.test", "ftp://greenserve.test", "http://", ""])
def test_address_is_refused_when_it_is_none(url):
    with pytest.raises(ValueError, match="is no address"):
        Transport(url, TOKEN)


@pytest.mark.parametrize("call", [GET, POST])
def test_time_is_refused_when_it_has_no_zone(send, call):
    naive = datetime(2026, 11, 2)
    wrong = Call(call.method, call.path, {"from": naive}, {"rows": [{"at": naive}]} if call.body else None)
    fake = FakeApi(answer(200, {}))
    with pytest.raises(ValueError, match="has no time zone"):
        send(fake, wrong)
    assert fake.requests == []
