"""Times what asking the predictor's process costs a gateway: `python -m benchmarks.gateway_lengths`. Prints JSON.

The process is the product's (`pools.lengths`), taught first until it answers. `cpu_us` is the processor time of the
gateway's own thread for one ask, with the task that waits for it; `without_us` that of the same task without asking.
Latencies are from the ask to its answer, with so many asks under way at a time (1 and 16); the budget is 50 ms.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from core.ports import RequestFeatures
from pools.gateway.classify.asked_lengths import LengthAsker

LESSONS, ASKS = 300, 3_000
WORDS = ("river", "boat", "water", "wind", "stone", "bread", "light", "paper", "walk", "write", "count", "list", "why")
FEATURES = RequestFeatures(chat=True, at_s=1.7e9, tenant_id=7, text_bytes=300)


def prompt(rng: random.Random, characters: int) -> tuple[str, int]:
    """Returns a text, and the tokens of its answer: they depend on one word of it."""
    long = rng.random() < 0.5
    words = ["novel" if long else "brief", *rng.choices(WORDS, k=characters // 6)]
    return " ".join(words), rng.randrange(300, 400) if long else rng.randrange(3, 10)


async def teach(asker: LengthAsker, rng: random.Random) -> None:
    for _ in range(LESSONS):
        text, tokens = prompt(rng, 300)
        asked = asker.ask("chat", FEATURES, 70, [text])
        assert asked is not None
        await asker.answer(asked)
        asker.learn(asked.number, 70, tokens)


async def timed(asker: LengthAsker | None, texts: list[str], at_once: int) -> dict[str, float]:
    took_s: list[float] = []
    known = 0

    async def ask(text: str) -> None:
        nonlocal known
        began_s = time.perf_counter()
        if asker is None:
            await asyncio.sleep(0)
        else:
            asked = asker.ask("chat", FEATURES, 70, [text])
            assert asked is not None
            odds = await asker.answer(asked)
            known += odds is not None
        took_s.append(time.perf_counter() - began_s)

    began_ns = time.thread_time_ns()
    for start in range(0, len(texts), at_once):
        await asyncio.gather(*(ask(text) for text in texts[start : start + at_once]))
    cpu_us = (time.thread_time_ns() - began_ns) / 1e3 / len(texts)
    p50, p99 = np.percentile(took_s, [50, 99]) * 1e3
    return {
        "cpu_us": round(cpu_us, 1),
        "answered": round(known / len(texts), 3),
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
    }


async def measure() -> dict[str, Any]:
    rng, found = random.Random(1), {}
    with tempfile.TemporaryDirectory() as folder:
        socket, state = Path(folder) / "own" / "s", Path(folder) / "state"
        words = ("-m", "pools.lengths", "--socket", str(socket), "--state", str(state))
        process = await asyncio.create_subprocess_exec(sys.executable, *words)
        asker = LengthAsker(socket)
        keeping = asyncio.ensure_future(asker.keep())
        try:
            async with asyncio.timeout(60.0):
                while not asker.connected:  # noqa: ASYNC110 - nobody else sets it
                    await asyncio.sleep(0.1)
            await teach(asker, rng)
            for name, characters in (("300B", 300), ("4.6KB", 4_600)):
                texts = [prompt(rng, characters)[0] for _ in range(ASKS)]
                for at_once in (1, 16):
                    without = await timed(None, texts, at_once)
                    own = await timed(asker, texts, at_once)
                    found[f"{name}_{at_once}"] = own | {"without_us": without["cpu_us"]}
        finally:
            keeping.cancel()
            process.terminate()
            await process.wait()
    return {"asks": found, "late": asker.late}


def main() -> None:
    print(json.dumps(uvloop.run(measure()), indent=1))


if __name__ == "__main__":
    main()
