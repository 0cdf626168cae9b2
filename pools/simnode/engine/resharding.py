"""Takes a simulated engine to other GPUs by DynamoLLM's transfer plan (section IV-C), and says how long that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from core.algorithms.placement import reshard
from core.algorithms.placement.reshard import Outlook, ReshardPlan
from core.engine.engine_model import EngineModel
from core.engine.overheads import Overheads, weight_bytes
from core.ports import InstanceSpec

from ..gpus import SimGpu


@dataclass(frozen=True, slots=True)
class Way:
    """An engine's way to other GPUs. `spec`: of the engine that it will be, its GPUs by rank. `gpus`: these. `plan`
    numbers the GPUs of both layouts as `uuids` has them. `engine`: what it will be like, asked for when it is.
    """

    spec: InstanceSpec
    gpus: tuple[SimGpu, ...]
    uuids: tuple[str, ...]
    plan: ReshardPlan
    outlook: Outlook
    engine: Callable[[], EngineModel]

    def __str__(self) -> str:
        """Says who sends what to whom."""
        blocks = self.plan.block_count
        moves = (
            f"{self.uuids[one.source]} -> {self.uuids[one.target]} {len(one.blocks)}/{blocks}"
            for one in self.plan.transfers
        )
        return ", ".join(moves) or "no weights move"


def way(
    spec: InstanceSpec,
    gpus: Sequence[SimGpu],
    now: EngineModel,
    overheads: Overheads,
    engine: Callable[[InstanceSpec], EngineModel],
) -> Way:
    """Returns the way of least volume, and among those of least time, to `gpus`.

    Args:
        spec: The engine, its GPUs by rank.
        gpus: Those that it is to be on.
        now: The engine model of what it is.
        engine: Returns that of what it will be.
    """
    uuids = tuple(dict.fromkeys((*spec.gpu_uuids, *(one.uuid for one in gpus))))
    number, by_uuid = {uuid: n for n, uuid in enumerate(uuids)}, {one.uuid: one for one in gpus}
    plan = reshard.plan([range(spec.tp)], [len(gpus)], range(len(uuids)), {number[uuid] for uuid in by_uuid})
    weights = weight_bytes(spec.engine_model_name)
    room_bytes = (now.kv_capacity_tokens * now.constants.kv_bytes + weights) / now.tp
    outlook = reshard.outlook(plan, weights, room_bytes, overheads.link_bytes_per_s, overheads.sync_s)
    ranks = tuple(uuids[n] for n in plan.instances[0])
    after = replace(spec, gpu_uuids=ranks)
    return Way(after, tuple(by_uuid[uuid] for uuid in ranks), uuids, plan, outlook, lambda: engine(after))
