"""What a gateway has given to tenants, from each gateway to the others: together they keep fair shares and budgets."""

from __future__ import annotations

from pools.wire.message_codec import Message

GATEWAY_USE_TTL_S = 10


class GatewayUse(Message, frozen=True):
    """Tokens since the gateway's start (`boot`), by tenant.

    `queued`: of requests that waited, when they were placed, by queue (service and class). `ended`: of all requests.
    """

    boot: str
    queued: dict[str, dict[str, int]]
    ended: dict[str, int]
