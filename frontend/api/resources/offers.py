"""POST /api/v1/offers/: a model is offered to clients in one call."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED

from core.policy import presets
from pools.access import audit
from pools.models import Site
from scheduler.operations.configure import offering
from scheduler.operations.configure.offering import PERCENTILE, Offer
from scheduler.operations.configure.registry import OWNED

from ..rest.base import View
from ..rest.bodies import Body
from ..rest.idempotency import idempotent
from ..rest.owned import ChoiceField, NumberField, address, rows_of
from ..rest.references import KeyField
from .configure import VIEWSETS

_SERVICES = OWNED["services"]
_SHOWN = VIEWSETS["services"].serializer_class


class NewOffer(Body):
    """The service `name` with the model of a card, or a new card of a model that the engine model knows by name; of the
    latter `max_model_len` is needed. At least one objective, in seconds, for `percentile` of 100 requests. `sites`:
    where it may run; none: everywhere."""

    name = serializers.CharField(max_length=100, help_text="The `model` that clients send.")
    model = serializers.CharField(max_length=100)
    max_model_len = serializers.IntegerField(
        default=None, allow_null=True, min_value=1, help_text="Longest prompt plus output, in tokens."
    )
    ttft_s = NumberField(default=None, allow_null=True, min_value=0)
    tpot_s = NumberField(default=None, allow_null=True, min_value=0)
    e2e_s = NumberField(default=None, allow_null=True, min_value=0)
    percentile = NumberField(default=PERCENTILE, min_value=0, max_value=100)
    expected_rps = NumberField(
        default=None, allow_null=True, min_value=0, help_text="Load to plan for until it is known, in requests/s."
    )
    expected_prompt_tokens = serializers.IntegerField(default=None, allow_null=True, min_value=1)
    expected_output_tokens = serializers.IntegerField(default=None, allow_null=True, min_value=1)
    sites = serializers.ListField(child=KeyField(queryset=Site.objects.all()), default=list, max_length=500)
    policy = ChoiceField(choices=presets.choices(), default=presets.DEFAULT)


class OffersView(View):
    """Services made with all that they need."""

    @extend_schema(request=NewOffer, responses={201: _SHOWN})
    @idempotent
    def post(self, request: Request) -> Response:
        """Makes a service with its model, objectives and pools; all of it, or nothing."""
        asked = NewOffer(data=request.data)
        asked.is_valid(raise_exception=True)
        made = offering.make(audit.actor_of(request, "api"), Offer.of_fields(asked.validated_data))
        data = _SHOWN(rows_of(_SERVICES).get(pk=made.pk), context={"request": request}).data
        return Response(data, status=HTTP_201_CREATED, headers={"Location": address(made), "ETag": data["etag"]})
