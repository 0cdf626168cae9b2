"""The line through an engine's iterations under load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import numpy as np
import pytest

from benchmarks.under_load import Stretch, fit, measure_under_load
from core.ports import PermanentError
from core.simulator.workload import TraceRequest
from pools.profiler.measurements import EngineEndpoint

BASE_S, PREFILL_S, DECODE_S = 3e-3, 2e-5, 1e-4


def stretches(noise: float = 0.0) -> list[Stretch]:
    """Of an engine whose line is known, at several loads."""
    draw = np.random.default_rng(7)
    found = []
    for batch in (1, 2, 4, 8, 16) * 20:
        iterations, prompts = draw.uniform(50, 150), draw.uniform(0, 4000)
        span_s = BASE_S * iterations + PREFILL_S * prompts + DECODE_S * iterations * batch
        found.append(Stretch(span_s * (1.0 + noise * draw.standard_normal()), iterations, prompts, iterations * batch))
    return found


@pytest.mark.parametrize(("noise", "within"), [(0.0, 1e-6), (0.05, 0.1)])
def test_line_is_found_when_stretches_are_of_several_loads(noise: float, within: float) -> None:
    found = fit(stretches(noise))
    costs = found.costs
    assert (costs.base_s, costs.prefill_token_s, costs.decode_s) == pytest.approx(
        (BASE_S, PREFILL_S, DECODE_S), rel=within
    )
    assert found.error == pytest.approx(noise, abs=0.02)


def test_a_machine_that_has_slowed_down_is_seen_when_the_same_work_is_put_to_both_lines() -> None:
    before = stretches()
    after = [Stretch(one.span_s * 1.3, one.iterations, one.prompt_tokens, one.decoded_tokens) for one in before]
    assert fit(after).span_s(before) / fit(before).span_s(before) == pytest.approx(1.3)


def test_load_is_refused_when_it_is_too_even_to_tell_the_terms_apart() -> None:
    with pytest.raises(PermanentError, match="too even"):
        fit([Stretch(1.0, 100.0, 1000.0, 400.0)] * 5)


@pytest.fixture
def bare_engine() -> Iterator[str]:
    """Its page of metrics has one counter of those that are needed."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'vllm:prompt_tokens_total{engine="0"} 5.0\n')

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_missing_counters_are_named_when_an_engine_lacks_them(bare_engine: str) -> None:
    with pytest.raises(PermanentError, match=r"does not count .*iteration_tokens_total_count"):
        asyncio.run(measure_under_load(EngineEndpoint(bare_engine, "m"), [TraceRequest(0.0, 10, 2)], settle_s=0.0))
