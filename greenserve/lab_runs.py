"""The laboratory's runs: here, in processes of their own, or on the Celery workers of a GreenServe that is up."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from core.simulator.kernel.simulated import SimulationError
from core.simulator.lab.store import Store
from core.simulator.runs.simulation_jobs import SimulationJob
from greenserve.cli import fail

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Ended = tuple[SimulationJob, dict[str, Any] | str]  # its figures, or what was wrong
Doing = Callable[[Sequence[SimulationJob]], Iterator[Ended]]


def done(
    jobs: Sequence[SimulationJob], store: Store, fresh: bool, doing: Doing
) -> tuple[dict[SimulationJob, dict[str, Any]], dict[SimulationJob, str]]:
    """Returns the figures of the jobs, those that are known from the store; and of those that cannot be done what is
    wrong.

    Raises:
        TraceError: The trace cannot be used.
    """
    found = {} if fresh else {job: figures for job in jobs if (figures := store.find(job)) is not None}
    failed: dict[SimulationJob, str] = {}
    todo = [job for job in jobs if job not in found]
    click.echo(f"{len(found)} runs are known, {len(todo)} to do.", err=True)
    left = len(todo)
    try:
        for job, ended in doing(todo):
            left -= 1
            if isinstance(ended, str):
                failed[job] = words = ended
            else:
                found[job] = ended
                store.keep(job, ended)
                words = f"{ended['energy_wh']:,.0f} Wh, in {ended['wall_s']:.0f} s"
            of = [Path(job.scenario).stem, *([] if job.trace is None else [Path(job.trace).name]), job.policy]
            click.echo(f"{', '.join(of)}: {words}; {left} left", err=True)
    except KeyboardInterrupt:
        fail("Interrupted: what is done is kept, the same command goes on from there.", 130)
    return found, failed


def here(jobs: Sequence[SimulationJob], workers: int, timeout_s: float | None = None) -> Iterator[Ended]:
    """Runs so many at a time: with one worker in this process, which no time-out stops.

    Raises:
        TraceError: The trace cannot be used.
        TimeoutError: `timeout_s` have passed; the runs that had not ended are stopped.
    """
    if workers == 1:
        for job in jobs:
            yield _ended(job, job.run)
        return
    with _processes(workers) as pool:
        # The days of three sites take longest and stand last: begun last, one of them would run by itself at the end.
        running = {pool.submit(job.run): job for job in reversed(jobs)}
        for future in as_completed(running, timeout_s):
            yield _ended(running[future], future.result)


def _ended(job: SimulationJob, run: Callable[[], dict[str, Any]]) -> Ended:
    try:
        return job, run()
    except SimulationError as error:
        return job, str(error)


def each(work: Callable[[Item], Answer], items: Sequence[Item], workers: int) -> dict[Item, Answer]:
    """Does the same for each of several values, so many at a time: with one worker in this process. Raises what `work`
    does.
    """
    if workers == 1:
        return {item: work(item) for item in items}
    with _processes(workers) as pool:
        running = {item: pool.submit(work, item) for item in reversed(items)}
        return {item: future.result() for item, future in running.items()}


@contextmanager
def _processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(max_workers=workers, initializer=_quiet) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()  # a run may have minutes to go
            raise


def on_workers(jobs: Sequence[SimulationJob]) -> Iterator[Ended]:
    """Runs them as Celery tasks. Raises ValueError when no worker answers."""
    from greenserve.distributed import each_on_workers

    for job, update in each_on_workers(jobs):
        if update.figures is not None and update.figures["partial"]:
            raise KeyboardInterrupt
        yield job, update.error if update.figures is None else update.figures


def _quiet() -> None:
    """Ctrl-C is for the parent to hear."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
