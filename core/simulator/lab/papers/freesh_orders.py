"""FREESH's queues (arXiv 2511.00807, C.4, table 5, fig. 7): four orders of a queue under more than it carries."""

from __future__ import annotations

from dataclasses import dataclass

from core.simulator.lab.experiment import Experiment, Row, Run, Table
from core.simulator.lab.measures import Results, change, figure, saving
from core.simulator.lab.why import Claim, why

_LENGTHS = {"SS": (70, 200), "SL": (70, 650), "LS": (600, 200), "LL": (600, 650)}
_SPREAD, _LESS_SPREAD = 0.6, 0.4
_TICK_S = 0.2
_ORDERS = ("fcfs", "edf", "srtf", "llf")
_REQUESTS, _MOST_RPS = 100, 25
# By requests/s and type: mean TTFT in s of FCFS, EDF, SRTF and LLF; FCFS's violations in %; Jain's index of FCFS and
# LLF. What is 0.0 or 0.1 s at 5 requests/s, and what the text lost of its violations there, is left out.
_TABLE_5: dict[int, dict[str, tuple[tuple[float, ...], float | None, tuple[float, float]]]] = {
    5: {
        "SS": ((), None, (0.6, 0.6)),
        "SL": ((22.9, 15.9, 13.9, 9.0), 8.0, (0.7, 1.0)),
        "LS": ((), None, (0.7, 0.7)),
        "LL": ((19.2, 12.4, 10.9, 8.5), 7.0, (0.6, 0.9)),
    },
    15: {
        "SS": ((1.7, 0.7, 0.7, 0.7), 11.0, (0.4, 0.6)),
        "SL": ((28.1, 19.6, 19.4, 4.8), 18.0, (0.8, 1.0)),
        "LS": ((3.9, 1.5, 1.4, 1.3), 29.0, (0.4, 0.6)),
        "LL": ((27.9, 14.9, 14.9, 7.5), 22.0, (0.6, 1.0)),
    },
    25: {
        "SS": ((2.5, 1.4, 1.4, 1.3), 16.0, (0.4, 0.6)),
        "SL": ((29.5, 21.6, 21.5, 6.9), 15.0, (0.6, 1.0)),
        "LS": ((3.7, 2.1, 2.1, 1.7), 28.0, (0.5, 0.7)),
        "LL": ((29.1, 17.7, 17.8, 7.8), 20.0, (0.6, 1.0)),
    },
}
_IN_WINDOW = {"SS": 100.0, "SL": 100.0, "LS": 99.0, "LL": 100.0}  # % at 25/s under LLF, whose violations are 0 or 1 %
_TPS = (2, 4, 8)  # of fig. 7


def _label(kind: str, order: str, rps: int = _MOST_RPS, tp: int = 8) -> str:
    at = "" if rps == _MOST_RPS else f" at {rps}/s"
    return f"{kind}, {order.upper()}{at}" + ("" if tp == 8 else f", TP{tp}")


def _run(
    *,
    kind: str,
    order: str,
    label: str = "",
    spread: float = _SPREAD,
    tick_s: float = _TICK_S,
    rps: int = _MOST_RPS,
    tp: int = 8,
) -> Run:
    prompts, outputs = (f"{{lognormal: {{mean: {mean}, sigma: {spread}}}}}" for mean in _LENGTHS[kind])
    engine = f"model: Llama3-70B, gpu: A100-80GB, tp: {tp}, engine: vllm-v1, max_sequences: 20"
    settings = (
        f"fleet={{name: engine, count: 1, {engine}}}",
        *(f"workload.rate_rps={rps}", f"workload.duration_s={_REQUESTS / rps:g}"),
        f"workload.lengths={{prompt: {prompts}, output: {outputs}}}",
    )
    policy = f"freesh {{frozen: [carbon, scale], shard: off, clock: fixed, order: {order}, preempts_s: {tick_s:g}}}"
    return Run(label or _label(kind, order, rps, tp), policy, settings)


