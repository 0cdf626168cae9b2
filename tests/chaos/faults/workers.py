"""Engines that register themselves: they lie, hang, break off, and let their leases lapse."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.chaos.fault import Fault
from tests.chaos.faults.nodes import serving_node
from tests.chaos.stand import MODEL, WORKER_TOKEN, Stand
from tests.e2e.product import wait_for
from tests.fakes.engine import FakeEngine

LEASE_S = 60
SHORT_LEASE_S = 12  # it is admitted some seconds after its registration
FOREVER_S = 3600.0
HUNG_WAIT_S = 20.0
NOT_LONG = f"No answer begins after more than {HUNG_WAIT_S:.0f} s for a hung engine while another could give it."
AT_WORK_WITHIN_S = 15.0
_RUNNING = re.compile(r"num_requests_running\{[^}]*\} ([0-9.]+)")


@dataclass
class LyingEngine(FakeEngine):
    """`prompt_tokens`: what it says that every prompt had; None: the truth."""

    prompt_tokens: int | None = None

    def _said(self, usage: dict[str, Any]) -> dict[str, Any]:
        return usage if self.prompt_tokens is None else usage | {"prompt_tokens": self.prompt_tokens}

    async def _stream(self, request: Any, writer: Any, count: int, usage: dict[str, int]) -> bool:
        return await super()._stream(request, writer, count, self._said(usage))

    async def _whole(self, writer: Any, status: int, body: dict[str, Any]) -> None:
        await super()._whole(writer, status, body | {"usage": self._said(body["usage"])} if "usage" in body else body)


class Hung(LyingEngine):
    """Says that it is well, and takes requests for ever."""

    async def _respond(self, request: Any, writer: Any) -> bool:
        if request.path != "/health":
            await asyncio.sleep(FOREVER_S)
        return await super()._respond(request, writer)


def _register(stand: Stand, engine: FakeEngine, lease_s: int) -> None:
    """Runs the engine in a thread and tells the gateways of it, as a fast one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(engine.start(), loop).result(10)
    stand.kept["worker"] = (engine, loop, thread)
    body = {"url": engine.url, "service": MODEL, "gpu_type": "H100-SXM-80GB", "tp": 8, "lease_s": lease_s}
    body |= {"site": stand.sql("SELECT name FROM pools_site ORDER BY name LIMIT 1")[0][0]}
    request = urllib.request.Request(
        f"{stand.product.gateway}/v1/workers",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {WORKER_TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        stand.kept["registered"] = json.load(answer)


def _leave(stand: Stand) -> None:
    """Ends the lease, and the engine."""
    url = f"{stand.product.gateway}/v1/workers/{stand.kept['registered']['id']}"
    head = {"Authorization": f"Bearer {WORKER_TOKEN}"}
    urllib.request.urlopen(urllib.request.Request(url, headers=head, method="DELETE"), timeout=10).close()
    _vanish(stand)


def _vanish(stand: Stand) -> None:
    """Ends the engine without a word."""
    engine, loop, thread = stand.kept["worker"]
    stand.kept["got"] = sum(request.path == "/v1/completions" for request in engine.received)
    asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def _hang_a_node(stand: Stand) -> None:
    """Freezes engines that have requests, beside a worker that could take them."""
    _register(stand, LyingEngine(pace_s=0.01), LEASE_S)
    node = serving_node(stand)
    wait_for("requests at the node", lambda: _running(stand, node) > 0, timeout_s=AT_WORK_WITHIN_S, every_s=0.05)
    stand.freeze(f"simnode.{node}")


def _running(stand: Stand, node: str) -> float:
    """Returns how many requests the engines of a node work on."""
    pages = [f"{one['url']}/metrics" for one in stand.ask_node(node, "/instances") if one["state"] == "ready"]
    texts = [urllib.request.urlopen(page, timeout=3).read().decode() for page in pages]
    return sum(float(number) for text in texts for number in _RUNNING.findall(text))


def _thaw_and_leave(stand: Stand) -> None:
    stand.thaw()
    _leave(stand)


def _got_some(stand: Stand) -> str:
    return "" if stand.kept.get("got") else "no request came to the worker: it proves nothing"


def _worker(name: str, kind: str, promise: str, engine: Any, lasts_s: float = 20.0, **fields: Any) -> Fault:
    lease_s = fields.pop("lease_s", LEASE_S)
    return Fault(
        name=name,
        kind=kind,
        promise=promise,
        part=2,
        begin=lambda stand: _register(stand, engine(), lease_s),
        end=fields.pop("end", _leave),
        lasts_s=lasts_s,
        look=(_got_some,),
        **{"component": "worker", **fields},
    )


FAULTS = (
    Fault(
        name="engines of a node hung for 30 s",
        component="engine",
        kind="frozen",
        promise=f"{NOT_LONG} Streams that have begun go on elsewhere where that was asked for, and else break off.",
        waits_s=HUNG_WAIT_S,
        part=2,
        begin=_hang_a_node,
        end=_thaw_and_leave,
        lasts_s=30.0,
        look=(_got_some,),
    ),
    _worker(
        "a worker that says every prompt had 10^15 tokens",
        "lying",
        "Its records are kept with what can be stored, and those of others are not held up.",
        lambda: LyingEngine(prompt_tokens=10**15, pace_s=0.01),
    ),
    _worker(
        "a worker that says every prompt had -5 tokens",
        "lying",
        "Its records are kept with what can be stored, and those of others are not held up.",
        lambda: LyingEngine(prompt_tokens=-5, pace_s=0.01),
    ),
    _worker(
        "a worker that breaks off each answer",
        "breaks off",
        "What breaks off is asked for again or continued by another, and the worker gets less and less.",
        lambda: LyingEngine(die="midway", pace_s=0.01),
    ),
    _worker(
        "a worker that is well and never answers",
        "hung",
        NOT_LONG,
        Hung,
        waits_s=HUNG_WAIT_S,
    ),
    _worker(
        "a worker that does not renew its lease",
        "lapsed",
        "It gets nothing more once its lease is over, and what it has begun ends.",
        lambda: LyingEngine(pace_s=0.01),
        component="lease",
        lease_s=SHORT_LEASE_S,
        end=_vanish,
    ),
)
