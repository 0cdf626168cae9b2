"""Brings profiles of 10,000 rows in through REST, publishes them, and prints what each part of it takes.

    python -m benchmarks.profiles [--rows 10000]

PostgreSQL and Redis are its own, in a throw-away folder with the product's settings.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from benchmarks.own_servers import own_servers
from core.engine.engine_model import closed_form
from greenserve.client import Client

MODELS, GPUS = ("Llama3-8B", "Llama3-70B"), ("A100-80GB", "H100-SXM-80GB")
ENGINE, CLOCKS, BATCHES, CONTEXTS = "vllm-v1", 10, 25, 10


def rows(count: int) -> list[dict[str, Any]]:
    """Returns so many points, in profiles of up to 2,500 of one configuration each."""
    made = _rows()
    return [next(made) for _ in range(count)]


def _rows() -> Iterator[dict[str, Any]]:
    for tp, model, gpu in product((4, 8, 2), MODELS, GPUS):
        costs = closed_form(model, gpu, tp, ENGINE)
        low, high = costs.gpu_params.f_min, costs.gpu_params.f_max
        names = {"model": model, "gpu": gpu, "tp": tp, "engine": ENGINE}
        for step, batch, context in product(range(CLOCKS), range(1, BATCHES + 1), range(1, CONTEXTS + 1)):
            mhz = round(low + (high - low) * step / (CLOCKS - 1))
            one = costs.iteration(mhz, (), batch, 200.0 * context * batch)
            shape = {"mhz": mhz, "prefill_tokens": 0, "batch": batch, "context_tokens": 200.0 * context * batch}
            yield {**names, **shape, "t_s": one.t_s * 1.1, "watts": one.watts * 0.95}


def measure(api: Client, count: int) -> dict[str, float]:
    """Returns the seconds of each part."""
    sent = rows(count)
    took, found = {}, None
    api.call("GET", "engine-profiles/")  # a process's first answer waits for its modules
    for name in ("import", "the same again"):
        begun_s = time.perf_counter()
        found = api.call("POST", "engine-profiles/", {"rows": sent})
        took[name] = time.perf_counter() - begun_s
    begun_s = time.perf_counter()
    for one in found["profiles"] if found else ():
        api.call("POST", f"engine-profiles/{one['id']}/publish/")
    took["publish each"] = time.perf_counter() - begun_s
    return took


@contextmanager
def served() -> Iterator[Client]:
    """Yields a client of a web process's code, over HTTP, in a thread of this process."""
    from django.core.handlers.wsgi import WSGIHandler

    from greenserve import celery
    from pools.access import people
    from pools.access.audit import Actor
    from pools.access.rights import Right

    celery.app.set_current()
    user, _ = people.create(Actor(), "bench", "administrator", password="a long pass phrase")
    token = people.new_token(Actor(), user, "benchmark", [right.value for right in Right])[1]
    with make_server("127.0.0.1", 0, WSGIHandler(), handler_class=_Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with Client(f"http://127.0.0.1:{server.server_port}", token, timeout_s=120.0) as api:
                yield api
        finally:
            server.shutdown()


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Writes nothing."""


def main() -> None:
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--rows", type=int, default=10_000)
    count = asked.parse_args().rows
    with own_servers(), served() as api:
        found = measure(api, count)
    print(json.dumps({"rows": count, "seconds": {name: round(value, 2) for name, value in found.items()}}))


if __name__ == "__main__":
    main()
