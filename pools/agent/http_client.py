"""A small blocking HTTP client for engines and loopback APIs: one kept connection, a time-out, translated errors."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from core.ports import PermanentError, RetryableError

LONGEST_BYTES = 16 << 20


class HttpClient:
    """Not thread-safe: the agent's loop has one thread. Blocks for at most two time-outs, connecting included."""

    def __init__(
        self,
        base_url: str,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """`headers` go with each request. `trust`: whose certificates are believed; None: those that the system does.

        Raises ValueError: that is no address.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port:
            raise ValueError(f"'{base_url}' is not of the form http://HOST:PORT or https://HOST:PORT")
        self._where = f"{parts.hostname}:{parts.port}"
        self._headers = dict(headers or {})
        self._connection: http.client.HTTPConnection = (
            http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
            if parts.scheme == "http"
            else http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=trust)
        )

    def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Returns the body of a 2xx answer.

        A kept connection that the server closed meanwhile is opened again once, so only send what may be sent twice.

        Raises:
            RetryableError: Refused, timed out, cut off; or answered 409, 429 or 5xx.
            PermanentError: Answered any other status.
        """
        kept = self._connection.sock is not None
        try:
            status, data = self._exchange(method, path, body)
        except (http.client.RemoteDisconnected, ConnectionError) as error:
            if not kept:
                raise self._failed(error) from error
            try:
                status, data = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException) as again:
                raise self._failed(again) from again
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error
        if 200 <= status < 300:
            return data
        message = f"{self._where} answered {status}: {data[:300].decode(errors='replace')}"
        if status in (409, 429) or status >= 500:
            raise RetryableError(message)
        raise PermanentError(message)

    def close(self) -> None:
        self._connection.close()

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {**self._headers, "Content-Type": "application/json"} if body else self._headers
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
            data = response.read(LONGEST_BYTES + 1)
            if len(data) > LONGEST_BYTES:
                raise http.client.HTTPException(f"an answer of more than {LONGEST_BYTES >> 20} MiB")
            if response.length:  # of which `read` says nothing when it is asked for so many at most
                raise http.client.IncompleteRead(data, response.length)
            return response.status, data
        except BaseException:
            self._connection.close()  # half an exchange is in it
            raise

    def _failed(self, error: Exception) -> RetryableError:
        what = "did not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return RetryableError(f"{self._where}: {what}")


class UnixHttpClient(HttpClient):
    """The same through a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._where = str(path)
        self._headers = {}
        self._connection = _UnixConnection(path, timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(self.timeout)
        try:
            connection.connect(str(self._path))
        except BaseException:
            connection.close()
            raise
        self.sock = connection
