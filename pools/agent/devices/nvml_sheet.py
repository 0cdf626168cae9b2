"""Derives the data sheet of a GPU from its driver's figures, for products that are no known GPU type.

The driver has no FLOP/s and no bandwidths. They follow from clocks, widths and counts, and from what an architecture
does in a clock (NVIDIA's architecture papers, V100 to Blackwell). Each figure that follows so is listed as assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.engine.gpu_types import GpuType

# By compute capability: CUDA cores of an SM, dense FLOP of its tensor cores in a clock (16 bit, accumulated at 32 bit),
# and bytes/s of an NVLink, both directions together.
_ARCHITECTURES: Mapping[tuple[int, int], tuple[int, float, float]] = {
    (7, 0): (64, 1024.0, 50e9),
    (7, 5): (64, 1024.0, 50e9),
    (8, 0): (64, 2048.0, 50e9),
    (8, 6): (128, 1024.0, 28e9),
    (8, 9): (128, 1024.0, 50e9),
    (9, 0): (128, 4096.0, 50e9),
    (10, 0): (128, 8192.0, 100e9),
    (10, 3): (128, 8192.0, 100e9),
    (12, 0): (128, 1024.0, 100e9),
}
_HALVED = ((7, 5), (8, 6), (8, 9), (12, 0))  # GeForce boards of these accumulate at half the rate
_FP8_FROM, _FP4_FROM = (8, 9), (10, 0)
_PCIE_LANE = 0.25e9  # bytes/s of generation 1, each direction; each generation has twice as many
_PCIE_LEAST = (3, 16)  # where the driver does not say


@dataclass(frozen=True, slots=True)
class DriverFigures:
    """Holds what the driver reports; None: it does not. `bus_bits` of the memory, `pcie`: generation and lanes."""

    name: str
    memory_bytes: int
    clocks_mhz: tuple[float, ...]
    tdp_w: float | None
    nvlinks: int | None
    capability: tuple[int, int] | None = None
    cores: int | None = None
    top_mhz: float | None = None
    memory_mhz: float | None = None
    bus_bits: int | None = None
    pcie: tuple[int, int] | None = None


def sheet(gpu_type: str, figures: DriverFigures) -> GpuType | None:
    """Returns the data sheet, without a source; None: something is `lacking`."""
    capability, cores, tdp_w = figures.capability, figures.cores, figures.tdp_w
    memory_mhz, bus_bits = figures.memory_mhz, figures.bus_bits
    if lacking(figures) or not (capability and cores and tdp_w and memory_mhz and bus_bits):
        return None
    cores_per_sm, flop, nvlink = _ARCHITECTURES[capability]
    top_mhz = figures.clocks_mhz[-1] if figures.clocks_mhz else figures.top_mhz or 0.0
    halved = capability in _HALVED and "GeForce" in figures.name
    peak_flops = cores / cores_per_sm * flop * (0.5 if halved else 1.0) * top_mhz * 1e6
    fp8_flops = 2.0 * peak_flops if capability >= _FP8_FROM else 0.0
    fp4_flops = 2.0 * fp8_flops if capability >= _FP4_FROM else 0.0
    assumed = ["peak_flops", "hbm_bw", "link_bw", "idle_w"]
    assumed += [name for name, flops in (("fp8_flops", fp8_flops), ("fp4_flops", fp4_flops)) if flops]
    return GpuType(
        name=gpu_type,
        peak_flops=peak_flops,
        hbm_bw=bus_bits / 8.0 * 2.0 * memory_mhz * 1e6,  # two transfers a clock
        mem_gb=figures.memory_bytes / 1e9,
        tdp_w=tdp_w,
        f_max=top_mhz,
        f_min=figures.clocks_mhz[0] if figures.clocks_mhz else top_mhz,
        link_bw=figures.nvlinks * nvlink if figures.nvlinks else pcie_bytes_per_s(figures.pcie),
        like="V100-16GB" if capability < (8, 0) else "A100-80GB" if capability < (9, 0) else "H100-SXM-80GB",
        source="",
        fp8_flops=fp8_flops,
        fp4_flops=fp4_flops,
        nvml=(figures.name,),
        assumed=tuple(assumed if figures.clocks_mhz else [*assumed, "f_min"]),
    )


def pcie_bytes_per_s(pcie: tuple[int, int] | None) -> float:
    """Returns both directions together. `pcie`: generation and lanes; None: the least that such machines have."""
    generation, lanes = pcie or _PCIE_LEAST
    return 2.0 * lanes * _PCIE_LANE * 2.0 ** (generation - 1)


def lacking(figures: DriverFigures) -> tuple[str, ...]:
    """Names the figures that plans need and that cannot be had from the driver."""
    found = []
    if figures.capability not in _ARCHITECTURES or not figures.cores or not (figures.clocks_mhz or figures.top_mhz):
        found.append("FLOP/s")
    if not figures.memory_mhz or not figures.bus_bits:
        found.append("memory bandwidth")
    return (*found, *(() if figures.tdp_w else ("TDP",)))
