"""Alerts over REST: read them, say that one is looked after, keep a rule quiet for a while."""

# mypy: allow-subclassing-any
# DRF brings no types of its own.

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED, HTTP_204_NO_CONTENT, HTTP_409_CONFLICT

from telemetry.alerts import rounds
from telemetry.models import Alert, AlertSilence

from .views import NewestFirst, ReadOnly


class AlertSerializer(serializers.ModelSerializer):
    """`value` and `threshold` are in `unit`: s, W, share (0 to 1), times, or a count."""

    acknowledged_by = serializers.CharField(source="acknowledged_by.username", default=None)
    decision = serializers.IntegerField(source="decision_id", allow_null=True)

    class Meta:
        model = Alert
        fields = (
            *("id", "rule", "subject", "level", "state", "summary", "step", "value", "threshold", "unit", "decision"),
            *("since", "opened_at", "last_seen_at", "resolved_at", "acknowledged_at", "acknowledged_by"),
        )


class SilenceSerializer(serializers.ModelSerializer):
    created_by = serializers.CharField(source="created_by.username", default=None)

    class Meta:
        model = AlertSilence
        fields = ("id", "rule", "subject", "reason", "created_by", "created_at", "expires_at")


class NewSilence(serializers.Serializer):
    """What is asked for. `for_s`: seconds from now, between a minute and 30 days; `subject` empty: of all."""

    rule = serializers.CharField(max_length=40)
    subject = serializers.CharField(max_length=200, default="", allow_blank=True)
    for_s = serializers.FloatField()
    reason = serializers.CharField(max_length=200, default="", allow_blank=True)


class AlertViewSet(ReadOnly):
    queryset = Alert.objects.select_related("acknowledged_by")
    serializer_class = AlertSerializer
    filters = {
        "state": ("state", list(Alert.State.values)),
        "level": ("level", list(Alert.Level.values)),
        "rule": ("rule", None),
        "subject": ("subject", None),
    }

    class pagination_class(NewestFirst):
        ordering = ("-opened_at", "-id")

    @action(detail=True, methods=["post"], parser_classes=[JSONParser])  # type: ignore[untyped-decorator]
    def acknowledge(self, request: Request, pk: str) -> Response:
        """409 where it is not open: somebody was first, or it is over."""
        alert = self.get_object()
        changed = rounds.acknowledge(alert.pk, request.user, timezone.now())
        alert.refresh_from_db()
        return Response(self.get_serializer(alert).data, status=200 if changed else HTTP_409_CONFLICT)


class SilenceViewSet(ReadOnly):
    """Those in force. POST makes one, DELETE ends one."""

    queryset = AlertSilence.objects.select_related("created_by").order_by("expires_at", "id")
    serializer_class = SilenceSerializer
    parser_classes: ClassVar = [JSONParser]
    filters = {"rule": ("rule", None)}

    def get_queryset(self) -> QuerySet[Any]:
        found: QuerySet[Any] = super().get_queryset()
        return found.filter(expires_at__gt=timezone.now())

    def create(self, request: Request) -> Response:
        asked = NewSilence(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        try:
            made = rounds.silence(
                *(given["rule"], given["subject"], given["for_s"], given["reason"]), request.user, timezone.now()
            )
        except ValueError as error:
            field, _, words = str(error).partition(": ")
            raise ValidationError({field: words}) from None
        return Response(SilenceSerializer(made).data, status=HTTP_201_CREATED)

    def destroy(self, request: Request, pk: str) -> Response:
        if not (pk.isdecimal() and len(pk) < 19 and rounds.end_silence(int(pk), timezone.now())):
            raise NotFound
        return Response(status=HTTP_204_NO_CONTENT)
