"""Machines that join the fleet: POST /api/v1/nodes/join/, with a join token in place of a signed-in person.

And what is known of a node now: GET /api/v1/nodes/NAME/state/.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.status import HTTP_201_CREATED

from core.engine.gpu_types import MOST_NAME, GpuType
from frontend import health
from pools import server_states
from pools.access import audit, rights
from pools.agent.join_messages import GpuOffer, NodeOffer
from pools.models import Node
from pools.redis_address import broker_url
from pools.registration import join_tokens, node_identities
from pools.registration.authority import CONTROL_PLANE

from ..rest.base import View


class DataSheetSerializer(serializers.Serializer):
    """A GPU type's data sheet: FLOP/s dense, bytes/s, GB, W and MHz."""

    name = serializers.CharField(max_length=MOST_NAME)
    peak_flops = serializers.FloatField()
    hbm_bw = serializers.FloatField()
    mem_gb = serializers.FloatField()
    tdp_w = serializers.FloatField()
    f_max = serializers.FloatField()
    f_min = serializers.FloatField()
    link_bw = serializers.FloatField()
    like = serializers.CharField(max_length=MOST_NAME)
    source = serializers.CharField(max_length=300)
    fp8_flops = serializers.FloatField(default=0.0)
    fp4_flops = serializers.FloatField(default=0.0)
    idle_w = serializers.FloatField(default=0.0)
    nvml = serializers.ListField(child=serializers.CharField(max_length=96), max_length=8, default=list)
    assumed = serializers.ListField(child=serializers.CharField(max_length=20), max_length=20, default=list)


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
    sheet = DataSheetSerializer(
        allow_null=True, default=None, help_text="Of a type that the machine does not know, by its driver's figures."
    )
    lacking = serializers.ListField(
        child=serializers.CharField(max_length=40),
        max_length=10,
        default=list,
        help_text="The figures for want of which there is no sheet.",
    )


class NodeOfferSerializer(serializers.Serializer):
    token = serializers.CharField(max_length=200, help_text="From `greenserve node token`; good for one machine, once.")
    name = serializers.SlugField(max_length=50)
    driver = serializers.CharField(max_length=80)
    gpus = GpuOfferSerializer(many=True, max_length=join_tokens.MOST_GPUS)
    release = serializers.CharField(
        max_length=40, default="", allow_blank=True, help_text="The version of GreenServe on the machine."
    )
    request = serializers.CharField(
        max_length=node_identities.MOST_REQUEST,
        default="",
        trim_whitespace=False,
        help_text="For a certificate of the node's key, which never leaves it; PKCS #10, in PEM.",
    )


class JoinedSerializer(serializers.Serializer):
    """`broker_url`: the Redis through which the node's agent hears and reports; it has its own user's password in it.

    `notes`: what is to be known of the types of its GPUs. `certificate`: the node's, `authority`: of who signs all
    nodes', `redis_authority`: of who signs that of Redis' address, empty where the machine knows; PEM.
    """

    node = serializers.CharField()
    cluster = serializers.CharField()
    broker_url = serializers.CharField()
    notes = serializers.ListField(child=serializers.CharField())
    certificate = serializers.CharField()
    authority = serializers.CharField()
    redis_authority = serializers.CharField(allow_blank=True)


class AuthoritySerializer(serializers.Serializer):
    """`certificate`: of who signs the control plane's certificates, PEM."""

    certificate = serializers.CharField()


class AuthorityView(View):
    """Shows whom nodes are to trust, who know it by the fingerprint in their join token."""

    authentication_classes: ClassVar[list[Any]] = []
    permission_classes: ClassVar[list[Any]] = []

    @extend_schema(responses=AuthoritySerializer, auth=[])
    def get(self, request: Request) -> Response:
        """Returns the certificate of the control plane's authority. It is no secret."""
        return Response({"certificate": node_identities.authority(CONTROL_PLANE, timezone.now()).certificate_pem})


class RevokedSerializer(serializers.Serializer):
    """`certificates`: that held until now."""

    certificates = serializers.IntegerField()


