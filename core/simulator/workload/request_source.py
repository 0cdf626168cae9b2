"""Makes a workload's requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core.simulator.fields import ScenarioError
from core.simulator.kernel.arrivals import BLOCK_REQUESTS, Stream
from core.simulator.workload.columns import at, cut, recut
from core.simulator.workload.generate import generate
from core.simulator.workload.spec import DEFAULT_REQUESTS, GENERATORS, Workload
from core.simulator.workload.trace import Tally, read_trace
from core.simulator.workload.trace_scale import scale_rate, scale_time, tagged, with_tenants


def stream(
    workload: Workload,
    seed: int,
    trace: Path | None = None,
    *,
    service: int = 0,
    tenants: Sequence[str] = (),
    tally: Tally | None = None,
    block_requests: int = BLOCK_REQUESTS,
) -> Stream:
    """Yields the workload's requests in order of arrival, in blocks; they do not depend on the size of the blocks.

    Args:
        trace: takes the place of what the workload says.
        service: its number in the scenario. Services have random streams of their own.
        tenants: of the scenario, in the order of their numbers; the workload's own where empty.
        tally: filled while a trace is read: the rows that were left out.

    Raises:
        TraceError: The trace cannot be used. Its header is looked at now, rows when the stream comes to them.
        ScenarioError: The workload names no source, or (when first asked) there is no request in it.
    """
    source = trace or workload.trace
    requests, duration_s = workload.requests, workload.duration_s
    if source is not None:
        found = scale_time(read_trace(source, tally), workload.time_scale)
        found = scale_rate(found, workload.rate_scale, workload.rate_jitter_s, seed, service)
    elif workload.generator is not None:
        generator = replace(workload.generator, rate_rps=workload.generator.rate_rps * workload.rate_scale)
        at_once = min(BLOCK_REQUESTS, requests or BLOCK_REQUESTS)
        found = scale_time(generate(generator, seed, service, at_once), workload.time_scale)
        if requests is None and duration_s is None:
            curve = generator.curve
            requests = DEFAULT_REQUESTS if curve is None else None
            duration_s = None if curve is None else curve.period_s / workload.time_scale
    else:
        raise ScenarioError(
            f"workload: give trace: FILE (or --trace FILE), or generate: one of {', '.join(GENERATORS)}"
        )
    found = cut(found, requests, duration_s)
    if workload.tenants:
        names = list(tenants) or [name for name, _ in workload.tenants]
        index = [names.index(name) for name, _ in workload.tenants]
        found = with_tenants(found, [share for _, share in workload.tenants], index, seed, service)
    if workload.starts_s:
        found = (at(block, block.arrival_s + workload.starts_s) for block in found)
    return _some(recut(tagged(found, service), block_requests))


def _some(found: Stream) -> Stream:
    """Refuses a stream without requests."""
    empty = True
    for block in found:
        empty = False
        yield block
    if empty:
        raise ScenarioError("workload: no request falls within duration_s; make it longer or the rate higher")
