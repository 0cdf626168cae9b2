"""What happens in the fleet, to be read: instances, epochs, decisions, requests, the audit trail."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access.rights import Right
from pools.models import AuditEntry, Instance
from scheduler.models import Decision, Epoch
from scheduler.operations import visibility
from telemetry.ledger import settled_reader
from telemetry.models import RequestRecord, SyntheticHistory

from ..rest.base import Lists, ReadOnly
from ..rest.filters import filterset
from ..rest.references import pool_relations
from . import serializers


class InstanceViewSet(ReadOnly):
    """Replicas of models on GPUs: what is wanted of each, and what was last reported of it. The newest first.

    Those without a node registered themselves with a gateway.
    """

    queryset = Instance.objects.select_related("node", "model_card", *pool_relations())
    serializer_class = serializers.InstanceSerializer
    lookup_field = "uid"
    lookup_value_regex = "[0-9a-f-]{36}"
    site_path = "pool__site"
    ordering = ("-created_at", "-pk")
    ordering_fields = ("created_at", "gpu_type", "tp", "state", "desired")
    filterset_class = filterset(
        Instance,
        state="state",
        desired="desired",
        gpu_type="gpu_type",
        tp="tp",
        pool="pool",
        node="node__name",
        site="pool__site__name",
        service="pool__service__name",
        model="model_card__name",
    )


class EpochViewSet(ReadOnly):
    """Runs of the slow loops, the newest first. Of a service they are for who may see all of its sites."""

    queryset = Epoch.objects.select_related("service").defer("recording")
    serializer_class = serializers.EpochSerializer
    ordering = ("-due_at", "-id")
    ordering_fields = ("due_at", "finished_at", "period_s")
    filterset_class = filterset(
        Epoch,
        kind="kind",
        status="status",
        service="service__name",
        due_after="due_at__gt",
        due_before="due_at__lt",
    )

    def get_queryset(self) -> QuerySet[Any]:
        return visibility.of_services(self.request.user, super().get_queryset())


class SyntheticHistoryViewSet(ReadOnly):
    """Spans of time whose figures a model made up: the demo's history. Empty in any other fleet."""

    queryset = SyntheticHistory.objects.all()
    serializer_class = serializers.SyntheticHistorySerializer
    ordering = ("-start_at", "-id")
    ordering_fields = ("start_at", "end_at")
    filterset_class = filterset(SyntheticHistory, end_after="end_at__gt", start_before="start_at__lt")


class DecisionViewSet(ReadOnly):
    """Decisions of the loops, the newest first. A single one has its inputs, alternatives and realised figures."""

    queryset = Decision.objects.select_related("service", *pool_relations())
    ordering = ("-at", "-id")
    ordering_fields = ("at",)
    filterset_class = filterset(
        Decision,
        kind="kind",
        reason="reason",
        service="service__name",
        site="pool__site__name",
        epoch="epoch",
        pool="pool",
        instance_uid="instance_uid",
        at_after="at__gt",
        at_before="at__lt",
        text="summary__icontains",
    )

    def get_serializer_class(self) -> type:
        return serializers.DecisionSerializer if self.action == "list" else serializers.DecisionDetailSerializer

    def get_queryset(self) -> QuerySet[Any]:
        """Of a pool those whose role is for its site may know, of a whole service those who may see all its sites."""
        found = visibility.decisions(self.request.user, super().get_queryset())
        if self.action == "list":
            return found.defer("inputs", "alternatives", "commands", "predicted", "realised")
        return found


class RequestViewSet(Lists):
    """Requests that clients made, the newest first.

    A list only: records are kept by time, and to find one by its id alone every day would have to be read.
    """

    queryset = RequestRecord.objects.select_related("tenant", *pool_relations())
    lookup_field = "request_id"
    lookup_value_regex = "[^/]{1,64}"
    serializer_class = serializers.RequestSerializer
    site_path = "pool__site"
    ordering = ("-started_at", "-request_id")
    filterset_class = filterset(
        RequestRecord,
        status="status",
        tenant="tenant__name",
        service="service",
        adapter="adapter",
        pool="pool",
        site="pool__site__name",
        request_class="request_class",
        prediction_source="prediction_source",
        instance_uid="instance_uid",
        request_id="request_id",
        slo_met="slo_met",
        started_after="started_at__gt",
        started_before="started_at__lt",
    )

    @extend_schema(
        parameters=[serializers.RequestMomentSerializer], responses=serializers.RequestUseSerializer, filters=False
    )
    @action(detail=True, methods=["get"], pagination_class=None)
    def use(self, request: Request, request_id: str) -> Response:
        """Returns a request's energy, carbon and cost: its share of the meters, settled some minutes after its end.

        Carbon and cost are at the mean of its tenant, service and pool over each five minutes; null where a part of it
        is not known. 404 where not even a prediction is on record.
        """
        moment = serializers.RequestMomentSerializer(data=request.query_params)
        moment.is_valid(raise_exception=True)
        rows = self.get_queryset().select_related("pool__site")
        record = rows.filter(request_id=request_id, started_at=moment.validated_data["started_at"]).first()
        found = None if record is None else settled_reader.of_request(record)
        if found is None:
            raise Http404(f"There is no request {request_id} of then that you may see, or nothing is known of its use.")
        return Response(serializers.RequestUseSerializer(found).data)


class AuditViewSet(ReadOnly):
    """The audit trail, the newest first: who changed what, when, from where, before and after. For administrators."""

    queryset = AuditEntry.objects.all()
    serializer_class = serializers.AuditSerializer
    reads: ClassVar[Right] = Right.ADMINISTER
    ordering = ("-at", "-id")
    filterset_class = filterset(
        AuditEntry,
        who="who",
        channel="channel",
        action="action",
        kind="kind",
        object_key="object_key",
        request_id="request_id",
        at_after="at__gt",
        at_before="at__lt",
    )