class RevokeView(View):
    """Takes a node's identity away."""

    @extend_schema(request=None, responses=RevokedSerializer)
    def post(self, request: Request, name: str) -> Response:
        """Lets the node in no more, from this moment on; it may join again."""
        node = get_object_or_404(Node, name=name, cluster__site__in=rights.sites_of(request.user))
        count = node_identities.revoke(audit.actor_of(request, "api"), node, timezone.now())
        return Response({"certificates": count})


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
        gpus = [GpuOffer(**{**gpu, "sheet": _sheet(gpu["sheet"])}) for gpu in given.pop("gpus")]
        host = urlsplit(f"//{request.get_host()}").hostname or ""
        admitted = node_identities.join(NodeOffer(**given, gpus=gpus), host, timezone.now())
        node, trusted = admitted.node, admitted.certificate
        whose = {"node": node.name, "cluster": str(node.cluster), "broker_url": broker_url(admitted.redis_url)}
        shown = {"certificate": trusted.certificate, "authority": trusted.authority}
        answer = {**whose, "notes": admitted.notes, **shown, "redis_authority": trusted.redis_authority}
        return Response(answer, status=HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class ModelOnDiskSerializer(serializers.Serializer):
    weights = serializers.CharField(help_text="As a model card names them: an id of Hugging Face, or a folder.")
    size_bytes = serializers.IntegerField()


class NodeFindsSerializer(serializers.Serializer):
    """`vllm`: its version. `fault`: why no engine can be started. `missing`: options that this vLLM lacks."""

    vllm = serializers.CharField()
    fault = serializers.CharField()
    missing = serializers.ListField(child=serializers.CharField())
    models = ModelOnDiskSerializer(many=True)


class UnreachableInstanceSerializer(serializers.Serializer):
    uid = serializers.CharField()
    why = serializers.CharField(help_text="Which gateways do not reach it, where and why.")


class PowerStateSerializer(serializers.Serializer):
    """A server that can be switched."""

    phase = serializers.ChoiceField([own.value for own in server_states.Phase])
    since = serializers.DateTimeField(allow_null=True, help_text="Of its phase; null: it has not been off.")
    boot_s = serializers.FloatField(help_text="From being switched on until its agent reports.")
    boot_source = serializers.ChoiceField(["measured", "declared", "assumed"])
    fault = serializers.CharField(help_text="Why the newest call to its power port failed; empty: it did not.")


class NodeStateSerializer(serializers.Serializer):
    """A node now. `finds` is null where its agent starts no engines, has not looked yet, or is silent."""

    node = serializers.CharField()
    state = serializers.ChoiceField(health.NODE_STATES)
    age_s = serializers.FloatField(allow_null=True, help_text="Since its agent's last report.")
    error = serializers.CharField()
    notes = serializers.CharField()
    instances = serializers.DictField(child=serializers.IntegerField(), help_text="Counts by state.")
    failed = serializers.ListField(child=serializers.CharField())
    unreachable = UnreachableInstanceSerializer(many=True)
    finds = NodeFindsSerializer(allow_null=True)
    server = serializers.CharField(help_text="What is being switched, in words; empty: nothing.")
    power = PowerStateSerializer(allow_null=True, help_text="Null where the node has no power port.")


class NodeStateView(View):
    """Shows what a node's agent reports of it and found on its machine, and which instances gateways do not reach."""

    @extend_schema(responses=NodeStateSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Returns the state of a node as it was last reported."""
        if not Node.objects.filter(name=name, cluster__site__in=rights.sites_of(request.user)).exists():
            raise Http404
        messages = health.read_messages([name])
        servers = server_states.of(Node.objects.filter(name=name))
        (state,) = health.judge_nodes([name], messages, time.time(), servers)
        power = servers.get(name)
        agent = messages.agents.get(name)
        found = asdict(state) | {
            "node": name,
            "unreachable": [{"uid": uid, "why": why} for uid, why in state.unreachable.items()],
            "finds": None if agent is None else agent.finds,
            "power": None if power is None else PowerStateSerializer(power).data,
        }
        return Response(NodeStateSerializer(found).data)


def _sheet(given: dict[str, Any] | None) -> GpuType | None:
    return None if given is None else GpuType(**{**given, **{name: tuple(given[name]) for name in ("nvml", "assumed")}})
