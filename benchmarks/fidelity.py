"""Holds the simulator against a real engine: the same requests, on both. Prints a table, or JSON with --json.

`python -m benchmarks.fidelity TRACE.csv --url http://127.0.0.1:8000 --model tiny --minutes 10 --load 0.5`

TRACE is Azure's conversation trace. A small engine on processors takes neither its lengths nor its rate: both are
scaled, lengths by one factor so that the longest tenth still fits, the rate to the share `--load` of what the engine
can take. Order, bursts and the mix of lengths stay.

Two parts of the trace. The last requests tell, in closed loops, what the engine's iterations take under load
(benchmarks.under_load), and, sent at the pace of the run, how much more than there a prompt's tokens take, and what
the first token takes beside them (HTTP, the front end: which the simulator does not have). The first are sent as the
trace has them, and simulated with what was found. None is in both.

The closed loops are run before and after; how far the two are apart is how much the machine itself changed meanwhile,
and no figure can be better than that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import theilslopes

from benchmarks.under_load import Fit, Stretch, fit, measure_under_load
from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FixedCosts, FleetSpec, InstanceSpec, PoolSpec, load
from core.simulator.workload import TraceRequest, read_azure_trace
from pools.load_generator import Seen, replay
from pools.profiler.measurements import EngineEndpoint, warm_up

SHARES = (0.5, 0.9)
LATENCY_BAR, THROUGHPUT_BAR = 0.15, 0.05
_HELD_OUT = 2000  # of the trace's end
_FULLEST = 0.9  # quantile of prompt + output that is to fit
_FEWEST = 20  # requests that a rehearsal goes by
_REHEARSED_LEVELS = 6.0  # how long it is, in closed loops' times


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. `tokens_s`: output tokens over the time from the first arrival to the last end."""

    requests: int
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    tokens_s: float


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """A figure of both, and how far the simulator is off."""

    name: str
    real: float
    simulated: float
    bar: float

    @property
    def error(self) -> float:
        return self.simulated / self.real - 1.0

    @property
    def within(self) -> bool:
        return abs(self.error) <= self.bar


@dataclass(frozen=True, slots=True)
class Comparison:
    lines: tuple[FidelityRow, ...]
    requests: int
    failed: int
    rate_rps: float
    length_factor: float
    fit: Fit  # of the closed loops
    costs: FixedCosts  # at the pace of the run
    stretches: int
    front_s: float
    drift: float  # of the engine over the run: how much longer the same work took after it than before
    machine_load: tuple[float, float, float]


