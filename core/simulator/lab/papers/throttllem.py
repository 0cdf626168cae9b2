"""throttLL'eM (HPCA 2025): the stretched load under each part of the system, and its two models by themselves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np

from core.predictors.ips import EngineIps, IpsScores, fit_and_score
from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import Calculated, Quotient, TokensPerJ, change, figure, gain, saving
from core.simulator.lab.papers.throttllem_projection import ProjectionErrors, projection_errors
from core.simulator.lab.why import Claim, why

ONE = "tuning: {throttle: {engines: 1}}"
SCALES = "scale: throttle, scale_period_s: 10"
EXACT = ("length_predictor=oracle",)  # with predictor_error: 0
_TABLE_II = "max_rps: {tp1: 1.125, tp2: 4.0, tp4: 7.5}"  # the largest loads that the paper profiled
_FLOOR = "clock_floor_mhz: 1050"
_RETAIL = "retail {{predictor_error: {}, {}}}"
_FROM, _LEARNED = ", from 1,050 MHz", "both, exact, speeds learned"

_BURSTS = why(
    "scaled by the load of a minute, with the largest loads that the paper profiled, the same autoscaler saves "
    "{minute}: what is lost is lost to stretches of ten seconds that pass what an engine carries.",
    minute=Claim(saving("autoscaling by the minute", "triton"), 19.7, "%"),
)
_NO_SLACK = why(
    "exact predictions, which are not raised, leave no slack: a request is slowed until it just keeps its deadline, "
    "and a newcomer waits until it harms none. The first token comes after {exact} in the mean, after {raised} with "
    "predictions 30 % off and raised by as much. It goes with how well prompts are known: with speeds learned as the "
    "paper's are, to which a prompt is one more row of the batch, newcomers harm less by prediction, the first token "
    "comes after {learned}, and {learned_kept} are in time. With no clock below 1,050 MHz, where the engine model's "
    "voltage falls no further, {kept} are in time, for {less} less energy.",
    exact=Claim(figure("both, exact", "ttft_s", "mean"), 8.67, "s"),
    raised=Claim(figure("both, 30 %", "ttft_s", "mean"), 1.11, "s"),
    learned=Claim(figure(_LEARNED, "ttft_s", "mean"), 1.41, "s"),
    learned_kept=Claim(figure(_LEARNED, "slo_attainment", scale=100.0), 95.8, "%", by=1.0),
    kept=Claim(figure(f"both, exact{_FROM}", "slo_attainment", scale=100.0), 99.5, "%", by=1.0),
    less=Claim(saving(f"both, exact{_FROM}", "both, exact"), 5.1, "%", by=1.0),
)
_LOWEST_CLOCK = why(
    "it goes with the lowest clock: with none below 1,050 MHz iterations are {floor} against autoscaling alone, and "
    "batches {batch} larger. The paper's clocks are 950 to 1,260 MHz in the mean of an engine; ours is {mean}.",
    "fig. 9",
    floor=Claim(change(f"both, exact{_FROM}", "autoscaling", "iterations"), -13.5, "%"),
    batch=Claim(gain(f"both, exact{_FROM}", "autoscaling", "iterations"), 15.6, "%"),
    mean=Claim(figure("both, exact", "clock_mhz"), 881.0, "MHz"),
)
_EXACT_TIMES = why(
    "ours reads the time of an iteration at the present batch off the engine model, where the paper's regression has "
    "an R2 of 0.4. When predictions are twice as far off, ReTail draws {more} more and the saving is {saving}.",
    "V-F3",
    more=Claim(change("retail, 60 %", "retail", "energy_wh"), 9.0, "%"),
    saving=Claim(saving("throttling, 30 %", "retail, 60 %"), 16.0, "%"),
)
_SAVERS = {"autoscaling": 0.87, "throttling, exact": 0.99, "both, exact": 1.23, "both, 30 %": 1.19}  # tokens/J
_TOKENS = why(
    "tokens of requests that are late do not count, and the engine model draws less for each token than the paper's "
    "GPUs (Triton: see its own row). Against Triton's the four are {first}, {second}, {third} and {fourth} times; "
    "published 1.26, 1.43, 1.78 and 1.72.",
    "fig. 10c",
    **{
        name: Claim(Quotient(TokensPerJ(run), TokensPerJ("triton")), written)
        for name, run, written in zip(
            ("first", "second", "third", "fourth"), _SAVERS, (1.12, 1.2, 1.2, 1.61), strict=True
        )
    },
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
    many=Claim(_speed_error(0.9, 0.02), 2.29, "%"),
    few=Claim(_speed_error(0.1, 0.02), 3.06, "%"),
)


def _projected(name: str, scale: float, trees: bool = False, most_prompt: int = 1500) -> Calculated:
    """Makes a measure: an error of the projection, by its name in ProjectionErrors."""

    def work_out() -> float:
        found: ProjectionErrors = projection_errors(trees, most_prompt)
        return scale * float(getattr(found, name))

    words = f"{name} of the projection, prompts of up to {most_prompt:,} tokens"
    return Calculated(words + (", speeds learned" if trees else ""), work_out)


_PROMPTS = why(
    "the first of the requests that come at once begins an iteration by itself, and the others end one later than "
    "projected; and their prompts share iterations with tokens otherwise than projected. With prompts of up to 200 "
    "tokens, in the place of 1,500, the errors are {batch}, {kv} and {drift}. With speeds learned as the paper's are, "
    "to which a prompt is one more row of the batch, the drift is {learned}.",
    batch=Claim(_projected("batch", 100.0, most_prompt=200), 0.53, "%"),
    kv=Claim(_projected("kv", 100.0, most_prompt=200), 1.14, "%"),
    drift=Claim(_projected("drift_s", 1e3, most_prompt=200), 0.0586, "ms"),
    learned=Claim(_projected("drift_s", 1e3, trees=True), 19.9, "ms"),
)

THROTTLLEM = Experiment(
    name="throttllem",
    title="throttLL'eM, fig. 7, 10, 12 and 14, table III: Llama2-13B on A100 40 GB, the stretched load",
    scenario="throttllem-13b-a100",
    headlines={
        "both, exact predictions, any clock": "energy saved against Triton, exact predictions",
        "both, predictions 30 % off, any clock": "energy saved against Triton, predictions 30 % off",
    },
    stands_in=(
        "The hour's shape stretched to 0.75 to 7.5 requests/s, arrivals drawn; engine model for TensorRT-LLM. Exact "
        "predictions are the true lengths, and are not raised; the others are raised by their error. Runs take any "
        "clock of the GPU, as the paper's do, but for those that say from where. Fig. 7's micro-traces are ours: nine "
        "clocks, each with 24 requests at once on an engine of TP2."
    ),
    runs=(
        Run("triton", f"triton {{{ONE}}}"),
        Run("autoscaling", f"triton {{{SCALES}, {ONE}}}"),
        Run("autoscaling by the minute", f"triton {{scale: throttle, scale_period_s: 60, {ONE}, {_TABLE_II}}}"),
        Run("throttling, exact", "throttllem {scale: static, predictor_error: 0}", EXACT),
        Run("throttling, 30 %", "throttllem {scale: static}"),
        Run("both, exact", "throttllem {predictor_error: 0}", EXACT),
        Run(_LEARNED, "throttllem {predictor_error: 0, tuning: {throttle: {ips: trees}}}", EXACT),
        Run("both, 30 %", "throttllem"),
        Run(f"throttling, exact{_FROM}", f"throttllem {{scale: static, predictor_error: 0, {_FLOOR}}}", EXACT),
        Run(f"both, exact{_FROM}", f"throttllem {{predictor_error: 0, {_FLOOR}}}", EXACT),
        Run(f"both, 30 %{_FROM}", f"throttllem {{{_FLOOR}}}"),
        Run("retail", _RETAIL.format(0.3, ONE)),
        Run("retail, 60 %", _RETAIL.format(0.6, ONE)),
    ),
    rows=(
        Row(
            "autoscaling alone, saving against Triton TP4",
            "V-D2",
            "%",
            20.8,
            saving("autoscaling", "triton"),
            _BURSTS,
        ),
        Row("the same by the load of a minute", "V-D2", "%", 20.8, saving("autoscaling by the minute", "triton")),
        *(
            Row(f"{label}{clocks}", "V-D2", "%", published, saving(f"{run}{floor}", "triton"), _NO_SLACK)
            for clocks, floor in ((", any clock", ""), (_FROM, _FROM))
            for label, run, published in (
                ("throttling alone, exact predictions", "throttling, exact", 30.6),
                ("both, exact predictions", "both, exact", 43.8),
                ("both, predictions 30 % off", "both, 30 %", 41.7),
            )
        ),
        Row(f"{_LEARNED}, any clock", "V-D2", "%", 43.8, saving(_LEARNED, "triton"), _NO_SLACK),
        *(
            Row(f"{run}, any clock: in time", "V-D2", "%", 99.0, figure(run, "slo_attainment", scale=100.0), _NO_SLACK)
            for run in ("throttling, exact", "both, exact", _LEARNED, "both, 30 %")
        ),
        *(
            Row(f"{run}: tokens per joule", "fig. 10c", "tokens/J", published, TokensPerJ(run), _TOKENS)
            for run, published in (("triton", 0.69), *_SAVERS.items())
        ),
        Row(
            "iterations against autoscaling alone",
            "fig. 12a",
            "%",
            -24.3,
            change("both, exact", "autoscaling", "iterations"),
            _LOWEST_CLOCK,
        ),
        Row("size of batches", "fig. 12b", "%", 24.5, gain("both, exact", "autoscaling", "iterations"), _LOWEST_CLOCK),
        Row(
            "throttling's saving against ReTail",
            "fig. 14",
            "%",
            11.9,
            saving("throttling, 30 %", "retail"),
            _EXACT_TIMES,
        ),
        Row("error of the projected batch", "fig. 7a", "%", 0.19, _projected("batch", 100.0), _PROMPTS),
        Row("error of the projected KV cache", "fig. 7b", "%", 2.26, _projected("kv", 100.0), _PROMPTS),
        Row("drift of projected times an iteration", "fig. 7c", "ms", 0.43, _projected("drift_s", 1e3), _PROMPTS),
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
