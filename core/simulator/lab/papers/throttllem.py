"""throttLL'eM (HPCA 2025)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np

from core.predictors.ips import EngineIps, IpsScores, fit_and_score
from core.simulator.lab.experiment import CONVERSATION, Experiment, Row, Run
from core.simulator.lab.measures import Calculated, Mean, Quotient, Results, TokensPerJ, change, figure, gain, saving
from core.simulator.lab.why import Claim, why

_ONE, _SCALES = "tuning: {throttle: {engines: 1}}", "scale: throttle"
_TABLE_II = "max_rps: {tp1: 1.125, tp2: 4.0, tp4: 7.5}"  # the largest loads that the paper profiled
_TRITON = "autoscaling alone, saving against Triton TP4"
_ORACLE = "predictor_error: 0, clock_floor_mhz: 1050"
_RETAIL = "retail {{predictor_error: {}, {}}}"
_BURSTS = why(
    "scaled by the load of a minute, with the largest loads that the paper profiled, the same autoscaler saves "
    "{minute}: what is lost is lost to stretches of ten seconds that pass what an engine carries.",
    minute=Claim(saving("autoscaling by the minute", "triton"), 19.7, "%"),
)
_EXACT = why(
    "ours reads the time of an iteration at the present batch off the engine model, where the paper's regression has "
    "an R2 of 0.4. When predictions are twice as far off, ReTail draws {more} more and the saving is {saving}.",
    more=Claim(change("retail, 60 %", "retail", "energy_wh"), 9.0, "%"),
    saving=Claim(saving("throttling, 30 %", "retail, 60 %"), 16.0, "%"),
)
_SAVERS = ("autoscaling", "throttling", "throttllem, oracle")
_TOKENS = why(
    "the engine model draws less for each token (Triton: see its own row); against Triton's the three are {first}, "
    "{second} and {third} times, published 1.26, 1.43 and 1.78.",
    **{
        name: Claim(Quotient(TokensPerJ(run), TokensPerJ("triton")), written)
        for name, run, written in zip(("first", "second", "third"), _SAVERS, (1.12, 1.51, 1.65), strict=True)
    },
)
_LOWEST_CLOCK = why(
    "it goes with the lowest clock: {floor} with 1,050 MHz, below which the engine model gains nothing, and {free} "
    "without that. The paper's clocks are 950 to 1,260 MHz in the mean of an engine (fig. 9).",
    floor=Claim(change("throttllem, oracle", "autoscaling", "iterations"), -13.5, "%"),
    free=Claim(change("throttllem, oracle, any clock", "autoscaling", "iterations"), -54.0, "%"),
)


@cache
def _speed_model(train_share: float, noise: float = 0.0) -> IpsScores:
    """Scores trees that learned iterations a second from so many of the points (table III), one model for TP 1, 2 and
    4. `noise`: standard deviation of the measurement of each point, relative."""
    engine = EngineIps("Llama2-13B", "A100-40GB", "trtllm", block_tokens=128)
    batches = [2**n for n in range(9)]
    samples = engine.samples((1, 2, 4), batches, np.arange(210.0, 1411.0, 60.0).tolist(), kv_levels=12)
    rng = np.random.default_rng(1)
    if noise:
        samples = replace(samples, ips=samples.ips * (1.0 + noise * rng.standard_normal(len(samples))))
    return fit_and_score(samples, train_share, rng)[1]


def _error(train_share: float, noise: float = 0.0) -> float:
    """Returns the model's mean error in per cent."""
    return 100.0 * _speed_model(train_share, noise).mape


def _speed_error(train_share: float, noise: float = 0.0) -> Calculated:
    name = f"error of predicted speed, learned from {train_share:.0%} of the points"
    return Calculated(name + (f", noise {noise:.0%}" if noise else ""), partial(_error, train_share, noise))


_NO_NOISE = why(
    "the points to learn from are the engine model's and have no noise of measurement: with 2 % of noise the errors "
    "are {many} and {few}.",
    many=Claim(_speed_error(0.9, 0.02), 2.7, "%"),
    few=Claim(_speed_error(0.1, 0.02), 3.1, "%"),
)


