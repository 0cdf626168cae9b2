"""Gives each node its identity: a certificate and a user in Redis, at joining; renews and revokes them."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import redis
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from pools import agent_states, own_address, redis_address, wire
from pools.access import audit
from pools.access.audit import Actor
from pools.agent.join_messages import NodeOffer
from pools.models import Node, NodeIdentity
from pools.registration import join_tokens, node_users
from pools.registration.authority import CONTROL_PLANE, LIFETIME, NODES, Authority, BadRequest, Certificate
from pools.registration.node_users import RedisRefuses, Wanted

log = logging.getLogger(__name__)

PASSWORD_BYTES = 32
MOST_REQUEST = 8_192  # bytes


@dataclass(frozen=True, slots=True)
class Admission:
    """Holds what a machine is given that has joined. `redis_url` has its user's password in it, shown this once."""

    node: Node
    notes: list[str]
    certificate: wire.NodeCertificate
    redis_url: str


def join(offer: NodeOffer, host: str, now: datetime) -> Admission:
    """Makes the machine a node (`join_tokens`) with an identity. One that it had before holds no more.

    `host`: by which name or address the machine reached us. Mistakes are ValidationErrors by field.
    """
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    with transaction.atomic(), agent_states.connect() as client:
        node, notes = join_tokens.join(offer, now)
        if not offer.request:
            raise ValidationError({"request": "Each node has a certificate of its own: join with this release."})
        held(now).filter(node=node).update(revoked_at=now)
        try:
            signed, row = _sign(node, offer.request, sha256(password.encode()).hexdigest(), now)
            node_users.expel(client, node.name)
            node_users.admit(client, node.name, row.password_hash, row.serial)
        except BadRequest as error:
            raise ValidationError({"request": f"{error}."}) from error
        except RedisRefuses as error:
            raise ValidationError({"redis": f"The node cannot be let in: {error}."}) from error
        except redis.RedisError as error:
            raise ValidationError({"redis": f"Redis does not answer ({error}); try again."}) from error
    return Admission(node, notes, _answer(signed), redis_url(node.name, password, host))


def revoke(actor: Actor, node: Node, now: datetime) -> int:
    """Lets a node in no more, from this moment on; it can join again. Returns how many certificates held until now."""
    with transaction.atomic():
        count = held(now).filter(node=node).update(revoked_at=now)
        if count:
            audit.record(actor, "revoke", node, {"certificates": count}, {"certificates": 0})
    if count:
        with agent_states.connect() as client:
            try:
                node_users.expel(client, node.name)
            except redis.RedisError as error:  # the database says it: the next turn does it
                log.warning("node %s is revoked, and disconnected once Redis answers: %s", node.name, error)
    return count


def held(now: datetime) -> QuerySet[NodeIdentity]:
    """Returns the identities that hold."""
    return NodeIdentity.objects.filter(revoked_at=None, expires_at__gt=now)


def follow(client: redis.Redis, now: datetime) -> None:
    """Renews what nodes ask to have renewed, and lets in who holds an identity. Raises RedisError."""
    rows = list(held(now).select_related("node").order_by("issued_at", "pk"))
    newest = {row.node.name: row for row in rows}
    rows += _renewed(client, newest, now)
    passwords = {row.node.name: row.password_hash for row in rows}
    try:
        node_users.bring_up_to_date(client, Wanted(passwords, {row.serial: row.node.name for row in rows}))
    except RedisRefuses as error:
        log.error("nodes cannot be let in: %s", error)


def _renewed(client: redis.Redis, newest: dict[str, NodeIdentity], now: datetime) -> list[NodeIdentity]:
    """Answers requests for certificates of nodes that have used half of theirs; returns what was made."""
    if not newest:
        return []
    made = []
    with client.pipeline(transaction=False) as pipe:
        for node in newest:
            pipe.getrange(wire.certificate_asked_key(node), 0, MOST_REQUEST - 1)
        asked: list[bytes] = pipe.execute()
    for (node, row), request in zip(newest.items(), asked, strict=True):
        if not request or row.expires_at - now > LIFETIME / 2:
            continue
        try:
            signed, fresh = _sign(row.node, request.decode(errors="replace"), row.password_hash, now)
        except BadRequest as error:
            log.error("node %s is not given a new certificate: %s", node, error)
            continue
        made.append(fresh)
        client.hset(wire.CERTIFICATES_KEY, fresh.serial, node)
        client.set(wire.certificate_answer_key(node), wire.encode(_answer(signed)), ex=wire.CERTIFICATE_KEPT_S)
        client.delete(wire.certificate_asked_key(node))
    return made


def _sign(node: Node, request: str, password_hash: str, now: datetime) -> tuple[Certificate, NodeIdentity]:
    """Raises BadRequest."""
    others = Node.objects.exclude(pk=node.pk).values_list("name", flat=True)
    named = held(now).exclude(node=node).values_list("names", flat=True)
    taken = {name for name in (*others, *chain.from_iterable(named)) if not own_address.is_loopback(name)}
    signed = authority(NODES, now).sign_node(request, node.name, taken, now)
    row = NodeIdentity.objects.create(
        node=node,
        serial=signed.serial,
        fingerprint=signed.fingerprint,
        names=signed.names,
        password_hash=password_hash,
        issued_at=now,
        expires_at=signed.expires_at,
    )
    return signed, row


def authority(name: str, now: datetime) -> Authority:
    return Authority.open(settings.GREENSERVE_SECRETS_DIR, name, now)


def redis_url(node: str, password: str, host: str) -> str:
    """Returns Redis' address for a node, as redis-py writes it.

    The embedded server is reached through the relay, at the name by which the machine reached us; without a relay by
    its socket, from this machine alone.
    """
    url = settings.REDIS_URL
    if settings.GREENSERVE_RELAY_PORT is not None:
        url = f"rediss://{own_address.in_url(host)}:{settings.GREENSERVE_RELAY_PORT}/0"
    return redis_address.as_user(url, wire.node_user(node), password)


def _answer(signed: Certificate) -> wire.NodeCertificate:
    now = signed.expires_at - LIFETIME
    return wire.NodeCertificate(signed.pem, authority(NODES, now).certificate_pem, _redis_authority(now))


def _redis_authority(now: datetime) -> str:
    """Returns whom nodes trust for the Redis address: us for the relay, else the file that REDIS_URL names."""
    if settings.GREENSERVE_RELAY_PORT is not None:
        return authority(CONTROL_PLANE, now).certificate_pem
    named = parse_qs(urlsplit(settings.REDIS_URL).query).get("ssl_ca_certs")
    return Path(named[-1]).read_text() if named else ""
