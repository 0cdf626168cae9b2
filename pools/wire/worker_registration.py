"""Engines that register themselves: from the gateway that heard them to all gateways and the ingester."""

from __future__ import annotations

from pools.wire.message_codec import Message


class WorkerRegistration(Message, frozen=True):
    """An engine that no agent runs, for as long as its lease lasts. The names were known when it registered.

    `request_class` None: the largest one. `site` None: the only one that has a pool for it.
    """

    uid: str
    url: str
    service: str
    gpu_type: str
    tp: int
    lease_s: float
    registered_at_s: float
    request_class: str | None = None
    site: str | None = None
    model: str | None = None  # None: the service's
    engine: str | None = None  # None: the service's
