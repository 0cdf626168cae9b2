"""Tenants' keys for the gateway: /api/v1/keys/. A key's secret is shown once, in the answer that made it."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED, HTTP_204_NO_CONTENT

from pools.access import audit, people
from pools.access.rights import Right
from pools.models import LIMITS, ApiKey, Tenant

from ..rest.base import ReadOnly
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import idempotent
from ..rest.permissions import require_at
from ..rest.problems import Conflict
from ..rest.references import KeyField


class ApiKeySerializer(serializers.ModelSerializer):
    tenant = serializers.CharField(source="tenant.name", read_only=True)

    class Meta:
        model = ApiKey
        fields: tuple[str, ...] = (
            *("id", "tenant", "label", "prefix", "created_at", "expires_at", "revoked_at"),
            *("services", "addresses", *LIMITS),
        )


class ChangedApiKey(Body):
    """Changes what is sent; null: all services, any address, no limit, no end."""

    label = serializers.CharField(max_length=100, allow_blank=True, required=False)
    expires_at = serializers.DateTimeField(allow_null=True, required=False)
    services = serializers.ListField(
        child=serializers.CharField(max_length=100), min_length=1, allow_null=True, required=False
    )
    addresses = serializers.ListField(
        child=serializers.CharField(max_length=43), min_length=1, allow_null=True, required=False
    )
    requests_per_minute = serializers.IntegerField(min_value=1, allow_null=True, required=False)
    tokens_per_minute = serializers.IntegerField(min_value=1, allow_null=True, required=False)
    concurrent_requests = serializers.IntegerField(min_value=1, allow_null=True, required=False)


class NewApiKey(ChangedApiKey):
    tenant = KeyField(queryset=Tenant.objects.all())


class MadeApiKey(ApiKeySerializer):
    """`secret` is what clients of the gateway send; it is shown this once (null where an answer is repeated)."""

    secret = serializers.CharField(read_only=True, allow_null=True)

    class Meta(ApiKeySerializer.Meta):
        fields = (*ApiKeySerializer.Meta.fields, "secret")


class ApiKeyViewSet(ReadOnly):
    """Tenants' keys for the gateway, the newest first; their secrets are not kept."""

    queryset = ApiKey.objects.select_related("tenant")
    serializer_class = ApiKeySerializer
    reads: ClassVar[Right] = Right.ADMINISTER
    writes: ClassVar[Right] = Right.ADMINISTER
    ordering = ("-id",)
    filterset_class = filterset(ApiKey, tenant="tenant__name", prefix="prefix")

    @extend_schema(request=NewApiKey, responses={201: MadeApiKey})
    @idempotent
    def create(self, request: Request) -> Response:
        """Makes a key."""
        require_at(request.user, Right.ADMINISTER, None)
        asked = NewApiKey(data=request.data)
        asked.is_valid(raise_exception=True)
        given = dict(asked.validated_data)
        actor = audit.actor_of(request, "api")
        key, secret = people.new_key(actor, given.pop("tenant"), given.pop("label", ""), **given)
        key.secret = secret  # type: ignore[attr-defined]
        data: Any = MadeApiKey(key).data
        return Response(data, status=HTTP_201_CREATED, headers={"Location": f"{request.path}{key.pk}/"})

    @extend_schema(request=ChangedApiKey, responses=ApiKeySerializer)
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes what it may. Gateways hear of it within seconds. 409 where it is revoked."""
        require_at(request.user, Right.ADMINISTER, None)
        key = self.get_object()
        if key.revoked_at is not None:
            raise Conflict("The key is revoked: make another one.")
        asked = ChangedApiKey(data=request.data, partial=True)
        asked.is_valid(raise_exception=True)
        key = people.change_key(audit.actor_of(request, "api"), key, **asked.validated_data)
        return Response(self.get_serializer(key).data)

    def destroy(self, request: Request, pk: str) -> Response:
        """Revokes it: within seconds no gateway takes it any more. 409 where it was revoked already."""
        require_at(request.user, Right.ADMINISTER, None)
        if not people.revoke_key(audit.actor_of(request, "api"), self.get_object()):
            raise Conflict("The key was revoked already.")
        return Response(status=HTTP_204_NO_CONTENT)
