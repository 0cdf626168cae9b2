"""GPU types that GreenServe ships: /api/v1/shipped-gpu-types/. Those of operators are under /api/v1/gpu-types/."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from core.engine.engine_params import GPU_BASES, gpu_basis
from core.engine.gpu_types import SHIPPED
from pools.models import GpuType

from ..rest.base import View


class ShippedGpuTypeSerializer(serializers.Serializer):
    """A type by its data sheet, with the fields of those that operators enter."""

    name = serializers.CharField()
    basis = serializers.ChoiceField(
        choices=GPU_BASES,
        help_text="Measured: its parameters were fitted to published measurements, in part: those of some engines. "
        "Else plans keep wide margins.",
    )
    driver_names = serializers.ListField(child=serializers.CharField())
    peak_tflops = serializers.FloatField()
    fp8_tflops = serializers.FloatField(allow_null=True)
    fp4_tflops = serializers.FloatField(allow_null=True)
    memory_gb = serializers.FloatField()
    memory_gb_per_s = serializers.FloatField()
    link_gb_per_s = serializers.FloatField()
    tdp_w = serializers.FloatField()
    idle_w = serializers.FloatField(allow_null=True)
    min_mhz = serializers.FloatField()
    max_mhz = serializers.FloatField()
    like = serializers.CharField()
    source = serializers.CharField()
    assumed = serializers.ListField(child=serializers.CharField())


class ShippedGpuTypesSerializer(serializers.Serializer):
    """All of them: `next` and `previous`, as lists have them, are null."""

    next = serializers.CharField(allow_null=True)
    previous = serializers.CharField(allow_null=True)
    results = ShippedGpuTypeSerializer(many=True)


class ShippedGpuTypesView(View):
    @extend_schema(
        operation_id="shipped_gpu_types_list", responses=ShippedGpuTypesSerializer, tags=["shipped-gpu-types"]
    )
    def get(self, request: Request) -> Response:
        """Returns what plans know of GPUs without anybody's entry; none of it can be changed."""
        rows = [_row(GpuType.of_sheet(sheet)) for sheet in SHIPPED.values()]
        return Response({"next": None, "previous": None, "results": ShippedGpuTypeSerializer(rows, many=True).data})


def _row(shipped: GpuType) -> dict[str, Any]:
    names = [name for name in ShippedGpuTypeSerializer().fields if name != "basis"]
    return {"basis": gpu_basis(shipped.name), **{name: getattr(shipped, name) for name in names}}
