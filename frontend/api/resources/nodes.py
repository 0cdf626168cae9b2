"""Machines that join the fleet: POST /api/v1/nodes/join/, with a join token in place of a signed-in person."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED

from pools.agent.join_messages import GpuOffer, NodeOffer
from pools.registration import join_tokens

from ..rest.base import View


class GpuOfferSerializer(serializers.Serializer):
    """A GPU as the driver describes it; null where the driver does not say."""

    uuid = serializers.CharField(max_length=64)
    index = serializers.IntegerField(min_value=0, max_value=1023)
    name = serializers.CharField(max_length=96)
    gpu_type = serializers.CharField(max_length=40)
    memory_bytes = serializers.IntegerField(min_value=1, max_value=2**60)
    min_mhz = serializers.FloatField(min_value=0.0, max_value=1e5)
    max_mhz = serializers.FloatField(min_value=0.0, max_value=1e5)
    tdp_w = serializers.FloatField(min_value=1.0, max_value=1e5, allow_null=True, default=None)
    nvlinks = serializers.IntegerField(min_value=0, max_value=1024, allow_null=True, default=None)
    mig_slices = serializers.IntegerField(min_value=0, max_value=64, allow_null=True, default=None)


class NodeOfferSerializer(serializers.Serializer):
    token = serializers.CharField(max_length=100, help_text="From `greenserve node token`; good for one machine, once.")
    name = serializers.SlugField(max_length=50)
    driver = serializers.CharField(max_length=80)
    gpus = GpuOfferSerializer(many=True, max_length=join_tokens.MOST_GPUS)


class JoinedSerializer(serializers.Serializer):
    """`broker_url`: the Redis through which the node's agent hears and reports; it may hold a password."""

    node = serializers.CharField()
    cluster = serializers.CharField()
    broker_url = serializers.CharField()


class JoinView(View):
    """Who holds a join token may make one node with it, and nothing else."""

    authentication_classes: ClassVar[list[Any]] = []
    permission_classes: ClassVar[list[Any]] = []

    @extend_schema(request=NodeOfferSerializer, responses={201: JoinedSerializer}, auth=[])
    def post(self, request: Request) -> Response:
        """Makes this machine a node. 400 says which field is wrong, a spent or unknown token included."""
        asked = NodeOfferSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        gpus = [GpuOffer(**gpu) for gpu in given.pop("gpus")]
        node = join_tokens.join(NodeOffer(**given, gpus=gpus), timezone.now())
        answer = {"node": node.name, "cluster": str(node.cluster), "broker_url": settings.CELERY_BROKER_URL}
        return Response(answer, status=HTTP_201_CREATED, headers={"Cache-Control": "no-store"})
