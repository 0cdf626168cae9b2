"""Run by vLLM's own Python: its schedulers and GreenServe's, side by side on made-up steps, without a model running.

Prints one JSON object; see test_plugin.py for what it is to say.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from pools.vllm_scheduler import GreenServeScheduler
from pools.vllm_scheduler.scheduler_settings import Settings

BLOCK = 16
TOKENS = 256
SEATS = 8
BEGAN_S = time.time()  # laxity is of the time of day


def made(kind: type[Scheduler], model: str, policy: str, blocks: int, ahead: bool) -> Any:
    """A scheduler with a cache of `blocks` blocks. `ahead`: of the asynchronous kind."""
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=SEATS,
            max_num_batched_tokens=TOKENS,
            max_model_len=1024,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            policy=policy,
            async_scheduling=ahead,
        ),
        model_config=ModelConfig(model=model, dtype="bfloat16", seed=42),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
    )
    config.scheduler_config.async_scheduling = ahead  # the platform without a GPU has put it off
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config.cache_config.num_gpu_blocks = blocks
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )


def request(number: int, rng: random.Random, hasher: Any, hints: dict[str, Any] | None) -> Request:
    common = [7] * (BLOCK * rng.randrange(0, 4))  # some share the beginning of their prompts
    prompt = common + [rng.randrange(10, 2000) for _ in range(rng.randrange(1, 300))]
    params = SamplingParams(max_tokens=rng.randrange(1, 60), ignore_eos=True, extra_args=hints)
    params.update_from_generation_config({}, 2)
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=prompt,
        sampling_params=params,
        pooling_params=None,
        arrival_time=BEGAN_S + number / 1000.0,
        priority=rng.randrange(-3, 3),
        block_hasher=hasher,
    )


def seen(output: SchedulerOutput) -> list[Any]:
    """A decision in full: who gets how many tokens, in which order, in which blocks; who gives way, who has ended."""
    cached = output.scheduled_cached_reqs
    return [
        list(output.num_scheduled_tokens.items()),
        [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs],
        list(zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)),
        sorted(cached.resumed_req_ids),
        sorted(output.preempted_req_ids or ()),
        sorted(output.finished_req_ids),
    ]


class World:
    """A scheduler, and a model runner that gives each request the tokens that its number says."""

    def __init__(self, scheduler: Any, ahead: bool) -> None:
        self.scheduler = scheduler
        self.depth = 2 if ahead else 1
        self.flying: list[tuple[SchedulerOutput, set[str]]] = []  # and who has only a part of its prompt done
        self.log: list[Any] = []
        self.tokens: dict[str, list[int]] = {}
        self.preemptions = 0

    def step(self) -> None:
        output = self.scheduler.schedule()
        self.log.append(seen(output))
        self.preemptions += len(output.preempted_req_ids or ())
        chunks = {rid for rid in output.num_scheduled_tokens if self.scheduler.requests[rid].is_prefill_chunk}
        self.flying.append((output, chunks))
        while len(self.flying) >= self.depth:
            self.land()

    def land(self) -> None:
        output, chunks = self.flying.pop(0)
        ids = list(output.num_scheduled_tokens)
        sampled = [[] if rid in chunks or rid not in self.scheduler.requests else [11] for rid in ids]
        runner = ModelRunnerOutput(ids, {rid: i for i, rid in enumerate(ids)}, sampled)
        for outputs in self.scheduler.update_from_output(output, runner).values():
            for out in outputs.outputs:
                self.tokens.setdefault(out.request_id, []).extend(out.new_token_ids)


def run(world: World, seed: int, hasher: Any, steps: int, hinted: bool, tuning: Any = None) -> dict[str, int]:
    """Feeds requests, aborts some, and runs until all have ended; returns how many tokens each was to have."""
    rng = random.Random(seed)
    wanted: dict[str, int] = {}
    number = 0
    for step in range(steps):
        while number < 120 and rng.random() < 0.4:
            hints = None
            if hinted:  # long ones with time can afford to give way to short ones without
                slo_s, lat_s = rng.choice([2.0, 10.0, 30.0]), rng.choice([0.1, 1.0, 5.0])
                hints = {"slo_s": slo_s, "lat_s": lat_s, "predicted_tokens": 30}
            one = request(number, rng, hasher, hints)
            wanted[one.request_id] = one.max_tokens
            world.scheduler.add_request(one)
            number += 1
        if tuning is not None:
            tuning(step, world.scheduler)
        world.step()
    for _ in range(5000):
        if not world.scheduler.has_requests():
            break
        world.step()
    while world.flying:
        world.land()
    return wanted


def same(model: str, policy: str, ahead: bool, blocks: int, hasher: Any) -> dict[str, Any]:
    """Off, GreenServe's scheduler decides as vLLM's own does."""
    own = World(made(AsyncScheduler if ahead else Scheduler, model, policy, blocks, ahead), ahead)
    ours = World(made(GreenServeScheduler, model, policy, blocks, ahead), ahead)
    run(own, 5, hasher, 200, False)
    run(ours, 5, hasher, 200, False)
    return {
        "equal": own.log == ours.log and own.tokens == ours.tokens,
        "asynchronous": isinstance(ours.scheduler, AsyncScheduler),
        "steps": len(own.log),
        "preemptions": own.preemptions,
    }


def switched(model: str, policy: str, ahead: bool, blocks: int, hasher: Any) -> dict[str, Any]:
    """Switched to and fro at random, every request still gets all its tokens, and no step exceeds its budget."""
    rng = random.Random(9)
    world = World(made(GreenServeScheduler, model, policy, blocks, ahead), ahead)
    over = 0

    def tuning(step: int, scheduler: Any) -> None:
        if rng.random() < 0.1:
            scheduler._control.settings = replace(
                Settings(preempts_s=1e-6, margin_s=0.0),
                order=rng.choice(["vllm", "llf", "llf"]),
                itl_limit_s=rng.choice([None, 1e-9, 1e-4]),
                max_num_batched_tokens=rng.choice([None, 40]),
                max_num_seqs=rng.choice([None, 2]),
            )

    wanted = run(world, 6, hasher, 400, True, tuning)
    for tokens, *_ in world.log:
        over += sum(count for _, count in tokens) > TOKENS
    figures = world.scheduler._control.stats
    return {
        "wanted": len(wanted),
        "complete": sum(len(world.tokens.get(rid, ())) == count for rid, count in wanted.items()),
        "over_budget": over,
        "displaced": figures["displaced"],
        "free_blocks": world.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() + 1,
        "blocks": blocks,
    }


def urgent_first(model: str, hasher: Any) -> dict[str, Any]:
    """A full batch of relaxed requests, then an urgent one: it runs in the next step, and one of them waits."""
    scheduler = made(GreenServeScheduler, model, "fcfs", 1000, False)
    scheduler._control.settings = Settings(order="llf", preempts_s=1e-6)
    world, rng = World(scheduler, False), random.Random(1)
    for number in range(SEATS):
        one = request(number, rng, hasher, {"slo_s": 100.0})
        one.max_tokens = 500
        scheduler.add_request(one)
    for _ in range(12):
        world.step()
    urgent = request(99, rng, hasher, {"slo_s": -95.0})
    scheduler.add_request(urgent)
    world.step()
    return {"runs": "r99" in dict(world.log[-1][0]), "waits": len(scheduler.waiting), "gave_way": world.log[-1][4]}


def main() -> None:
    model = sys.argv[1]
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    found: dict[str, Any] = {"urgent_first": urgent_first(model, hasher)}
    for policy in ("fcfs", "priority"):
        for ahead in (False, True):
            name = f"{policy}-{'async' if ahead else 'sync'}"
            found[f"same-{name}"] = same(model, policy, ahead, 70, hasher)
            found[f"switched-{name}"] = switched(model, policy, ahead, 70, hasher)
    print(json.dumps(found))


main()