THROTTLLEM = Experiment(
    name="throttllem",
    title="throttLL'eM, fig. 10, 12 and 14, table III: Llama2-13B on A100 40 GB, the stretched load",
    scenario="throttllem-13b-a100",
    stands_in=(
        "The hour's shape stretched to 0.75 to 7.5 requests/s, arrivals drawn; engine model for TensorRT-LLM. Fig. 7 "
        "measures the projection against the paper's own engine. Fig. 11 and 13 give no numbers in the text; fig. 15's "
        "A10G is no GPU of the engine model."
    ),
    runs=(
        Run("triton", f"triton {{{_ONE}}}"),
        Run("autoscaling", f"triton {{{_SCALES}, scale_period_s: 10, {_ONE}}}"),
        Run("autoscaling by the minute", f"triton {{{_SCALES}, scale_period_s: 60, {_ONE}, {_TABLE_II}}}"),
        Run("throttling", f"throttllem {{scale: static, {_ORACLE}}}"),
        Run("throttling, 30 %", "throttllem {scale: static}"),
        Run("retail", _RETAIL.format(0.3, _ONE)),
        Run("retail, 60 %", _RETAIL.format(0.6, _ONE)),
        Run("throttllem, oracle", f"throttllem {{{_ORACLE}}}"),
        Run("throttllem, oracle, any clock", "throttllem {predictor_error: 0}"),
        Run("throttllem, 30 %", "throttllem"),
    ),
    rows=(
        Row(_TRITON, "V-D2", "%", 20.8, saving("autoscaling", "triton"), _BURSTS),
        Row("the same by the load of a minute", "V-D2", "%", 20.8, saving("autoscaling by the minute", "triton")),
        Row("throttling alone", "V-D2", "%", 30.6, saving("throttling", "triton")),
        Row("both, exact predictions", "V-D2", "%", 43.8, saving("throttllem, oracle", "triton")),
        Row("both, predictions 30 % off", "V-D2", "%", 41.7, saving("throttllem, 30 %", "triton")),
        *(
            Row(f"{run}: tokens per joule", "fig. 10c", "tokens/J", published, TokensPerJ(run), _TOKENS)
            for run, published in (
                ("triton", 0.69),
                ("autoscaling", 0.87),
                ("throttling", 0.99),
                ("throttllem, oracle", 1.23),
            )
        ),
        Row(
            "iterations against autoscaling alone",
            "fig. 12",
            "%",
            -24.3,
            change("throttllem, oracle", "autoscaling", "iterations"),
            _LOWEST_CLOCK,
        ),
        Row("throttling's saving against ReTail", "fig. 14", "%", 11.9, saving("throttling, 30 %", "retail"), _EXACT),
        *(
            Row(
                f"error of predicted speed, learned from {share:.0%} of the points",
                "table III",
                "%",
                published,
                _speed_error(share),
                _NO_NOISE,
            )
            for share, published in ((0.9, 3.1), (0.1, 3.3))
        ),
    ),
)

_ENGINES = {1: (1.125, 22.7), 2: (4.0, 30.2), 4: (7.5, 31.3)}  # by TP: requests/s and E2E limit in s (table II)
_PEAK_RPS = 8.25  # of the hour, as the paper has it
_FEWER_ENGINES = why(
    "ours is of three engines of one model: TP1 saves {tp1}, as it is full, TP2 and TP4 {tp2} and {tp4}.",
    **{
        f"tp{tp}": Claim(saving(f"throttling, TP{tp}", f"triton, TP{tp}"), written, "%")
        for tp, written in ((1, 19.0), (2, 34.0), (4, 37.0))
    },
)
_ROOM = why(
    "the limits are of another benchmark's tail. On this trace E2E's P99 under Triton is {tp1}, {tp2} and {tp4} with "
    "TP 1, 2 and 4, for limits of 22.7, 30.2 and 31.3 s (table II): TP4 falls to {low} where no floor is set and "
    "predictions are 30 % off. With exact ones and a floor of 1,050 MHz, below which the engine model gains nothing, "
    "its mean is {floor}.",
    **{
        f"tp{tp}": Claim(figure(f"triton, TP{tp}", "e2e_s", "p99"), written, "s")
        for tp, written in ((1, 26.9), (2, 18.2), (4, 12.9))
    },
    low=Claim(figure("throttling, 30 %, TP4", "clock_mhz"), 742.0, "MHz"),
    floor=Claim(figure("throttling, TP4", "clock_mhz"), 1051.0, "MHz"),
)


def _engine(name: str, policy: str, tp: int) -> Run:
    rps, e2e_s = _ENGINES[tp]
    fleet = (f"fleet.tp={tp}", f"fleet.tp_choices=[{tp}]", "fleet.count=1")
    load = (f"slo.e2e_s={e2e_s}", f"workload.rate_scale={rps / _PEAK_RPS:.4f}")
    return Run(f"{name}, TP{tp}", policy, (*fleet, *load))


def _clocks_mhz(results: Results) -> list[float]:
    """Returns the mean clocks in MHz of each engine with each error of predictions."""
    return [own["clock_mhz"] for name, own in results.items() if name.startswith("throttling")]


def _slack_s(results: Results) -> float:
    """Returns by how many seconds P99 of E2E is below its limit, on the mean of engines that keep it under Triton."""
    slacks = [_ENGINES[tp][1] - results[f"throttling, 30 %, TP{tp}"]["e2e_s"]["p99"] for tp in (2, 4)]
    return float(sum(slacks) / len(slacks))


_MEAN = Mean(tuple(saving(f"throttling, TP{tp}", f"triton, TP{tp}") for tp in _ENGINES))

THROTTLLEM_ENGINES = Experiment(
    name="throttllem-engines",
    title="throttLL'eM, fig. 8 and 9: the clock alone, Llama2-13B on engines of TP 1, 2 and 4",
    scenario="throttllem-13b-a100",
    trace=CONVERSATION,
    stands_in="The hour scaled to each engine's largest load (table II). Of fig. 9 the text has clocks alone.",
    runs=tuple(
        _engine(name, policy, tp)
        for tp in _ENGINES
        for name, policy in (
            ("triton", f"triton {{{_ONE}}}"),
            ("throttling", f"throttllem {{scale: static, {_ORACLE}}}"),
            ("throttling, 30 %", "throttllem {scale: static}"),
        )
    ),
    rows=(
        Row("mean saving of the engines", "V-D1", "%", 24.7, _MEAN, _FEWER_ENGINES),
        Row("TP2: more tokens per joule", "V-D1", "%", 44.3, gain("throttling, TP2", "triton, TP2"), _FEWER_ENGINES),
        Row("lowest mean clock of an engine", "fig. 9", "MHz", 950.0, lambda own: min(_clocks_mhz(own)), _ROOM),
        Row("highest mean clock of an engine", "fig. 9", "MHz", 1260.0, lambda own: max(_clocks_mhz(own))),
        Row("P99 of E2E below its limit", "fig. 8a", "s", 1.45, _slack_s, _ROOM),
    ),
)
