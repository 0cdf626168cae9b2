"""Slices: equal parts of a GPU, each of which one engine has to itself.

Written as a GPU type of its own, `A100-80GB/2` is half of an A100-80GB. Plans, profiles and the simulator count slices
as they count GPUs. How the driver keeps the parts apart is the node's affair: by memory alone, by MPS (a share of
threads), by MIG. All slices of a GPU have its one clock.
"""

from __future__ import annotations

MOST = 8  # of a GPU: MIG has 7, and below an eighth few models fit
SEPARATOR = "/"  # no GPU type has it in its name (`gpu_types.GpuType.check`)


def sliced(gpu_type: str, slices: int) -> str:
    """Returns the type of a slice of a GPU that is cut into so many; of one: the GPU's own.

    Raises ValueError: there are no such slices.
    """
    if not 1 <= slices <= MOST:
        raise ValueError(f"a GPU is cut into 1 to {MOST} slices, not {slices}")
    return gpu_type if slices == 1 else f"{gpu_type}{SEPARATOR}{slices}"


def whole(name: str) -> tuple[str, int]:
    """Returns the type of the GPU that a slice is of, and into how many it is cut; of a whole GPU: its own and 1."""
    gpu_type, separator, count = name.rpartition(SEPARATOR)
    if not separator or not count.isdecimal() or not 2 <= int(count) <= MOST:
        return name, 1
    return gpu_type, int(count)


def is_slice(name: str) -> bool:
    """Says whether a type is that of a slice."""
    return whole(name)[1] > 1


def fault(gpu_type: str, tp: int) -> str:
    """Says why no instance can be on `tp` of them, and what can be chosen; empty: it can be.

    Two slices of one GPU would gain nothing by tensor parallelism but its cost.
    """
    own, count = whole(gpu_type)
    if count == 1 or tp == 1:
        return ""
    return f"an instance on slices of {own} has one of them: TP is 1, or choose nodes with whole GPUs"
