"""The times that changes of a fleet take: new instances, other TP degrees, other clocks. Published figures, as values.

Sources: DynamoLLM (HPCA 2025), tables V and VI, sections III-C and IV-C; throttLL'eM (HPCA 2025), end of section IV.
Each can be replaced by one's own measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from core.engine import gpu_slices
from core.engine.engine_model import gpu, model

Layout = tuple[int, ...]  # the TP degrees of a server's instances, in rising order

# Table V was measured with Llama2-70B, 16 bit: what takes time by the byte is scaled from there.
TABLE_V_MODEL = "Llama2-70B"
_EIGHTH = 8.0  # T of table VI is the time to move 1/8 of the weights
_MEMORY_SHARE, _MEMORY_RESERVE_BYTES = 0.9, 2e9  # what the engine model lets weights and KV cache fill


@dataclass(frozen=True, slots=True)
class StartSteps:
    """Seconds to create an instance on a server of 8 H100, step by step (DynamoLLM, table V).

    Ranges are taken at their middle. The rows add up to 6.5 to 7.5 minutes; the paper says about 6 to 8.
    """

    vm_s: float = 90.0  # create the virtual machine: 1 to 2 min
    environment_s: float = 120.0  # initialise the distributed GPU environment: 2 min
    download_s: float = 180.0  # fetch the weights from a global store (Llama2-70B): 3 min
    engine_s: float = 18.0  # set up the engine
    weights_s: float = 15.0  # install weights and KV cache on the GPUs


@dataclass(frozen=True, slots=True)
class SleepSteps:
    """vLLM's sleep mode: to wake takes a constant and the time of the weights of one GPU.

    The straight line through what vLLM published for two models on an A100, TP 1 (blog, "Zero-Reload Model Switching
    with vLLM Sleep Mode", October 2025): Qwen3-0.6B (1.19 GB) 0.26 s from level 1 and 0.85 s from level 2, Phi-3-vision
    (8.3 GB) 0.82 s and 2.58 s. Its "3-6 s for large models" from level 1 lies on it (60 GB a GPU: 4.9 s). Falling
    asleep is not published: at level 1 the weights go the same way back, at level 2 nothing is moved.
    """

    wake_s: tuple[float, float] = (0.17, 0.56)  # from level 1 (weights in the machine's memory), from level 2 (on disk)
    bytes_per_s: tuple[float, float] = (12.7e9, 4.1e9)


# Whole switches, first to last: the H100's of DynamoLLM III-C ("around 50-80ms", its middle); of throttLL'eM IV
# on A100 40 GB ("avg. 200 ms").
PUBLISHED_SWITCH_S: Mapping[str, float] = MappingProxyType({"H100-SXM-80GB": 0.065, "A100-80GB": 0.2, "A100-40GB": 0.2})


@dataclass(frozen=True, slots=True)
class Overheads:
    """All of them, with the published figures as defaults.

    `sync_s`: the engine joins the GPUs of a new layout, "a few 100s of milliseconds to a few seconds" (DynamoLLM IV-C),
    that is 0.3 to 3 s; the default is the geometric middle. `link_bytes_per_s`: NVLink of a DGX H100 (table VI).
    `clock_set_s`: to set the clock of one GPU, one after another (throttLL'eM IV). `clock_switch_s`: the whole
    switch by GPU type; a type that is not in it takes the slowest that was published.
    """

    start: StartSteps = field(default_factory=StartSteps)
    sleep: SleepSteps = field(default_factory=SleepSteps)
    sync_s: float = 0.95
    link_bytes_per_s: float = 300e9
    clock_set_s: float = 0.008
    clock_switch_s: Mapping[str, float] = field(default_factory=lambda: PUBLISHED_SWITCH_S)


def weight_bytes(model_name: str) -> float:
    """Returns the bytes of a model's weights in their own formats. Raises UnknownConfiguration."""
    return model(model_name).weight_bytes


def cold_start_s(
    overheads: Overheads, *, warm: bool = True, weights_cached: bool = True, model_name: str | None = None
) -> float:
    """Returns the seconds from the decision to the first request that a new instance takes.

    Args:
        warm: A server stands ready, its environment up (DynamoLLM IV-C starts them ahead of need): no machine to
            create, nothing to initialise.
        weights_cached: The weights lie in the cluster: nothing to download.
        model_name: Whose weights; the steps that move them take time by the byte. None: those of table V.
    """
    steps = overheads.start
    scale = 1.0 if model_name is None else weight_bytes(model_name) / weight_bytes(TABLE_V_MODEL)
    created_s = 0.0 if warm else steps.vm_s + steps.environment_s
    return created_s + (0.0 if weights_cached else steps.download_s * scale) + steps.engine_s + steps.weights_s * scale


def wake_s(overheads: Overheads, level: int, model_name: str, tp: int) -> float:
    """Returns the seconds from the call to the first iteration of an engine asleep at `level`.

    Raises UnknownConfiguration.
    """
    steps = overheads.sleep
    return steps.wake_s[level - 1] + weight_bytes(model_name) / tp / steps.bytes_per_s[level - 1]


def fall_asleep_s(overheads: Overheads, level: int, model_name: str, tp: int) -> float:
    """Returns the seconds from the end of its last iteration until an engine sleeps. Raises UnknownConfiguration."""
    return weight_bytes(model_name) / tp / overheads.sleep.bytes_per_s[0] if level == 1 else 0.0


def clock_switch_s(overheads: Overheads, gpu_name: str, tp: int) -> float:
    """Returns the seconds from asking for a clock until all GPUs of an instance run at it.

    The published whole contains the calls; with many GPUs the calls, made one after another, may take longer than it.
    """
    known = overheads.clock_switch_s
    whole_s = known.get(gpu_slices.whole(gpu_name)[0], max(known.values(), default=0.0))
    return max(whole_s, tp * overheads.clock_set_s)


# -- re-sharding --------------------------------------------------------------------------------------

LAYOUTS: tuple[Layout, ...] = ((2,), (2, 2, 2, 2), (4,), (2, 4), (4, 4), (8,))
# Table VI, in T: rows are what is, columns what is to be, both in the order of LAYOUTS.
_TABLE_VI: tuple[tuple[int, ...], ...] = (
    (0, 4, 2, 2, 2, 1),
    (0, 0, 0, 0, 0, 0),
    (2, 2, 0, 2, 2, 1),
    (0, 2, 0, 0, 1, 1),
    (1, 1, 0, 1, 0, 0),
    (1, 1, 1, 1, 1, 0),
)
TABLE_VI: Mapping[tuple[Layout, Layout], int] = MappingProxyType(
    {
        (source, target): units
        for source, row in zip(LAYOUTS, _TABLE_VI, strict=True)
        for target, units in zip(LAYOUTS, row, strict=True)
    }
)


def reshard_units(source: Sequence[int], target: Sequence[int]) -> float:
    """Returns the time to bring the weights where `target` needs them, in T.

    From table VI where it has the cell. Elsewhere what the neediest GPU lacks, sent by one other: a GPU of TP n holds
    1/n of the weights, and the shares are cut so that one lies inside the other (IV-C, figure 5). That is never
    less than the table, which also lets several send to one.

    Raises:
        ValueError: A layout has no instance, or one of a TP degree below 1.
    """
    have, want = tuple(sorted(source)), tuple(sorted(target))
    if not have or not want or min(have + want) < 1:
        raise ValueError("a layout needs at least one instance, each of TP 1 or more")
    if have == want:
        return 0.0
    if (have, want) in TABLE_VI:
        return float(TABLE_VI[have, want])
    return neediest_units(have, want)


def neediest_units(have: Layout, want: Layout) -> float:
    """Returns what the neediest GPU of a layout lacks of the weights, in T."""
    owned = 1.0 / max(have) if sum(have) >= sum(want) else 0.0  # a GPU that joins holds nothing
    return _EIGHTH * max(0.0, 1.0 / min(want) - owned)


def reshard_s(
    source: Sequence[int], target: Sequence[int], weight_bytes: float, link_bytes_per_s: float = 300e9
) -> float:
    """Returns the seconds that the weights are under way, T = bytes / 8 / link. Synchronisation is not in it."""
    return reshard_units(source, target) * weight_bytes / _EIGHTH / link_bytes_per_s


@dataclass(frozen=True, slots=True)
class Transition:
    """A re-shard in place: `transfer_s` in which the old instances serve with `kv_share` of their KV cache, then
    `sync_s` in which nobody does."""

    transfer_s: float
    sync_s: float
    kv_share: float


def transition(
    model_name: str, gpu_name: str, source: Sequence[int], target: Sequence[int], overheads: Overheads
) -> Transition:
    """Computes how a re-shard affects the instances that serve meanwhile (DynamoLLM IV-C).

    From a smaller to a larger TP no GPU holds more than before: full throughput. The other way GPUs take up weights
    while the old instance serves, which leaves less room for its KV cache. While the engine synchronises, the old
    instance goes on serving if a GPU has room for the weights of both (not TP2 and TP4 of a 70B on 80 GB, as the
    paper says); else nobody serves. Where the weights that come do not even fit beside those that are there, the old
    one is gone before they move.

    Raises:
        UnknownConfiguration: The model or GPU is not known.
    """
    total = weight_bytes(model_name)
    room = gpu(gpu_name).mem_gb * 1e9 * _MEMORY_SHARE - _MEMORY_RESERVE_BYTES
    moving_s = reshard_s(source, target, total, overheads.link_bytes_per_s)
    owned, wanted = total / min(source), total / min(target)  # by the GPU that holds most, before and after
    coming = max(0.0, wanted - total / max(source))
    spare = room - owned
    kv_share = max(0.0, 1.0 - coming / spare) if spare > 0.0 else 0.0
    if kv_share <= 0.0:
        return Transition(0.0, moving_s + overheads.sync_s, 1.0)
    if owned + wanted <= room:
        return Transition(moving_s + overheads.sync_s, 0.0, kv_share)
    return Transition(moving_s, overheads.sync_s, kv_share)
