"""Webhooks: an alert as JSON, posted to one address of the operator's, signed.

- https; every address that the name resolves to must be public, and the connection goes to the one that was looked at,
  so that a name cannot change in between. Where the operator allows private addresses, those may be reached too, and
  they alone by plain http.
- Redirects are not followed; connecting and the whole have time limits; of the answer only the status is read.
- The header `X-GreenServe-Signature: t=<unix seconds>,v1=<hex>` is HMAC-SHA256 over `<t>.<body>` under the shared
  secret: who checks it knows who sent this, that it is whole, and that it is not an old one sent again.
- No error or log has the path, the query or the secret: paths of chat services are secrets themselves.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from core.ports import PermanentError, RetryableError
from telemetry.providers.addresses import host_fault, is_private, is_public
from telemetry.providers.secrets import Secret

TIMEOUT_S = 10.0
REMEDY = (
    "name the host in GREENSERVE_WEBHOOK_HOSTS, or allow all private addresses by GREENSERVE_ALERT_WEBHOOK_PRIVATE=1"
)
SIGNATURE_HEADER = "X-GreenServe-Signature"
AGAIN = {408, 425, 429}  # and 5xx: a later try may do


def signature(secret: Secret, body: bytes, at_s: int) -> str:
    """Returns the header's value."""
    digest = hmac.new(secret.reveal().encode(), b"%d." % at_s + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


@dataclass(frozen=True, slots=True)
class Target:
    """A checked address that webhooks go to. `private`: private addresses are allowed, and plain http to them."""

    host: str
    port: int
    path: str = field(repr=False)
    tls: bool = True
    private: bool = False

    def __str__(self) -> str:
        return self.host


def target(url: str, private: bool, hosts: Collection[str] = ()) -> Target:
    """Returns where a URL leads, as it stands.

    Args:
        private: Private addresses are allowed, whatever the host.
        hosts: Names and addresses for which they are allowed otherwise.

    Raises:
        ValueError: It leads nowhere that the server goes; the words do not repeat it, since parts of it may be secret.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("it is no URL") from None
    host = (parts.hostname or "").rstrip(".")
    private = private or host in hosts
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise ValueError("it must begin with https://")
    if not host or parts.username or parts.password or parts.fragment:
        raise ValueError("write https://host/path without user, password or fragment")
    if words := host_fault(host, private):
        remedy = "" if private else f"; {REMEDY}"
        raise ValueError(f"{words}{remedy}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError("its path has letters that a URL cannot have")
    tls = parts.scheme == "https"
    return Target(host, port or (443 if tls else 80), path, tls, private)


def post(
    to: Target, secret: Secret | None, body: bytes, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> None:
    """Sends `body`. Blocks; raises RetryableError or PermanentError, which name the host and the status, no more."""
    signed = {} if secret is None else {SIGNATURE_HEADER: signature(secret, body, int(time.time()))}
    deadline = time.monotonic() + timeout_s
    address = check_addresses(to, timeout_s / 2)
    left_s = max(0.05 * timeout_s, deadline - time.monotonic())
    connection = _Pinned(to, address, left_s)
    end = threading.Timer(left_s, connection.hang_up)  # the socket's own limit begins anew with each byte that comes
    end.start()
    try:
        connection.request("POST", to.path, body, {"Content-Type": "application/json", **headers, **signed})
        status = connection.getresponse().status
        if connection.hung_up:  # what came until then may look like an answer
            raise TimeoutError
    except (OSError, http.client.HTTPException, ssl.SSLError, ValueError) as error:
        if isinstance(error, TimeoutError) or connection.hung_up:
            raise RetryableError(f"webhook: {to} did not answer within {timeout_s:.0f} s") from None
        raise RetryableError(f"webhook: {to}: {type(error).__name__}") from None
    finally:
        end.cancel()
        connection.close()
    if 200 <= status < 300:
        return
    if status >= 500 or status in AGAIN:
        raise RetryableError(f"webhook: {to} answered {status}")
    raise PermanentError(f"webhook: {to} answered {status}; check GREENSERVE_ALERT_WEBHOOK_URL and the receiver")


def check_addresses(to: Target, timeout_s: float) -> str:
    """Returns the address to connect to, once all that the name resolves to have been looked at. Blocks.

    Raises PermanentError: one of them is none that the server goes to; RetryableError: the name cannot be resolved.
    """
    from telemetry.providers.provider_http import resolve  # brings an HTTP client that only senders need

    found = [one["host"] for one in resolve(to.host, to.port, timeout_s)]
    for address in found:
        if not is_public(address) and not (to.private and is_private(address)):
            raise PermanentError(f"webhook: {to} leads to {address}, which is no public address; {REMEDY}")
        if not to.tls and not is_private(address):
            raise PermanentError(f"webhook: {to} leads to {address}: plain http is for private addresses only")
    return found[0]


class _Pinned(http.client.HTTPConnection):
    """Connects to the address that was looked at; certificate and Host are the name's."""

    def __init__(self, to: Target, address: str, timeout_s: float) -> None:
        super().__init__(to.host, to.port, timeout=timeout_s)
        self._to, self._address = to, address
        self.hung_up = False

    def hang_up(self) -> None:
        """Ends whatever is under way, from another thread."""
        self.hung_up = True
        if self.sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self._to.port), self.timeout)
        if self._to.tls:
            context = ssl.create_default_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=self._to.host)
