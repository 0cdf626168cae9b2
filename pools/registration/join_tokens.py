"""How machines join the fleet: a token is issued, and a machine that brings it becomes a node with its GPUs.

Mistakes are ValidationErrors by field.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from pools.access import audit
from pools.access.audit import Actor
from pools.agent.join_messages import GpuOffer, NodeOffer
from pools.models import Cluster, Gpu, JoinToken, Node
from pools.writes import KEY_PREFIX_LENGTH, hash_secret

TOKEN_PREFIX = "gsj_"
LIFETIME = timedelta(hours=24)
LONGEST = timedelta(days=30)
MOST_GPUS = 64


@transaction.atomic
def issue(actor: Actor, cluster: Cluster, lifetime: timedelta = LIFETIME) -> tuple[JoinToken, str]:
    """Returns a new token and its secret, which is shown this once."""
    if not timedelta(0) < lifetime <= LONGEST:
        raise ValidationError({"lifetime": f"A join token holds for up to {LONGEST.days} days; give a shorter time."})
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = JoinToken.objects.create(
        cluster=cluster,
        prefix=secret[:KEY_PREFIX_LENGTH],
        token_hash=hash_secret(secret),
        expires_at=timezone.now() + lifetime,
    )
    audit.record(actor, "create", token, None, audit.values(token))
    return token, secret


@transaction.atomic
def join(offer: NodeOffer, now: datetime) -> Node:
    """Makes the machine a node of the token's cluster; one that is there already has its GPUs brought up to date.

    New nodes are metered and closed to planning: an operator opens them once their agent runs engines.
    """
    token = JoinToken.objects.select_for_update().filter(token_hash=hash_secret(offer.token)).first()
    if token is None or token.used_at is not None or token.expires_at <= now:
        why = "is not known" if token is None else "was used" if token.used_at is not None else "has expired"
        raise ValidationError({"token": f"The join token {why}; make one with `greenserve node token`."})
    if not 1 <= len(offer.gpus) <= MOST_GPUS:
        raise ValidationError({"gpus": f"A node has from 1 to {MOST_GPUS} GPUs; {len(offer.gpus)} were named."})
    node = Node.objects.filter(name=offer.name).select_related("cluster").first()
    if node is None:
        node = Node(cluster=token.cluster, name=offer.name, simulated=False, schedulable=False)
        node.full_clean()
        node.save()
    elif node.simulated or node.cluster_id != token.cluster_id:
        where = "a simulated node" if node.simulated else f"a node of {node.cluster}"
        raise ValidationError({"name": f"'{offer.name}' is the name of {where}; join with another, by --name."})
    for gpu in offer.gpus:
        _store(node, gpu)
    token.used_at, token.node = now, node
    token.save(update_fields=["used_at", "node"])
    after = {**audit.values(node), "driver": offer.driver, "gpus": [f"{gpu.gpu_type} {gpu.uuid}" for gpu in offer.gpus]}
    audit.record(Actor(key=str(token), channel="api"), "join", node, None, after)
    return node


def _store(node: Node, offer: GpuOffer) -> None:
    known = Gpu.objects.filter(uuid=offer.uuid).select_related("node").first()
    if known is not None and known.node_id != node.pk:
        raise ValidationError({"gpus": f"{offer.uuid} belongs to node {known.node.name}; delete it there first."})
    if offer.tdp_w is None or not offer.min_mhz > 0.0:
        what = "its power limit" if offer.tdp_w is None else "the clocks that it offers"
        raise ValidationError({"gpus": f"The driver does not tell {what} for {offer.uuid} ({offer.name})."})
    gpu = known or Gpu(uuid=offer.uuid, node=node)
    gpu.index, gpu.gpu_type, gpu.memory_gb = offer.index, offer.gpu_type, offer.memory_bytes / 1e9
    gpu.min_mhz, gpu.max_mhz, gpu.tdp_w = offer.min_mhz, offer.max_mhz, offer.tdp_w
    try:
        gpu.full_clean()
    except ValidationError as error:
        raise ValidationError({"gpus": f"{offer.uuid}: {' '.join(error.messages)}"}) from error
    gpu.save()
