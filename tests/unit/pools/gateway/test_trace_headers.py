"""W3C trace context: what a client sends goes on to the engine as it came, so that both are in one trace."""

from __future__ import annotations

import pytest

from tests.fakes.fleet import MODEL

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("stream", [False, True])
async def test_trace_context_goes_on_to_the_engine_as_it_came(bench, stream):
    body = {"model": MODEL, "prompt": [11] * 20, "max_tokens": 4, "stream": stream}
    sent = {"traceparent": PARENT, "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}
    async with bench.post(body, headers=bench.auth | sent) as response:
        assert response.status == 200
        await response.read()
    async with bench.post(body) as response:
        await response.read()
    with_context, without = bench.engine.received
    assert {name: with_context.headers[name] for name in sent} == sent
    assert not sent.keys() & without.headers.keys()
