"""Sets what live services of one fleet attain together beside what each attains when it alone is asked.

    python -m benchmarks.sharing_live greenserve freesh dynamollm
    python -m benchmarks.sharing_live --services 5 --seconds 120 greenserve

Starts the product with the demo's fleet of simulated nodes, offers further models there, and sends each service Poisson
traffic through the gateways. A service is asked alone under a ceiling (`max_gpus`) of the most GPUs that it had at once
beside the others, which keep the instances that their policy leaves them without traffic. Percent of the requests sent
that were answered within the objectives, as their client saw them; a failed one is late. Engines run in real
time: a machine that is too slow for them shows in all figures.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.simulator.workload import TraceRequest
from greenserve.client import Client
from pools.load_generator import Seen, replay
from tests.e2e.product import Product, running, wait_for

OBJECTIVES_S = {"ttft": 2.0, "tpot": 0.15, "e2e": 60.0}  # those of the demo's service, given to the others too
POINTS = 2.0  # that sharing may cost a service
SEED = 1
SETTLE_S = 30.0  # under traffic, before what counts
PATIENCE_S = 180.0
HELD = (
    "SELECT service.name, count(*) FROM pools_instancegpu held JOIN pools_instance i ON i.id = held.instance_id "
    "JOIN pools_pool pool ON pool.id = i.pool_id JOIN pools_service service ON service.id = pool.service_id "
    "WHERE held.released_at IS NULL AND NOT held.beside GROUP BY 1"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A service, its model, and its traffic: requests/s and mean tokens, lengths exponential."""

    name: str
    model: str
    rps: float
    prompt_tokens: int
    output_tokens: int

    def requests(self, seconds: float) -> list[TraceRequest]:
        rng = np.random.default_rng([SEED, *self.name.encode()])
        count = rng.poisson(self.rps * seconds)
        at_s = np.sort(rng.uniform(0.0, seconds, count)).tolist()
        prompts, outputs = (
            np.clip(np.rint(rng.exponential(mean, count)), 1, 8 * mean).astype(int).tolist()
            for mean in (self.prompt_tokens, self.output_tokens)
        )
        return [TraceRequest(*row) for row in zip(at_s, prompts, outputs, strict=True)]


SERVICES = (
    Asked("llama3-70b", "Llama3-70B", 1.0, 1155, 211),  # the demo's own
    Asked("chat", "Llama3-8B", 3.0, 400, 120),
    Asked("assist", "Qwen3-8B", 2.0, 600, 100),
    Asked("code", "Qwen2.5-14B", 1.0, 1500, 60),
    Asked("small", "Llama3-8B", 3.0, 200, 20),
)


def in_time(seen: Seen) -> bool:
    ttft_s, tpot_s, e2e_s = (OBJECTIVES_S[kind] for kind in ("ttft", "tpot", "e2e"))
    return seen.ttft_s <= ttft_s and (seen.tpot_s or 0.0) <= tpot_s and seen.e2e_s <= e2e_s


async def attained(product: Product, asked: Sequence[Asked], seconds: float) -> tuple[dict[str, float], Counter[str]]:
    """Returns the percent in time by service, of what was sent once it had settled, and the most GPUs that each had."""
    timely: Counter[str] = Counter()
    most: Counter[str] = Counter()
    keys = product.credentials["api_keys"]

    async def ask(one: Asked) -> tuple[str, int]:
        def note(seen: Seen) -> None:
            timely[one.name] += seen.sent_s >= SETTLE_S and in_time(seen)

        sent = one.requests(SETTLE_S + seconds)
        await replay(sent, product.gateway, keys, one.name, max_tokens=8 * one.output_tokens, on_seen=note)
        return one.name, sum(request.at_s >= SETTLE_S for request in sent)

    async def look() -> None:
        while True:
            await asyncio.sleep(1.0)
            most.update({name: max(0, n - most[name]) for name, n in await asyncio.to_thread(product.sql, HELD)})

    looking = asyncio.create_task(look())
    try:
        counted = dict(await asyncio.gather(*(ask(one) for one in asked)))
    finally:
        looking.cancel()
    return {name: 100.0 * timely[name] / count for name, count in counted.items()}, most


def offer(rest: Client, asked: Asked) -> None:
    objectives = {f"{kind}_s": seconds for kind, seconds in OBJECTIVES_S.items()}
    load = {
        "expected_rps": asked.rps,
        "expected_prompt_tokens": asked.prompt_tokens,
        "expected_output_tokens": asked.output_tokens,
    }
    rest.call(
        "POST", "offers/", {"name": asked.name, "model": asked.model, "max_model_len": 16_384, **objectives, **load}
    )


def ceiling(rest: Client, name: str, max_gpus: int | None) -> None:
    rest.services.change(name, etag=rest.services.get(name).etag, max_gpus=max_gpus)


def under(product: Product, rest: Client, policy: str, asked: Sequence[Asked], seconds: float) -> Mapping[str, str]:
    """Returns what each service attains under a policy, together and alone, in words."""
    for one in asked:
        product.cli("policy", one.name, policy)
    names = {one.name for one in asked}
    wait_for("instances of all", lambda: {name for name, _ in product.sql(HELD)} >= names, PATIENCE_S)
    together, most = asyncio.run(attained(product, asked, seconds))
    found = {}
    for one in asked:
        ceiling(rest, one.name, most[one.name])
        alone = asyncio.run(attained(product, [one], seconds))[0][one.name]
        ceiling(rest, one.name, None)
        mark = "" if together[one.name] >= alone - POINTS else " **below**"
        found[one.name] = f"{together[one.name]:.1f}, {alone:.1f}, {most[one.name]}{mark}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="+")
    parser.add_argument("--services", type=int, default=2, choices=range(2, len(SERVICES) + 1))
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_intermixed_args()
    asked = SERVICES[: given.services]
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), traffic_rps=0.0) as product:
        rights = [f"--right={right}" for right in ("view", "operate", "administer")]
        login = product.cli("user", "token", product.credentials["admin"]["user"], "--label", "sharing", *rights)
        with Client(product.web, login.stdout.strip()) as rest:
            for one in asked[1:]:
                offer(rest, one)
            print("| policy | " + " | ".join(f"{one.name}: together, alone, GPUs" for one in asked) + " |")
            print("|---" * (1 + len(asked)) + "|")
            for policy in given.policies:
                began_s = time.monotonic()
                found = under(product, rest, policy, asked, given.seconds)
                print(f"| `{policy}` | " + " | ".join(found[one.name] for one in asked) + " |", flush=True)
                print(f"{policy}: {time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
