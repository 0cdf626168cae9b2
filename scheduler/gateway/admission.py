"""throttLL'eM at the gateway: projections decide who joins a batch, and at each admission the lowest clock that holds.

For services whose policy says `admission: projection`; the judging is in `projections`.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING

from scheduler.core.engine_model import UnknownConfiguration

from .clocks import ClockAsks
from .fleet import Service
from .instance import Instance
from .records import Call

if TYPE_CHECKING:
    from .projections import Desk

log = logging.getLogger(__name__)

PROJECTION = "projection"
_Configuration = tuple[str, str, int, str]


class AdmissionGate:
    """Narrows instances to those that may take a request. Projections are loaded beside the event loop.

    Until they are, and for configurations that the engine model does not know, requests are admitted without being
    judged; the log says so, and `unjudged` counts them.
    """

    def __init__(self, clocks: ClockAsks, loader: Executor | None = None) -> None:
        self._clocks = clocks
        self._loader = loader
        self._models: dict[_Configuration, Desk | None] = {}  # None: loading, or not to be had
        self._desks: dict[str, Desk] = {}
        self.unjudged = 0
        self.held = 0  # times that a request was told to wait

    def narrow(self, service: Service, choosable: Sequence[Instance], call: Call) -> Sequence[Instance]:
        """The least loaded instance that admits the request, alone; none: it must wait."""
        if service.policy.admission != PROJECTION:
            return choosable
        too_small: list[Instance] = []
        for instance in sorted(choosable, key=lambda i: (i.candidate().load, i.uid)):
            desk = self._desk(instance)
            admits = True if desk is None else desk.admits(service, instance, call)
            self.unjudged += desk is None
            if admits:
                return [instance]
            if admits is None:
                too_small.append(instance)
        if too_small and len(too_small) == len(choosable):  # to wait is of no use: an engine is to refuse it
            return [max(too_small, key=lambda i: i.candidate().kv_room_tokens)]
        self.held += 1
        return []

    def placed(self, service: Service, instance: Instance) -> None:
        """After an admission: asks for the lowest clock at which all that run keep their limits."""
        if service.policy.admission != PROJECTION or not service.policy.throttle:
            return
        desk = self._desks.get(instance.uid)
        found = None if desk is None else desk.lowest_clock(service)
        if found is not None:
            mhz, why = found
            self._clocks.ask(instance, mhz, str(why.reason), why.summary, time.monotonic())

    def keep(self, uids: Iterable[str]) -> None:
        """Forgets instances that are no more."""
        gone = set(self._desks) - set(uids)
        for uid in gone:
            del self._desks[uid]
            self._clocks.drop(uid)

    def _desk(self, instance: Instance) -> Desk | None:
        desk = self._desks.get(instance.uid)
        if desk is not None:
            return desk
        state = instance.state
        key = (state.model, state.gpu_type, state.tp, state.engine)
        if key not in self._models:
            self._models[key] = None
            self._loader = self._loader or ThreadPoolExecutor(1, "projections")
            self._loader.submit(self._load, key)
        model = self._models[key]
        if model is None:
            return None
        desk = self._desks[instance.uid] = model.fresh()
        return desk

    def _load(self, key: _Configuration) -> None:
        what = f"{key[0]} on {key[2]} x {key[1]}"
        log.info("requests to %s are not judged yet: projections are being loaded", what)
        try:
            desk: Desk = importlib.import_module("scheduler.gateway.projections").Desk(*key)
            desk.warm_up()
        except UnknownConfiguration as error:
            log.warning("requests to %s are admitted without being judged: %s", what, error)
        except Exception:
            log.exception("requests to %s are admitted without being judged", what)
        else:
            self._models[key] = desk
            log.info("requests to %s are judged from now on", what)

    def close(self) -> None:
        if self._loader is not None:
            self._loader.shutdown(wait=False, cancel_futures=True)
