"""One request of a joining machine to the control plane. What goes wrong is worded with its remedy (`join_faults`)."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from datetime import UTC, datetime
from urllib.parse import urlsplit

from core.ports import AdapterError, PermanentError, RetryableError

from . import join_faults

_MOST_BYTES = 1 << 16
_PORTS = {"http": 80, "https": 443}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token goes to the address that it was given for, and a POST that is sent on would become a GET."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def ask(request: urllib.request.Request, trusted: ssl.SSLContext | None, timeout_s: float) -> tuple[bytes, str]:
    """Returns the answer and its Date header. `trusted`: None for plain HTTP. Raises AdapterError."""
    parts = urlsplit(request.full_url)
    https = () if trusted is None else (urllib.request.HTTPSHandler(context=trusted),)
    try:
        with urllib.request.build_opener(_NoRedirects, *https).open(request, timeout=timeout_s) as response:
            return response.read(_MOST_BYTES), response.headers.get("Date", "")
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(request.full_url, error) from error
    except (OSError, http.client.HTTPException) as error:
        port = parts.port or _PORTS[parts.scheme]
        words = join_faults.unanswered(request.full_url, parts.hostname or "", port, error, timeout_s)
        raise RetryableError(words) from error


def _refused(address: str, error: urllib.error.HTTPError) -> AdapterError:
    if 300 <= error.code < 400:
        return PermanentError(join_faults.redirected(address, error.code, error.headers.get("Location", "")))
    words = join_faults.refused(address, error.code, error.headers.get("Content-Type", ""), error.read(_MOST_BYTES))
    if apart := join_faults.clocks_apart(error.headers.get("Date", ""), datetime.now(UTC)):
        words = f"{words} {apart}"
    return RetryableError(words) if error.code >= 500 or error.code == 429 else PermanentError(words)
