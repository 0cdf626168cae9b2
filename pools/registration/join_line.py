"""The line that makes a machine a node: the command `node token` and a node's page show the same."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings

from pools import own_address

TOKEN_SHOWN = "TOKEN"  # stands for the token in the line, until one is made
_PLAIN = (
    "By http:// others on the way can read the token and the node's password: start GreenServe with "
    "GREENSERVE_JOIN_PORT to have machines join by TLS."
)
_NO_RELAY = [
    "Nodes of other machines do not reach the Redis of this GreenServe, which is a socket: start it with "
    "GREENSERVE_RELAY_PORT and GREENSERVE_NODES_HOST, or with a REDIS_URL that they reach."
]


@dataclass(frozen=True, slots=True)
class JoinLine:
    """The line to paste on the machine. `caveat`: where it does not work or who reads along, and the remedy."""

    text: str
    caveat: str


def join_line(token: str = TOKEN_SHOWN, name: str = "") -> JoinLine:
    """Returns the line of this GreenServe. `name`: of the node; empty: the machine's own."""
    url, caveat = settings.GREENSERVE_WEB_ADDRESS.for_joining()
    plain = url.startswith("http://") and not own_address.is_loopback(urlsplit(url).hostname or "")
    words = ["greenserve", "node", "join", url, token, *(("--name", name) if name else ())]
    caveats = [caveat] if caveat else _NO_RELAY if _redis_is_here() else []
    if plain:
        words.append("--plain-http")
        caveats = [*caveats, _PLAIN]
    return JoinLine(shlex.join(words), " ".join(caveats))


def _redis_is_here() -> bool:
    """Says whether nodes of other machines have no way to Redis: it is a socket, and no relay leads to it."""
    return bool(settings.REDIS_URL.startswith("unix:")) and settings.GREENSERVE_RELAY_PORT is None
