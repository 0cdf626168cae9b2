"""Finds requests in an engine that no gateway is known to have sent.

Whoever sends past the gateways has limits that nobody knows: no clock below the top is known to keep them.
"""

from __future__ import annotations

from collections import deque

from ..fleet.instance import Instance

REPORTS = 3  # whose times are looked back at


class UnknownSenders:
    """Compares what an engine's agent reports with what is known to be there.

    A report is up to two seconds old. It is held against the most that was known of since the report before the last
    one came: requests that have ended since are not taken for somebody else's.
    """

    __slots__ = ("_most", "_report_s")

    def __init__(self) -> None:
        self._report_s: float | None = None
        self._most = deque([0], REPORTS)  # that was known of, by report

    def count(self, instance: Instance, known: int) -> int:
        """Returns how many requests of others the engine has.

        Called at least with each request that is sent there, and now and then.

        Args:
            known: Answers that the gateways have under way there now.
        """
        if instance.reported_at_s != self._report_s:
            self._report_s = instance.reported_at_s
            self._most.append(known)
        self._most[-1] = max(self._most[-1], known)
        state = instance.state
        if instance.silent or state.running is None:
            return 0
        return max(0, state.running + (state.waiting or 0) - max(self._most))
