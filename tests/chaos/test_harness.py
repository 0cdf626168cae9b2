"""The harness itself: its requests, its client, its accounts and its page. Quick, in `make test`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chaos import account, machine, page, replay
from tests.chaos.account import Requests
from tests.chaos.fault import Fault
from tests.chaos.faults import EVERY
from tests.chaos.replay import BROKEN, CUT, OK, SILENT, Asked, Attempt, Replay, Request, drawn
from tests.chaos.trial import Found

WHOLE = Request(0, 0.0, replay.WHOLE, 5, 3)
STREAM = Request(1, 0.0, replay.STREAM, 5, 3)
USAGE = {"usage": {"prompt_tokens": 5, "completion_tokens": 3}}
EVENTS = f"data: {json.dumps({'choices': [{'text': 'a'}]})}\n\ndata: {json.dumps(USAGE)}\n\ndata: [DONE]\n\n".encode()


def test_replay_begins_with_the_same_requests_when_it_is_longer() -> None:
    short, long = drawn(7, 3.0, 20.0), drawn(7, 3.0, 60.0)
    assert long[: len(short)] == short
    assert short != drawn(8, 3.0, 20.0)
    assert 30 < len(short) < 90
    assert {request.kind for request in short} == {replay.WHOLE, replay.STREAM, replay.CONTINUED}


class _Server:
    """Answers the attempts of each request with what is given, in order."""

    def __init__(self, *answers: Callable[[web.Request], Any]) -> None:
        self.answers, self.seen = list(answers), list[str]()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.headers["traceparent"])
        return await self.answers[len(self.seen) - 1](request)


async def _good(_: web.Request) -> web.Response:
    return web.json_response(USAGE)


async def _stream(_: web.Request) -> web.Response:
    return web.Response(body=EVENTS)


async def _short(_: web.Request) -> web.Response:
    return web.Response(body=EVENTS.replace(b"[DONE]", b'{"error": {}}'))


async def _refuse(_: web.Request) -> web.Response:
    return web.json_response({}, status=503, headers={"Retry-After": "0.001"})


async def _wrong(_: web.Request) -> web.Response:
    return web.json_response({}, status=400)


async def _hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _asked(monkeypatch: pytest.MonkeyPatch, request: Request, *answers: Any) -> tuple[Asked, _Server]:
    monkeypatch.setattr(replay, "FIRST_PAUSE_S", 0.001)
    server = _Server(*answers)
    app = web.Application()
    app.router.add_post("/v1/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        load = Replay(f"http://127.0.0.1:{port}", ["key"], "model", [request], run=5)
        load.start()
        [asked] = await asyncio.to_thread(load.finish, 5.0)
    finally:
        await runner.cleanup()
    return asked, server


@pytest.mark.parametrize(
    ("request_", "answers", "outcomes"),
    [
        (WHOLE, (_good,), [OK]),
        (STREAM, (_stream,), [OK]),
        (WHOLE, (_refuse, _good), ["503", OK]),
        (WHOLE, (_hang_up, _hang_up, _good), [BROKEN, BROKEN, OK]),
        (STREAM, (_short, _stream), [CUT, OK]),
        (WHOLE, (_refuse, _refuse, _refuse), ["503", "503", "503"]),
        (WHOLE, (_wrong,), ["400"]),
    ],
    ids=["whole", "stream", "refused once", "hung up on", "cut", "refused", "wrong"],
)
async def test_client_asks_again_as_openais_does(
    monkeypatch: pytest.MonkeyPatch, request_: Request, answers: Any, outcomes: list[str]
) -> None:
    asked, server = await _asked(monkeypatch, request_, *answers)
    assert [attempt.outcome for attempt in asked.attempts] == outcomes
    assert asked.answered == (outcomes[-1] == OK)
    assert [attempt.traceparent for attempt in asked.attempts] == server.seen
    assert len(set(server.seen)) == len(server.seen)
    assert all(traceparent.startswith(f"00-{5:016x}{request_.number:016x}-") for traceparent in server.seen)


async def test_request_is_lost_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    never = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        await never.wait()
        return web.Response()

    monkeypatch.setattr(replay, "CONNECT_S", 1.0)
    server = web.Application()
    server.router.add_post("/v1/completions", hang)
    runner = web.AppRunner(server, shutdown_timeout=0.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    load = Replay(f"http://127.0.0.1:{runner.addresses[0][1]}", ["key"], "model", [WHOLE], run=5)
    load.start()
    [asked] = await asyncio.to_thread(load.finish, 0.1)
    never.set()
    await runner.cleanup()
    assert [attempt.outcome for attempt in asked.attempts] == [SILENT]
    assert not asked.answered


def test_accounts_tell_the_answered_from_the_lost_and_find_records_that_are_missing_or_twice() -> None:
    asked = [
        Asked(WHOLE, [Attempt("a1", OK)], 1.0, True),
        Asked(WHOLE, [Attempt("b1", CUT, 0.0, 1.5), Attempt("b2", OK)], 4.25, True),
        Asked(WHOLE, [Attempt("c1", "503"), Attempt("c2", "503"), Attempt("c3", "503")], 3.0, True),
        Asked(WHOLE, [Attempt("d1", SILENT)], 90.0, False),
        Asked(WHOLE, [Attempt("e1", OK)], 1.0, True),
    ]
    found = account.of(asked, {"a1": 1, "b1": 1, "b2": 3, "c3": 1})
    assert (found.sent, found.answered, found.retried, found.lost) == (5, 2, 1, 2)
    assert (found.cut, found.longest_wait_s, found.longest_begin_s) == (1, 90.0, 1.5)
    assert (found.recorded, found.missing, found.twice) == (2, 1, 2)
    assert found.ends == {"503": 1, SILENT: 1}


def test_outage_excuses_what_was_last_sent_in_it_and_forgets_only_what_was_answered_before_its_end() -> None:
    asked = [
        Asked(WHOLE, [Attempt("a1", "503", 9.0), Attempt("a2", "503", 11.0)], 3.0, True),
        Asked(WHOLE, [Attempt("b1", "503", 11.0), Attempt("b2", "503", 21.0)], 3.0, True),
        Asked(WHOLE, [Attempt("c1", OK, 12.0)], 1.0, True),
        Asked(WHOLE, [Attempt("d1", OK, 22.0)], 1.0, True),
        Asked(WHOLE, [Attempt("e1", OK, 12.0)], 1.0, True),
    ]
    assert account.Outage(10.0, 20.0, forgets=False).loses(asked) == 1
    assert account.Outage(10.0, 20.0, forgets=False).lacks(asked, {"e1": 1}) == 0
    assert account.Outage(10.0, 20.0, forgets=True).lacks(asked, {"e1": 1}) == 1


def _found(broken: tuple[str, ...] = ()) -> Found:
    requests = Requests(40, 38, 2, 0, 1, 6.25, 0.5, 40, 0, 0, {})
    return Found(requests, 1.5, 7.04, broken, ())


def _fault(**fields: Any) -> Fault:
    return Fault(**({"name": "x", "component": "agent", "kind": "killed", "part": 1, "begin": print} | fields))


def test_page_has_the_last_finding_of_each_fault(tmp_path: Path) -> None:
    figures = tmp_path / "faults.json"
    page.keep(None, 1, _found(), "2026-11-01", "0.1.0", figures)
    page.keep(_fault(), 1, _found(("one is lost",)), "2026-11-01", "0.1.0", figures)
    page.keep(_fault(stops=True, because="it is a pity"), 1, _found(), "2026-11-02", "0.1.0", figures)
    page.keep(_fault(name="forgotten"), 1, _found(), "2026-11-02", "0.1.0", figures)
    lines = page.table(page.read(figures), {"x": 0})
    assert lines.splitlines()[2:4] == [
        "| - | no fault, part 1 | The replay by itself. | 1 | yes | 40, 38, 2, 0 | 0, 0 | 6.25 | 1.5; clocks 7.0 |",
        f"| agent | x | {_fault().promise} | 1 | yes | 40, 38, 2, 0 (it is a pity) | 0, 0 | 6.25 | 1.5; clocks 7.0 |",
    ]
    assert "forgotten" not in lines, "it is no fault any more"
    assert lines.endswith("Runs of 2026-11-01 and 2026-11-02, version 0.1.0.")
    assert page.put_into(f"a\n{page.BEGIN}\nold\n{page.END}\nb\n", "new") == f"a\n{page.BEGIN}\nnew\n{page.END}\nb\n"
    with pytest.raises(ValueError, match="no place for the table"):
        page.put_into("a\n", "new")


def test_page_agrees_with_its_figures() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    order = {fault.name: number for number, fault in enumerate(EVERY)}
    assert page.put_into(text, page.table(page.read(), order)) == text, "`tests.chaos.page.write()` writes it"


def test_faults_differ_and_at_most_three_are_of_one_component_and_kind() -> None:
    assert len({fault.name for fault in EVERY}) == len(EVERY)
    assert max(Counter((fault.component, fault.kind) for fault in EVERY).values()) <= 3
    assert len(EVERY) >= 40


def test_fault_may_lose_requests_only_for_a_reason() -> None:
    with pytest.raises(ValueError, match="only for a reason"):
        _fault(stops=True)


def test_machine_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(machine.shutil, "which", lambda *_, **__: None)
    said = "\n".join(machine.lacking())
    assert said.startswith("root: ")
    for word in ("`unshare`: install the package util-linux", "`nft`", "`ip`", "`cc`: install the package gcc"):
        assert word in said
