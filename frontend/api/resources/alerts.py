"""Alerts over REST: read them, say that one is looked after, keep a rule quiet for a while."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED, HTTP_204_NO_CONTENT

from scheduler.operations import visibility
from telemetry.alerts import evaluation
from telemetry.models import Alert, AlertSilence

from ..rest.base import ReadOnly
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import idempotent
from ..rest.problems import Conflict
from ..rest.references import named


class AlertSerializer(serializers.ModelSerializer):
    """`value` and `threshold` are in `unit`: s, W, share (0 to 1), times, or a count."""

    acknowledged_by = named("acknowledged_by.username")
    decision = serializers.IntegerField(source="decision_id", allow_null=True)

    class Meta:
        model = Alert
        fields = (
            *("id", "rule", "subject", "level", "state", "summary", "step", "value", "threshold", "unit", "decision"),
            *("since", "opened_at", "last_seen_at", "resolved_at", "acknowledged_at", "acknowledged_by"),
        )


class SilenceSerializer(serializers.ModelSerializer):
    created_by = named("created_by.username")

    class Meta:
        model = AlertSilence
        fields = ("id", "rule", "subject", "reason", "created_by", "created_at", "expires_at")


class NewSilence(Body):
    """The silence to make. `for_s`: seconds from now, a minute to 30 days; an empty `subject` means all."""

    rule = serializers.CharField(max_length=40)
    subject = serializers.CharField(max_length=200, default="", allow_blank=True)
    for_s = serializers.FloatField()
    reason = serializers.CharField(max_length=200, default="", allow_blank=True)


class AlertViewSet(ReadOnly):
    """Alerts, the newest first."""

    queryset = Alert.objects.select_related("acknowledged_by")
    serializer_class = AlertSerializer
    ordering = ("-opened_at", "-id")
    ordering_fields = ("opened_at", "last_seen_at")
    filterset_class = filterset(
        Alert,
        state="state",
        level="level",
        rule="rule",
        subject="subject",
        opened_after="opened_at__gt",
        opened_before="opened_at__lt",
    )

    def get_queryset(self) -> QuerySet[Any]:
        """Returns the alerts of the sites that the person's role is for."""
        return visibility.alerts(self.request.user, super().get_queryset())

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def acknowledge(self, request: Request, pk: str) -> Response:
        """Says that somebody looks after it. 409 where it is not open: somebody was first, or it is over."""
        alert = self.get_object()
        visibility.require_subject(request.user, alert.subject)
        if not evaluation.acknowledge(alert.pk, request.user, timezone.now()):
            raise Conflict(f"The alert is {alert.state}, not open.")
        alert.refresh_from_db()
        return Response(self.get_serializer(alert).data)


class SilenceViewSet(ReadOnly):
    """Silences in force: nobody is notified of their rules' alerts. POST makes one, DELETE ends one."""

    queryset = AlertSilence.objects.select_related("created_by")
    serializer_class = SilenceSerializer
    ordering = ("expires_at", "id")
    ordering_fields = ("expires_at", "created_at")
    filterset_class = filterset(AlertSilence, rule="rule", subject="subject")

    def get_queryset(self) -> QuerySet[Any]:
        return visibility.alerts(self.request.user, super().get_queryset().filter(expires_at__gt=timezone.now()))

    @extend_schema(request=NewSilence, responses={201: SilenceSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        """Keeps a rule quiet for a while, of one subject or of all."""
        asked = NewSilence(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        visibility.require_subject(request.user, given["subject"], given["rule"])
        try:
            made = evaluation.silence(
                *(given["rule"], given["subject"], given["for_s"], given["reason"]), request.user, timezone.now()
            )
        except ValueError as error:
            field, _, words = str(error).partition(": ")
            raise ValidationError({field: words}) from None
        location = f"{request.path}{made.pk}/"
        return Response(SilenceSerializer(made).data, status=HTTP_201_CREATED, headers={"Location": location})

    def destroy(self, request: Request, pk: str) -> Response:
        """Ends it now."""
        visibility.require_subject(request.user, self.get_object().subject)
        if not evaluation.end_silence(int(pk), timezone.now()):
            raise NotFound
        return Response(status=HTTP_204_NO_CONTENT)
