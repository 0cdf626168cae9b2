"""Says whether two engines of a model card fit into the memory of the same GPUs: a shadow and the one that it replaces.

vLLM takes a share of each GPU's memory when it starts (`--gpu-memory-utilization`, 0.9 unless set otherwise), and
refuses to start where less is free. So both fit only where the card gives them less than half each, and where that is
enough for the weights and one request of the longest kind. A slice is one engine's.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.engine.engine_launch import memory_share
from core.engine.engine_model import UnknownConfiguration, engine_model
from pools.models import InstanceGpu, ModelCard

BOTH_AT_MOST = 0.96  # of a GPU: the driver, and what CUDA takes for each process, need some
GB = 1e9


def fits_two(card: ModelCard, tp: int, allocations: Sequence[InstanceGpu]) -> bool:
    """Says whether two engines fit. They never do on a simulated node, whose engines have their GPUs to themselves, nor
    where the need is not known, nor for one that stands beside another itself.
    """
    gpus = [one.gpu for one in allocations]
    if not gpus or any(gpu.node.simulated or gpu.node.gpu_slices > 1 for gpu in gpus):
        return False
    if any(one.beside for one in allocations):
        return False
    share = memory_share(card.engine_arguments)
    need = need_bytes(card, gpus[0].gpu_type, tp)
    least = min(gpu.memory_gb for gpu in gpus) * GB
    return need is not None and 2.0 * share <= BOTH_AT_MOST and need <= share * least


def need_bytes(card: ModelCard, gpu_type: str, tp: int) -> float | None:
    """Returns the bytes of one GPU for its part of the weights and one request of the longest kind; None: not known."""
    try:
        worker = engine_model(card.engine_model_name, gpu_type, tp, card.engine)
        return (worker.weight_bytes + worker.constants.kv_bytes * card.max_model_len) / tp
    except UnknownConfiguration:
        return None
