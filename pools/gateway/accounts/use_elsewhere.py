"""Tokens that tenants used at this gateway, for the others; and what they used at those since it was last heard."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable

from pools import wire


class UseElsewhere:
    """Counts here, and finds the differences of others' counts. What a gateway had used before it was heard of first
    does not count: nobody knows when that was."""

    def __init__(self) -> None:
        self._boot = uuid.uuid4().hex[:16]
        self._queued: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._ended: Counter[str] = Counter()
        self._heard: dict[str, wire.GatewayUse] = {}  # by boot

    def note_queued(self, queue: str, tenant: str, tokens: int) -> None:
        self._queued[queue][tenant] += tokens

    def note_ended(self, tenant: str, tokens: int) -> None:
        self._ended[tenant] += tokens

    def message(self) -> wire.GatewayUse:
        queued = {queue: dict(tenants) for queue, tenants in self._queued.items()}
        return wire.GatewayUse(self._boot, queued, dict(self._ended))

    def hear(self, messages: Iterable[wire.GatewayUse]) -> tuple[dict[str, Counter[str]], Counter[str]]:
        """Returns what has been used elsewhere since they were last heard: by queue and tenant, and by tenant."""
        others = {one.boot: one for one in messages if one.boot != self._boot}
        queued: defaultdict[str, Counter[str]] = defaultdict(Counter)
        ended: Counter[str] = Counter()
        for boot, now in others.items():
            before = self._heard.get(boot)
            if before is None:
                continue
            for queue, tenants in now.queued.items():
                queued[queue] += Counter(tenants) - Counter(before.queued.get(queue, {}))
            ended += Counter(now.ended) - Counter(before.ended)
        self._heard = others
        return queued, ended
