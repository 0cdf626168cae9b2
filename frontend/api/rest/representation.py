"""The representation of a resource in an answer: the requested fields, and the ETag of the whole.

The part of an ETag before the dot is of what people set. A change is refused by that part alone: what loops and
measurements did to a row since it was read is nobody's change that could be lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.utils.encoders import JSONEncoder

from .problems import PreconditionFailed, PreconditionRequired

TAG = re.compile(r'(?:W/)?"[^"]*"')
encoder = JSONEncoder(sort_keys=True, separators=(",", ":"))


def etag(representation: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> str:
    """Of all fields, whichever of them are shown: it changes when anything that one can read has changed.

    `others`: the fields that people do not set.
    """
    parts = (representation, others) if others else (representation,)
    digests = (hashlib.sha256(encoder.encode(part).encode()).hexdigest()[:32] for part in parts)
    return f'"{".".join(digests)}"'


def unchanged(request: Request, tag: str) -> bool:
    """Says whether the client has the current representation already (If-None-Match)."""
    given = request.headers.get("If-None-Match", "")
    return given.strip() == "*" or tag in [one.removeprefix("W/") for one in TAG.findall(given)]


def check_match(given: str | None, tag: str) -> None:
    """Raises PreconditionRequired without If-Match, PreconditionFailed when people have set something since."""
    if not given:
        raise PreconditionRequired
    if given.strip() != "*" and not any(same_settings(one, tag) for one in TAG.findall(given)):
        raise PreconditionFailed


def same_settings(given: object, tag: str) -> bool:
    """Says whether two ETags are of a row that people have not changed in between."""
    return str(given).strip('"').partition(".")[0] == tag.strip('"').partition(".")[0]


def chosen(request: Request, known: Sequence[str]) -> list[str] | None:
    """Returns the names in `fields`, in the resource's order; None: all. Raises ValidationError for an unknown one."""
    asked = request.query_params.get("fields")
    if asked is None:
        return None
    names = asked.split(",")
    if strange := [name for name in names if name not in known]:
        raise ValidationError({"fields": f"there is no field '{strange[0][:40]}'; known are {', '.join(known)}"})
    return [name for name in known if name in names]


def only(representation: Mapping[str, Any], names: Sequence[str] | None) -> Mapping[str, Any]:
    return representation if names is None else {name: representation[name] for name in names}
