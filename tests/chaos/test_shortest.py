"""The shortest of the faults, in `make test`: one of two gateway processes is killed while a replay runs."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

import redis

from tests.chaos import account
from tests.chaos.replay import Replay, drawn
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import MODEL, SECRET
from tests.integration.pools.gateway.test_gateway import Process, engine, publish, shipped, store, until
from tests.integration.pools.gateway.test_gateway_processes import both_ready, pair

__all__ = ["engine", "pair", "store"]  # fixtures


async def test_every_request_is_answered_and_on_record_once_when_one_of_two_gateways_is_killed(
    pair: list[Process], store: redis.Redis, engine: FakeEngine
) -> None:
    engine.pace_s = 0.005
    publish(store, engine)
    await until("both ready", lambda: both_ready(pair[0].url))
    replay = Replay(pair[0].url, [SECRET], MODEL, drawn(seed=7, rate_rps=60.0, length_s=1.2), run=11)
    replay.start()
    await asyncio.sleep(0.6)
    await pair[0].end(signal.SIGKILL)
    asked = await asyncio.to_thread(replay.finish, 20.0)

    def records() -> Counter[str]:
        unique = {(batch.gateway, batch.boot, batch.seq): batch for batch in shipped(store)}
        return Counter(row.traceparent or "" for batch in unique.values() for row in batch.rows)

    await until("all records", lambda: not account.of(asked, records()).missing)
    found = account.of(asked, records())
    assert found.sent > 50
    assert (found.lost, found.missing, found.twice) == (0, 0, 0)
    assert found.retried > 0, "some were under way at the one that was killed"
