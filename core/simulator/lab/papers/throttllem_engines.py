"""throttLL'eM's clock alone (HPCA 2025, V-D1 and V-F4): engines of a fixed size at their largest load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.simulator.lab.experiment import CONVERSATION, Experiment, Row, Run
from core.simulator.lab.measures import Mean, Results, Versus, figure, gain, saving
from core.simulator.lab.papers.throttllem import EXACT, ONE
from core.simulator.lab.why import Claim, why

_ENGINES = {1: (1.125, 22.7), 2: (4.0, 30.2), 4: (7.5, 31.3)}  # by TP: requests/s and E2E limit in s (table II)
_PEAK_RPS = 8.25  # of the hour, as the paper has it
_FIXED = "throttllem {scale: static, predictor_error: 0"
_FROM_1050 = "throttling, exact, TP4, from 1,050 MHz"
_MIXTRAL = (
    "fleet={name: engine, count: 1, model: Mixtral-8x7B, gpu: A10G-24GB, tp: 8, engine: trtllm}",
    "slo.e2e_s=30",
    f"workload.rate_scale={1.25 / _PEAK_RPS:.4f}",
)


def _load(tp: int) -> tuple[str, ...]:
    rps, e2e_s = _ENGINES[tp]
    fleet = (f"fleet.tp={tp}", f"fleet.tp_choices=[{tp}]", "fleet.count=1")
    return (*fleet, f"slo.e2e_s={e2e_s}", f"workload.rate_scale={rps / _PEAK_RPS:.4f}")


@dataclass(frozen=True, slots=True)
class MeanClock:
    """The lowest, or the highest, mean clock in MHz of an engine of Llama2-13B, with each error of predictions."""

    highest: bool

    def __call__(self, results: Results) -> float | None:
        runs = [results[f"throttling, {words}, TP{tp}"] for tp in _ENGINES for words in ("exact", "30 %")]
        clocks = [float(own["clock_mhz"]) for own in runs]
        return max(clocks) if self.highest else min(clocks)


@dataclass(frozen=True, slots=True)
class Slack:
    """Says by how many seconds P99 of E2E is below its limit, in the mean of the engines but TP1, which the paper
    leaves out as well."""

    words: str

    def __call__(self, results: Results) -> float | None:
        late = [_ENGINES[tp][1] - results[f"throttling, {self.words}, TP{tp}"]["e2e_s"]["p99"] for tp in (2, 4)]
        return float(sum(late) / len(late))


def _mean(words: str, measure: Callable[[str, str], Versus] = saving) -> Mean:
    return Mean(tuple(measure(f"throttling, {words}, TP{tp}", f"triton, TP{tp}") for tp in _ENGINES))


_THREE = why(
    "ours is of three engines of one model: TP1 saves {tp1}, as it is full, TP2 and TP4 {tp2} and {tp4}.",
    **{
        f"tp{tp}": Claim(saving(f"throttling, exact, TP{tp}", f"triton, TP{tp}"), written, "%")
        for tp, written in ((1, 23.4), (2, 28.1), (4, 34.5))
    },
)
_ROOM = why(
    "the limits are of another benchmark's tail. On this trace E2E's P99 under Triton is {tp1}, {tp2} and {tp4} with "
    "TP 1, 2 and 4, for limits of 22.7, 30.2 and 31.3 s: TP4 falls to {low} with exact predictions, where {kept} of "
    "its requests are in time. With no clock below 1,050 MHz, where the engine model's voltage falls no further, its "
    "mean is {floor}, {floor_kept} are in time and it saves {saves}.",
    "table II",
    **{
        f"tp{tp}": Claim(figure(f"triton, TP{tp}", "e2e_s", "p99"), written, "s")
        for tp, written in ((1, 26.9), (2, 18.2), (4, 12.9))
    },
    low=Claim(figure("throttling, exact, TP4", "clock_mhz"), 775.0, "MHz"),
    kept=Claim(figure("throttling, exact, TP4", "slo_attainment", scale=100.0), 97.0, "%", by=2.0),
    floor=Claim(figure(_FROM_1050, "clock_mhz"), 1051.0, "MHz"),
    floor_kept=Claim(figure(_FROM_1050, "slo_attainment", scale=100.0), 100.0, "%", by=1.0),
    saves=Claim(saving(_FROM_1050, "triton, TP4"), 37.0, "%"),
)
_RAISED = why(
    "predictions that are raised leave slack, which exact ones do not: the first token comes after {own} with TP2 and "
    "{own_4} with TP4 in the mean, with exact predictions after {exact} and {exact_4}.",
    own=Claim(figure("throttling, 30 %, TP2", "ttft_s", "mean"), 0.868, "s"),
    own_4=Claim(figure("throttling, 30 %, TP4", "ttft_s", "mean"), 0.578, "s"),
    exact=Claim(figure("throttling, exact, TP2", "ttft_s", "mean"), 6.81, "s"),
    exact_4=Claim(figure("throttling, exact, TP4", "ttft_s", "mean"), 1.98, "s"),
)
_SHEET = why(
    "E2E's P99 under Triton is {triton} for a limit of 30 s, so that clocks fall to {clock} in the mean, and {kept} "
    "are in time. How an A10G's power goes with its clock is not measured: the engine model has it of an A100.",
    triton=Claim(figure("triton, Mixtral", "e2e_s", "p99"), 17.1, "s"),
    clock=Claim(figure("throttling, exact, Mixtral", "clock_mhz"), 510.0, "MHz"),
    kept=Claim(figure("throttling, exact, Mixtral", "slo_attainment", scale=100.0), 95.3, "%", by=1.0),
)

THROTTLLEM_ENGINES = Experiment(
    name="throttllem-engines",
    title="throttLL'eM, fig. 8, 9 and 15: the clock alone, Llama2-13B on engines of TP 1, 2 and 4, Mixtral on A10G",
    scenario="throttllem-13b-a100",
    trace=CONVERSATION,
    headlines={"mean saving of the engines, exact predictions": "energy saved by the clock alone, mean of engines"},
    stands_in=(
        "The hour scaled to each engine's largest load (table II; fig. 15: 1.25 requests/s). Runs take any clock of "
        "the GPU, as the paper's do, but for the one that says from where. Of fig. 9 and 15 the text has few figures; "
        "the A10G is known by its data sheet alone."
    ),
    runs=(
        *(
            Run(f"{label}, TP{tp}", policy, (*_load(tp), *predicted))
            for tp in _ENGINES
            for label, policy, predicted in (
                ("triton", f"triton {{{ONE}}}", ()),
                ("throttling, exact", f"{_FIXED}}}", EXACT),
                ("throttling, 30 %", "throttllem {scale: static}", ()),
            )
        ),
        Run(_FROM_1050, f"{_FIXED}, clock_floor_mhz: 1050}}", (*_load(4), *EXACT)),
        Run("triton, Mixtral", f"triton {{tp: 8, {ONE}}}", _MIXTRAL),
        Run("throttling, exact, Mixtral", f"{_FIXED}, tp: 8}}", (*_MIXTRAL, *EXACT)),
    ),
    rows=(
        Row("mean saving of the engines, exact predictions", "V-D1", "%", 24.7, _mean("exact"), _THREE),
        Row("more tokens per joule in their mean", "V-D1", "%", 36.3, _mean("exact", gain), _THREE),
        Row("the same, predictions 30 % off", "V-D1", "%", 30.0, _mean("30 %", gain), _RAISED),
        Row("TP2: more tokens per joule", "V-D1", "%", 44.3, gain("throttling, exact, TP2", "triton, TP2"), _THREE),
        Row("lowest mean clock of an engine", "fig. 9", "MHz", 950.0, MeanClock(highest=False), _ROOM),
        Row("highest mean clock of an engine", "fig. 9", "MHz", 1260.0, MeanClock(highest=True), _ROOM),
        Row("P99 of E2E below its limit, exact predictions", "fig. 8a", "s", 1.45, Slack("exact"), _ROOM),
        Row("the same, predictions 30 % off", "fig. 8a", "s", 1.45, Slack("30 %"), _ROOM),
        Row("Mixtral: saving", "fig. 15", "%", 35.9, saving("throttling, exact, Mixtral", "triton, Mixtral"), _SHEET),
        Row("Mixtral: P99 of E2E", "fig. 15a", "s", 28.4, figure("throttling, exact, Mixtral", "e2e_s", "p99")),
    ),
)
