"""How machines join the fleet: a token is issued, and a machine that brings it becomes a node with its GPUs.

Mistakes are ValidationErrors by field.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from core.engine import gpu_types
from core.engine.engine_params import GPUS
from core.engine.profiles import UNCATALOGUED
from pools import engine_knowledge, release
from pools.access import audit
from pools.access.audit import Actor
from pools.agent import join_versions
from pools.agent.join_messages import GpuOffer, NodeOffer
from pools.models import Cluster, Gpu, GpuType, JoinToken, Node
from pools.registration.authority import CONTROL_PLANE, Authority
from pools.writes import KEY_PREFIX_LENGTH, hash_secret

TOKEN_PREFIX = "gsj_"
LIFETIME = timedelta(hours=24)
LONGEST = timedelta(days=30)
MOST_GPUS = 64
CLOCK_STEP = timedelta(seconds=60)  # by which clocks may be set back before a token counts as one of the future


@transaction.atomic
def issue(actor: Actor, cluster: Cluster, lifetime: timedelta = LIFETIME) -> tuple[JoinToken, str]:
    """Returns a new token and its secret, which is shown this once; where machines join by TLS with the fingerprint of
    our authority, which they then trust alone."""
    if not timedelta(0) < lifetime <= LONGEST:
        raise ValidationError({"lifetime": f"A join token holds for up to {LONGEST.days} days; give a shorter time."})
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    now = timezone.now()
    token = JoinToken.objects.create(
        cluster=cluster,
        prefix=secret[:KEY_PREFIX_LENGTH],
        token_hash=hash_secret(secret),
        expires_at=now + lifetime,
    )
    audit.record(actor, "create", token, None, audit.values(token))
    if settings.GREENSERVE_JOIN_PORT is None:
        return token, secret
    ours = Authority.open(settings.GREENSERVE_SECRETS_DIR, CONTROL_PLANE, now)
    return token, f"{secret}.{ours.fingerprint}"


@transaction.atomic
def join(offer: NodeOffer, now: datetime) -> tuple[Node, list[str]]:
    """Makes the machine a node of the token's cluster; one that is there already has its GPUs brought up to date.

    New nodes are metered and closed to planning: an operator opens them once their agent runs engines. A GPU type that
    is not known is entered as the driver describes it. Returns the node, and what is to be known of its GPUs' types.
    """
    engine_knowledge.refresh()
    token = JoinToken.objects.select_for_update().filter(token_hash=hash_secret(offer.token)).first()
    if token is None or token.used_at is not None or not token.created_at - CLOCK_STEP <= now < token.expires_at:
        why = _fault_of(token, now)
        raise ValidationError({"token": f"The join token {why}; make one with `greenserve node token`."})
    if why := join_versions.mismatch(offer.release, release.version()):
        raise ValidationError({"release": why})
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
    _must_be_the_same_machine(node, offer)
    actor = Actor(key=str(token), channel="api")
    notes: list[str] = []
    for gpu in offer.gpus:
        kind = _type_of(actor, gpu, notes)
        _store(node, gpu, kind)
    token.used_at, token.node = now, node
    token.save(update_fields=["used_at", "node"])
    after = {**audit.values(node), "driver": offer.driver, "gpus": [f"{gpu.gpu_type} {gpu.uuid}" for gpu in offer.gpus]}
    audit.record(actor, "join", node, None, after)
    return node, list(dict.fromkeys(notes))


def _fault_of(token: JoinToken | None, now: datetime) -> str:
    if token is None:
        return "is not known"
    if token.used_at is not None:
        return f"was used{'' if token.node is None else f', for node {token.node.name}'}"
    by = f"by the control plane's clock it is {now:%Y-%m-%d %H:%M:%S} UTC"
    if now < token.created_at - CLOCK_STEP:
        return f"is not valid before {token.created_at:%Y-%m-%d %H:%M:%S} UTC, and {by}: that clock was set back"
    return f"has expired at {token.expires_at:%Y-%m-%d %H:%M:%S} UTC; {by}"


def _must_be_the_same_machine(node: Node, offer: NodeOffer) -> None:
    """Refuses a machine that goes by the name of another, whose GPUs would be mixed with its own."""
    known = set(node.gpus.values_list("uuid", flat=True))
    if known and known.isdisjoint(gpu.uuid for gpu in offer.gpus):
        others = (
            f"{len(known)} other GPU{'' if len(known) == 1 else 's'} ({min(known)}{', ...' if len(known) > 1 else ''})"
        )
        raise ValidationError(
            {
                "name": f"Node '{node.name}' has {others}, and none of this machine's: another machine goes by its "
                "name. Join with another, by --name; or, where boards were replaced, delete its GPUs under Configure."
            }
        )


def _type_of(actor: Actor, offer: GpuOffer, notes: list[str]) -> str:
    """Returns the GPU's type, which is entered where nobody knows it and the driver tells enough of it."""
    if (known := gpu_types.named_by_driver(offer.name)) is not None:
        return known.name
    if offer.gpu_type in GPUS or offer.gpu_type == UNCATALOGUED:
        return offer.gpu_type
    enter = f"Plans leave GPUs of the type {offer.gpu_type} out; enter its data sheet under Configure, GPU types"
    if offer.sheet is None:
        if offer.lacking:
            enter = f"{enter}: the driver does not tell its {', '.join(offer.lacking)}"
        notes.append(f"{enter}.")
        return offer.gpu_type
    row = GpuType.of_sheet(offer.sheet)
    try:
        row.full_clean()
    except ValidationError as error:
        notes.append(f"{enter}: what the driver says is not possible ({' '.join(error.messages)})")
        return offer.gpu_type
    row.save()
    audit.record(actor, "created", row, None, audit.values(row))
    engine_knowledge.refresh()
    notes.append(
        f"The GPU type {row.name} is entered as the driver describes it. Plans keep wide margins until a node with it "
        f"has been profiled; its {', '.join(row.assumed)} are assumed: correct them under Configure, GPU types."
    )
    return row.name


def _store(node: Node, offer: GpuOffer, kind: str) -> None:
    known = Gpu.objects.filter(uuid=offer.uuid).select_related("node").first()
    if known is not None and known.node_id != node.pk:
        raise ValidationError({"gpus": f"{offer.uuid} belongs to node {known.node.name}; delete it there first."})
    if offer.tdp_w is None or not offer.min_mhz > 0.0:
        what = "its power limit" if offer.tdp_w is None else "the clocks that it offers"
        raise ValidationError({"gpus": f"The driver does not tell {what} for {offer.uuid} ({offer.name})."})
    gpu = known or Gpu(uuid=offer.uuid, node=node)
    gpu.index, gpu.gpu_type, gpu.memory_gb = offer.index, kind, offer.memory_bytes / 1e9
    gpu.min_mhz, gpu.max_mhz, gpu.tdp_w = offer.min_mhz, offer.max_mhz, offer.tdp_w
    try:
        gpu.full_clean()
    except ValidationError as error:
        raise ValidationError({"gpus": f"{offer.uuid}: {' '.join(error.messages)}"}) from error
    gpu.save()
