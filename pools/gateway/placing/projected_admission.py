"""throttLL'eM at the gateway: projections decide who joins a batch, and at each admission the lowest clock that holds.

For services whose policy says `admission: projection`, or whose clock goes by ReTail's rule; the judging is in
`projections`.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, TypeVar

from core.engine import parameter_caches
from core.engine.engine_model import UnknownConfiguration
from core.ports import EngineLimits
from core.predictors.length_errors import LEAST, LengthErrors
from core.types import Rationale, Reason

from ..fleet.instance import Instance
from ..fleet.view import Service
from ..requests.call import Call
from .clock_requests import ClockRequests
from .deadline_clocks import DeadlineClocks
from .own_boards import judges
from .shared_boards import SharedBoards
from .slot import answers_at
from .unknown_senders import UnknownSenders

if TYPE_CHECKING:
    from .projections import InstanceProjection

log = logging.getLogger(__name__)

PROJECTION = "projection"
T = TypeVar("T")
_Configuration = tuple[str, str, int, str, str, int, int, str, float | None]


def _busy(instance: Instance) -> tuple[float, str]:
    """Returns the key that puts instances in order by their requests for each token of KV cache."""
    return instance.candidate().load / _capacity_tokens(instance), instance.uid


def _capacity_tokens(instance: Instance) -> float:
    """Returns the KV cache of an instance; 1 of one that nobody knows."""
    table = instance.candidate().table
    return 1.0 if table is None else table.kv_capacity_tokens


def configuration(service: Service, instance: Instance) -> _Configuration:
    """Returns what a projection of the instance is made of: another one is made when any of it changes."""
    state, limits = instance.state, instance.state.engine_limits or EngineLimits()
    policy = service.policy
    return (
        state.engine_model_name,
        state.gpu_type,
        state.tp,
        state.engine,
        policy.tuning.throttle_ips,
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        policy.clock_floor,
        policy.clock_floor_mhz,
    )


def _asks(service: Service) -> bool:
    """Says whether the service's clocks are asked for here."""
    return judges(service) and (service.policy.retail or service.policy.throttle)


@dataclass(slots=True)
class _Asked:
    """An instance that a clock was asked for. `service`: the name of its own."""

    instance: Instance
    service: str
    others: UnknownSenders = field(default_factory=UnknownSenders)
    unknown: str = ""  # why its batch was not known when the clock was chosen
    newest: dict[str, float] = field(default_factory=dict)  # of other gateways: see SharedBoards


