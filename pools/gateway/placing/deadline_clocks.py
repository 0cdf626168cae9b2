"""GreenServe's clocks by deadlines at the gateway: for each instance the lowest that keeps the limits of its requests.

For services whose policy says `clock: deadline` or `iteration`. An instance is looked at whenever it is given a
request, and each `LOOK_S` while it has any of this gateway; what a look is, is in `deadline_looks`. Of several gateways
each that has requests there asks for what those of all need.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.engine import parameter_caches
from core.engine.engine_model import UnknownConfiguration
from core.types import Rationale, Reason

from ..fleet.instance import Instance
from ..fleet.view import Service
from .clock_requests import ClockRequests
from .shared_boards import SharedBoards

if TYPE_CHECKING:
    from .deadline_looks import EngineCosts, InstanceClock

log = logging.getLogger(__name__)

LOOK_S = 0.1  # as the simulator's kernel
APART_S = 0.01  # looks at an instance that is given one request after another
_REST = Rationale(Reason.WITHIN_LIMITS, "Nothing is to be done, and the floor is not asked for any more: it is again.")
_Configuration = tuple[str, str, int, str]


@dataclass(slots=True)
class _Watched:
    """An instance that is looked at. `service`: the name of its own. `clock` None: its costs are not there yet."""

    instance: Instance
    service: str
    clock: InstanceClock | None = None
    looked_s: float = float("-inf")
    again: bool = False  # a look is on its way


class DeadlineClocks:
    """Asks for the clocks. What is compiled is loaded beside the event loop.

    Until it is, and for configurations that the engine model does not know, nothing is asked for, so that clocks are at
    the top; the log says so.
    """

    def __init__(
        self, clocks: ClockRequests, loader: Executor | None = None, boards: SharedBoards | None = None
    ) -> None:
        self._clocks = clocks
        self._loader = loader
        self._boards = boards or SharedBoards()
        self._costs: dict[_Configuration, EngineCosts | None] = {}  # None: being loaded, or not to be had
        self._watched: dict[str, _Watched] = {}
        self._busy: set[str] = set()  # of these, those that had requests at the last look
        self._revision = parameter_caches.revision()
        self.looks = 0

    def placed(self, service: Service, instance: Instance) -> None:
        """A request has just been given its place: looks at the instance, or in a moment where it has just done so."""
        if not service.policy.by_deadlines:
            return
        watched, now_s = self._watch(service, instance), time.monotonic()
        self._busy.add(instance.uid)
        if now_s - watched.looked_s >= APART_S:
            self._look_at(service, watched, now_s)
        elif not watched.again:
            watched.again = True
            asyncio.get_running_loop().call_later(APART_S, self._look_again, service, watched)

    def look(self, services: Mapping[str, Service], now_s: float) -> None:
        """Looks at all that have requests. Called each `LOOK_S`; `now_s` is monotonic."""
        for uid in list(self._busy):
            watched = self._watched[uid]
            service = services.get(watched.service)
            if service is None or not service.policy.by_deadlines:
                self._forget(uid)
            else:
                self._look_at(service, watched, now_s)

    def keep(self, uids: Collection[str], services: Iterable[Service], now_s: float) -> None:
        """Looks at those without requests too, takes up new ones, and forgets those that are no more or whose policy is
        another. Called now and then.

        Args:
            uids: Of all instances that are there.
            now_s: Monotonic.
        """
        paced = {service.name: service for service in services if service.policy.by_deadlines}
        for uid, watched in list(self._watched.items()):
            if uid not in uids or watched.service not in paced:
                self._forget(uid)
        if (revision := parameter_caches.revision()) != self._revision:
            self._revision = revision
            for key in self._costs:  # those of before count until these are loaded
                self._later(key)
        for service in paced.values():
            for instance in service.ready:
                if instance.uid not in self._busy:
                    self._look_at(service, self._watch(service, instance), now_s)

    def _watch(self, service: Service, instance: Instance) -> _Watched:
        watched = self._watched.get(instance.uid)
        if watched is None or watched.instance is not instance:
            watched = self._watched[instance.uid] = _Watched(instance, service.name)
        watched.service = service.name
        return watched

    def _forget(self, uid: str) -> None:
        """Takes back what was asked for, unless somebody else has asked for another clock since."""
        watched = self._watched.pop(uid)
        self._busy.discard(uid)
        if watched.clock is not None and self._clocks.asked(uid) == _asked_mhz(watched):
            self._clocks.drop(uid)

    def _look_again(self, service: Service, watched: _Watched) -> None:
        watched.again = False
        uid = watched.instance.uid
        if self._watched.get(uid) is watched:
            self._look_at(service, watched, time.monotonic())

    def _look_at(self, service: Service, watched: _Watched, now_s: float) -> None:
        instance = watched.instance
        watched.looked_s = now_s
        mark = self._busy.add if instance.slots else self._busy.discard
        mark(instance.uid)
        clock = self._clock(watched)
        if clock is None:
            return
        self.looks += 1
        effects = clock.look(service, instance, now_s, self._boards.paces(instance.uid))
        unknown = self._boards.unknown(now_s) if instance.slots else ""
        if unknown:
            top_mhz = max(clock.costs.top_mhz, instance.state.max_mhz)
            if self._clocks.asked(instance.uid) != top_mhz:
                self._clocks.ask(instance, top_mhz, str(Reason.NO_DATA), f"The top clock: {unknown}.", now_s)
            return
        mhz = _asked_mhz(watched)
        if mhz is not None and mhz != self._clocks.asked(instance.uid):
            why = _REST if effects is None else effects.rationale
            self._clocks.ask(instance, mhz, str(why.reason), why.summary, now_s)

    def _clock(self, watched: _Watched) -> InstanceClock | None:
        """None: its costs are not there. What was asked for by other ones is taken back."""
        state, known = watched.instance.state, watched.clock
        key = state.engine_model_name, state.gpu_type, state.tp, state.engine
        if key not in self._costs:
            self._costs[key] = None
            self._later(key)
        costs = self._costs[key]
        if costs is None:
            if known is not None:
                self._clocks.drop(watched.instance.uid)
                watched.clock = None
            return None
        if known is None or known.costs is not costs:
            known = watched.clock = costs.clock()
        return known

    def _later(self, key: _Configuration) -> None:
        """Loads costs beside the event loop."""
        self._loader = self._loader or ThreadPoolExecutor(1, "deadlines")
        self._loader.submit(self._load, key)

    def _load(self, key: _Configuration) -> None:
        what = f"{key[0]} on {key[2]} x {key[1]}"
        if self._costs.get(key) is None:
            log.info("clocks of %s are at the top until the engine model is loaded", what)
        try:
            costs: EngineCosts = importlib.import_module("pools.gateway.placing.deadline_looks").EngineCosts.of(*key)
            costs.warm_up()
        except UnknownConfiguration as error:
            log.warning("clocks of %s stay at the top: %s", what, error)
        except Exception:
            log.exception("clocks of %s stay at the top", what)
        else:
            self._costs[key] = costs
            log.info("clocks of %s go by deadlines from now on", what)

    def close(self) -> None:
        if self._loader is not None:
            self._loader.shutdown(wait=False, cancel_futures=True)


def _asked_mhz(watched: _Watched) -> float | None:
    """Returns the clock that is asked for; None: none yet. The top is the GPU's, which may be above the model's."""
    clock = watched.clock
    if clock is None or clock.mhz is None:
        return None
    return clock.mhz if clock.mhz < clock.costs.top_mhz else max(clock.mhz, watched.instance.state.max_mhz)
