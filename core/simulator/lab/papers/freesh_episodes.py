"""FREESH over two episodes (arXiv 2511.00807, 4.1 and 4.3): what it is worth to change TP degrees between them."""

from __future__ import annotations

from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import change, figure
from core.simulator.lab.papers.freesh import AT_ONCE, STANDS_IN
from core.simulator.lab.why import Claim, why

# What comes of each of the two partitions' cells in the first episode: peak rate in requests/s, prompt, output tokens.
_CELLS = (
    *((2.6, 10.5, 142), (2.2, 10.4, 320), (1.8, 10.5, 695)),
    *((2.8, 66.5, 141), (1.8, 67.2, 318), (1.4, 68.3, 700)),
    *((1.2, 444, 143), (0.8, 432, 320), (0.8, 422, 721)),
)
_DECLARED = ", ".join(f"{{rps: {rps}, prompt_tokens: {prompt}, output_tokens: {out}}}" for rps, prompt, out in _CELLS)
_LENGTHS = "{prompt: {lognormal: {mean: 70, sigma: 1.43}}, output: {lognormal: {mean: 300, sigma: 0.72}}}"
_EPISODES = (
    "start=2026-01-05T12:30:00+00:00",  # the series of the sites change with the hour, in the middle of the run
    "workload={generate: poisson, rate_rps: 7.5, duration_s: 3600, rate_curve: {step_s: 1800, rates: [5, 10]}, "
    f"lengths: {_LENGTHS}}}",
    f"declared=[{_DECLARED}]",
)
_STAYS, _FIXED = "without changes of TP", "without any change of the plan"
_SAME_GPUS = why(
    "without changes of TP ours has {kept} GPU-hours at {kept_mhz} in the mean, with them {own} at {own_mhz}, so that "
    "energy hardly moves; without any change of the plan it is {fixed} more, and carbon {fixed_carbon}. Instances of "
    "another TP degree restart, and in the paper they change in 35 ms: P99 of TTFT is {ttft}, and {free} where changes "
    "take no time.",
    "table 6",
    kept=Claim(figure(_STAYS, "gpu_hours"), 11.2),
    own=Claim(figure("freesh", "gpu_hours"), 10.6),
    kept_mhz=Claim(figure(_STAYS, "clock_mhz"), 1078.0, "MHz"),
    own_mhz=Claim(figure("freesh", "clock_mhz"), 1156.0, "MHz"),
    fixed=Claim(change(_FIXED, "freesh", "energy_wh"), 7.17, "%"),
    fixed_carbon=Claim(change(_FIXED, "freesh", "carbon_g"), 9.65, "%"),
    ttft=Claim(figure("freesh", "ttft_s", "p99"), 0.437, "s"),
    free=Claim(figure("changes at once", "ttft_s", "p99"), 0.432, "s"),
)

FREESH_EPISODES = Experiment(
    name="freesh-episodes",
    title="FREESH, 4.3: two episodes, the second with twice the load of the first",
    scenario="freesh-three-sites",
    stands_in=(
        f"{STANDS_IN} Half an hour at 5 requests/s and half an hour at 10, for which the plan has to change. Without "
        "changes of TP all three loops are held that make them: the carbon plan and the mix are those of the first "
        "episode, and counts alone follow."
    ),
    runs=(
        Run("freesh", "freesh", _EPISODES),
        Run("changes at once", "freesh", (*_EPISODES, AT_ONCE)),
        Run(_STAYS, "freesh {shard: off, freeze_tp: true, frozen: [carbon]}", _EPISODES),
        Run(_FIXED, "freesh {shard: off, frozen: [carbon, scale]}", _EPISODES),
    ),
    headlines={"energy without changes of TP": "energy without changes of TP"},
    rows=tuple(
        Row(f"{label} without changes of TP", "4.3", "%", published, change(_STAYS, "freesh", *of), _SAME_GPUS)
        for label, published, *of in (
            ("energy", 2.66, "energy_wh"),
            ("carbon", 0.4, "carbon_g"),
            ("mean TTFT", 8.11, "ttft_s", "mean"),
            ("P99 TTFT", 14.7, "ttft_s", "p99"),
            ("mean TBT", 4.02, "tpot_s", "mean"),
            ("P99 TBT", 4.71, "tpot_s", "p99"),
        )
    ),
)
