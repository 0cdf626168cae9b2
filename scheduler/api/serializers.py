"""The public shape of what is stored: names with units, no internal columns."""

# mypy: allow-subclassing-any
# DRF brings no types of its own.

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from rest_framework import serializers

from pools.models import Instance, Node, Pool, Service, Site
from scheduler.models import Decision, Epoch
from telemetry.models import RequestRecord


class SiteSerializer(serializers.ModelSerializer):
    class Meta:
        model = Site
        fields = ("id", "name", "label", "grid_zone", "time_zone", "pue", "currency", "power_cap_w", "rank")


class NodeSerializer(serializers.ModelSerializer):
    site = serializers.CharField(source="cluster.site.name")
    cluster = serializers.CharField(source="cluster.name")
    gpus = serializers.SerializerMethodField()

    class Meta:
        model = Node
        fields = ("id", "name", "site", "cluster", "simulated", "schedulable", "gpus")

    def get_gpus(self, node: Node) -> dict[str, int]:
        """GPU type -> how many."""
        counts: dict[str, int] = {}
        for gpu in node.gpus.all():
            counts[gpu.gpu_type] = counts.get(gpu.gpu_type, 0) + 1
        return counts


class ServiceSerializer(serializers.ModelSerializer):
    """`policy` is a preset, `knobs` what is set otherwise; together they must make sense."""

    model = serializers.CharField(source="model_card.name", read_only=True)
    partition = serializers.CharField(source="partition.name", read_only=True)

    class Meta:
        model = Service
        fields = ("id", "name", "model", "partition", "description", "policy", "knobs")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = {name: attrs.get(name, getattr(self.instance, name, None)) for name in ("policy", "knobs")}
        try:
            Service(**{name: value for name, value in given.items() if value is not None}).clean()
        except ValidationError as error:
            raise serializers.ValidationError(error.message_dict) from None
        return attrs


class PoolSerializer(serializers.ModelSerializer):
    service = serializers.CharField(source="service.name")
    site = serializers.CharField(source="site.name")
    partition = serializers.CharField(source="request_class.partition.name")
    request_class = serializers.CharField(source="request_class.name")

    class Meta:
        model = Pool
        fields = ("id", "service", "site", "partition", "request_class", "gpu_budget", "workers")


class InstanceSerializer(serializers.ModelSerializer):
    node = serializers.CharField(source="node.name")
    model = serializers.CharField(source="model_card.name")
    pool = serializers.IntegerField(source="pool_id")
    decision = serializers.IntegerField(source="decision_id", allow_null=True)

    class Meta:
        model = Instance
        fields = (
            *("uid", "pool", "node", "model", "gpu_type", "tp", "desired", "state", "detail"),
            *("created_at", "ready_at", "stopped_at", "decision"),
        )


class EpochSerializer(serializers.ModelSerializer):
    service = serializers.CharField(source="service.name")

    class Meta:
        model = Epoch
        fields = (
            *("id", "kind", "service", "index", "period_s", "due_at", "started_at", "finished_at"),
            *("status", "solve_s", "error"),
        )


class DecisionSerializer(serializers.ModelSerializer):
    """A line of a list; `DecisionDetailSerializer` has the inputs and alternatives too."""

    service = serializers.CharField(source="service.name", default=None)
    epoch = serializers.IntegerField(source="epoch_id", allow_null=True)
    pool = serializers.IntegerField(source="pool_id", allow_null=True)

    class Meta:
        model = Decision
        fields: tuple[str, ...] = (
            *("id", "kind", "at", "service", "epoch", "pool", "instance_uid", "reason", "summary", "held"),
        )


class DecisionDetailSerializer(DecisionSerializer):
    class Meta(DecisionSerializer.Meta):
        fields = (*DecisionSerializer.Meta.fields, "inputs", "alternatives", "commands", "predicted", "realised")


class RequestSerializer(serializers.ModelSerializer):
    tenant = serializers.CharField(source="tenant.name", default=None)
    pool = serializers.IntegerField(source="pool_id", allow_null=True)

    class Meta:
        model = RequestRecord
        fields = (
            *("request_id", "started_at", "service", "tenant", "endpoint", "stream", "status", "http_status"),
            *("prompt_tokens", "output_tokens", "predicted_output_tokens", "request_class", "actual_class", "pool"),
            *("instance_uid", "ttft_s", "tpot_s", "itl_max_s", "e2e_s", "predicted_energy_j", "attempts"),
            *("route_reason", "error", "slo_met", "slo_failed"),
        )
