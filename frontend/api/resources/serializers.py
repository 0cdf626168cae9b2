"""The public shape of what is stored: names with units, no internal columns."""

from __future__ import annotations

from rest_framework import serializers

from pools.models import AuditEntry, Instance
from scheduler.models import Decision, Epoch
from telemetry.models import RequestRecord, SyntheticHistory

from ..rest.references import PoolName, named


class InstanceSerializer(serializers.ModelSerializer):
    service = serializers.CharField(source="pool.service.name")
    site = serializers.CharField(source="pool.site.name")
    node = named("node.name")
    model = serializers.CharField(source="model_card.name")
    pool = serializers.IntegerField(source="pool_id")
    pool_name = PoolName()
    decision = serializers.IntegerField(source="decision_id", allow_null=True)

    class Meta:
        model = Instance
        fields = (
            *(
                "uid",
                "service",
                "site",
                "pool",
                "pool_name",
                "node",
                "model",
                "gpu_type",
                "tp",
                "desired",
                "state",
                "detail",
            ),
            *("created_at", "ready_at", "reshards", "reshard_at", "resharded_at", "stopped_at", "decision"),
        )


class EpochSerializer(serializers.ModelSerializer):
    service = serializers.CharField(source="service.name")

    class Meta:
        model = Epoch
        fields = (
            *("id", "kind", "service", "index", "period_s", "due_at", "started_at", "finished_at"),
            *("status", "solve_s", "error"),
        )


class SyntheticHistorySerializer(serializers.ModelSerializer):
    class Meta:
        model = SyntheticHistory
        fields = ("id", "start_at", "end_at", "source", "made_at")


class DecisionSerializer(serializers.ModelSerializer):
    """A decision. `site` is its pool's; null: it is of a whole service."""

    service = named("service.name")
    site = named("pool.site.name")
    epoch = serializers.IntegerField(source="epoch_id", allow_null=True)
    pool = serializers.IntegerField(source="pool_id", allow_null=True)
    pool_name = PoolName()

    class Meta:
        model = Decision
        fields: tuple[str, ...] = (
            *("id", "kind", "at", "service", "site", "epoch", "pool", "pool_name", "instance_uid", "reason", "summary"),
            "held",
        )


class DecisionDetailSerializer(DecisionSerializer):
    """A decision with what it was made from, what else there was, and what came of it."""

    alternatives = serializers.ListField(child=serializers.DictField())
    commands = serializers.ListField(child=serializers.DictField())

    class Meta(DecisionSerializer.Meta):
        fields = (*DecisionSerializer.Meta.fields, "inputs", "alternatives", "commands", "predicted", "realised")


class RequestSerializer(serializers.ModelSerializer):
    tenant = named("tenant.name")
    site = named("pool.site.name")
    pool = serializers.IntegerField(source="pool_id", allow_null=True)
    pool_name = PoolName()

    class Meta:
        model = RequestRecord
        fields = (
            *("request_id", "started_at", "service", "tenant", "endpoint", "stream", "status", "http_status"),
            *(
                "prompt_tokens",
                "output_tokens",
                "predicted_output_tokens",
                "prediction_source",
                "request_class",
                "class_probability",
                "actual_class",
                "site",
                "pool",
            ),
            *("pool_name", "instance_uid", "ttft_s", "tpot_s", "itl_max_s", "e2e_s", "predicted_energy_j", "attempts"),
            *("route_reason", "error", "slo_met", "slo_failed", "adapter"),
        )


class RequestMomentSerializer(serializers.Serializer):
    """When the request began: records are kept by time."""

    started_at = serializers.DateTimeField(help_text="`started_at` of the request's row.")


class RequestUseSerializer(serializers.Serializer):
    """The use of a request. `measured`: its share of the meters; else only the energy that routing predicted."""

    measured = serializers.BooleanField()
    energy_j = serializers.FloatField()
    prefill_j = serializers.FloatField(allow_null=True)
    decode_j = serializers.FloatField(allow_null=True)
    gpu_s = serializers.FloatField(allow_null=True)
    carbon_gco2e = serializers.FloatField(allow_null=True)
    cost = serializers.FloatField(allow_null=True)
    currency = serializers.CharField(allow_null=True)


class AuditSerializer(serializers.ModelSerializer):
    """`before` is null of what was made, `after` of what was deleted. Secrets are masked."""

    class Meta:
        model = AuditEntry
        fields = (
            *("id", "at", "who", "key", "channel", "action", "kind", "object_key", "label", "before", "after"),
            *("request_id", "address"),
        )