_NARROW = {order: f"SS, {order.upper()}, less spread" for order in ("fcfs", "llf")}
_TICKS = {tick_s: f"LL, LLF, less spread, a tick of {tick_s:g} s" for tick_s in (0.2, 1.0, 2.0)}
_UNKNOWN = why(
    "lengths are not given; with a third less spread FCFS's index is {jain} with short prompts and answers and LLF "
    "saves {narrow} of the TTFT in place of {wide}. What gives way loses its cache here and is prefilled again, so "
    "that it does so only where it can afford it: with that spread {often} of LL are late under LLF at this tick, "
    "{second} at 1 s and {seldom} at 2 s, as published.",
    "table 5",
    jain=Claim(figure(_NARROW["fcfs"], "jain_lengths"), 0.8),
    narrow=Claim(saving(_NARROW["llf"], _NARROW["fcfs"], "ttft_s", "mean"), 17.4, "%"),
    wide=Claim(saving(_label("SS", "llf"), _label("SS", "fcfs"), "ttft_s", "mean"), 25.9, "%"),
    **{
        name: Claim(figure(_TICKS[tick_s], "violation_rate", None, 100.0), written, "%", by=2.0)
        for name, tick_s, written in (("often", 0.2, 0.0), ("second", 1.0, 0.0), ("seldom", 2.0, 0.0))
    },
)


def _rows(rps: int, kind: str) -> list[Row]:
    ttft_s, late, fair = _TABLE_5[rps][kind]
    first, last = _label(kind, "fcfs", rps), _label(kind, "llf", rps)
    where = f"{kind} at {rps}/s"
    found = [
        Row(
            f"{where}: mean TTFT, {order.upper()} against FCFS",
            "table 5",
            "%",
            100.0 * (published / ttft_s[0] - 1.0),
            change(_label(kind, order, rps), first, "ttft_s", "mean"),
            _UNKNOWN,
        )
        for order, published in zip(_ORDERS, ttft_s, strict=False)
        if order == "llf" or (rps == _MOST_RPS and order != "fcfs")
    ]
    found += [
        Row(f"{where}: Jain's index, {order}", "table 5", "", published, figure(run, "jain_lengths"), _UNKNOWN)
        for order, run, published in zip(("FCFS", "LLF"), (first, last), fair, strict=True)
    ]
    if late is not None:
        own = figure(first, "violation_rate", None, 100.0)
        found.append(Row(f"{where}: violations, FCFS", "table 5", "%", late, own, _UNKNOWN))
    if rps == _MOST_RPS:
        found.append(Row(f"{where}: no violations, LLF", "table 5", "%", _IN_WINDOW[kind], _InWindow(last), _UNKNOWN))
    return found


@dataclass(frozen=True, slots=True)
class _InWindow:
    """The requests of a run that end within five times of what they take alone, in per cent."""

    of: str

    def __call__(self, results: Results) -> float | None:
        return 100.0 * (1.0 - float(results[self.of]["violation_rate"]))


def by_size(results: Results) -> Table:
    """Lists Jain's index of each order on engines of each size."""
    rows = [
        (
            f"{kind}, TP{tp}",
            *(f"{results[_label(kind, order, tp=tp)]['jain_lengths']:.2f}" for order in _ORDERS),
        )
        for kind in ("SL", "LL")
        for tp in _TPS
    ]
    return Table(
        "Fig. 7 by its shape, Jain's index of long answers on engines of each size at 25/s: published, LLF has the "
        "highest on all.",
        ("", *(order.upper() for order in _ORDERS)),
        tuple(rows),
    )


FREESH_ORDERS = Experiment(
    name="freesh-orders",
    title="FREESH, table 5 and fig. 7: four orders of a queue, Llama3-70B on 8 A100",
    scenario="freesh-miad",
    stands_in=(
        "Some 100 requests at 5, 15 or 25 a second, 20 at a time, as in the paper; lengths are ours (means of 70 or "
        "600 and 200 or 650 tokens), and so is the tick, 0.2 s. Fig. 17 draws table 5; the window of fig. 18 is no "
        "setting here."
    ),
    runs=(
        *(_run(kind=kind, order=order, rps=rps) for rps in _TABLE_5 for kind in _LENGTHS for order in _ORDERS),
        *(_run(kind=kind, order=order, tp=tp) for tp in _TPS[:2] for kind in ("SL", "LL") for order in _ORDERS),
        *(_run(kind="SS", order=order, label=label, spread=_LESS_SPREAD) for order, label in _NARROW.items()),
        *(
            _run(kind="LL", order="llf", label=label, spread=_LESS_SPREAD, tick_s=tick_s)
            for tick_s, label in _TICKS.items()
        ),
    ),
    headlines={"SL at 25/s: mean TTFT, LLF against FCFS": "mean TTFT, LLF against FCFS, long answers"},
    rows=tuple(row for rps in _TABLE_5 for kind in _LENGTHS for row in _rows(rps, kind)),
    listed=tuple(_label(kind, order) for kind in _LENGTHS for order in _ORDERS),
    table=by_size,
)
