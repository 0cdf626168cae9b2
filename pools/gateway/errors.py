"""Refusals, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import re

import msgspec

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"

_CODES = {404: "not_found", 408: "request_timeout", 413: "body_too_large", 500: "internal_error", 503: "unavailable"}
_PARAM, _FIELD = re.compile(r"`\$\.([A-Za-z_]+)"), re.compile(r"field `([A-Za-z_]+)`")


class ApiError(Exception):
    """A refusal, as the client gets it. Its code is never empty. `retry_after_s` becomes a Retry-After header."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code or _CODES.get(status) or ("invalid_value" if param else "invalid_request")
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """Returns the JSON object that goes to the client, also as an event of a stream that breaks."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def headers(self, request_id: bytes | None) -> bytes:
        """Returns lines for the response's head."""
        lines = b"" if request_id is None else b"x-request-id: %b\r\n" % request_id
        return lines if self.retry_after_s is None else lines + b"retry-after: %d\r\n" % self.retry_after_s


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
