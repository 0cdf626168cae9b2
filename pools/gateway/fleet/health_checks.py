"""What the gateway believes of instances when nobody tells it: it asks the engines themselves.

An agent that is silent, and a Redis that cannot be read, say nothing of engines. Their instances stay; those that have
not just answered a request are asked for `/health`, and so are those that are out of rotation or give no answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections import defaultdict

from pools import wire

from .engine_probe import EngineProbe, Finding
from .instance import Instance
from .view import FleetView

log = logging.getLogger(__name__)

SILENT_S = 5.0  # agents report each second
PERIOD_S = 2.0
TIMEOUT_S = 1.0
FAILURES = 2  # in a row: then an instance leaves rotation
MOST_AT_ONCE = 64
MOST_REPORTED = 50


class HealthChecks:
    """Make and use it inside a running event loop. `panics` counts how often a class of a service began to panic."""

    def __init__(self, view: FleetView, trust: ssl.SSLContext | None = None) -> None:
        """`trust`: see EngineProbe."""
        self._view = view
        self._probe = EngineProbe(TIMEOUT_S, trust)
        self._room = asyncio.Semaphore(MOST_AT_ONCE)
        self._failures: dict[str, int] = defaultdict(int)  # in a row, by instance
        self._unreachable: dict[str, wire.UnreachableEngine] = {}
        self._silent_nodes: set[str] = set()
        self._panicking: set[tuple[str, int]] = set()
        self.panics = 0

    @property
    def silent(self) -> int:
        """Instances whose agents are not heard."""
        return sum(i.silent for i in self._view.instances())

    @property
    def out(self) -> int:
        """Instances that are out of rotation: ejected, or lost."""
        now_s = time.monotonic()
        return sum(i.lost or not i.health.usable(now_s) for i in self._view.instances())

    @property
    def panicking(self) -> int:
        """Classes of services of which most instances do not look well: all of them get requests."""
        return len(self._panicking)

    def unreachable(self) -> list[wire.UnreachableEngine]:
        """Returns the instances whose engines were asked and not reached, those that have been for longest first."""
        return sorted(self._unreachable.values(), key=lambda one: one.since_s)[:MOST_REPORTED]

    async def keep(self) -> None:
        """Asks those that are to be asked, now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.check()

    async def close(self) -> None:
        await self._probe.close()

    def look(self, now_s: float) -> None:
        """Takes note of silent agents and of classes that panic. `now_s` is monotonic."""
        instances = list(self._view.instances())
        for instance in instances:
            if not instance.silent and now_s - instance.heard_at_s > SILENT_S:
                instance.goes_silent()
        silent = {i.node for i in instances if i.silent}
        if silent != self._silent_nodes:
            nodes = ", ".join(sorted(silent)[:10]) + (" ..." if len(silent) > 10 else "")
            log.warning("agents that are not heard: %s; their engines are asked themselves", nodes or "none any more")
            self._silent_nodes = silent
        panicking = {(s.name, rank) for s in self._view.services.values() for rank in s.panicking(now_s)}
        for name, rank in panicking - self._panicking:
            self.panics += 1
            log.error("most instances of '%s' (class %d) do not look well: all of them get requests", name, rank)
        self._panicking = panicking
        uids = {i.uid for i in instances}
        for known in (self._failures, self._unreachable):
            for uid in known.keys() - uids:
                del known[uid]

    async def check(self) -> None:
        """Asks once every instance of which there is doubt. Takes a time-out for each 64 that do not answer.

        One that is new is asked before its first request: its node reaches it, and that does not mean that we do.
        """
        await asyncio.gather(*(self._ask(i) for i in self._view.instances() if self._is_doubtful(i)))

    def _is_doubtful(self, instance: Instance) -> bool:
        proven = instance.proves_itself()
        new = instance.answered_s == -math.inf and not instance.health.successes
        doubtful = bool(instance.health.ejections) or instance.suspect or (instance.silent and not proven)
        return doubtful or new or instance.uid in self._unreachable

    async def _ask(self, instance: Instance) -> None:
        async with self._room:
            finding = await self._probe.ask(instance.url)
        was_lost = instance.lost
        self._note(instance, finding)
        if finding.wrong:
            self._failed(instance, finding)
        else:
            instance.answered_s = time.monotonic()
            if self._failures.pop(instance.uid, 0) or instance.health.unreachable:
                instance.health.answers_again(time.monotonic())
            instance.lost = False
        if instance.lost != was_lost:
            log.warning(
                "instance %s %s", instance.uid, f"is lost: {finding.wrong}" if instance.lost else "is found again"
            )
            self._view.apply_again()

    def _note(self, instance: Instance, finding: Finding) -> None:
        known = self._unreachable.pop(instance.uid, None)
        if finding.wrong:
            since_s = time.time() if known is None else known.since_s
            self._unreachable[instance.uid] = wire.UnreachableEngine(
                instance.uid, instance.node, instance.url, since_s, finding.wrong
            )
        if known is None and finding.wrong:
            log.warning("instance %s at %s cannot be reached: %s", instance.uid, instance.url, finding.wrong)

    def _failed(self, instance: Instance, finding: Finding) -> None:
        """What refuses is out at once, as when it refuses a request; with a silent agent it is soon taken for lost."""
        self._failures[instance.uid] += 1
        in_a_row = self._failures[instance.uid] >= FAILURES
        if not finding.reached or in_a_row:
            instance.health.failed(time.monotonic(), refused=not finding.reached, hangs=in_a_row)
        if in_a_row and instance.silent and not finding.reached:
            instance.lost = True
