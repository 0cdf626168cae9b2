"""Refusals, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"

_CODES = {404: "not_found", 408: "request_timeout", 413: "body_too_large", 500: "internal_error", 503: "unavailable"}
_PARAM, _FIELD = re.compile(r"`\$\.([A-Za-z_]+)"), re.compile(r"field `([A-Za-z_]+)`")


class ApiError(Exception):
    """A refusal, as the client gets it. Its code is never empty. `retry_after_s` becomes a Retry-After header.

    `limit_headers`: of the caller's limits, by name.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        limit_headers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code or _CODES.get(status) or ("invalid_value" if param else "invalid_request")
        self.retry_after_s = retry_after_s
        self.limit_headers = limit_headers or {}

    def body(self) -> bytes:
        """Returns the JSON object that goes to the client, also as an event of a stream that breaks."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def headers(self, request_id: bytes | None) -> bytes:
        """Returns lines for the response's head."""
        lines = b"" if request_id is None else b"x-request-id: %b\r\n" % request_id
        if self.retry_after_s is not None:
            lines += b"retry-after: %d\r\n" % self.retry_after_s
        return lines + b"".join([b"%b: %b\r\n" % line for line in self.limit_headers.items()])


def bad_body(error: Exception) -> ApiError:
    """Makes a decoder's error into one for the client."""
    if isinstance(error, msgspec.ValidationError):
        found = _PARAM.search(str(error)) or _FIELD.search(str(error))
        return ApiError(400, f"Invalid body: {error}", param=found.group(1) if found else None)
    if isinstance(error, RecursionError):
        return ApiError(400, "The body is nested too deeply.", code="invalid_json")
    return ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json")


def nothing_at(path: bytes) -> ApiError:
    return ApiError(404, f"There is nothing at {path[:100].decode(errors='replace')}.", code="not_found")


def invalid_key() -> ApiError:
    return ApiError(
        401, "Incorrect or missing API key. Send it as 'Authorization: Bearer <key>'.", code="invalid_api_key"
    )


def expired_key() -> ApiError:
    return ApiError(401, "This API key has expired.", code="invalid_api_key")


def model_not_found(name: str | None) -> ApiError:
    if name is None:
        return ApiError(400, "'model' is missing: it must be the name of a service.", param="model")
    message = f"The model '{name[:100]}' does not exist or is not yours to use." if name else "Name a model in 'model'."
    return ApiError(404, message, param="model", code="model_not_found")


def not_offered(name: str, path: str) -> ApiError:
    return ApiError(
        404, f"The engines of '{name}' have no {path}: its model cannot do that.", param="model", code="not_offered"
    )


def adapter_not_loaded(service_name: str, name: str, retry_after_s: float) -> ApiError:
    message = f"No engine of '{service_name}' can load the adapter '{name}': its operator finds why on the page Health."
    return unavailable(message, "adapter_not_loaded", round(retry_after_s))


def over_rate(
    whose: str,
    what: str,
    limit: int,
    left: int,
    asked: int,
    wait_s: float | None,
    limit_headers: Mapping[bytes, bytes],
) -> ApiError:
    """Args: wait_s: Until it would be admitted; None: it never will be."""
    said = f"Limit {limit}, used {limit - left}, requested {asked}."
    if wait_s is None:
        words = f"The request is too large for its {whose}'s {what} per minute: {said} Ask for fewer."
    else:
        words = f"The {whose}'s {what} per minute are used up: {said} Try again in {wait_s:.3g} s."
    return ApiError(
        429,
        words,
        kind=what,
        code="rate_limit_exceeded",
        retry_after_s=None if wait_s is None else max(1, math.ceil(wait_s)),
        limit_headers=limit_headers,
    )


def too_many_at_once(whose: str, limit: int, retry_after_s: int, limit_headers: Mapping[bytes, bytes]) -> ApiError:
    return ApiError(
        429,
        f"The {whose} may have {limit} requests at a time: wait until one has ended.",
        kind="requests",
        code="rate_limit_exceeded",
        retry_after_s=retry_after_s,
        limit_headers=limit_headers,
    )


def budget_spent(tenant: str, spent: str, ends_at: datetime, retry_after_s: int) -> ApiError:
    """Says that a month's budget is spent, as OpenAI does; its clients do not try again by themselves."""
    return ApiError(
        429,
        f"The budget of the tenant '{tenant}' for {ends_at - timedelta(days=1):%B %Y} is spent: {spent}. "
        f"It begins anew at {ends_at:%Y-%m-%dT%H:%MZ}.",
        kind="insufficient_quota",
        code="insufficient_quota",
        retry_after_s=retry_after_s,
        limit_headers={b"x-should-retry": b"false"},
    )


def squashed(retry_after_s: float) -> ApiError:
    return ApiError(
        503,
        "The request had waited too long for an instance that is overloaded: try again.",
        kind=SERVER_ERROR,
        code="squashed",
        retry_after_s=max(1, round(retry_after_s)),
    )


def unavailable(message: str, code: str = "no_instance_available", retry_after_s: int = 5) -> ApiError:
    return ApiError(503, message, kind=SERVER_ERROR, code=code, retry_after_s=retry_after_s)


def none_ready(service_name: str) -> ApiError:
    return unavailable(f"No instance of '{service_name}' is ready.")


def still_asleep(service_name: str, patience_s: float) -> ApiError:
    message = f"'{service_name}' was asleep and has not woken within {patience_s:g} s: it is being woken, try again."
    return unavailable(message, "still_asleep")
