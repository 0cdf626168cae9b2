"""Times what publishing costs, by what has changed: `python -m benchmarks.publishing [--json]`.

A fleet of 500 nodes with 1,000 instances of four GPUs, and 10,000 API keys, on PostgreSQL and Redis of its own. Each
case publishes once and lets a gateway read: the first time of all, then with nothing changed, with one instance that
is to stop, and with one key revoked. The figures: bytes sent to Redis, bytes that the gateway gets from it, and
processor seconds of both; `rows` is the part of the scheduler's that makes messages from rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.own_servers import own_servers
from benchmarks.telemetry import fleet

sys.path[0] = str(Path(__file__).parents[1])
GPUS, GPUS_PER_INSTANCE, KEYS = 4_000, 4, 10_000


def cases() -> list[dict[str, Any]]:
    import redis
    from django.conf import settings
    from django.utils import timezone

    from pools.gateway.fleet.snapshot_reader import SnapshotReader
    from pools.models import ApiKey, Instance, Tenant
    from scheduler.control.apply import message_writer
    from scheduler.control.apply.desired_messages import desired_nodes
    from scheduler.control.apply.fleet_messages import fleet_snapshot

    fleet(GPUS, GPUS_PER_INSTANCE)
    tenant = Tenant.objects.create(name="bench")
    ApiKey.objects.bulk_create([ApiKey(tenant=tenant, key_hash=f"{n:064x}", prefix=f"{n:08x}") for n in range(KEYS)])
    instance = Instance.objects.earliest("pk")
    client = redis.Redis.from_url(settings.REDIS_URL)
    loop = asyncio.new_event_loop()
    reading = redis.asyncio.Redis.from_url(settings.REDIS_URL)
    reader = SnapshotReader(reading)
    loop.run_until_complete(reading.ping())

    def transferred() -> tuple[int, int]:
        found: Any = client.info("stats")
        return found["total_net_input_bytes"], found["total_net_output_bytes"]

    def measure(name: str, change: Callable[[], object]) -> dict[str, Any]:
        change()
        rows_s = 0.0

        def read(version: int) -> Any:
            nonlocal rows_s
            now, began_s = timezone.now(), time.process_time()
            messages = fleet_snapshot(now, version), desired_nodes(now, version)
            rows_s = time.process_time() - began_s
            return messages

        sent, began_s = transferred()[0], time.process_time()
        message_writer.write(client, read)
        publish_s, sent = time.process_time() - began_s, transferred()[0] - sent
        got, began_s = transferred()[1], time.process_time()
        loop.run_until_complete(reader.read())
        read_s, got = time.process_time() - began_s, transferred()[1] - got
        return {
            "case": name,
            "sent_kb": round(sent / 1e3, 1),
            "rows_ms": round(rows_s * 1e3, 1),
            "write_ms": round((publish_s - rows_s) * 1e3, 1),
            "gateway_kb": round(got / 1e3, 1),
            "gateway_ms": round(read_s * 1e3, 2),
        }

    return [
        measure("everything", lambda: None),
        measure("nothing", lambda: None),
        measure("one instance", lambda: Instance.objects.filter(pk=instance.pk).update(desired="draining")),
        measure("one key", lambda: ApiKey.objects.filter(key_hash=f"{7:064x}").update(revoked_at=timezone.now())),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with own_servers(durable=False):
        found = cases()
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    print("  ".join(f"{name:>12}" for name in found[0]))
    for row in found:
        print("  ".join(f"{value:>12}" for value in row.values()))


if __name__ == "__main__":
    main()
