"""Decides who may read a process's metrics: whoever has the token; if none is set, this machine alone."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from ..errors import ApiError
from . import client_address
from .request import Request

OPERATOR = 0  # counts as the key of those who come with an operator's token: keys of tenants have ids above it
_FORWARDED = frozenset({b"x-forwarded-for", b"forwarded"})


@dataclass(frozen=True, slots=True)
class MetricsAccess:
    """`token` None: for this machine alone, and not for a proxy on it that asks on another's behalf."""

    token: str | None = field(default=None, repr=False)

    def check(self, request: Request, host: str) -> None:
        """Raises ApiError 401 or 403.

        Args:
            host: The address that the request came from.
        """
        if self.token is None:
            if not _is_here(host) or not _FORWARDED.isdisjoint(request.headers):
                raise ApiError(
                    403,
                    "Metrics are for this machine alone: the operator sets GREENSERVE_METRICS_TOKEN, and whoever reads "
                    "them sends it as 'Authorization: Bearer <token>'.",
                    code="metrics_not_shared",
                )
        elif not has_token(request, self.token):
            raise ApiError(401, "Send the metrics token as 'Authorization: Bearer <token>'.", code="invalid_token")


def has_token(request: Request, token: str) -> bool:
    """Says whether a request has an operator's token."""
    return hmac.compare_digest(request.bearer() or b"", token.encode())


def _is_here(host: str) -> bool:
    address = client_address.parsed(host)
    return address is not None and address.is_loopback
