"""What a request's steps take of Python: `python -m benchmarks.gateway_steps [--prompt-bytes 4600]`.

Each step is repeated by itself, with everything it needs at hand, and the fastest of many rounds is given: no sockets,
no kernel (but for the journal's write), caches warm. Beside the CPU that `benchmarks.gateway` measures it shows where
the time of Python goes; among other work, with cold caches, the same steps take half as much again and more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from benchmarks import gateway_mock, gateway_proxies
from benchmarks.gateway_load import Order
from pools.gateway.accounts.records import counts, row_of
from pools.gateway.http.known_heads import KnownHead
from pools.gateway.http.request import Request
from pools.gateway.relay.exchange import Exchange
from pools.gateway.requests import validation
from pools.gateway.requests.call import Ending
from pools.gateway.requests.endpoint import CHAT
from pools.gateway.requests.features import features_of
from pools.gateway.requests.sse import SseMeter
from pools.gateway.server import Config, GatewayServer

ROUNDS, REPEATS, WARM_UP = 60, 300, 600
PATH = b"/v1/chat/completions"
ROWS = 8  # that are written together


def least_us(step: Callable[[], object]) -> float:
    best_s = float("inf")
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        for _ in range(REPEATS):
            step()
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s / REPEATS * 1e6


def steps(server: GatewayServer, prompt_bytes: int) -> Iterator[tuple[str, float]]:
    """Name and microseconds of each step; those with a dot in front are parts of the one above."""
    gateway, intake, dispatcher = server.gateway, server.gateway.intake, server.gateway.dispatcher
    order = Order("http://127.0.0.1:1", gateway_proxies.MODEL, gateway_proxies.KEY, prompt_bytes, 0, 10)
    sent = order.next()
    body = sent[sent.index(b"\r\n\r\n") + 4 :]
    headers = {b"authorization": b"Bearer " + gateway_proxies.KEY.encode(), b"content-type": b"application/json"}
    head = KnownHead.of(sent, len(body), None)
    assert head is not None
    yield "recognise a head (twice)", 2 * least_us(lambda: head.body_of(sent))

    for _ in range(WARM_UP):  # beyond what is learned from at once
        intake.call(Request(b"POST", PATH, headers, body, True), CHAT)
    request = Request(b"POST", PATH, headers, body, True)
    yield "take in", least_us(lambda: intake.call(request, CHAT))
    yield ". read the body", least_us(lambda: validation.decode(body, CHAT))
    call = intake.call(request, CHAT)
    parsed, prompt = validation.decode(body, CHAT), validation.Prompt(0, prompt_bytes, 0, prompt_bytes)
    features = features_of(parsed, prompt, call.service.name, 1.0, 1, 16, False)
    yield ". features", least_us(lambda: features_of(parsed, prompt, call.service.name, 1.0, 1, 16, False))
    yield ". classify", least_us(lambda: intake.classifier.classify(call.service, features))

    def place() -> None:
        slot = dispatcher.place_now(call)
        assert slot is not None
        slot.end()

    yield "place and leave", least_us(place)
    slot = dispatcher.place_now(call)
    assert slot is not None
    exchange = Exchange(call, None, gateway._context)  # type: ignore[arg-type]
    yield "make the exchange", least_us(lambda: Exchange(call, None, gateway._context))  # type: ignore[arg-type]
    yield "write the engine's request", least_us(lambda: exchange._request_bytes(slot))

    answer = gateway_mock._ANSWER.partition(b"\r\n\r\n")[2]
    yield "read the answer's usage", least_us(lambda: CHAT.usage_of(answer))
    ending = Ending("ok", 200, ended_s=time.monotonic(), attempts=1, instance=slot.instance, choice=slot.choice)
    ending.usage = CHAT.usage_of(answer)
    yield "record", least_us(lambda: intake._row(call, ending))
    row = row_of(call, ending, None, counts(call, ending))
    yield ". the row", least_us(lambda: row_of(call, ending, None, counts(call, ending)))
    yield ". metrics", least_us(lambda: intake.metrics.count(row))
    yield ". learn", least_us(lambda: intake.classifier.learn(row, features, call.classified))  # type: ignore[arg-type]
    yield f"journal (of {ROWS} at once)", least_us(lambda: server.journal.append(*[row] * ROWS)) / ROWS
    chunk, meter = gateway_mock._TOKEN % 1, SseMeter(float("inf"), True)
    start = chunk.index(b"\n") + 1
    yield "of each chunk: look at it", least_us(lambda: meter.takes(chunk, start, len(chunk) - 2, time.monotonic()))


async def main(prompt_bytes: int) -> None:
    with TemporaryDirectory(prefix="gateway-steps-") as folder:
        server = GatewayServer(Config("127.0.0.1", 0, Path(folder), learns=False))
        urls = [f"http://127.0.0.1:{9000 + n}" for n in range(8)]
        states = {gateway_proxies.NODE: gateway_proxies._agent_state(urls)}
        server.fleet.apply(gateway_proxies._fleet(), states, time.monotonic())
        for name, us in steps(server, prompt_bytes):
            print(f"{name:32} {us:6.2f} us")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-bytes", type=int, default=64)
    uvloop.run(main(parser.parse_args().prompt_bytes))
