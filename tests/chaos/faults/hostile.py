"""What comes from outside: feeds, files of people, and connections."""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import os
import resource
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from urllib.parse import urlsplit

from tests.chaos.fault import Fault
from tests.chaos.stand import Stand

FEEDS = "The other feeds stay fresh, epochs go on, and the feed says what is wrong with it."
FRESH_S = 20.0  # four times the demo's pace
MOST_WEB_BYTES = 4 * 2**30  # a bomb that goes off must not take the machine's memory
ANSWERED_WITHIN_S = 10.0


def _poison(stand: Stand, config: dict[str, object]) -> None:
    """Gives the first site's feed a configuration that is no good, past every check, as an older version may have."""
    [(pk, old)] = stand.sql("SELECT id, config FROM telemetry_carbonfeed ORDER BY id LIMIT 1")
    stand.kept["feed"] = (pk, old)
    text = json.dumps({**old, **config})
    stand.sql(
        "UPDATE telemetry_carbonfeed SET config = %s, cool_down_until = NULL WHERE id = %s RETURNING id", text, pk
    )


def _cure(stand: Stand) -> None:
    """Looks which other feeds were held up, and gives the poisoned one its configuration back."""
    pk, old = stand.kept["feed"]
    stand.kept["late"] = stand.sql(
        "SELECT id FROM telemetry_carbonfeed WHERE id <> %s AND last_ok_at < now() - make_interval(secs => %s)",
        pk,
        FRESH_S,
    )
    stand.sql(
        "UPDATE telemetry_carbonfeed SET config = %s, cool_down_until = NULL, failures = 0 WHERE id = %s RETURNING id",
        json.dumps(old),
        pk,
    )


def _lay_pipe(stand: Stand) -> None:
    """Puts a pipe, to which nobody writes, where feeds' files are, and names it in a feed."""
    pipe = stand.product.var_dir / "feeds" / "pipe.csv"
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    _poison(stand, {"file": pipe.name})


def _take_pipe(stand: Stand) -> None:
    _cure(stand)
    (stand.product.var_dir / "feeds" / "pipe.csv").unlink()


def _others_are_fresh(stand: Stand) -> str:
    late = stand.kept["late"]
    return f"{len(late)} other feeds had no answer for {FRESH_S:.0f} s" if late else ""


class _Pages:
    """A person's browser: signs in and posts forms."""

    def __init__(self, stand: Stand) -> None:
        self._web = stand.product.web
        self._jar = http.cookiejar.CookieJar()
        self._open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._jar)).open
        admin = stand.product.credentials["admin"]
        self.get("/sign-in/")
        self.post("/sign-in/", {"username": admin["user"], "password": admin["password"]})

    def get(self, path: str, timeout_s: float = 10.0) -> int:
        with self._open(self._web + path, timeout=timeout_s) as answer:
            answer.read()
            return int(answer.status)

    def post(self, path: str, form: dict[str, str], timeout_s: float = 10.0) -> int:
        token = next((cookie.value for cookie in self._jar if "csrf" in cookie.name), "") or ""
        body = urllib.parse.urlencode(form | {"csrfmiddlewaretoken": token}).encode()
        headers = {"Referer": self._web + path}
        with self._open(urllib.request.Request(self._web + path, body, headers), timeout=timeout_s) as answer:
            answer.read()
            return int(answer.status)


