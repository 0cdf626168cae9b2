"""Brings a node's instances to the desired state; each pass does what can be done now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from core.ports import (
    AdapterError,
    EngineControl,
    EngineLimits,
    InstanceRuntime,
    InstanceSpec,
    InstanceStatus,
    PermanentError,
)
from pools.wire import DesiredInstance

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0
# An engine refuses requests as soon as it drains: gateways, which look each half second, hear of it first.
NOTICE_S = 1.5


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an instance does not run, and when it is tried again."""

    state: str  # starting: waits for something that passes; failed: it will not mend by itself
    detail: str
    attempts: int
    retry_at_s: float


def spec_of(desired: DesiredInstance) -> InstanceSpec:
    return InstanceSpec(
        uid=desired.uid,
        model=desired.model,
        engine=desired.engine,
        gpu_uuids=tuple(desired.gpu_uuids),
        max_model_len=desired.max_model_len,
        options=desired.options,
        limits=desired.engine_limits,
        shadow_of=desired.shadow_of,
        launch=desired.launch,
        shape=desired.shape,
        gpu_slices=desired.gpu_slices,
        mps=desired.mps,
    )


class Reconciler:
    """Starts what is missing, drains what is to drain, stops what is not listed. Failed starts back off.

    What serves and is to drain is reported as draining for `NOTICE_S` before its engine hears of it, so that no request
    is on its way to an engine that refuses it. So is what is to sleep; it has to be idle besides, or its requests would
    be cut off. Where engines cannot sleep, it stays loaded and gets no requests all the same. Where they cannot take up
    other limits, those of their start stay.

    What runs is sent to sleep, woken, given other limits and taken to other GPUs through `control`, on nodes that have
    it. Where engines cannot go over to other GPUs, they end the requests that they have, and start there.
    """

    def __init__(self, runtime: InstanceRuntime, control: EngineControl | None = None) -> None:
        self._runtime = runtime
        self._control = control
        self._troubles: dict[str, Trouble] = {}
        self._leaving: dict[str, float] = {}  # since when an engine that still serves is known to be about to stop that
        self._sleepless: set[str] = set()  # engines that are to sleep and cannot
        self._fixed: dict[str, EngineLimits] = {}  # limits that engines were asked for and cannot take up
        self.errors: list[str] = []  # of the last pass

    def trouble(self, uid: str) -> Trouble | None:
        return self._troubles.get(uid)

    def act(
        self,
        now_s: float,
        desired: Sequence[DesiredInstance],
        actual: Sequence[InstanceStatus],
        busy: Collection[str] = (),
    ) -> bool:
        """Makes one pass and returns whether anything was done. Endings come before starts: they free GPUs.

        `busy`: instances in which requests run or wait.
        """
        self.errors = []
        statuses = {status.uid: status for status in actual}
        wanted = {item.uid: item for item in desired}
        self._troubles = {uid: trouble for uid, trouble in self._troubles.items() if uid in wanted}
        acted = False
        self._leaving = {
            status.uid: self._leaving.get(status.uid, now_s)
            for status in actual
            if status.state == "ready" and status.uid in wanted and wanted[status.uid].state in ("draining", "sleeping")
        }
        self._sleepless &= {item.uid for item in desired if item.state == "sleeping"}
        self._fixed = {uid: limits for uid, limits in self._fixed.items() if uid in wanted}
        for status in actual:
            acted |= self._end(now_s, status, wanted.get(status.uid))
        for item in desired:
            if item.state in ("running", "sleeping"):
                acted |= self._run(now_s, item, statuses.get(item.uid))
                acted |= self._adjust(now_s, item, statuses.get(item.uid), busy)
        return acted

    def begin_anew(self, now_s: float) -> None:
        """Has what waits wait from now on, as if it had just begun: the wall clock was set back."""
        self._leaving = dict.fromkeys(self._leaving, now_s)
        self._troubles = {uid: replace(trouble, retry_at_s=now_s) for uid, trouble in self._troubles.items()}

    def _end(self, now_s: float, status: InstanceStatus, wanted: DesiredInstance | None) -> bool:
        if wanted is None or (wanted.state == "draining" and status.state == "failed"):
            return self._try(status.uid, "stop", lambda: self._runtime.stop(status.uid))
        if now_s - self._leaving.get(status.uid, -NOTICE_S) < NOTICE_S:
            return False
        if wanted.state == "draining" and status.state in ("starting", "ready", "sleeping"):
            return self._try(status.uid, "drain", lambda: self._runtime.drain(status.uid))
        return False

    def _run(self, now_s: float, item: DesiredInstance, status: InstanceStatus | None) -> bool:
        trouble = self._troubles.get(item.uid)
        if status is not None and status.state != "failed":
            if status.state in ("ready", "sleeping"):
                self._troubles.pop(item.uid, None)
            return False
        if status is not None and (trouble is None or trouble.state != "failed"):
            # Seen failed for the first time since its start: wait, then stop what is left of it and start again.
            self._note(now_s, item.uid, "failed", status.detail or "the engine failed")
            return False
        if trouble is not None and now_s < trouble.retry_at_s:
            return False
        return self._start(now_s, item, status is not None)

    def _adjust(
        self, now_s: float, item: DesiredInstance, status: InstanceStatus | None, busy: Collection[str]
    ) -> bool:
        """Puts an engine that is up to sleep, wakes it, or sets its limits; returns whether anything was done."""
        if status is None or status.state not in ("ready", "sleeping"):
            return False
        if item.state == "running" and status.state == "ready" and _elsewhere(item, status):
            return self._reshard(item, status)
        if item.state == "sleeping" and status.state == "ready":
            noticed = now_s - self._leaving.get(item.uid, now_s) >= NOTICE_S
            return noticed and item.uid not in busy and self._put_to_sleep(item.uid)
        to_wake = item.state == "running" and status.state == "sleeping"
        known = (None, item.engine_limits)
        to_tune = status.state == "ready" and status.limits not in known and self._fixed.get(item.uid) not in known[1:]
        if not (to_wake or to_tune):
            return False
        if (control := self._control) is None:
            self.errors.append(f"this node cannot change how instance {item.uid} works while it runs")
            return False
        if to_wake:
            return self._try(item.uid, "wake", lambda: control.wake(item.uid))
        return self._tune(control, item)

    def _reshard(self, item: DesiredInstance, status: InstanceStatus) -> bool:
        """Says whether it goes over to its GPUs, or ends in order to start on them."""
        try:
            if self._control is None or not status.reshards:
                raise PermanentError("it cannot while it runs")
            self._control.reshard(item.uid, item.gpu_uuids)
        except PermanentError as error:
            logger.warning("instance %s starts anew on %s: %s", item.uid, ", ".join(item.gpu_uuids), error)
            return self._try(item.uid, "drain", lambda: self._runtime.drain(item.uid))
        except AdapterError as error:
            self.errors.append(f"cannot take instance {item.uid} to other GPUs: {error}")
            return False
        logger.info("instance %s: goes over to %s", item.uid, ", ".join(item.gpu_uuids))
        return True

    def _tune(self, control: EngineControl, item: DesiredInstance) -> bool:
        """Says whether it was. An engine is asked for limits once: it may take up no more than it was started with."""
        try:
            control.tune(item.uid, item.engine_limits)
        except PermanentError as error:
            self._fixed[item.uid] = item.engine_limits
            logger.warning("instance %s keeps the limits of its start: %s", item.uid, error)
            return False
        except AdapterError as error:
            self.errors.append(f"cannot tune instance {item.uid}: {error}")
            return False
        self._fixed[item.uid] = item.engine_limits
        logger.info("instance %s: tuned", item.uid)
        return True

    def _put_to_sleep(self, uid: str) -> bool:
        """Says whether it was. What cannot sleep at all is asked once."""
        if (control := self._control) is None or uid in self._sleepless:
            return False
        try:
            control.sleep(uid)
        except PermanentError as error:
            self._sleepless.add(uid)
            logger.info("instance %s stays loaded: %s", uid, error)
            return False
        except AdapterError as error:
            self.errors.append(f"cannot put to sleep instance {uid}: {error}")
            return False
        logger.info("instance %s: put to sleep", uid)
        return True

    def _start(self, now_s: float, item: DesiredInstance, remains: bool) -> bool:
        logger.info("starting instance %s: %s on %s", item.uid, item.model, ", ".join(item.gpu_uuids))
        try:
            if remains:
                self._runtime.stop(item.uid)
            self._runtime.start(spec_of(item))
        except AdapterError as error:
            self._note(now_s, item.uid, "failed" if isinstance(error, PermanentError) else "starting", str(error))
            return remains
        if (trouble := self._troubles.get(item.uid)) is not None:  # keeps its count until the engine is ready
            self._troubles[item.uid] = Trouble("starting", trouble.detail, trouble.attempts, now_s)
        return True

    def _note(self, now_s: float, uid: str, state: str, detail: str) -> None:
        known = self._troubles.get(uid)
        attempts = 1 if known is None else known.attempts + 1
        wait_s = min(FIRST_BACKOFF_S * 2.0 ** (attempts - 1), LONGEST_BACKOFF_S)
        logger.warning("instance %s does not run (attempt %d, next in %g s): %s", uid, attempts, wait_s, detail)
        self._troubles[uid] = Trouble(state, detail, attempts, now_s + wait_s)

    def _try(self, uid: str, what: str, action: Callable[[], None]) -> bool:
        logger.info("instance %s: %s", uid, what)
        try:
            action()
        except AdapterError as error:
            self.errors.append(f"cannot {what} instance {uid}: {error}")
            return False
        return True


def _elsewhere(item: DesiredInstance, status: InstanceStatus) -> bool:
    """Says whether an engine is neither on its GPUs nor on its way there."""
    return set(item.gpu_uuids) != set(status.taking or status.gpu_uuids)
