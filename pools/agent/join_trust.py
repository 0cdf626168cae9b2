"""Makes sure that a machine joins its own control plane, where nobody else reads the token and the answer.

A token may carry the fingerprint of the control plane's certificate authority: `gsj_SECRET.FINGERPRINT`.
"""

from __future__ import annotations

import hashlib
import ssl
import urllib.request
from urllib.parse import urlsplit

import msgspec

from core.ports import PermanentError
from pools import own_address

from . import join_faults, join_request

AUTHORITY_PATH = "/api/v1/nodes/authority/"
TIMEOUT_S = 15.0


class Authority(msgspec.Struct):
    """The answer at AUTHORITY_PATH."""

    certificate: str  # PEM


def parts_of(token: str) -> tuple[str, str]:
    """Returns the token's secret, and the fingerprint that it carries; empty: none."""
    secret, _, fingerprint = token.partition(".")
    return secret, fingerprint.lower()


def context_for(
    url: str, fingerprint: str, timeout_s: float = TIMEOUT_S, *, plain_http: bool = False
) -> ssl.SSLContext | None:
    """Returns the TLS to reach `url` with; None: it is plain HTTP.

    With a fingerprint, whom to trust is asked there and believed by that alone; then the server must show a certificate
    of it, in its own name. Raises PermanentError where others could listen, or stand between; RetryableError.
    """
    parts = urlsplit(url)
    if parts.scheme != "https":
        if not plain_http and not own_address.is_loopback(parts.hostname or ""):
            raise PermanentError(
                f"{url} is plain HTTP: others could read the token and the node's password; give the control plane's "
                "https:// address (GREENSERVE_JOIN_PORT), or --plain-http on a network of your own"
            )
        return None
    if not fingerprint:
        return ssl.create_default_context()
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE  # what it says is checked below
    address = url.rstrip("/") + AUTHORITY_PATH
    body, _ = join_request.ask(urllib.request.Request(address), unverified, timeout_s)
    try:
        said = msgspec.json.decode(body, type=Authority).certificate
        shown = hashlib.sha256(ssl.PEM_cert_to_DER_cert(said)).hexdigest()
    except (ValueError, msgspec.DecodeError) as error:
        raise PermanentError(join_faults.not_understood(address, body)) from error
    if shown != fingerprint:
        raise PermanentError(
            f"{parts.netloc} is not the control plane that made the token: its authority has the fingerprint {shown}, "
            f"the token says {fingerprint}"
        )
    return ssl.create_default_context(cadata=said)
