"""GPU types: those that are shipped, and those that operators entered or nodes brought; whose figures they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from core.engine.engine_params import ENGINES, GPUS, fitted_engines, gpu_basis
from core.engine.gpu_types import SHIPPED, GpuType
from core.engine.profiles import modelled_margins
from pools.access import rights
from pools.models import Gpu, Node, Profile
from pools.models import GpuType as GpuTypeRow
from scheduler.operations.configure import registry

from .listing import Column, listing

COLUMNS = (
    Column("name", "GPU type"),
    Column("peak_tflops", "TFLOP/s", number=True, hint="Dense, at 16 bit"),
    Column("memory_gb", "Memory", number=True),
    Column("memory_gb_per_s", "Bandwidth", number=True),
    Column("tdp_w", "TDP", number=True),
    Column("gpus", "GPUs", number=True, hint="Of nodes that you may see"),
    Column("basis", "Parameters are", hint="Measured: fitted to published measurements; in part: with some engines"),
    Column("entered", "From"),
    Column("source", "Source"),
)
# Fields of a data sheet: label, scale and unit.
FIGURES: Mapping[str, tuple[str, float, str]] = {
    "peak_flops": ("Dense, 16 bit", 1e-12, "TFLOP/s"),
    "fp8_flops": ("Dense, 8 bit", 1e-12, "TFLOP/s"),
    "fp4_flops": ("Dense, 4 bit", 1e-12, "TFLOP/s"),
    "mem_gb": ("Memory", 1.0, "GB"),
    "hbm_bw": ("Memory bandwidth", 1e-9, "GB/s"),
    "link_bw": ("To other GPUs of its node", 1e-9, "GB/s"),
    "tdp_w": ("TDP", 1.0, "W"),
    "idle_w": ("Idle, nothing loaded", 1.0, "W"),
    "f_min": ("Lowest SM clock", 1.0, "MHz"),
    "f_max": ("Highest SM clock", 1.0, "MHz"),
}


@dataclass(frozen=True, slots=True)
class GpuTypeRowShown:
    """`pk`: of the row that an operator may change; None: it is shipped."""

    name: str
    peak_tflops: float
    memory_gb: float
    memory_gb_per_s: float
    tdp_w: float
    gpus: int
    basis: str
    entered: str
    source: str
    pk: int | None


@dataclass(frozen=True, slots=True)
class Figure:
    """`whose`: source | assumed | as LIKE."""

    label: str
    value: float
    unit: str
    whose: str


def _sheets() -> dict[str, tuple[GpuType, int | None]]:
    """Returns each type by name, and its row's id where it has one."""
    own = {row.name: (row.sheet(), row.pk) for row in GpuTypeRow.objects.all()}
    return {**own, **{name: (sheet, None) for name, sheet in SHIPPED.items()}}


def basis(name: str) -> str:
    """Says what a type's parameters in the engine model rest on; empty: it knows no such type."""
    return gpu_basis(name) if name in GPUS else ""


@never_cache
@require_safe
def gpu_types(request: HttpRequest) -> HttpResponse:
    theirs = Gpu.objects.filter(node__cluster__site__in=rights.sites_of(request.user))
    counts: dict[str, int] = {}
    for name in theirs.values_list("gpu_type", flat=True):
        counts[name] = counts.get(name, 0) + 1
    rows = [
        GpuTypeRowShown(
            name,
            sheet.peak_flops / 1e12,
            sheet.mem_gb,
            sheet.hbm_bw / 1e9,
            sheet.tdp_w,
            counts.get(name, 0),
            gpu_basis(name),
            "shipped" if pk is None else "entered",
            sheet.source,
            pk,
        )
        for name, (sheet, pk) in _sheets().items()
    ]
    unknown = sorted(counts.keys() - {row.name for row in rows})
    context = {
        "title": "GPU types",
        "makes": registry.OWNED["gpu-types"],
        "lead": "What plans know of GPUs. Of types known by their data sheet alone, plans keep wide margins.",
        "listing": listing(
            request,
            rows,
            COLUMNS,
            search=lambda row: f"{row.name} {row.source}",
            filters={"basis": "Parameters are", "entered": "From"},
        ),
        "rows_template": "frontend/fleet/parts/gpu_type_rows.html",
        "nothing": "No GPU type.",
        "note": f"Nodes have GPUs of types that nobody has entered: {', '.join(unknown)}." if unknown else "",
    }
    return render(request, "frontend/fleet/list.html", context)


@never_cache
@require_safe
def gpu_type(request: HttpRequest, name: str) -> HttpResponse:
    if name not in (sheets := _sheets()):
        raise Http404("no such GPU type")
    sheet, pk = sheets[name]
    nodes = Node.objects.filter(cluster__site__in=rights.sites_of(request.user), gpus__gpu_type=name).distinct()
    engines = fitted_engines(name)
    margins = modelled_margins(name, engines[0] if engines else min(ENGINES))
    context = {
        "sheet": sheet,
        "pk": pk,
        "basis": gpu_basis(name),
        "engines": engines,
        "figures": _figures(sheet),
        "nodes": list(nodes.values_list("name", flat=True)),
        "profiles": Profile.objects.filter(gpu_type=name).count(),
        "margins": {"time": margins.time, "power": margins.power},
        "may_operate": rights.has(request.user, rights.Right.OPERATE),
    }
    return render(request, "frontend/fleet/gpu_type.html", context)


def _figures(sheet: GpuType) -> list[Figure]:
    found = []
    for field, (label, scale, unit) in FIGURES.items():
        value, whose = getattr(sheet, field), "assumed" if field in sheet.assumed else "source"
        if field in ("fp8_flops", "fp4_flops") and not value:
            continue
        if field == "idle_w" and not value:
            known = GPUS.get(sheet.name)
            value, whose = (known.idle_w if known else 0.0), f"as {sheet.like}, by its share of the TDP"
            if not value:
                continue
        found.append(Figure(label, value * scale, unit, whose))
    return found
