"""The audit trail: who changed what, when, from where, before and after. Nothing secret is written into it."""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import ManyToManyField, Model
from django.http import HttpRequest, HttpResponse

from pools.models import AuditEntry

MASK = "***"
SECRET = re.compile(r"(^|_)(password|passwd|secret|secrets|hash|token|credentials?|seed)$|(api|private|signing)_?key$")
CHANNELS = ("page", "api", "command", "system")


@dataclass(frozen=True, slots=True)
class Actor:
    """The person or program that makes a change.

    `key`: label and prefix of the access token; `channel`: one of CHANNELS.
    """

    user: User | None = None
    key: str | None = None
    channel: str = "system"


@dataclass(frozen=True, slots=True)
class Origin:
    """The request that a change came with, for entries that are made while it is answered."""

    request_id: str = ""
    address: str | None = None


_ORIGIN: ContextVar[Origin | None] = ContextVar("greenserve_origin", default=None)  # None: commands, the system


def actor_of(request: HttpRequest, channel: str = "page") -> Actor:
    """Returns who sent this request; the token is what the REST API's authentication found."""
    token = getattr(request, "auth", None)
    user = getattr(request, "user", None)
    known = user if getattr(user, "is_authenticated", False) else None
    return Actor(known, str(token) if token is not None else None, channel)


def record(
    actor: Actor,
    action: str,
    instance: Model,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Writes an entry in the caller's transaction. Record a deletion before it is made, while the row has its key."""
    note(
        actor,
        action,
        kind=instance._meta.model_name or "",
        object_key="" if instance.pk is None else str(instance.pk),
        label=str(instance),
        before=before,
        after=after,
    )


def note(
    actor: Actor,
    action: str,
    kind: str,
    object_key: str = "",
    label: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Records, as `record` does, what is no change of a row: an attempt to sign in, say."""
    if actor.channel not in CHANNELS:
        raise ValueError(f"channel {actor.channel!r}: one of {', '.join(CHANNELS)}")
    origin = _ORIGIN.get() or Origin()
    AuditEntry.objects.create(
        user_id=None if actor.user is None else actor.user.pk,
        who="" if actor.user is None else actor.user.get_username(),
        key=(actor.key or "")[:120],
        channel=actor.channel,
        action=action[:40],
        kind=kind,
        object_key=object_key[:100],
        label=label[:200],
        before=None if before is None else masked(before),
        after=None if after is None else masked(after),
        request_id=origin.request_id,
        address=origin.address,
    )


def values(instance: Model) -> dict[str, Any]:
    """Returns a row's fields as JSON has them: relations by the names of what they name, secrets masked."""
    found: dict[str, Any] = {}
    for field in instance._meta.concrete_fields:
        value = getattr(instance, field.attname)
        if field.is_relation and value is not None:
            value = str(getattr(instance, field.name))
        found[field.name] = value
    if instance.pk is not None:
        for field in instance._meta.many_to_many:
            assert isinstance(field, ManyToManyField)
            found[field.name] = sorted(str(other) for other in getattr(instance, field.name).all())
    return masked(found)


def masked(given: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-able copy in which what is named like a secret is not shown, however deep it stands."""
    plain = json.loads(json.dumps(dict(given), cls=_Encoder))
    return {name: _mask(name, value) for name, value in plain.items()}


def changed(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[tuple[str, Any, Any]]:
    """Returns what differs, each as (field, before, after)."""
    old, new = before or {}, after or {}
    names = [*old, *(name for name in new if name not in old)]
    return [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def client_address(request: HttpRequest) -> str | None:
    """Returns the client's address, past as many proxies as the settings say are ours; others' claims do not count."""
    hops = settings.GREENSERVE_PROXIES
    chain = [part.strip() for part in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if part.strip()]
    address = chain[-hops] if hops and len(chain) >= hops else request.META.get("REMOTE_ADDR", "")
    return address if _is_address(address) else None


class OriginMiddleware:
    """Gives each request an id (an `X-Request-ID` that it brings, if sane) and tells the trail where it came from."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        brought = request.META.get("HTTP_X_REQUEST_ID", "")
        request_id = brought if re.fullmatch(r"[\w.:-]{1,64}", brought) else uuid.uuid4().hex
        token = _ORIGIN.set(Origin(request_id, client_address(request)))
        request.request_id = request_id  # type: ignore[attr-defined]
        try:
            response = self.get_response(request)
        finally:
            _ORIGIN.reset(token)
        response.headers.setdefault("X-Request-ID", request_id)
        return response


class _Encoder(DjangoJSONEncoder):
    def default(self, o: object) -> Any:
        if isinstance(o, (set, frozenset)):
            return sorted(o)
        try:
            return super().default(o)
        except TypeError:
            return str(o)


def _mask(name: str, value: object) -> Any:
    if value not in (None, "") and SECRET.search(name.lower()):
        return MASK
    if isinstance(value, dict):
        return {key: _mask(key, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mask("", inner) for inner in value]
    return value


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
