"""Idempotency-Key on POST: what was done once is answered a second time, not done a second time.

The answer is kept in the transaction of its effect: there is one if and only if there is the other. Two requests with
one key at a time wait for each other. Refused requests did nothing and are not kept: they may be sent again.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.utils import timezone
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from scheduler.models import IdempotentAnswer

from .problems import Unprocessable
from .rate_limits import actor_key
from .representation import encoder

HEADER = "Idempotency-Key"
HIDDEN = ("secret", "token", "key")  # shown once, and so neither kept nor shown again
HEADERS = ("Location", "ETag")

Handler = Callable[..., Response]


def idempotent(handler: Handler) -> Handler:
    """Makes a POST heed the Idempotency-Key header. Without one, each request is carried out."""

    @functools.wraps(handler)
    def wrapped(self: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get(HEADER)
        if key is None:
            with transaction.atomic():
                return handler(self, request, *args, **kwargs)
        if not (1 <= len(key) <= 255 and key.isascii() and key.isprintable()):
            raise ValidationError({HEADER: "give 1 to 255 printable ASCII letters, such as a UUID"})
        with transaction.atomic():
            row, mine = _claim(actor_key(request), key, _hash(request))
            if not mine:
                return _replay(row, _hash(request))
            answer = handler(self, request, *args, **kwargs)
            _keep(row, answer)
            return answer

    wrapped.idempotent = True  # type: ignore[attr-defined]
    return wrapped


def conditional(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Marks what needs If-Match, for the OpenAPI document."""
    handler.conditional = True  # type: ignore[attr-defined]
    return handler


def _claim(actor: str, key: str, body_hash: str) -> tuple[IdempotentAnswer, bool]:
    """Returns the key's row, and whether this request made it. Waits while another request with the key is served."""
    now = timezone.now()
    IdempotentAnswer.objects.filter(actor=actor, key=key, created_at__lt=now - IdempotentAnswer.KEPT).delete()
    return IdempotentAnswer.objects.get_or_create(
        actor=actor, key=key, defaults={"body_hash": body_hash, "created_at": now}
    )


def _replay(row: IdempotentAnswer, body_hash: str) -> Response:
    if row.body_hash != body_hash:
        raise Unprocessable(f"This {HEADER} was used for another request; give each request a key of its own.")
    return Response(row.body, status=row.status, headers={**row.headers, "Idempotent-Replayed": "true"})


def _keep(row: IdempotentAnswer, answer: Response) -> None:
    row.status = answer.status_code
    row.headers = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    row.body = _plain(answer.data)
    row.save(update_fields=["status", "headers", "body"])


def _plain(data: object) -> Any:
    if isinstance(data, dict):
        return {name: None if name in HIDDEN else _plain(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return data if data is None or isinstance(data, str | int | float | bool) else JSONEncoder().default(data)


def _part(value: object) -> Any:
    """Returns a form's value: a text as it is, a file as the SHA-256 of its content."""
    if not isinstance(value, UploadedFile):
        return value
    found = hashlib.sha256()
    for chunk in value.chunks():
        found.update(chunk)
    value.seek(0)
    return found.hexdigest()


def _hash(request: Request) -> str:
    sent = {name: _part(value) for name, value in request.data.items()} if request.FILES else request.data
    body = encoder.encode(sent)
    return hashlib.sha256(f"{request.method} {request.path}\n{body}".encode()).hexdigest()
