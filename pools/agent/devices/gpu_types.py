"""Translates the driver's name of a GPU into that of GreenServe's catalogue of GPU types."""

from __future__ import annotations

from core.engine.engine_model import GPUS

# By NVML's product name. Only boards of the catalogue's power and clocks: a PCIe A100 (250 or 300 W) or H100 (350 W) is
# another machine than the SXM one, and planning with the wrong one would be worse than with none.
_ALIASES = {
    "NVIDIA H100 80GB HBM3": "H100-SXM-80GB",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "A100-SXM4-80GB": "A100-80GB",
    "NVIDIA A100-SXM4-40GB": "A100-40GB",
    "A100-SXM4-40GB": "A100-40GB",
    "Tesla V100-PCIE-16GB": "V100-16GB",
}


def gpu_type(name: str) -> tuple[str, bool]:
    """Returns the type of a GPU of this name, and whether the catalogue knows it; an unknown one keeps its name."""
    if (known := _ALIASES.get(name, name)) in GPUS:
        return known, True
    return name.removeprefix("NVIDIA ").strip().replace(" ", "-")[:40], False