def fitted(trace: Sequence[TraceRequest], longest_tokens: int) -> tuple[list[TraceRequest], float]:
    """The trace with lengths that the engine takes, its times as they were, and the factor. The longest are cut."""
    total = np.array([one.prompt_tokens + one.output_tokens for one in trace])
    factor = min(1.0, longest_tokens / float(np.quantile(total, _FULLEST)))
    requests = []
    for one in trace:
        output = min(max(2, round(one.output_tokens * factor)), longest_tokens // 2)
        prompt = min(max(1, round(one.prompt_tokens * factor)), longest_tokens - output)
        requests.append(TraceRequest(one.at_s - trace[0].at_s, prompt, output))
    return requests, factor


def paced(
    requests: Sequence[TraceRequest], costs: FixedCosts, minutes: float, share: float, sequences: int
) -> tuple[list[TraceRequest], float]:
    """The first of them, at that share of the largest rate (of a full batch of `sequences` of mean lengths), and how
    much faster than in the trace they come.
    """
    prompt = float(np.mean([one.prompt_tokens for one in requests]))
    output = float(np.mean([one.output_tokens for one in requests]))
    # A request's own time of the engine: its prompt, and its share of each iteration of a full batch.
    own_s = costs.prefill_token_s * prompt + output * (costs.base_s / sequences + costs.decode_s)
    speed = share / own_s / (len(requests) / requests[-1].at_s)
    return [replace(one, at_s=one.at_s / speed) for one in requests if one.at_s / speed < 60.0 * minutes], speed


async def real(url: str, model: str, requests: Sequence[TraceRequest]) -> list[Seen]:
    """What clients of the engine saw."""
    seen: list[Seen] = []
    await replay(requests, url, {"x": "none"}, model, exact=True, on_seen=seen.append)
    return seen


def figures_of(seen: Sequence[Seen]) -> Figures:
    tpot = [one.tpot_s for one in seen if one.tpot_s is not None]
    first = min(one.sent_s for one in seen)
    span_s = max(one.sent_s + one.e2e_s for one in seen) - first
    tokens = sum(one.output_tokens for one in seen)
    ttft, e2e = _quantiles([one.ttft_s for one in seen]), _quantiles([one.e2e_s for one in seen])
    return Figures(len(seen), ttft, _quantiles(tpot), e2e, tokens / span_s)


def simulated(
    costs: FixedCosts, requests: Sequence[TraceRequest], front_s: float, kv_tokens: int, sequences: int
) -> list[Seen]:
    """The same requests in the simulator, in their order, each with `front_s` before its first token."""
    spec = InstanceSpec(
        "engine", "fixed", "fixed", 1, 1.0, max_sequences=sequences, kv_capacity_tokens=kv_tokens, costs=costs
    )
    columns = zip(*((one.at_s, one.prompt_tokens, one.output_tokens) for one in requests), strict=True)
    at_s, prompt, output = (np.array(column) for column in columns)
    rows = simulate(FleetSpec((spec,), (PoolSpec("pool", (0,)),)), load(at_s, prompt, output)).rows
    rows = rows[np.argsort(rows["arrival_s"], kind="stable")]
    return [
        Seen(
            float(row["arrival_s"]),
            int(row["prompt"]),
            int(row["output"]),
            float(row["first_token_s"] - row["arrival_s"]) + front_s,
            float(row["finish_s"] - row["arrival_s"]) + front_s,
        )
        for row in rows
    ]


def at_the_pace(
    costs: FixedCosts, seen: Sequence[Seen], simulate_with: Callable[[FixedCosts], Sequence[Seen]]
) -> tuple[FixedCosts, float]:
    """Costs with what a prompt's tokens take at the pace of the run, and the seconds that a first token takes beside.

    A prompt takes longer, by its length, where the engine is idle between requests than in closed loops (seen, not
    explained). By how much is the slope of what the simulator lacks of the same requests' first tokens (Theil's, since
    some of them waited for others); what is still missing then is the front end's: the median.

    Args:
        simulate_with: The simulator's answer to costs.

    None can be missing, or the others would be held against the wrong ones.
    """

    def missing_s(costs: FixedCosts) -> NDArray[np.float64]:
        ours = simulate_with(costs)
        if len(in_order) != len(ours) or len(ours) < _FEWEST:
            raise ValueError(
                f"{len(in_order)} of {len(ours)} requests of the rehearsal ended; all must, and {_FEWEST} at least"
            )
        return np.array([theirs.ttft_s - one.ttft_s for theirs, one in zip(in_order, ours, strict=True)])

    in_order = sorted(seen, key=lambda one: one.sent_s)
    slope_s = float(theilslopes(missing_s(costs), [one.prompt_tokens for one in in_order]).slope)
    paced_costs = replace(costs, prefill_token_s=costs.prefill_token_s + max(0.0, slope_s))
    return paced_costs, max(0.0, median(missing_s(paced_costs)))


def _quantiles(values: ArrayLike) -> tuple[float, ...]:
    return tuple(float(value) for value in np.quantile(np.asarray(values), SHARES))


def compare(
    trace: Sequence[TraceRequest],
    engine: EngineEndpoint,
    *,
    minutes: float,
    share: float,
    longest_tokens: int = 1024,
    kv_tokens: int,
    sequences: int = 256,
    batch: int = 32,
    level_s: float = 10.0,
) -> Comparison:
    """Measures the engine under load, runs the trace on it, then in the simulator. `batch`: the one `share` is of."""
    every, factor = fitted(trace, longest_tokens)
    if len(every) <= _HELD_OUT:
        raise ValueError(f"the trace has {len(every)} requests; {_HELD_OUT} are needed beside those that are compared")
    asyncio.run(warm_up(engine))
    before = _under_load(engine, every, level_s)
    requests, speed = paced(every[:-_HELD_OUT], fit(before).costs, minutes, share, batch)
    rehearsal = _rehearsal(every[-_HELD_OUT:], speed, _REHEARSED_LEVELS * level_s)
    rehearsed = asyncio.run(real(engine.url, engine.model, rehearsal))
    seen = asyncio.run(real(engine.url, engine.model, requests))
    after = _under_load(engine, every, level_s)
    stretches = before + after
    line = fit(stretches)
    costs, front_s = at_the_pace(
        line.costs, rehearsed, lambda costs: simulated(costs, rehearsal, 0.0, kv_tokens, sequences)
    )
    theirs = figures_of(seen)
    ours = figures_of(simulated(costs, requests, front_s, kv_tokens, sequences))
    lines = [
        FidelityRow(f"{name} p{quantile * 100:g}", theirs_s, ours_s, LATENCY_BAR)
        for name, real_s, sim_s in (
            ("TTFT", theirs.ttft_s, ours.ttft_s),
            ("TPOT", theirs.tpot_s, ours.tpot_s),
            ("E2E", theirs.e2e_s, ours.e2e_s),
        )
        for quantile, theirs_s, ours_s in zip(SHARES, real_s, sim_s, strict=True)
    ]
    lines.append(FidelityRow("output tokens/s", theirs.tokens_s, ours.tokens_s, THROUGHPUT_BAR))
    return Comparison(
        tuple(lines),
        requests=len(requests),
        failed=len(requests) - len(seen),
        rate_rps=len(requests) / (60.0 * minutes),
        length_factor=factor,
        fit=line,
        costs=costs,
        stretches=len(stretches),
        front_s=front_s,
        drift=fit(after).span_s(stretches) / fit(before).span_s(stretches) - 1.0,
        machine_load=os.getloadavg(),
    )


def _under_load(engine: EngineEndpoint, every: Sequence[TraceRequest], level_s: float) -> tuple[Stretch, ...]:
    return asyncio.run(measure_under_load(engine, every[-_HELD_OUT:], level_s=level_s))


def _rehearsal(held_out: Sequence[TraceRequest], speed: float, span_s: float) -> list[TraceRequest]:
    """As many as come within the span at that speed, and enough for a median."""
    at_s = [(one.at_s - held_out[0].at_s) / speed for one in held_out]
    count = max(_FEWEST, sum(at <= span_s for at in at_s))
    return [replace(one, at_s=at) for one, at in zip(held_out[:count], at_s, strict=False)]


def table(found: Comparison) -> str:
    """As Markdown."""
    rows = ["| figure | engine | simulator | error | within |", "|---|---:|---:|---:|---|"]
    for line in found.lines:
        unit, scale = ("ms", 1e3) if line.bar == LATENCY_BAR else ("", 1.0)
        values = f"{line.real * scale:.4g} {unit} | {line.simulated * scale:.4g} {unit}"
        verdict = "yes" if line.within else "no"
        rows.append(f"| {line.name} | {values} | {line.error:+.1%} | {verdict} ({line.bar:.0%}) |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True, help="the name it serves")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--load", type=float, default=0.5, help="share of the rate that a batch of 32 would have")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of the longest tenth of requests")
    parser.add_argument("--kv-tokens", type=int, required=True, help="of the engine's cache")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = compare(
        read_azure_trace(args.trace),
        EngineEndpoint(args.url, args.model),
        minutes=args.minutes,
        share=args.load,
        longest_tokens=args.longest,
        kv_tokens=args.kv_tokens,
    )
    if args.json:
        print(json.dumps({**asdict(found), "errors": {line.name: line.error for line in found.lines}}, indent=2))
        return
    print(table(found))
    print(
        f"\n{found.requests} requests at {found.rate_rps:.2f} a second ({found.failed} failed), lengths x "
        f"{found.length_factor:.3f}; {found.costs}, "
        f"the line of the closed loops {found.fit.error:.1%} off on {found.stretches} stretches; "
        f"{found.front_s * 1e3:.1f} ms a first token outside of iterations; the engine took {found.drift:+.1%} longer "
        f"afterwards; load averages of the machine {', '.join(f'{value:.1f}' for value in found.machine_load)}"
    )


if __name__ == "__main__":
    main()
