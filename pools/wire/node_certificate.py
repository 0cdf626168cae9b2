"""The answer to a node that asks for a new certificate. What it asks with is a request in PEM, as it is."""

from __future__ import annotations

from pools.wire.message_codec import Message

CERTIFICATE_KEPT_S = 3_600  # the request, and the answer to it


class NodeCertificate(Message, frozen=True):
    """A node's certificate, and whom it may trust; PEM.

    Attributes:
        authority: Signs all nodes' certificates.
        redis_authority: Signs that of the Redis address; empty: whom the machine trusts.
    """

    certificate: str
    authority: str
    redis_authority: str = ""
