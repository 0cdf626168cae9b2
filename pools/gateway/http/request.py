"""A request as it came over HTTP, and how much a client may send."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pools import wire

_SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds on what a client may send, in bytes and seconds."""

    max_body_bytes: int = 8 << 20
    max_upload_bytes: int = 208 << 20  # of a body that is passed on as it comes
    max_head_bytes: int = 64 << 10
    max_head_reads: int = 128  # pieces that a head may come in: of 64 KiB they are 512 bytes each
    max_pipelined: int = 16
    head_timeout_s: float = 10.0  # from a request's first byte, or a connection's opening, to the end of the head
    read_timeout_s: float = 60.0  # and from there to the end of the body
    idle_timeout_s: float = 75.0  # a connection without a request
    # After a refusal the connection stays open for a while, and input is thrown away: a client that sends on meets no
    # reset before it reads. What is beyond the bytes waits in the kernel, where it costs no time.
    linger_s: float = 1.0
    linger_bytes: int = 256 << 10
    linger_keyed_bytes: int = 16 << 20  # where a key has come


class Request:
    """One request as it came. `received_s` is monotonic, when its last byte was here; `started_at_s` is Unix time.

    `key`: what its head was found to belong to. It may have been revoked since.
    """

    __slots__ = (
        *("body", "chunked_reply", "headers", "incoming", "keep_alive", "key", "method", "path"),
        *("received_s", "started_at_s"),
    )

    def __init__(self, method: bytes, path: bytes, headers: dict[bytes, bytes], body: bytes, keep_alive: bool) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.keep_alive = keep_alive
        self.chunked_reply = True
        self.incoming = 0  # bytes of a body that is yet to come
        self.key: wire.FleetKey | None = None
        self.is_here()

    def is_here(self) -> None:
        """Notes the moment at which its last byte came."""
        self.received_s = time.monotonic()
        self.started_at_s = time.time()

    def client_id(self) -> bytes | None:
        """Returns the client's X-Request-Id, unless it is missing or something that should not be echoed."""
        return sane_id(self.headers)

    def bearer(self) -> bytes | None:
        """Returns the secret of the Authorization header; None: it has no bearer's."""
        scheme, _, secret = self.headers.get(b"authorization", b"").partition(b" ")
        return secret.strip() if scheme.lower() == b"bearer" else None


def sane_id(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Returns the client's X-Request-Id, unless it is missing or something that should not be echoed."""
    sent = headers.get(b"x-request-id")
    return sent if sent is not None and _SANE_ID.fullmatch(sent) else None
