"""The line that makes a machine a node: the command `node token` and a node's page show the same."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from django.conf import settings

TOKEN_SHOWN = "TOKEN"  # stands for the token in the line, until one is made


@dataclass(frozen=True, slots=True)
class JoinLine:
    """The line to paste on the machine. `caveat`: why it works on few machines, and the remedy; empty: on all."""

    text: str
    caveat: str


def join_line(token: str = TOKEN_SHOWN, name: str = "") -> JoinLine:
    """Returns the line of this GreenServe. `name`: of the node; empty: the machine's own."""
    url, caveat = settings.GREENSERVE_WEB_ADDRESS.for_others()
    words = ["greenserve", "node", "join", url, token, *(("--name", name) if name else ())]
    return JoinLine(shlex.join(words), caveat)
