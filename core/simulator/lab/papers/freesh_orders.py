"""FREESH's queues (arXiv 2511.00807, C.4, table 5): four orders of one queue under more than the engine carries."""

from __future__ import annotations

from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import change, figure, saving
from core.simulator.lab.why import Claim, why

_ENGINE = (
    "fleet={name: engine, count: 1, model: Llama3-70B, gpu: A100-80GB, tp: 8, engine: vllm-v1, max_sequences: 20}",
    "workload.rate_rps=25",
    "workload.duration_s=4",
)
_LENGTHS = {"SS": (70, 200), "SL": (70, 650), "LS": (600, 200), "LL": (600, 650)}
_SPREAD, _LESS_SPREAD = 0.6, 0.4
_TICK_S = 0.2
_ORDERS = ("fcfs", "edf", "srtf", "llf")
_TABLE_5 = {  # at 25/s: TTFT in s of each order; Jain's index of the first and the last; FCFS's violations in %
    "SS": ((2.5, 1.4, 1.4, 1.3), (0.4, 0.6), 16.0),
    "SL": ((29.5, 21.6, 21.5, 6.9), (0.6, 1.0), 15.0),
    "LS": ((3.7, 2.1, 2.1, 1.7), (0.5, 0.7), 28.0),
    "LL": ((29.1, 17.7, 17.8, 7.8), (0.6, 1.0), 20.0),
}


def _label(kind: str, order: str) -> str:
    return f"{kind}, {order.upper()}"


def _run(kind: str, order: str, label: str = "", spread: float = _SPREAD, tick_s: float = _TICK_S) -> Run:
    prompts, outputs = (f"{{lognormal: {{mean: {mean}, sigma: {spread}}}}}" for mean in _LENGTHS[kind])
    lengths = f"{{prompt: {prompts}, output: {outputs}}}"
    policy = f"freesh {{frozen: [carbon, scale], shard: off, clock: fixed, order: {order}, preempts_s: {tick_s:g}}}"
    return Run(label or _label(kind, order), policy, (*_ENGINE, f"workload.lengths={lengths}"))


_NARROW = {order: f"SS, {order.upper()}, less spread" for order in ("fcfs", "llf")}
_TICKS = {tick_s: f"LL, LLF, less spread, a tick of {tick_s:g} s" for tick_s in (0.2, 1.0, 2.0)}
_UNKNOWN = why(
    "lengths are not given; with a third less spread FCFS's index is {jain} with short prompts and answers and LLF "
    "saves {narrow} of the TTFT in place of {wide}. With long prompts LLF saves less than published, since what gives "
    "way loses its cache here and is prefilled again: with that spread {often} of LL are late under LLF at this tick, "
    "{second} at 1 s and {seldom} at 2 s; published none.",
    "table 5",
    jain=Claim(figure(_NARROW["fcfs"], "jain_lengths"), 0.8),
    narrow=Claim(saving(_NARROW["llf"], _NARROW["fcfs"], "ttft_s", "mean"), 30.0, "%"),
    wide=Claim(saving(_label("SS", "llf"), _label("SS", "fcfs"), "ttft_s", "mean"), 41.0, "%"),
    **{
        name: Claim(figure(_TICKS[tick_s], "violation_rate", None, 100.0), written, "%", by=2.0)
        for name, tick_s, written in (("often", 0.2, 81.0), ("second", 1.0, 19.0), ("seldom", 2.0, 3.0))
    },
)


def _rows(kind: str) -> list[Row]:
    ttft_s, (jain_fcfs, jain_llf), late = _TABLE_5[kind]
    first, last = _label(kind, "fcfs"), _label(kind, "llf")
    found = [
        Row(
            f"{kind}: mean TTFT, {order.upper()} against FCFS",
            "table 5",
            "%",
            100.0 * (published / ttft_s[0] - 1.0),
            change(_label(kind, order), first, "ttft_s", "mean"),
            _UNKNOWN,
        )
        for order, published in zip(_ORDERS[1:], ttft_s[1:], strict=True)
    ]
    found += [
        Row(f"{kind}: Jain's index, {run}", "table 5", "", published, figure(run, "jain_lengths"), _UNKNOWN)
        for run, published in ((first, jain_fcfs), (last, jain_llf))
    ]
    return [
        *found,
        Row(f"{kind}: violations, FCFS", "table 5", "%", late, figure(first, "violation_rate", None, 100.0), _UNKNOWN),
    ]


FREESH_ORDERS = Experiment(
    name="freesh-orders",
    title="FREESH, table 5: four orders of a queue, Llama3-70B on 8 A100",
    headlines=("SL: mean TTFT, LLF against FCFS",),
    scenario="freesh-miad",
    stands_in=(
        "Some 100 requests at 25 a second, 20 at a time, as in the paper; lengths are ours (means of 70 or 600 and 200 "
        "or 650 tokens), and so is the tick, 0.2 s."
    ),
    runs=(
        *(_run(kind, order) for kind in _LENGTHS for order in _ORDERS),
        *(_run("SS", order, label, _LESS_SPREAD) for order, label in _NARROW.items()),
        *(_run("LL", "llf", label, _LESS_SPREAD, tick_s) for tick_s, label in _TICKS.items()),
    ),
    rows=tuple(row for kind in _LENGTHS for row in _rows(kind)),
    listed=tuple(_label(kind, order) for kind in _LENGTHS for order in _ORDERS),
)
