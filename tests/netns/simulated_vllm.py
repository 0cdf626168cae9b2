"""A program that takes vLLM's command line and runs a simulated engine, on a node where GreenServe is installed.

`--version` answers as the release that GreenServe knows. `serve` starts the engine of a simulated node with one GPU on
the loopback, and passes on to it what comes at `--host` and `--port`, by TLS where a certificate is given. As vLLM it
asks for `VLLM_API_KEY` under `/v1`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import sys
import tempfile
import time
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, web

from core.ports import EngineOptions, InstanceSpec
from pools.simnode.gpus import GpuBank, parse_gpu_group
from pools.simnode.node import SimNode

VERSION = "0.32.0"
NODE, GPU = "engine", "A100-80GB:1"
SPEEDUP = 30.0  # a start takes seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("weights")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--scheduling-policy")
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--ssl-keyfile")
    return parser.parse_known_args()[0]


async def version(_: web.Request) -> web.Response:
    return web.json_response({"version": VERSION})


async def _serve(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bank = GpuBank(NODE, [parse_gpu_group(GPU)], Path(folder) / "counters.json", time.monotonic())
        node = SimNode(bank, SPEEDUP)
        spec = InstanceSpec(
            *("one", options.served_model_name, "vllm-v1", tuple(bank.gpus), options.max_model_len),
            EngineOptions(scheduling_policy=options.scheduling_policy),
        )
        started = await node.start(spec)
        if started.url is None:
            raise SystemExit(f"the simulated engine did not start: {started.detail}")
        key = os.environ.get("VLLM_API_KEY")

        async def passed_on(request: web.Request) -> web.StreamResponse:
            if key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {key}":
                return web.json_response({"error": "Unauthorized"}, status=401)
            url = f"{started.url}{request.rel_url}"
            kept = {name: request.headers[name] for name in ("Content-Type", "Accept") if name in request.headers}
            async with session.request(request.method, url, data=await request.read(), headers=kept) as answer:
                back = web.StreamResponse(
                    status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]}
                )
                await back.prepare(request)
                async for part in answer.content.iter_any():
                    await back.write(part)
                return back

        context = None
        if options.ssl_certfile:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
        app = web.Application(client_max_size=32 << 20)
        app.router.add_get("/version", version)
        app.router.add_route("*", "/{rest:.*}", passed_on)
        async with ClientSession(timeout=ClientTimeout(total=3600)) as session:
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, options.host, options.port, ssl_context=context).start()
            while True:
                node.advance()
                await asyncio.sleep(0.2)


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"{VERSION}\n")
    else:
        asyncio.run(_serve(_arguments()))
