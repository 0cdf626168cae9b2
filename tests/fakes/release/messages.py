"""A message of each kind that processes send each other (`pools.wire`), with the key that it travels under."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec

from core.engine.engine_launch import EngineLaunch
from core.engine.image_rule import ImageRule
from core.policy.tuning import LadderTuning
from core.ports import EngineLimits, EngineOptions
from pools import wire

NOW_S = 1_795_435_200.0  # 2026-11-23 12:00 UTC
UID, OTHER = "5f0c2f4e-8a4e-4c1e-9d0b-0c6f6c2b7a11", "b1a6c1de-3a52-4d0f-8f5e-7d3d3f0a9c22"
MODEL, ENGINE, GPU_TYPE = "Llama3-70B", "vllm-v1", "A100-80GB"
SHAPE = "80x8192.q64x128.kv8.v128256.p70553706496"
NODE = "loc1-a100"


def every() -> dict[str, wire.Message]:
    """By the key, stream or channel; those that other messages carry are in these."""
    limits = wire.LatencyLimits(ttft_s=2.0, tpot_s=0.15, e2e_s=60.0)
    return {
        wire.desired_key(NODE): _desired(limits),
        wire.agent_key(NODE): _agent(),
        wire.FLEET_KEY: _fleet(limits),
        wire.FLEET_INDEX_KEY: wire.FleetIndex(12, NOW_S, [NODE], {"llama3-70b": 11}, 9, 7, keys_digest="0f"),
        wire.worker_key(OTHER): wire.WorkerRegistration(
            *(OTHER, "http://10.0.0.9:8000", "llama3-70b", GPU_TYPE, 4, 30.0, NOW_S),
            **{"request_class": "LL", "site": "location-1", "model": MODEL, "engine": ENGINE},
        ),
        wire.clock_channel(NODE): wire.ClockRequest(
            UID, "gateway", NOW_S, 1110.0, 12.5, "slack", "the lowest clock that keeps 150 ms"
        ),
        wire.BATCH_STREAM: _batch(),
        wire.certificate_answer_key(NODE): wire.NodeCertificate("certificate", "authority", "authority of Redis"),
        wire.REQUEST_STREAM: wire.RequestBatch("gateway", "boot-1", 42, [_request()]),
        wire.open_requests_key("gateway"): wire.OpenRequests(
            ["llama3-70b"], [0], ["0c6f6c2b7a11"], [NOW_S], [374], [129]
        ),
        wire.gateway_use_key("gateway@gw-1"): wire.GatewayUse(
            "boot-1", {"llama3-70b/LL": {"acme": 374}}, {"acme": 503}
        ),
        wire.gateway_boards_key("gateway@gw-1"): wire.GatewayBoards(
            *(1_234.5, NOW_S),
            {UID: wire.EngineBoard(2, 0.15, [1_233.5], [512], [200], [1_024], [7], [True], [1_260.0], [True])},
            {OTHER: wire.EnginePaces(3, 2_048, 0.4, 0.15, [1_234.0], [512], [1_236.0], [1])},
        ),
        wire.PROCESSES_KEY: wire.ProcessTable(
            NOW_S,
            [
                wire.ProcessRow(
                    *("beat", 4_000, "running", NOW_S - 60, 1, "var/log/beat.log", "no progress for 60 s"),
                    *(12.5, 300_000_000, 1, 61.5),
                )
            ],
            "control-1:/srv/greenserve",
        ),
        wire.alive_key("ingester"): wire.Heartbeat(
            *("ingester", NOW_S, 2.0, "3 batches"), wire.DiskState("No space left on device", 72, 3, NOW_S)
        ),
        wire.alive_key("gateway"): wire.Heartbeat(
            *("gateway", NOW_S, 2.0, "1 instances ready, 1 cannot be reached", wire.DiskState()),
            [wire.UnreachableEngine(UID, NODE, "http://10.0.0.5:18400", NOW_S, "the connection is refused")],
        ),
        wire.simulation_key("7"): wire.SimulationUpdate(3_600.0, 1.0, {"energy_j": 1.5e6, "iterations": 10}, ""),
    }


def _desired(limits: wire.LatencyLimits) -> wire.DesiredNode:
    clock = wire.ClockPolicy(
        policy="slack",
        period_s=2.0,
        increase=1.5,
        decrease_mhz=90.0,
        lease_s=12.0,
        paused=True,
        predictor_error=0.2,
        sample_s=0.25,
        full_at=0.9,
        sensitivity=0.5,
        power_exponent=2.4,
        beta=0.1,
        urgency=3.0,
        margin=0.05,
        min_saving=0.02,
        reserve=0.1,
        fixed_mhz=1200.0,
        advise=True,
        floor_mhz=600.0,
        ttft_share=0.45,
        tpot_share=0.9,
        clock_floor="voltage",
        clock_floor_mhz=705.0,
        step_mhz=60.0,
        memory_s=15.0,
        counts_ttft=False,
        full_iteration=True,
        by_sensitivity=False,
        by_profile=False,
        busy_high=0.8,
        busy_low=0.4,
        clock_step_mhz=75.0,
    )
    launch = EngineLaunch("meta/Llama3-70B", "bfloat16", ("--seed=1",), {"NCCL_DEBUG": "INFO"}, 16, 4)
    instance = wire.DesiredInstance(
        uid=UID,
        pool_id=3,
        model=MODEL,
        shape=SHAPE,
        engine=ENGINE,
        gpu_uuids=["SIM-loc1-a100-0", "SIM-loc1-a100-1"],
        max_model_len=16_384,
        state="running",
        limits=limits,
        decision_id=17,
        options=EngineOptions("priority", True),
        engine_limits=EngineLimits(1_024, 128, 0.1, 512, 2.0, 0.5, 1.6),
        shadow_of=OTHER,
        clock=clock,
        launch=launch,
        gpu_slices=2,
        mps=True,
    )
    factors = tuple(1.0 + n / 100.0 for n in range(8))
    measured = wire.MeasuredEngine(SHAPE, GPU_TYPE, 4, ENGINE, "5f0c", factors, factors, NOW_S)
    return wire.DesiredNode(NODE, 9, NOW_S, [instance], clock, [launch], measured=[measured])


def _agent() -> wire.AgentState:
    instance = wire.InstanceState(
        uid=UID,
        shape=SHAPE,
        engine_key="gs-engine-of-a-test",
        pool_id=3,
        url="http://127.0.0.1:9001",
        state="ready",
        model=MODEL,
        engine=ENGINE,
        gpu_type=GPU_TYPE,
        tp=2,
        sm_clock_mhz=1110.0,
        min_mhz=210.0,
        max_mhz=1410.0,
        power_w=612.5,
        running=12,
        waiting=1,
        kv_usage=0.43,
        ttft_s=0.31,
        tpot_s=0.052,
        detail="weights are loaded",
        reshards=True,
        progress=0.75,
        engine_limits=EngineLimits(1_024, 128, 0.1, 512, 2.0, 0.5, 1.6),
        shadow_of=OTHER,
        laxity=True,
        kv_connector="NixlConnector",
        start="cold",
        kv_address="10.0.0.4:18500",
        paths=["/v1/completions", "/v1/chat/completions"],
        adapters=["legal-german"],
        asleep=True,
    )
    return wire.AgentState(
        *(NODE, "boot-1", NOW_S, 9, [instance], "one GPU is silent", "http://127.0.0.1:9100/metrics"),
        measure_only="no permission to set clocks",
        notices=["no memory temperature"],
        finds=wire.NodeFinds(
            "0.32.0", "vLLM 0.32.0 lacks an option", ["--shutdown-timeout"], [wire.ModelOnDisk("org/model", 1 << 34)]
        ),
        version="0.2.0",
        memory_free_bytes=512_000_000_000,
    )


def _fleet(limits: wire.LatencyLimits) -> wire.Fleet:
    policy = wire.RequestPolicy(
        route="least_carbon",
        by_share=True,
        order="llf",
        aging_tokens_per_s=10.0,
        aging_measured=True,
        engine_priority=True,
        engine_queue=16,
        tenant_weights={"acme": 2.0},
        max_queued_requests=100,
        max_queued_tokens=1_000_000,
        max_wait_s=30.0,
        admission="projection",
        predictor_error=0.2,
        predictor_error_measured=True,
        throttle=True,
        retail=True,
        emergencies=True,
        emergencies_up_to="resteer",
        split="any",
        tuning=wire.RequestTuning(
            *(False, 3, 10, 0.01, 3, 0.4, 2.0, 0.2, 2048, 0.15, "trees", 0.2, LadderTuning(calm_s=9.0), 60.0, 1.6),
            split_by_rates=True,
        ),
        plan_ttft_share=0.45,
        plan_tpot_share=0.9,
        deadline=True,
        clock_ttft_share=0.95,
        clock_tpot_share=0.9,
        clock_floor="voltage",
        clock_floor_mhz=800.0,
        early_moves=True,
        iteration=True,
        wake_patience_s=45.0,
        short_class_cost=3.0,
    )
    service = wire.FleetService(
        name="llama3-70b",
        model=MODEL,
        shape=SHAPE,
        images=ImageRule(token_px=28, least_px=3_136, most_px=12_845_056),
        engine=ENGINE,
        max_model_len=16_384,
        objectives=limits,
        partition="freesh-a",
        classes=[
            wire.FleetClass("SS", 0, 0, 1_024, 0, 256, limits, 0.25),
            wire.FleetClass("LL", 1, 1_024, None, 256, None),
        ],
        pools=[wire.FleetPool(3, "location-1", "SS", 1.2, 410.0, 0.6, 520.0, {"A100-80GB/TP4": 2.5})],
        policy=policy,
        expected_prompt_tokens=900,
        expected_output_tokens=180,
        hugging_face_id="meta/Llama3-70B",
        tokenizer="/srv/tokenizers/llama3.json",
        adapters=[wire.FleetAdapter("legal", "acme/legal-lora")],
        max_loras=4,
    )
    of_key, of_tenant = wire.RequestLimits(60, 100_000, 4), wire.RequestLimits(600, 1_000_000, 40)
    budget = wire.RefusingBudget(NOW_S + 86_400, "9 of 9 kWh", 1_000_000, 900_000, NOW_S)
    key = wire.FleetKey(
        "ab" * 32, 5, "acme", 2, ["llama3-70b"], NOW_S + 86_400, of_key, of_tenant, ["192.0.2.0/24"], "cd" * 32, budget
    )
    return wire.Fleet(12, NOW_S, [service], [key], [NODE])


def _batch() -> wire.AgentBatch:
    gpus = [
        wire.GpuSampleRow(NOW_S, "SIM-loc1-a100-0", 1e6, 306.0, 1110.0, 0.8, 2**36, 52.0, UID, "ready", 12),
        wire.GpuSampleRow(NOW_S, "SIM-loc1-a100-1", None, None, None, None, None, None, None, None, None),
    ]
    instance = wire.InstanceSampleRow(
        *(NOW_S, UID, "ready", 12, 1, 0.43, 1.5e6, 2.5e5, 0.31, 0.052, 1110.0, "http://127.0.0.1:9001", "well", "cold"),
        **{"tp": 2, "reshards": True},
    )
    clock = wire.ClockDecision(
        NOW_S,
        UID,
        "slack",
        "1410 MHz to 1310 MHz",
        1410.0,
        1310.0,
        4,
        {"tpot_s": 0.05, "n": 3, "rule": "miad", "x": None},
    )
    host = wire.HostSampleRow(NOW_S, "package-0", "zeusd", 12_345.5, 130.0)
    return wire.AgentBatch(NODE, "boot-1", 42, NOW_S, wire.GpuSamples.pack(gpus), [instance], [clock], [host])


def _request() -> wire.RequestRow:
    return wire.RequestRow(
        request_id="0f" * 16,
        started_at_s=NOW_S - 9,
        service="llama3-70b",
        tenant_id=2,
        key_id=5,
        endpoint="chat",
        stream=True,
        status="upstream_error",
        http_status=502,
        prompt_tokens=900,
        output_tokens=120,
        tokens_source="usage",
        predicted_output_tokens=150,
        prediction_source="history",
        max_tokens=512,
        request_class="SS",
        actual_class="LL",
        pool_id=3,
        instance_uid=UID,
        ttft_s=0.31,
        tpot_s=0.052,
        itl_max_s=0.2,
        e2e_s=6.5,
        window_s=91.0,
        timely_tokens=118,
        predicted_energy_j=210.5,
        queue_s=0.02,
        lost=True,
        own_ttft_s=1.0,
        own_tpot_s=0.1,
        attempts=2,
        route_reason="least predicted energy",
        error="engine closed the connection",
        traceparent="00-" + "1a" * 16 + "-" + "2b" * 8 + "-01",
        adapter="legal-german",
        class_probability=0.75,
    )


# -- recorded, and read again ----------------------------------------------------------------------


def recorded() -> list[dict[str, Any]]:
    """Each as it travels, what it says in plain values, and the name of its kind."""
    found = []
    for key, message in every().items():
        sent = wire.encode(message)
        body = {"msgpack": base64.b64encode(sent).decode()} if message.packed else {"json": sent.decode()}
        found.append({"key": key, "kind": type(message).__name__, **body, "says": says(message)})
    return found


def sent(record: dict[str, Any]) -> bytes:
    """The bytes of a recorded message."""
    return base64.b64decode(record["msgpack"]) if "msgpack" in record else str(record["json"]).encode()


def says(value: Any) -> Any:
    """Plain values, as JSON has them; packed samples as their rows."""
    if isinstance(value, wire.GpuSamples):
        return says(value.unpack())
    if isinstance(value, msgspec.Struct):
        return {name: says(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [says(each) for each in value]
    return msgspec.to_builtins(value)


def parts(value: Any) -> Iterator[wire.Message]:
    """A message and all that it carries."""
    if isinstance(value, wire.Message):
        yield value
        if isinstance(value, wire.GpuSamples):
            yield value.of_what
            yield from parts(value.unpack())
        for name in value.__struct_fields__:
            yield from parts(getattr(value, name))
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from parts(each)


def kinds(message: wire.Message) -> set[type[wire.Message]]:
    return {type(part) for part in parts(message)}


def all_kinds(of: type[wire.Message] = wire.Message) -> set[type[wire.Message]]:
    """Every type of message in `pools.wire`; others build upon them, for other ways to travel."""
    there = {kind for kind in of.__subclasses__() if kind.__module__.startswith(wire.__name__)}
    return there.union(*(all_kinds(kind) for kind in there))