class AdmissionGate:
    """Narrows instances to those that may take a request. Projections are loaded beside the event loop.

    Until they are, and for configurations that the engine model does not know, requests are admitted without being
    judged; the log says so.
    """

    def __init__(
        self,
        clocks: ClockRequests,
        loader: Executor | None = None,
        deadlines: DeadlineClocks | None = None,
        boards: SharedBoards | None = None,
        errors: LengthErrors | None = None,
    ) -> None:
        """Makes a gate.

        Args:
            deadlines: They hear of every place that is given.
            boards: What other gateways have; None: there are none.
            errors: Of predicted lengths; None: nobody measures them.
        """
        self._clocks = clocks
        self._boards = boards or SharedBoards()
        self._errors = errors or LengthErrors()
        self._deadlines = deadlines
        self._loader = loader
        self._models: dict[_Configuration, InstanceProjection | None] = {}  # None: loading, or not to be had
        self._projections: dict[str, InstanceProjection] = {}
        self._asked: dict[str, _Asked] = {}
        self._revision = parameter_caches.revision()
        self.waits = 0  # times that a request had to wait

    def narrows(self, service: Service, call: Call) -> bool:
        return service.policy.admission == PROJECTION

    def narrow(self, service: Service, choosable: Sequence[Instance], call: Call) -> Sequence[Instance]:
        """Returns the least loaded instance that admits the request, alone; none: it must wait."""
        if not self.narrows(service, call):
            return choosable
        too_small: list[Instance] = []
        for instance in sorted(choosable, key=_busy):
            projection = self._projection(service, instance)
            admits = (
                True
                if projection is None
                else projection.admits(
                    service, instance, call, self._error(service)[0], self._boards.boards(instance.uid)
                )
            )
            if admits:
                return [instance]
            if admits is None:
                too_small.append(instance)
        if too_small and len(too_small) == len(choosable):  # to wait is of no use: an engine is to refuse it
            return [max(sorted(too_small, key=lambda i: i.uid), key=_capacity_tokens)]
        self.waits += 1
        return []

    def placed(self, service: Service, instance: Instance) -> None:
        """A request has just been given its place: asks for the clock that the service's rule now wants."""
        if self._deadlines is not None:
            self._deadlines.placed(service, instance)
        if not _asks(service):
            return
        asked = self._asked.get(instance.uid)
        if asked is None or asked.instance is not instance:
            asked = self._asked[instance.uid] = _Asked(instance, service.name)
        asked.unknown = self._unknown(asked)
        self._ask(service, asked)

    def look(self, services: Mapping[str, Service]) -> None:
        """Asks anew for engines that others have sent something, or of which more is known, or less. Called each
        `LOOK_S`."""
        for asked in self._asked.values():
            service = services.get(asked.service)
            if service is None or not _asks(service):
                continue
            before, asked.unknown = asked.unknown, self._unknown(asked)
            newest = self._boards.newest(asked.instance.uid)
            if bool(before) != bool(asked.unknown) or any(
                sent_s > asked.newest.get(gateway, -inf) for gateway, sent_s in newest.items()
            ):
                self._ask(service, asked)

    def _unknown(self, asked: _Asked) -> str:
        """Says why the batch of the engine is not known as a whole; empty: it is."""
        instance = asked.instance
        known = answers_at(instance) + sum(other.board.answers for other in self._boards.boards(instance.uid))
        count = asked.others.count(instance, known)
        if unknown := self._boards.unknown(time.monotonic()):
            return unknown
        return f"{count} in the engine were sent by nobody known, within limits that nobody knows" if count else ""

    def _ask(self, service: Service, asked: _Asked) -> None:
        instance = asked.instance
        asked.newest = self._boards.newest(instance.uid)
        found = self._clock(service, instance)
        if found is not None and asked.unknown:
            found = instance.state.max_mhz, Rationale(Reason.NO_DATA, f"The top clock: {asked.unknown}.")
        if found is not None:
            mhz, why = found
            self._clocks.ask(instance, mhz, str(why.reason), why.summary, time.monotonic())

    def _clock(self, service: Service, instance: Instance) -> tuple[float, Rationale] | None:
        """None: it is not known yet, or what was placed is to be refused."""
        retail, projection = service.policy.retail, self._projections.get(instance.uid)
        if retail:
            projection = self._projection(service, instance)
            if projection is not None and not projection.fitted(service):
                self._later(projection.fit, service)
        if projection is None or (retail and not projection.fitted(service)):
            return None
        choose = projection.retail_clock if retail else projection.lowest_clock
        error, source = self._error(service)
        known = self._clocks.asked(instance.uid), error, self._boards.boards(instance.uid)
        found = choose(service, instance, *known)
        if found is None:
            return None
        mhz, why = found
        return mhz, replace(why, summary=f"{why.summary} Predictions are raised by {error:.0%}: {source}.")

    def _error(self, service: Service) -> tuple[float, str]:
        """Returns the share that predicted lengths of the service are raised by, and where it comes from."""
        policy = service.policy
        if not policy.predictor_error_measured:
            return policy.predictor_error, "as it is set"
        measured = self._errors.of(service.name)
        if measured is None:
            return policy.predictor_error, f"the default, until {LEAST} requests have ended"
        return measured.share, f"measured on {measured.requests} requests"

    def keep(self, uids: Collection[str], services: Iterable[Service]) -> None:
        """Forgets instances that are no more, and takes back what was asked for under a policy that is no more."""
        gone = set(self._projections) - set(uids)
        for service in services:
            if not (service.policy.throttle or service.policy.retail):
                gone |= self._asked.keys() & service.uids.keys()
        for uid in gone:
            self._projections.pop(uid, None)
            self._asked.pop(uid, None)
            self._clocks.drop(uid)
        if (revision := parameter_caches.revision()) != self._revision:
            self._revision = revision
            for key in self._models:  # those of before judge until these are loaded
                self._later(self._load, key)

    def _projection(self, service: Service, instance: Instance) -> InstanceProjection | None:
        projection, key = self._projections.get(instance.uid), configuration(service, instance)
        model = self._models.get(key)
        if projection is not None and projection.configuration == key and (model is None or model.alike(projection)):
            return projection
        if key not in self._models:
            self._models[key] = None
            self._later(self._load, key)
        model = self._models[key]
        if model is None:
            return None
        projection = self._projections[instance.uid] = model.fresh()
        return projection

    def _later(self, work: Callable[[T], None], argument: T) -> None:
        """Runs work beside the event loop."""
        self._loader = self._loader or ThreadPoolExecutor(1, "projections")
        self._loader.submit(work, argument)

    def _load(self, key: _Configuration) -> None:
        what = f"{key[0]} on {key[2]} x {key[1]}"
        if self._models.get(key) is None:
            log.info("requests to %s are not judged yet: projections are being loaded", what)
        try:
            projection: InstanceProjection = importlib.import_module(
                "pools.gateway.placing.projections"
            ).InstanceProjection(*key)
            projection.warm_up()
        except UnknownConfiguration as error:
            log.warning("requests to %s are admitted without being judged: %s", what, error)
        except Exception:
            log.exception("requests to %s are admitted without being judged", what)
        else:
            self._models[key] = projection
            log.info("requests to %s are judged from now on", what)

    def close(self) -> None:
        if self._loader is not None:
            self._loader.shutdown(wait=False, cancel_futures=True)
