"""Runs a simulation for somebody else: progress, figures and errors go back through Redis."""

from __future__ import annotations

import logging
import time
from typing import Any

from core.engine import measured
from core.simulator.runs.simulation_jobs import SimulationJob
from pools import wire
from scheduler import agents

log = logging.getLogger(__name__)

REPORT_EVERY_S = 1.0


def serve(run: str, job: dict[str, Any]) -> None:
    """Runs the job and reports its progress. A stop asked for by key leaves partial figures."""
    client = agents.connect()

    def report(update: wire.SimulationUpdate) -> None:
        client.rpush(wire.simulation_key(run), wire.encode(update))
        client.expire(wire.simulation_key(run), wire.SIMULATION_KEPT_S)

    reported_s = time.monotonic()

    def progress(share: float | None, simulated_s: float) -> None:
        nonlocal reported_s
        if time.monotonic() - reported_s < REPORT_EVERY_S:
            return
        reported_s = time.monotonic()
        report(wire.SimulationUpdate(simulated_s, share))
        if client.exists(wire.simulation_stop_key(run)):
            raise KeyboardInterrupt

    report(wire.SimulationUpdate())
    try:
        with measured.set_aside():  # the figures are those of the machine that asks
            figures = SimulationJob(job["scenario"], tuple(job["settings"]), job["policy"], job["trace"]).run(progress)
    except (ValueError, OSError) as error:  # what the simulator says of bad input
        report(wire.SimulationUpdate(error=str(error)))
    except Exception as error:
        log.exception("simulation %s failed", run)
        report(wire.SimulationUpdate(error=f"the simulator failed: {error!r}; see the log of the worker"))
    else:
        report(wire.SimulationUpdate(figures["simulated_s"], 1.0, figures))
