"""Every error under /api/ is a problem document: RFC 9457, application/problem+json.

Beside the standard members it has `request_id`, and `errors` where single fields are wrong: their path in what was sent
(`2.site` is the field `site` of the third item of a list), what is wrong, and what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import redis
from django.core.exceptions import (
    DisallowedHost,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.core.exceptions import ValidationError as ModelError
from django.db import DatabaseError, DataError, IntegrityError, OperationalError
from django.db.models import ProtectedError, RestrictedError
from django.http import Http404, HttpRequest, JsonResponse
from rest_framework import exceptions, status
from rest_framework.views import set_rollback

from pools import database_faults

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
TYPE = "urn:greenserve:problem:"
UNREADABLE = (DataError, UnicodeError, OverflowError)  # letters or numbers that a column cannot hold
REMEDIES = {
    status.HTTP_401_UNAUTHORIZED: "Sign in, or send 'Authorization: Bearer <token>'.",
    status.HTTP_404_NOT_FOUND: "There is nothing at this address that you may see. Addresses end in a slash.",
    status.HTTP_405_METHOD_NOT_ALLOWED: "The Allow header names the methods of this address.",
    status.HTTP_428_PRECONDITION_REQUIRED: "Read the resource, then send its ETag in If-Match.",
    status.HTTP_429_TOO_MANY_REQUESTS: "Wait as many seconds as Retry-After says; RateLimit tells what is left.",
    status.HTTP_415_UNSUPPORTED_MEDIA_TYPE: "Send JSON, with Content-Type: application/json.",
    status.HTTP_413_REQUEST_ENTITY_TOO_LARGE: "Send less: several smaller requests, or a shorter file.",
    status.HTTP_412_PRECONDITION_FAILED: "It has changed since you read it: read it again and send its new ETag.",
}


class Conflict(exceptions.APIException):
    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


class PreconditionRequired(exceptions.APIException):
    status_code = status.HTTP_428_PRECONDITION_REQUIRED
    default_code = "precondition_required"
    default_detail = "A change needs the ETag of what it changes in the If-Match header."


class PreconditionFailed(exceptions.APIException):
    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_code = "precondition_failed"
    default_detail = "The resource is not what If-Match says any more."


class Unprocessable(exceptions.APIException):
    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY
    default_code = "unprocessable"


class Unavailable(exceptions.APIException):
    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "unavailable"


class UnknownHost(exceptions.APIException):
    """The request names a host that is not the dashboard's (Django's ALLOWED_HOSTS)."""

    status_code = status.HTTP_400_BAD_REQUEST
    default_code = "unknown_host"
    default_detail = "The dashboard does not go by the host name in this request."
    remedy = (
        "Use the address that `greenserve node token` prints; or add the name to GREENSERVE_WEB_NAMES, or set "
        "GREENSERVE_PUBLIC_URL to the whole address, where GreenServe runs, and start it again."
    )


class TooLarge(exceptions.APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"
    default_detail = "The body is larger than this address takes."


def handle(error: Exception, context: Mapping[str, Any]) -> JsonResponse:
    """Answers errors as DRF's EXCEPTION_HANDLER. An unexpected error is a 500; the log has its cause by request_id."""
    request: HttpRequest = context["request"]
    known = translate(error)
    if known is None:
        log.error("%s %s failed", request.method, request.path, exc_info=error)
        known = exceptions.APIException("Something went wrong here; the log of `web` has it under this request_id.")
    set_rollback()
    return response(request, known)


def response(request: HttpRequest, error: exceptions.APIException) -> JsonResponse:
    code = error.status_code
    found = list(fields(error.detail)) if isinstance(error, exceptions.ValidationError) else []
    body: dict[str, Any] = {
        "type": TYPE + (error.default_code if isinstance(error.default_code, str) else "error"),
        "title": HTTPStatus(code).phrase,
        "status": code,
        "detail": _sentence(error, found),
        "instance": request.path,
        "request_id": getattr(request, "request_id", None),
    }
    if found:
        body["errors"] = found
    if remedy := getattr(error, "remedy", REMEDIES.get(code)):
        body["remedy"] = remedy
    answer = JsonResponse(body, status=code, content_type=CONTENT_TYPE)
    answer.headers["Cache-Control"] = "no-store"
    wait = getattr(error, "wait", None)
    if wait is not None:
        answer.headers["Retry-After"] = str(max(1, round(wait)))
    if getattr(error, "auth_header", None):
        answer.headers["WWW-Authenticate"] = str(getattr(error, "auth_header", ""))
    return answer


def translate(error: Exception) -> exceptions.APIException | None:
    """Translates an error of Django, the database or a service; None: it is a fault of the product."""
    match error:
        case exceptions.APIException():
            return error
        case Http404():
            return exceptions.NotFound(str(error) or None)
        case DisallowedHost():
            return UnknownHost()
        case RequestDataTooBig():
            return TooLarge()
        case SuspiciousOperation():
            return exceptions.ParseError("The request is one that no program of ours sends; it is not answered.")
        case PermissionDenied():
            return exceptions.PermissionDenied(str(error) or None)
        case ModelError():
            return exceptions.ValidationError(of_model(error))
        case ProtectedError() | RestrictedError():
            return Conflict(error.args[0])
        case IntegrityError():
            return Conflict("Another row stands in the way: something there must be unique, or is still in use.")
        case exception if isinstance(exception, UNREADABLE):
            return exceptions.ValidationError("A text or number in the request is one that cannot be stored.")
        case RecursionError():
            return exceptions.ParseError("The body is nested too deeply to be read.")
        case OperationalError() | redis.RedisError():
            log.warning("a service does not answer: %s", error)
            return Unavailable(_refusal(error) or "PostgreSQL or Redis does not answer now; try again.")
        case DatabaseError():
            return Unavailable(words) if (words := _refusal(error)) else None
    return None


def _refusal(error: Exception) -> str | None:
    words = database_faults.words_of(error)
    return f"{words}." if words else None


def of_model(error: ModelError) -> dict[str, Any] | list[str]:
    """Converts Django's validation error to DRF's shape; errors of no single field are under `non_field_errors`."""
    if not hasattr(error, "error_dict"):
        return list(error.messages)
    return {
        ("non_field_errors" if name == "__all__" else name): [text for one in errors for text in one.messages]
        for name, errors in error.error_dict.items()
    }


def fields(detail: object, path: str = "") -> Iterator[dict[str, str]]:
    """Returns one entry for each error, with the path of its field; an empty path stands for the whole."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            yield from fields(inner, path if name == "non_field_errors" else _join(path, str(name)))
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            yield from fields(inner, _join(path, str(index)) if isinstance(inner, Mapping | list) else path)
    elif detail:
        words, _, remedy = str(detail).partition(" Remedy: ")
        yield {"field": path, "detail": words, **({"remedy": remedy} if remedy else {})}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _sentence(error: exceptions.APIException, found: list[dict[str, str]]) -> str:
    if not found:
        return " ".join(str(one["detail"]) for one in fields(error.detail)) or HTTPStatus(error.status_code).phrase
    first = found[0]
    words = f"{first['field']}: {first['detail']}" if first["field"] else first["detail"]
    return words if len(found) == 1 else f"{words} (and {len(found) - 1} more)"