def _bomb(levels: int) -> str:
    """Returns an import of one row in which `levels` lines stand for ten to their power values."""
    lines = ["- name: bomb", "  knobs:", "    a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"    a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


def _throw_bomb(stand: Stand) -> None:
    """Imports it through the page, and looks at another page meanwhile."""
    pid = stand.pid("web")
    for one in stand.pids("web"):
        resource.prlimit(one, resource.RLIMIT_AS, (MOST_WEB_BYTES, MOST_WEB_BYTES))
    pages = _Pages(stand)
    stand.kept["bombed"], stand.kept["answer"] = pid, ""

    def throw() -> None:
        began_s = time.monotonic()
        try:
            status = pages.post("/configure/services/import/", {"text": _bomb(9), "format": "yaml"}, timeout_s=40.0)
            took_s = time.monotonic() - began_s
            ok = status == 200 and took_s < ANSWERED_WITHIN_S
            stand.kept["answer"] = "" if ok else f"the import ended with {status} after {took_s:.0f} s"
        except urllib.error.HTTPError as error:
            stand.kept["answer"] = "" if error.code == 400 else f"the import ended with {error.code}"
        except OSError as error:
            stand.kept["answer"] = f"the import ended with {type(error).__name__}"

    stand.kept["thread"] = threading.Thread(target=throw, daemon=True)
    stand.kept["thread"].start()
    time.sleep(2.0)
    stand.kept["page"] = stand.product.status_of(f"{stand.product.web}/sign-in/")


def _bomb_is_over(stand: Stand) -> None:
    stand.kept["thread"].join(45.0)
    if stand.kept["answer"] or stand.kept["page"] != 200:
        stand.kill("web")  # what it still does with it is no part of the next fault


def _bomb_was_refused(stand: Stand) -> str:
    said = [stand.kept["answer"]]
    if stand.kept["page"] != 200:
        said.append("no other page answered within 5 s meanwhile")
    return "; ".join(text for text in said if text)


def _slow_connections(stand: Stand, url: str, number: int, words: bytes) -> None:
    """Opens connections that say a word and then nothing."""
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, most)
    )  # of this process: the product began with what it was given
    sockets = stand.kept.setdefault("sockets", [])
    for _ in range(number):
        with contextlib.suppress(OSError):
            connection = socket.create_connection((at.hostname, at.port), timeout=5)
            sockets.append(connection)
            connection.sendall(words)


def _close(stand: Stand) -> None:
    for connection in stand.kept["sockets"]:
        with contextlib.suppress(OSError):
            connection.close()


def _connected_early_ones_serve(stand: Stand) -> str:
    return (
        "" if stand.product.status_of(f"{stand.product.gateway}/live") == 200 else "the gateway's /live does not answer"
    )


SLOW_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Slow: "
SLOW_BODY = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{"

FAULTS = (
    Fault(
        name="a feed whose days last a microsecond",
        component="feed",
        kind="poison",
        promise=FEEDS,
        part=4,
        begin=lambda stand: _poison(stand, {"repeat": "day", "speedup": 1e11}),
        end=_cure,
        lasts_s=40.0,
        look=(_others_are_fresh,),
    ),
    Fault(
        name="a feed whose days are too short for a clock",
        component="feed",
        kind="poison",
        promise=FEEDS,
        part=4,
        begin=lambda stand: _poison(stand, {"repeat": "day", "speedup": 1e300}),
        end=_cure,
        lasts_s=25.0,
        look=(_others_are_fresh,),
    ),
    Fault(
        name="a feed whose file is a pipe",
        component="feed",
        kind="poison",
        promise=FEEDS,
        part=4,
        begin=_lay_pipe,
        end=_take_pipe,
        lasts_s=25.0,
        look=(_others_are_fresh,),
    ),
    Fault(
        name="a feed whose file is gone",
        component="feed",
        kind="gone",
        promise=FEEDS,
        part=4,
        begin=lambda stand: _poison(stand, {"file": "/nowhere/there-is-none.csv"}),
        end=_cure,
        lasts_s=25.0,
        look=(_others_are_fresh,),
    ),
    Fault(
        name="a YAML bomb on the import page",
        component="web",
        kind="hostile file",
        promise="It is refused within 10 s, and other pages answer meanwhile.",
        part=8,
        begin=_throw_bomb,
        end=_bomb_is_over,
        lasts_s=8.0,
        look=(_bomb_was_refused,),
    ),
    Fault(
        name="2,000 connections to the gateway that send half a head",
        component="gateway",
        kind="hostile connections",
        promise="Clients notice nothing.",
        part=8,
        begin=lambda stand: _slow_connections(stand, stand.product.gateway, 2000, SLOW_HEAD),
        end=_close,
        lasts_s=20.0,
        look=(_connected_early_ones_serve,),
    ),
    Fault(
        name="500 connections to the gateway that send half a body",
        component="gateway",
        kind="hostile connections",
        promise="Clients notice nothing.",
        part=8,
        begin=lambda stand: _slow_connections(stand, stand.product.gateway, 500, SLOW_BODY),
        end=_close,
        lasts_s=20.0,
        look=(_connected_early_ones_serve,),
    ),
    Fault(
        name="2,000 connections to the dashboard that send nothing",
        component="web",
        kind="hostile connections",
        promise="Pages answer, and clients of the gateway notice nothing.",
        part=8,
        begin=lambda stand: _slow_connections(stand, stand.product.web, 2000, b"G"),
        end=_close,
        lasts_s=20.0,
    ),
)
