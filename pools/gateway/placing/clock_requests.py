"""Clocks that the gateway asks the agents for: after throttLL'eM's admissions, and in DynamoLLM's emergencies.

What is asked is a wish under a lease: it is sent at once and renewed while it stands; an agent that hears no more of it
goes back to its own rule when the lease is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..fleet.instance import NO_NODE, Instance

LEASE_S = 10.0
RENEW_S = 3.0


@dataclass(slots=True)
class PendingClockRequest:
    """A clock that stands asked for."""

    uid: str
    node: str
    mhz: float
    reason: str
    summary: str
    sent_s: float
    lease_s: float = LEASE_S  # 0: no more


class ClockRequests:
    """The clocks that this gateway asks for, by instance. `send` must not block."""

    def __init__(self, send: Callable[[PendingClockRequest], None] = lambda ask: None) -> None:
        self.send = send
        self._pending: dict[str, PendingClockRequest] = {}

    def ask(self, instance: Instance, mhz: float, reason: str, summary: str, now_s: float) -> None:
        """Asks for a clock until further notice. A worker that registered itself has no agent to ask."""
        if instance.node == NO_NODE:
            return
        known = self._pending.get(instance.uid)
        if known is not None and known.mhz == mhz and now_s - known.sent_s < RENEW_S:
            return
        ask = self._pending[instance.uid] = PendingClockRequest(
            instance.uid, instance.node, mhz, reason, summary, now_s
        )
        self.send(ask)

    def drop(self, uid: str) -> None:
        """No more: the agent is free again."""
        ask = self._pending.pop(uid, None)
        if ask is not None:
            ask.lease_s = 0.0
            self.send(ask)

    def asked(self, uid: str) -> float | None:
        ask = self._pending.get(uid)
        return None if ask is None else ask.mhz

    def renew(self, now_s: float) -> None:
        """Sends each request again once RENEW_S have passed. Called now and then."""
        for ask in self._pending.values():
            if now_s - ask.sent_s >= RENEW_S:
                ask.sent_s = now_s
                self.send(ask)
