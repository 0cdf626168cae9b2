"""Random fleets and loads, small and cramped, so that queues, preemptions and throttling all happen."""

from __future__ import annotations

from hypothesis import strategies as st

from scheduler.core.engine_model import GPUS
from scheduler.simulator.fleet import FixedCosts, FleetSpec, InstanceSpec, Load, PoolSpec, load
from scheduler.simulator.run import ClockSchedule

CONFIGURATIONS = [
    ("Llama2-70B", "H100-SXM-80GB", 8, "vllm-v1"),
    ("Llama3-70B", "A100-80GB", 4, "vllm-freesh"),
    ("Mixtral-8x7B", "H100-SXM-80GB", 4, "trtllm"),
    ("Qwen3-8B", "A100-80GB", 1, "vllm-2024"),
    ("Llama2-13B", "A100-40GB", 2, "eager-2023-a100"),
    # Launch-bound, then GPU-bound, then throttled at the TDP as the batch and its contexts grow.
    ("Qwen2.5-14B", "V100-16GB", 4, "eager-2023-a100"),
    ("gpt2-large", "V100-16GB", 2, "eager-2023-h100"),
    ("Llama2-13B", "V100-16GB", 1, "vllm-v1"),
]


@st.composite
def instances(draw: st.DrawFn, name: str) -> InstanceSpec:
    model, gpu, tp, engine = draw(st.sampled_from(CONFIGURATIONS))
    fixed = draw(st.sampled_from([None, None, None, FixedCosts(0.5, 0.25, 0.125, busy_w=100.0, idle_w=10.0)]))
    return InstanceSpec(
        name,
        model,
        gpu,
        tp,
        mhz=draw(st.sampled_from([GPUS[gpu].f_max, 1305.0, 990.0, 600.0])),
        engine=engine,
        max_sequences=draw(st.sampled_from([1, 2, 4, 64])),
        tokens_per_iteration=draw(st.sampled_from([1, 16, 256, 2048])),
        kv_capacity_tokens=draw(st.sampled_from([200, 700, 3000, 100_000])),
        costs=fixed,
    )


@st.composite
def fleets(draw: st.DrawFn) -> FleetSpec:
    count = draw(st.integers(1, 3))
    specs = tuple(draw(instances(f"i{n}")) for n in range(count))
    routing = st.sampled_from(["round_robin", "least_loaded"])
    if count > 1 and draw(st.booleans()):
        pools = (
            PoolSpec("small", (0,), draw(routing)),
            PoolSpec("large", tuple(range(1, count)), draw(routing)),
        )
        return FleetSpec(specs, pools, (0, 1))
    return FleetSpec(specs, (PoolSpec("all", tuple(range(count)), draw(routing)),), (0, 0))


@st.composite
def loads(draw: st.DrawFn) -> Load:
    count = draw(st.integers(1, 25))
    scale_s = draw(st.sampled_from([0.001, 0.05, 1.0, 20.0]))
    gaps = draw(st.lists(st.one_of(st.just(0.0), st.floats(0.0, 1.0)), min_size=count, max_size=count))
    at_s, now_s = [], 0.0
    for gap in gaps:
        now_s += gap * scale_s
        at_s.append(now_s)
    long = draw(st.sampled_from([20, 400]))
    lengths = st.lists(st.integers(1, long), min_size=count, max_size=count)
    windows = draw(st.lists(st.floats(0.0, 30.0), min_size=count, max_size=count))
    return load(
        at_s,
        draw(lengths),
        draw(lengths),
        prefix_hit_ratio=draw(st.sampled_from([0.0, 0.3, 1.0])),
        request_class=draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)),
        deadline_s=[at + window for at, window in zip(at_s, windows, strict=True)],
    )


@st.composite
def schedules(draw: st.DrawFn, fleet: FleetSpec) -> ClockSchedule | None:
    """Clock changes at multiples of 0.7 s."""
    if draw(st.booleans()):
        return None
    change = st.tuples(
        st.integers(0, 20).map(lambda n: n * 0.7),
        st.sampled_from([spec.name for spec in fleet.instances]),
        st.sampled_from([1410.0, 1005.0, 300.0]),
    )
    return ClockSchedule(0.7, tuple(draw(st.lists(change, max_size=10))))
