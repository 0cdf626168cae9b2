"""Words why a join did not come about, each with its remedy: what was answered, or why nothing was."""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl
from datetime import datetime
from email.utils import parsedate_to_datetime

import msgspec

CLOCKS_APART_S = 30.0  # what a slow answer and a Date in whole seconds explain is below it
_PROXY_REMEDIES = {
    401: "it asks for a sign-in of its own: let it pass addresses under /api/ on",
    403: "it lets this machine not through: let it pass addresses under /api/ on",
    404: "give the address that `greenserve node token` prints",
    413: "raise the largest body that it takes",
    429: "wait a minute, then join again",
    502: "GreenServe does not answer it: see `greenserve status` there",
    503: "GreenServe does not answer it: see `greenserve status` there",
    504: "GreenServe does not answer it in time: see `greenserve status` there",
}


class _Problem(msgspec.Struct):
    type: str = ""
    detail: str = ""
    remedy: str = ""
    errors: list[dict[str, str]] = []


def refused(address: str, status: int, kind: str, body: bytes) -> str:
    """Returns the words for an answer that is no welcome. `kind`: its Content-Type."""
    if "json" in kind:
        try:
            return f"{address} answered {status}: {_words_of(msgspec.json.decode(body, type=_Problem), body)}"
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    what = "a web page" if "html" in kind else "text"
    remedy = _PROXY_REMEDIES.get(status, "is this the address that `greenserve node token` prints?")
    return (
        f"{address} answered {status} with {what} that is not GreenServe's ({_shown(body)}): a proxy or another "
        f"program answers there; {remedy}"
    )


def redirected(address: str, status: int, target: str) -> str:
    return (
        f"{address} answered {status}: it sends on to {target or 'another address'}, and a token goes nowhere but "
        "where it was meant for; join with that address if it is GreenServe's"
    )


def not_understood(address: str, body: bytes) -> str:
    return (
        f"{address} answered with {_shown(body)}, which is no answer of GreenServe's; is this the dashboard's address?"
    )


def unanswered(address: str, host: str, port: int, error: Exception, timeout_s: float) -> str:
    """Returns the words why no answer came. `error`: what urllib raised, or its reason."""
    reason = getattr(error, "reason", error)
    where = f"{host}:{port}"
    match reason:
        case ssl.SSLCertVerificationError():
            why = _certificate(host, reason)
        case ssl.SSLError() if "WRONG_VERSION_NUMBER" in str(reason) or "RECORD_LAYER" in str(reason).upper():
            why = f"{where} does not speak TLS; join with http:// there, or with the address of the proxy that has TLS"
        case ssl.SSLError():
            why = f"TLS with {where} fails ({reason.reason or reason}); the proxy there must speak TLS 1.2 or newer"
        case socket.gaierror():
            why = f"this machine knows no address of '{host}' ({reason.strerror}); mend its DNS, or join by an address"
        case ConnectionRefusedError():
            why = (
                f"nothing listens at {where}: is GreenServe up there (`greenserve status`), and does it listen for "
                "other machines (GREENSERVE_WEB_HOST)?"
            )
        case TimeoutError():
            why = f"no answer from {where} within {timeout_s:g} s: does a firewall drop the connection, or is it busy?"
        case http.client.HTTPException() | ConnectionResetError() | BrokenPipeError():
            why = (
                f"{where} ended the connection without an answer that is HTTP; if it has TLS, join with https://, else "
                "see what listens there"
            )
        case OSError() if reason.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
            why = f"no route leads from this machine to {host} ({reason.strerror}); see `ip route get {host}`"
        case _:
            why = f"{reason}; see whether `curl {address}` answers from this machine"
    return f"{address}: {why}"


def clocks_apart(date: str, now: datetime) -> str:
    """Returns by how much this machine's clock differs from the control plane's; empty: it does not, or is not known.

    `date`: the Date header of its answer. `now`: with a time zone.
    """
    try:
        apart_s = (now - parsedate_to_datetime(date)).total_seconds()
    except (TypeError, ValueError):
        return ""
    if abs(apart_s) < CLOCKS_APART_S:
        return ""
    how = "ahead of" if apart_s > 0 else "behind"
    return (
        f"This machine's clock is {abs(apart_s):.0f} s {how} the control plane's. Set both by NTP: a token's time is "
        "by the control plane's clock, samples and certificates are by both."
    )


def _certificate(host: str, error: ssl.SSLCertVerificationError) -> str:
    words = error.verify_message
    if "not yet valid" in words or "expired" in words:
        now = datetime.now().astimezone()
        return (
            f"the certificate of {host} is not valid by this machine's clock, {now:%Y-%m-%d %H:%M %Z} ({words}); set "
            "the clock, or renew the certificate"
        )
    if "mismatch" in words or "not valid for" in words:
        return f"the certificate of {host} is for another name ({words}); join by the name that it is for"
    return (
        f"this machine does not trust the certificate of {host} ({words}); name the file of its authority in "
        "SSL_CERT_FILE, or, with a token that has a fingerprint, join by the address that the token was shown with"
    )


def _words_of(problem: _Problem, body: bytes) -> str:
    fields = [
        ": ".join(filter(None, (item.get("field", ""), f"{item.get('detail', '')} {item.get('remedy', '')}".strip())))
        for item in problem.errors
    ]
    whole = f"{problem.detail} {problem.remedy}".strip()
    return "; ".join(fields) or whole or _shown(body)


def _shown(body: bytes) -> str:
    """Returns what a person would read of a page: its title, else its first words."""
    text = body[:4096].decode(errors="replace")
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    words = title[1] if title else re.sub(r"<[^>]*>", " ", text)
    printable = "".join(letter if letter.isprintable() else " " for letter in words)
    return f"'{' '.join(printable.split())[:120]}'" if printable.strip() else "nothing"
