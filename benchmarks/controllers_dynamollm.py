"""Times the controllers of DynamoLLM: `python -m benchmarks.controllers_dynamollm`. Prints JSON, in milliseconds.

The paper solves its shard problem in hundreds of milliseconds (section IV-A) on hardware that it does not name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from core.algorithms.fleet.dynamo_mix import solve
from core.algorithms.fleet.hand_down import ClassLoad
from core.algorithms.fleet.power_curve import pieces
from core.algorithms.placement.reshard import plan
from core.controllers.clock import clock_profile
from core.controllers.clock.clock_profile import InstanceLoad, ProfileClockConfig, ProfileClockObservation
from core.controllers.fleet import scale_dynamo, shard_dynamo
from core.controllers.fleet.scale_dynamo import ScaleDynamoConfig, ScaleDynamoObservation
from core.controllers.fleet.shard_dynamo import ShardDynamoConfig, ShardDynamoObservation, ShardPool
from core.controllers.request import emergency
from core.controllers.request.emergency import EmergencyConfig, EmergencyObservation, Waiting
from core.engine.engine_model import engine_model
from core.engine.load_profile import LoadProfile, clocks, modelled
from core.engine.overhead_table import OverheadTable
from core.engine.overheads import weight_bytes
from core.policy.dynamo_classes import request_classes
from core.predictors.load_template import LoadHistory, TemplateConfig, forecast, observe
from core.types import Limits, Mode, PoolKey

MODEL, GPU, ENGINE_TPS = "Llama2-70B", "H100-SXM-80GB", (2, 4, 8)
PROMPT, OUTPUT, LIMITS = 640.0, 200.0, Limits(ttft_s=0.4, tpot_s=0.1)
REPEATS = 200


def timed(call: Callable[[int], object], repeats: int = REPEATS) -> dict[str, float]:
    """p50 and p99 in milliseconds; the call gets the number of the repeat. Compiled code is warm."""
    call(0)
    took = []
    for number in range(repeats):
        begun = time.perf_counter()
        call(number)
        took.append(time.perf_counter() - begun)
    return {"p50_ms": float(np.percentile(took, 50) * 1e3), "p99_ms": float(np.percentile(took, 99) * 1e3)}


def profiles() -> dict[int, LoadProfile]:
    found = {}
    for tp in ENGINE_TPS:
        worker = engine_model(MODEL, GPU, tp)
        profile = modelled(worker, PROMPT, OUTPUT, clocks(worker.gpu_params))
        assert profile is not None
        found[tp] = profile
    return found


def measure() -> dict[str, Any]:
    own = profiles()
    full = {Mode(GPU, tp): pieces(profile, LIMITS) for tp, profile in own.items()}
    top = {Mode(GPU, tp): pieces(profile.top(), LIMITS) for tp, profile in own.items()}
    key = PoolKey("north", "MM")
    loads = np.random.default_rng(1).uniform(5.0, 220.0, REPEATS)
    pool = ShardPool(
        key,
        MODEL,
        GPU,
        {f"n{i}": (8,) for i in range(16)},
        (100.0,),
        LIMITS,
        own,
        weight_bytes(MODEL),
        70e9,
        33.0,
    )
    shard = ShardDynamoObservation(0.0, (pool,), OverheadTable(), 0.95, 300e9)
    instances = tuple(
        InstanceLoad(f"i{n}", "p", float(load), 0, 210.0, 1980.0, LIMITS) for n, load in enumerate(loads / 10.0)
    )
    clock = ProfileClockObservation(0.0, instances, {"p": own[8]})
    classes = tuple(
        ClassLoad(PoolKey("north", item.name), (800.0 + 37.0 * item.rank,) * 12, 300.0) for item in request_classes()
    )
    scale = ScaleDynamoObservation(0.0, 300.0, Mode(GPU, 8), classes, {}, None, 33.0, 420.0)
    queue = tuple(Waiting(f"r{n}", 0.0, 0.2 + 0.01 * ((n * 7919) % 1000), 0.02, 0.01) for n in range(1_000))
    storm = EmergencyObservation(0.0, "i1", queue, 0.0, 800.0, 1980.0)
    history, template = LoadHistory(), TemplateConfig()
    for step in range(2 * template.steps_a_week):
        history = observe(history, "MM", step * template.step_s, [float(step % 288)], template)
    return {
        "eq1_128_gpus": timed(lambda n: solve({GPU: 128}, full, loads[n], 1.1 * loads[n])),
        "eq1_top_clock_128_gpus": timed(lambda n: solve({GPU: 128}, top, loads[n], 1.1 * loads[n])),
        "shard_step_128_gpus": timed(lambda n: shard_dynamo.step(None, shard, ShardDynamoConfig()), 50),
        "reshard_plan_2tp4_to_4tp2": timed(lambda n: plan([(0, 1, 2, 3), (4, 5, 6, 7)], (2, 2, 2, 2), range(8))),
        "profile_7_clocks": timed(lambda n: modelled(engine_model(MODEL, GPU, 8), PROMPT, OUTPUT, own[8].mhz)),
        "clock_step_200_instances": timed(lambda n: clock_profile.step(None, clock, ProfileClockConfig())),
        "scale_step_9_classes": timed(lambda n: scale_dynamo.step(None, scale, ScaleDynamoConfig())),
        "emergency_step_1000_waiting": timed(lambda n: emergency.step(None, storm, EmergencyConfig())),
        "forecast_6_steps": timed(lambda n: forecast(history, "MM", 1.3e6, 6, template)),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
