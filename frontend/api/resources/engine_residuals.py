"""Residuals of engines under /api/v1/engine-residuals/: calibration finds them while engines serve. Read only."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from core.engine.corrections import knots_mhz
from core.engine.engine_model import UnknownConfiguration, gpu
from pools.models import EngineResidual

from ..rest.base import ReadOnly
from ..rest.filters import filterset


class ResidualFactorSerializer(serializers.Serializer):
    """Factors on what is predicted at one clock; between two clocks they lie on a straight line."""

    sm_clock_mhz = serializers.FloatField()
    time = serializers.FloatField(help_text="On seconds.")
    power = serializers.FloatField(help_text="On watts.")


class EngineResidualSerializer(serializers.ModelSerializer):
    """Says by how much a configuration's engines differ of late from what is predicted of them, by its profile or the
    closed form."""

    time_ratio = serializers.SerializerMethodField(help_text="Measured over predicted seconds, over all clocks.")
    power_ratio = serializers.SerializerMethodField(help_text="Measured over predicted watts, over all clocks.")
    factors = serializers.SerializerMethodField(help_text="The correction in force by clock; empty: there is none.")

    class Meta:
        model = EngineResidual
        fields = (
            *("id", "shape", "gpu_type", "tp", "engine", "time_ratio", "power_ratio", "windows", "drifted", "at"),
            "factors",
        )

    def get_time_ratio(self, row: EngineResidual) -> float:
        return 1.0 + row.time_drift

    def get_power_ratio(self, row: EngineResidual) -> float:
        return 1.0 + row.power_drift

    @extend_schema_field(ResidualFactorSerializer(many=True))
    def get_factors(self, row: EngineResidual) -> list[dict[str, float]]:
        try:
            clocks = knots_mhz(gpu(row.gpu_type))
        except UnknownConfiguration:
            return []
        pairs: list[tuple[Any, ...]] = list(zip(clocks, row.time, row.power, strict=False))
        return [{"sm_clock_mhz": mhz, "time": time, "power": power} for mhz, time, power in pairs]


class EngineResidualViewSet(ReadOnly):
    """Residuals of engines that serve: calibration keeps one for each configuration."""

    queryset = EngineResidual.objects.defer("state")
    serializer_class = EngineResidualSerializer
    ordering = ("shape", "gpu_type", "tp", "engine", "id")
    ordering_fields: ClassVar[tuple[str, ...]] = ("at",)
    filterset_class = filterset(
        EngineResidual, gpu_type="gpu_type", tp="tp", engine="engine", shape="shape", drifted="drifted"
    )
