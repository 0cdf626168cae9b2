"""Webhooks: who is notified of events (/api/v1/webhooks/), and how that went (/api/v1/webhook-deliveries/)."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import transaction
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED, HTTP_204_NO_CONTENT

from pools.access import audit
from pools.access.rights import Right
from scheduler import webhooks
from scheduler.models import WebhookDelivery, WebhookSubscription

from ..rest.base import ReadOnly, shown
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import conditional, idempotent
from ..rest.owned import ChoiceField
from ..rest.problems import Conflict
from ..rest.references import named
from ..rest.representation import check_match, etag


class SubscriptionSerializer(Body, serializers.ModelSerializer):
    events = serializers.ListField(child=ChoiceField(choices=list(webhooks.EVENTS)), min_length=1)
    created_by = named("created_by.username")
    etag = serializers.SerializerMethodField(help_text="To be sent in If-Match with a change.")

    class Meta:
        model = WebhookSubscription
        fields: tuple[str, ...] = ("id", "name", "url", "events", "enabled", "created_by", "created_at", "etag")

    def get_etag(self, row: WebhookSubscription) -> str:
        return ""  # of the others, once they are all there

    def to_representation(self, instance: WebhookSubscription) -> dict[str, Any]:
        found: dict[str, Any] = super().to_representation(instance)
        found["etag"] = etag({name: value for name, value in found.items() if name not in ("etag", "secret")})
        return found


class MadeSubscription(SubscriptionSerializer):
    """`secret` signs what is sent; it is shown this once (null where an answer is repeated)."""

    class Meta(SubscriptionSerializer.Meta):
        fields = (*SubscriptionSerializer.Meta.fields, "secret")
        extra_kwargs = {"secret": {"read_only": True, "allow_null": True}}


class DeliverySerializer(serializers.ModelSerializer):
    """`body` is the event's `data`."""

    subscription = serializers.CharField(source="subscription.name", read_only=True)

    class Meta:
        model = WebhookDelivery
        fields = (
            *("uid", "subscription", "event", "subject", "body", "state", "attempts", "due_at", "sent_at", "error"),
            "created_at",
        )


class SubscriptionViewSet(ReadOnly):
    """Subscribers to events. Each message is signed with the subscription's secret (docs/api.md)."""

    queryset = WebhookSubscription.objects.select_related("created_by")
    serializer_class = SubscriptionSerializer
    reads: ClassVar[Right] = Right.ADMINISTER
    writes: ClassVar[Right] = Right.ADMINISTER
    ordering = ("name", "id")
    ordering_fields = ("name", "created_at")
    filterset_class = filterset(WebhookSubscription, name="name", enabled="enabled")

    @extend_schema(request=SubscriptionSerializer, responses={201: MadeSubscription})
    @idempotent
    def create(self, request: Request) -> Response:
        """Subscribes. The address must be https and public."""
        asked = self.get_serializer(data=request.data)
        asked.is_valid(raise_exception=True)
        made = webhooks.subscribe(audit.actor_of(request, "api"), **asked.validated_data)
        data: Any = MadeSubscription(made).data
        return Response(data, status=HTTP_201_CREATED, headers={"Location": f"{request.path}{made.pk}/"})

    @conditional
    @transaction.atomic
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes it. The secret stays: for another one make another subscription."""
        row = self._matching(request)
        asked = self.get_serializer(row, data=request.data, partial=True)
        asked.is_valid(raise_exception=True)
        webhooks.change(audit.actor_of(request, "api"), row, asked.validated_data)
        return shown(request, self.get_serializer(row).data)

    @conditional
    @transaction.atomic
    def destroy(self, request: Request, pk: str) -> Response:
        """Ends it, and deletes the record of its deliveries."""
        webhooks.end(audit.actor_of(request, "api"), self._matching(request))
        return Response(status=HTTP_204_NO_CONTENT)

    def _matching(self, request: Request) -> WebhookSubscription:
        row: WebhookSubscription = self.get_object()
        check_match(request.headers.get("If-Match"), self.get_serializer(row).data["etag"])
        return row


class DeliveryViewSet(ReadOnly):
    """Deliveries of events with their outcome, the newest first; they are kept for 30 days."""

    queryset = WebhookDelivery.objects.select_related("subscription")
    serializer_class = DeliverySerializer
    reads: ClassVar[Right] = Right.ADMINISTER
    writes: ClassVar[Right] = Right.ADMINISTER
    lookup_field = "uid"
    lookup_value_regex = "[0-9a-f-]{36}"
    ordering = ("-created_at", "-id")
    filterset_class = filterset(WebhookDelivery, subscription="subscription__name", event="event", state="state")

    @extend_schema(request=None, responses=DeliverySerializer)
    @action(detail=True, methods=["post"])
    @idempotent
    def again(self, request: Request, uid: str) -> Response:
        """Tries one again that was given up; 409 for others."""
        if not webhooks.again(self.get_object(), timezone.now()):
            raise Conflict("Only one that was given up can be tried again.")
        return Response(self.get_serializer(self.get_object()).data)
