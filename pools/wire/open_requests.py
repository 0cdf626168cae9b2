"""Requests that have come and not ended, from gateways to the loops: their records come when they end."""

from __future__ import annotations

from pools.wire.message_codec import Message

OPEN_REQUESTS_MOST = 10_000  # of one gateway; of more the newest count


class OpenRequests(Message, frozen=True):
    """A gateway's open requests as columns, an entry each. `service`: an index into `services`."""

    services: list[str]
    service: list[int]
    request_id: list[str]
    started_at_s: list[float]
    prompt_tokens: list[int]
    predicted_output_tokens: list[int]
