"""Goes through a plan on one engine: clocks locked under a lease, steps in the journal, time kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from core.ports import AdapterError, FrequencyActuator, InstanceRuntime, InstanceSpec, InstanceStatus, RetryableError

from .calls import Calls
from .counter_watch import Watch
from .measurements import Effort, EngineEndpoint, NotMeasured, measure, warm_up
from .plan import LOAD, Step
from .profiling_journal import Journal

logger = logging.getLogger(__name__)

LEASE_S = 10.0
RENEW_S = 3.0
START_TIMEOUT_S = 1800.0  # of an engine: weights may have to come from far away
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run. `left_s` None: not known yet. `note`: what became of the step that ended last."""

    done: int
    total: int
    step: str
    left_s: float | None
    note: str = ""


ProgressCallback = Callable[[Progress], None]


@asynccontextmanager
async def started(calls: Calls, runtime: InstanceRuntime, spec: InstanceSpec) -> AsyncIterator[tuple[str, str]]:
    """Starts an engine for as long as the body runs, and yields its URL and its key. Raises AdapterError."""
    await calls(runtime.start, spec)
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            status = await calls(_status, runtime, spec.uid)
            if status is not None and status.state == "ready" and status.url:
                break
            if status is None or status.state == "failed":
                raise AdapterError(f"the engine did not start: {status.detail if status else 'it is gone'}")
            if time.monotonic() > deadline_s:
                raise AdapterError(f"the engine was not ready within {START_TIMEOUT_S:g} s")
            await asyncio.sleep(_POLL_S)
        yield status.url, status.key
    finally:
        await asyncio.shield(_stopped(calls, runtime, spec.uid))


async def _stopped(calls: Calls, runtime: InstanceRuntime, uid: str) -> None:
    """Ends an engine, and waits until it is gone: its GPUs are needed next."""
    await calls(runtime.stop, uid)
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while True:
        if await calls(_status, runtime, uid) is None or time.monotonic() > deadline_s:
            return
        await asyncio.sleep(_POLL_S)


def _status(runtime: InstanceRuntime, uid: str) -> InstanceStatus | None:
    return next((one for one in runtime.list() if one.uid == uid), None)


@asynccontextmanager
async def clock(
    calls: Calls, actuator: FrequencyActuator | None, uuids: Sequence[str], mhz: float
) -> AsyncIterator[None]:
    """Locks the clock for as long as the body runs; it returns to its default then, and in any case with the lease.

    Without an actuator no clock is locked: the engine runs at its default clock. Raises AdapterError.
    """
    if actuator is None:
        yield
        return
    locking = actuator
    await calls(locking.lock, uuids, mhz, LEASE_S)

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await calls(locking.lock, uuids, mhz, LEASE_S)
            except AdapterError as error:
                logger.warning("the clock could not be locked again: %s", error)

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.shield(calls(locking.reset, uuids))


async def go_through(
    steps: Sequence[Step],
    engine: EngineEndpoint,
    watch: Watch,
    effort: Effort,
    calls: Calls,
    journal: Journal,
    prefix: str,
    actuator: FrequencyActuator | None,
    uuids: Sequence[str],
    on_progress: ProgressCallback,
    until_s: float = float("inf"),
) -> list[str]:
    """Measures what the journal does not have yet. Returns what was not measured, and why.

    Args:
        prefix: Of the journal's names: what tells this engine from others of the run.
        until_s: Monotonic; loads are not begun after it. The sweep always is, for a profile has no holes.
    """
    todo = [step for step in steps if prefix + step.key not in journal.done]
    missed: list[str] = []
    late: list[Step] = []
    if todo:
        await warm_up(engine)
    began_s, note = time.monotonic(), ""
    for n, step in enumerate(todo):
        left_s = (time.monotonic() - began_s) / n * (len(todo) - n) if n else None
        on_progress(Progress(len(steps) - len(todo) + n, len(steps), step.words, left_s, note))
        if step.kind == LOAD and time.monotonic() > until_s:
            late.append(step)
            continue
        try:
            async with clock(calls, actuator, uuids, step.mhz):
                rows = await measure(step, engine, watch, effort)
        except (NotMeasured, RetryableError) as error:  # not in the journal: run again, it is tried again
            note = str(error) if isinstance(error, NotMeasured) else f"{step.words}: {error}"
            missed.append(note)
            continue
        note = ""
        journal.add(prefix + step.key, rows)
    on_progress(Progress(len(steps), len(steps), "done", 0.0, note))
    if late:
        missed.append(f"no time left for {len(late)} loads, from {late[0].words} on")
    return missed
