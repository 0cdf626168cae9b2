"""FREESH at its plan's load, and at half and twice of it (arXiv 2511.00807, 4.4, fig. 8, table 2): the plan stays."""

from __future__ import annotations

from functools import partial

from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import change, figure
from core.simulator.lab.papers.freesh import NOON, STANDS_IN
from core.simulator.lab.why import Claim, why

# What comes of each of the two partitions' cells at 40 requests/s: peak rate in requests/s, prompt and output tokens.
_CELLS = (
    *((14.4, 10.5, 142), (9.4, 10.4, 320), (6.6, 10.5, 698)),
    *((12.6, 67.2, 142), (9.4, 67.4, 318), (5.6, 67.5, 701)),
    *((4.0, 433, 142), (2.8, 434, 322), (1.8, 446, 707)),
)
_DECLARED = "declared=[{}]".format(
    ", ".join(f"{{rps: {rps}, prompt_tokens: {prompt}, output_tokens: {output}}}" for rps, prompt, output in _CELLS)
)
_STAYS = "frozen: [carbon, scale], shard: off"
_ORDERS = {"LLF": f"freesh {{{_STAYS}}}", "FCFS": f"freesh {{{_STAYS}, order: fcfs}}"}
_OWN_POOLS = {
    f"twice the load, {name}, own pools": f"{own[:-1]}, engine_queue: 1000000}}" for name, own in _ORDERS.items()
}
_LOADS = {"half the load": 2.45, "the load": 4.9, "twice the load": 9.8}  # times the scenario's


def _label(load: str, order: str) -> str:
    return f"{load}, {order}"


_ONCE, _TWICE = (tuple(_label(load, order) for order in ("LLF", "FCFS")) for load in ("the load", "twice the load"))
_SAME_ORDER = why(
    "there is little to order: at twice the load the first token comes after {wait} in the mean under FCFS, as "
    "requests whose pool is full go to another class's. Where they stay it is {stay}, and {stay_llf} under LLF, which "
    "serves the shortest of those that are late. LLF has {late} of violations for {fcfs}. At the load "
    "itself nobody waits: P99 of TTFT is {once}.",
    "eq. 6",
    wait=Claim(figure(_TWICE[1], "ttft_s", "mean"), 0.523, "s"),
    stay=Claim(figure("twice the load, FCFS, own pools", "ttft_s", "mean"), 10.8, "s"),
    stay_llf=Claim(figure("twice the load, LLF, own pools", "ttft_s", "mean"), 1.41, "s"),
    late=Claim(figure(_TWICE[0], "violation_rate", None, 100.0), 0.11, "%", by=0.2),
    fcfs=Claim(figure(_TWICE[1], "violation_rate", None, 100.0), 0.28, "%", by=0.2),
    once=Claim(figure(_ONCE[1], "ttft_s", "p99"), 0.287, "s"),
)
_ROOM = why(
    "a plan for the peak of five seconds in each of four pools leaves room that the paper's has not: at its own load "
    "{busy} are late and clocks are at {once} in the mean, at {half} for half and {twice} for twice the load, of "
    "which {late} are late.",
    busy=Claim(figure(_ONCE[0], "violation_rate", None, 100.0), 0.00138, "%", by=0.1),
    once=Claim(figure(_ONCE[0], "clock_mhz"), 1106.0, "MHz"),
    half=Claim(figure(_label("half the load", "LLF"), "clock_mhz"), 931.0, "MHz"),
    twice=Claim(figure(_TWICE[0], "clock_mhz"), 1422.0, "MHz"),
    late=Claim(figure(_TWICE[0], "violation_rate", None, 100.0), 0.11, "%", by=0.2),
)
_OTHER_LOAD = why(
    "neither the requests nor the plan behind the paper's figures are given. Ours are {rps} of our lengths, for which "
    "the plan has {gpus} GPU-hours.",
    "4.1",
    rps=Claim(figure(_ONCE[0], "finished", None, 1.0 / 3600.0), 40.1, "requests/s"),
    gpus=Claim(figure(_ONCE[0], "gpu_hours"), 29.8),
)

_violations = partial(figure, name="violation_rate", scale=100.0)
_mean_e2e = partial(figure, name="e2e_s", quantile="mean")
_energy, _fairness = partial(figure, name="energy_wh"), partial(figure, name="jain_lengths")

FREESH_LOAD = Experiment(
    name="freesh-load",
    title="FREESH, table 2 and fig. 8: half, all and twice of the load that the plan is made for",
    scenario="freesh-three-sites",
    stands_in=(
        f"{STANDS_IN} The plan is made once, for the 40 requests/s that the paper's repository predicts for these time "
        "slots, and stays, as the paper's other configurations do."
    ),
    runs=(
        *(
            Run(_label(load, order), policy, (*NOON, _DECLARED, f"workload.rate_scale={scale:g}"))
            for load, scale in _LOADS.items()
            for order, policy in _ORDERS.items()
            if order == "LLF" or load != "half the load"
        ),
        *(
            Run(label, policy, (*NOON, _DECLARED, f"workload.rate_scale={_LOADS['twice the load']:g}"))
            for label, policy in _OWN_POOLS.items()
        ),
    ),
    headlines={"twice the load: mean E2E, LLF against FCFS": "mean E2E at twice the load, LLF against FCFS"},
    rows=(
        *(
            Row(f"{what} at {load}", "fig. 8", "%", published, change(_label(load, "LLF"), _ONCE[0], name), _ROOM)
            for load, published in (("half the load", -7.0), ("twice the load", 1.0))
            for what, name in (("energy", "energy_wh"), ("carbon", "carbon_g"))
        ),
        *(
            Row(
                f"{load}: {what}, FCFS against LLF",
                "table 2",
                "%",
                published,
                change(runs[1], runs[0], *of),
                _SAME_ORDER,
            )
            for load, runs, what, published, *of in (
                ("the load", _ONCE, "energy", -2.18, "energy_wh"),
                ("the load", _ONCE, "mean E2E", -4.41, "e2e_s", "mean"),
                ("the load", _ONCE, "mean TTFT", -1.91, "ttft_s", "mean"),
            )
        ),
        *(
            Row(
                f"{load}: {what}, LLF against FCFS",
                "table 2",
                "%",
                published,
                change(runs[0], runs[1], *of),
                _SAME_ORDER,
            )
            for load, runs, what, published, *of in (
                ("twice the load", _TWICE, "energy", -9.35, "energy_wh"),
                ("twice the load", _TWICE, "carbon", -9.4, "carbon_g"),
                ("twice the load", _TWICE, "mean E2E", -70.47, "e2e_s", "mean"),
                ("twice the load", _TWICE, "violations", -62.77, "violation_rate"),
            )
        ),
        *(
            Row(f"{run}: {what}", "table 2", unit, values[n], measure(run), reason)
            for what, unit, values, measure, reason in (
                ("violations", "%", (2.0, 1.0, 35.0, 94.0), _violations, _ROOM),
                ("mean E2E", "s", (12.85, 12.28, 109.55, 370.98), _mean_e2e, _ROOM),
                ("energy", "Wh", (4651.81, 4550.15, 4653.26, 5133.22), _energy, _OTHER_LOAD),
                ("Jain's index of lengths", "", (0.65, 0.66, 0.65, 0.62), _fairness, _OTHER_LOAD),
            )
            for n, run in enumerate((*_ONCE, *_TWICE))
        ),
    ),
)
