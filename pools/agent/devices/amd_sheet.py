"""Derives the data sheet of an AMD GPU from amdsmi's figures, for products that are no known GPU type.

As with NVIDIA's (`nvml_sheet`), FLOP/s and bandwidths follow from clocks, widths and counts, and from what an
architecture does in a clock (AMD's white papers on CDNA to CDNA 4, and its data sheets of Radeon boards). Each figure
that follows so is listed as assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from core.engine.gpu_types import GpuType

from .nvml_sheet import pcie_bytes_per_s


@dataclass(frozen=True, slots=True)
class _Architecture:
    """`flop`: dense, of a compute unit in a clock, at 16 bit; `fp8` and `fp4`: times as many, 0 without such units.

    `like`: the measured type of its time.
    """

    flop: float
    fp8: float
    fp4: float
    like: str


_ARCHITECTURES: Mapping[str, _Architecture] = MappingProxyType(
    {
        "gfx908": _Architecture(1024.0, 0.0, 0.0, "A100-80GB"),
        "gfx90a": _Architecture(1024.0, 0.0, 0.0, "A100-80GB"),
        "gfx942": _Architecture(2048.0, 2.0, 0.0, "H100-SXM-80GB"),
        "gfx950": _Architecture(4096.0, 2.0, 4.0, "H100-SXM-80GB"),
        "gfx1100": _Architecture(512.0, 0.0, 0.0, "A100-80GB"),
        "gfx1201": _Architecture(1024.0, 2.0, 0.0, "H100-SXM-80GB"),
    }
)
# Bits that each line of the memory's bus carries in a period of the clock that the driver tells.
_TRANSFERS: Mapping[str, float] = MappingProxyType(
    {"HBM2": 2.0, "HBM2E": 2.0, "HBM3": 4.0, "HBM3E": 4.0, "GDDR6": 16.0}
)


@dataclass(frozen=True, slots=True)
class AmdFigures:
    """Holds what the driver reports; None: it does not. `architecture` such as gfx942; `memory` such as HBM3.

    `link_bytes_per_s`: of all XGMI links that are up, both directions together. `pcie`: generation and lanes.
    """

    name: str
    memory_bytes: int
    clocks_mhz: tuple[float, ...]
    tdp_w: float | None
    architecture: str | None = None
    compute_units: float | None = None
    memory: str | None = None
    memory_mhz: float | None = None
    bus_bits: float | None = None
    link_bytes_per_s: float | None = None
    pcie: tuple[int, int] | None = None


def sheet(gpu_type: str, figures: AmdFigures) -> GpuType | None:
    """Returns the data sheet, without a source; None: something is `lacking`."""
    own, transfers = _ARCHITECTURES.get(figures.architecture or ""), _TRANSFERS.get(figures.memory or "")
    units, tdp_w, bits, memory_mhz = figures.compute_units, figures.tdp_w, figures.bus_bits, figures.memory_mhz
    if own is None or not (transfers and units and tdp_w and bits and memory_mhz and figures.clocks_mhz):
        return None
    peak_flops = units * own.flop * figures.clocks_mhz[-1] * 1e6
    fp8_flops, fp4_flops = own.fp8 * peak_flops, own.fp4 * peak_flops
    assumed = ["peak_flops", "hbm_bw", "link_bw", "idle_w"]
    assumed += [name for name, flops in (("fp8_flops", fp8_flops), ("fp4_flops", fp4_flops)) if flops]
    return GpuType(
        name=gpu_type,
        peak_flops=peak_flops,
        hbm_bw=bits / 8.0 * transfers * memory_mhz * 1e6,
        mem_gb=figures.memory_bytes / 1e9,
        tdp_w=tdp_w,
        f_max=figures.clocks_mhz[-1],
        f_min=figures.clocks_mhz[0],
        link_bw=figures.link_bytes_per_s or pcie_bytes_per_s(figures.pcie),
        like=own.like,
        source="",
        fp8_flops=fp8_flops,
        fp4_flops=fp4_flops,
        nvml=(figures.name,),
        assumed=tuple(assumed),
    )


def lacking(figures: AmdFigures) -> tuple[str, ...]:
    """Names the figures that plans need and that cannot be had from the driver."""
    found = []
    if figures.architecture not in _ARCHITECTURES or not figures.compute_units or not figures.clocks_mhz:
        found.append("FLOP/s")
    if figures.memory not in _TRANSFERS or not figures.memory_mhz or not figures.bus_bits:
        found.append("memory bandwidth")
    return (*found, *(() if figures.tdp_w else ("TDP",)))
