"""Simulations on the Celery workers of a GreenServe that is up."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from core.simulator.runs.simulation_jobs import SimulationJob
from greenserve import env
from greenserve.supervision import product_processes
from pools import redis_address, wire
from pools.masking import masked

SILENT_S = 60.0  # without a word from any worker, nobody is there
_POLL_S = 0.2


def run_on_workers(jobs: Sequence[SimulationJob]) -> list[dict[str, Any]]:
    """Returns the figures of each job, in order. Ctrl-C asks for what is there so far.

    Raises:
        ValueError: No Redis or no worker answers, or a worker could not run a job.
    """
    found = dict(each_on_workers(jobs))
    for job in jobs:
        if found[job].error:
            raise ValueError(found[job].error)
    return [found[job].figures or {} for job in jobs]


def each_on_workers(jobs: Sequence[SimulationJob]) -> Iterator[tuple[SimulationJob, wire.SimulationUpdate]]:
    """Yields each job with its figures or error when it has ended. Ctrl-C asks for what is there so far.

    Raises:
        ValueError: No Redis or no worker answers.
    """
    config = env.read()
    url = product_processes.redis_url(config)
    client = redis_address.connect(url, socket_timeout=10, socket_connect_timeout=5)
    runs = {str(uuid.uuid4()): job for job in jobs}
    try:
        client.ping()
        broker, options = redis_address.celery_broker(product_processes.broker_url(config))
        with Celery(broker=broker, set_as_current=False) as app:
            app.conf.broker_transport_options = options
            for run, job in runs.items():
                app.send_task("scheduler.tasks.simulate", (run, asdict(job)), queue=wire.SIMULATIONS_QUEUE)
    except (redis.RedisError, OperationalError) as error:
        raise ValueError(
            masked(f"--distributed: no Redis at {url}: {error}; start `greenserve up`, or set REDIS_URL", url)
        ) from None
    for run, update in _ended(client, runs):
        yield runs[run], update


def _ended(client: redis.Redis, runs: Iterable[str]) -> Iterator[tuple[str, wire.SimulationUpdate]]:
    """Waits until all have ended, in whatever order, as long as some worker is heard of."""
    waiting, ended = set(runs), dict[str, wire.SimulationUpdate]()
    heard_s = time.monotonic()
    while waiting:
        try:
            for run in waiting:
                while isinstance(data := client.lpop(wire.simulation_key(run)), bytes):
                    heard_s = time.monotonic()
                    update = wire.decode(data, wire.SimulationUpdate)
                    if update.last:
                        ended[run] = update
            if time.monotonic() - heard_s > SILENT_S:
                raise ValueError(
                    f"--distributed: no worker took or reported a run for {SILENT_S:g} s; is `greenserve up` running?"
                )
            waiting.difference_update(ended)
            while ended:
                yield ended.popitem()
            time.sleep(_POLL_S)
        except KeyboardInterrupt:
            for run in waiting:
                client.set(wire.simulation_stop_key(run), "1", ex=wire.SIMULATION_KEPT_S)
