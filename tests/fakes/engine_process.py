"""`python -m tests.fakes.engine_process [PACE_S TOKENS]`: a fake engine as a process, to be killed; prints its port."""

from __future__ import annotations

import asyncio
import sys

from tests.fakes.engine import FakeEngine


async def serve(pace_s: float, tokens: int) -> None:
    engine = await FakeEngine(tokens=tokens, pace_s=pace_s).start()
    print(engine.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
