"""mu-Serve (USENIX ATC 2024)."""

from __future__ import annotations

from core.chart_values import Bar, BarChart
from core.engine.engine_model import engine_model
from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import Calculated, Quotient, Results, change, figure, saving, times
from core.simulator.lab.why import NOT_KNOWN, Claim, why

SERVICES = ("chat", "summaries", "titles", "assistant")


def with_aging(policy: str, *settings: str) -> str:
    """Returns a policy whose queues age by 20 tokens a second; the paper does not tell its aging."""
    return f"{policy} {{{', '.join(('aging_tokens_per_s: 20', *settings))}}}"


_SCALING = with_aging("alpaserve_scaling", "clock_floor_mhz: 200")


def answers(parts: int) -> tuple[str, ...]:
    """Returns the settings of answers that are so many times shorter than the scenario's."""
    tokens = ", ".join(f"{max(1, int(length / parts)):d}" for length in (1, 129, 395, 1000))
    lengths = f"{{quantiles: {{shares: [0, 0.5, 0.75, 1], tokens: [{tokens}]}}}}"
    return tuple(f"services.{name}.workload.lengths.output={lengths}" for name in SERVICES)


_SHORT = answers(16)
_TWICE = tuple(f"services.{name}.workload.rate_scale=2" for name in SERVICES)


def _slo_scale(scale: float) -> tuple[str, ...]:
    """Returns objectives of that many times what a request takes alone: 14.4 s, the assistant's 16.6; the
    scenario has 5."""
    alone_s = {name: 16.6 if name == "assistant" else 14.4 for name in SERVICES}
    return tuple(f"services.{name}.slo.e2e_s={scale * seconds:g}" for name, seconds in alone_s.items())


_DRAWS = (2, 3)  # seeds of arrivals and lengths, beside the scenario's
_GOES_WITH = why(
    "it goes with the arrivals that are drawn, by which mu-Serve's placement has fewer GPU-hours than AlpaServe's "
    "({own} for {base}, with the third draw {third} for {third_base}) or is AlpaServe's own (the second draw); with "
    "the SLO scale: {one} times at 1, {two} at 2, {five} at 5; and with the lowest clock: {mhz400} times at 5 with 400 "
    "MHz, and {mhz800} with 800.",
    own=Claim(figure("muserve", "gpu_hours"), 10.6),
    base=Claim(figure("alpaserve", "gpu_hours"), 16.1),
    third=Claim(figure("muserve, draw 3", "gpu_hours"), 10.1),
    third_base=Claim(figure("alpaserve, draw 3", "gpu_hours"), 14.1),
    one=Claim(times("muserve, SLO scale 1", "alpaserve, SLO scale 1"), 1.44),
    two=Claim(times("muserve, SLO scale 2", "alpaserve, SLO scale 2"), 2.21),
    five=Claim(times("muserve", "alpaserve"), 2.66),
    **{
        f"mhz{mhz}": Claim(times(f"muserve, {mhz} MHz at the least", "alpaserve"), written)
        for mhz, written in ((400, 2.78), (800, 2.36))
    },
)
_OTHER_DRAWS = {
    2: why(
        "with this draw mu-Serve's placement would be late, so that AlpaServe's stays, with {gpus} GPU-hours: what is "
        "saved is the clocks', {clocks} times.",
        gpus=Claim(figure("muserve, draw 2", "gpu_hours"), 16.3),
        clocks=Claim(times("alpaserve_scaling, draw 2", "alpaserve, draw 2"), 1.85),
    ),
    3: NOT_KNOWN,
}
_SAME_CLOCKS = why(
    "the order hardly moves the clocks. At SLO scale 5 a request takes {fcfs} in the mean without the scheduler and "
    "{own} with it, but what counts are objectives of 72 and 83 s, and clocks are {fcfs_mhz} and {own_mhz}. What "
    "differs in the paper is not known.",
    fcfs=Claim(figure("muserve, FCFS", "e2e_s", "mean"), 38.8, "s"),
    own=Claim(figure("muserve", "e2e_s", "mean"), 26.4, "s"),
    fcfs_mhz=Claim(figure("muserve, FCFS", "clock_mhz"), 390.0, "MHz"),
    own_mhz=Claim(figure("muserve", "clock_mhz"), 412.0, "MHz"),
)
_UP_TO_LIMITS = why(
    "both let the slowest requests take as long as the objectives of 72 and 83 s allow: P99 is {own}, and {other} with "
    "clock scaling alone.",
    own=Claim(figure("muserve", "e2e_s", "p99"), 81.0, "s"),
    other=Claim(figure("alpaserve_scaling", "e2e_s", "p99"), 81.0, "s"),
)
_LONG = why(
    "objectives are 5 times what an answer of 512 tokens takes alone, which leaves clocks room however long answers "
    "are. With objectives of once that {once} are saved.",
    once=Claim(saving("muserve, SLO scale 1", "alpaserve, SLO scale 1"), 30.7, "%"),
)


def _idle_w() -> float:
    return engine_model("gpt2-large", "V100-16GB", 1, "eager-2023").gpu_params.idle_w


def _watts(run: str) -> Quotient:
    return Quotient(figure(run, "energy_wh"), figure(run, "gpu_hours"))


_SHORT_ONES = why(
    "both have as many GPUs, {base} and {own} GPU-hours, which draw {base_w} at AlpaServe's clocks and {own_w} at "
    "mu-Serve's, {idle} of it with nothing to do: no clocks could save that.",
    base=Claim(figure("alpaserve, short answers", "gpu_hours"), 4.0),
    own=Claim(figure("muserve, short answers", "gpu_hours"), 4.0),
    base_w=Claim(_watts("alpaserve, short answers"), 79.0, "W a GPU"),
    own_w=Claim(_watts("muserve, short answers"), 51.0, "W a GPU"),
    idle=Claim(Calculated("idle power of a V100", _idle_w), 45.0, "W"),
)
_LITTLE_WAITS = why(
    "there is little to order: at twice the rate the first token comes after {ttft} in the mean of the {e2e} that a "
    "request takes. Fig. 9 and 10 have queues.",
    ttft=Claim(figure("alpaserve, twice the rate", "ttft_s", "mean"), 0.13, "s"),
    e2e=Claim(figure("alpaserve, twice the rate", "e2e_s", "mean"), 8.03, "s"),
)

_BOTH = (("alpaserve", "alpaserve"), ("muserve", with_aging("muserve")))

MUSERVE = Experiment(
    name="muserve",
    title="mu-Serve, fig. 7, 8, 14 and 17: three services on 16 V100",
    quick=False,
    headlines={
        "mu-Serve's power saving against AlpaServe, SLO scale 1": "power saving against AlpaServe, SLO scale 1",
        "its power saving, SLO scale 5": "power saving against AlpaServe, SLO scale 5",
    },
    scenario="muserve-v100",
    stands_in=(
        "gpt2-large and Qwen3-8B for its twelve models, bursty arrivals (gamma, cv 2) for its traces. Models are put "
        "on groups of GPUs, operators not one by one. Fig. 13 gives no numbers in the text. Fig. 14 (a) is of models "
        "that are not among the engine model's; for (b) answers are a sixteenth as long. The V100 is parameter set "
        "2's: it was measured from 750 to 1,300 MHz. The paper saves while 99 % of the requests are in time. "
        "A second of waiting counts as 20 tokens; the paper does not tell its aging."
    ),
    runs=(
        Run("alpaserve", "alpaserve"),
        Run("alpaserve_scaling", _SCALING),
        Run("muserve", with_aging("muserve")),
        Run("muserve, FCFS", "muserve {order: fcfs}"),
        *(
            Run(f"muserve, {mhz} MHz at the least", with_aging("muserve", f"clock_floor_mhz: {mhz}"))
            for mhz in (400, 800)
        ),
        *(Run(f"{name}, SLO scale {scale}", policy, _slo_scale(scale)) for scale in (1, 2) for name, policy in _BOTH),
        Run("alpaserve_scaling, FCFS", "alpaserve_scaling {clock_floor_mhz: 200, order: fcfs}"),
        *(Run(f"{name}, short answers", policy, _SHORT) for name, policy in _BOTH),
        *(
            Run(f"{name}, twice the rate", policy, _TWICE)
            for name, policy in (*_BOTH, ("alpaserve_sched", with_aging("alpaserve_sched")))
        ),
        *(
            Run(f"{label}, draw {seed}", policy, (f"seed={seed}",))
            for seed in _DRAWS
            for label, policy in (*_BOTH, ("alpaserve_scaling", _SCALING))
        ),
    ),
    rows=(
        Row(
            "mu-Serve's power saving against AlpaServe, SLO scale 1",
            "fig. 7",
            "times",
            1.51,
            times("muserve, SLO scale 1", "alpaserve, SLO scale 1"),
        ),
        Row("its power saving, SLO scale 5", "fig. 7", "times", 2.29, times("muserve", "alpaserve"), _GOES_WITH),
        *(
            Row(
                f"SLO scale 5, draw {seed} of the arrivals",
                "fig. 7",
                "times",
                2.29,
                times(f"muserve, draw {seed}", f"alpaserve, draw {seed}"),
                _OTHER_DRAWS[seed],
            )
            for seed in _DRAWS
        ),
        Row(
            "its requests in time, SLO scale 5",
            "fig. 8",
            "%",
            99.0,
            figure("muserve", "slo_attainment", scale=100.0),
        ),
        Row("lowest rate", "fig. 7", "times", 2.61, times("muserve", "alpaserve"), _GOES_WITH),
        Row(
            "twice the rate",
            "fig. 7",
            "times",
            1.85,
            times("muserve, twice the rate", "alpaserve, twice the rate"),
            _GOES_WITH,
        ),
        *(
            Row(
                f"SLO scale 5, clocks of {mhz} MHz at the least",
                "fig. 7",
                "times",
                2.29,
                times(f"muserve, {mhz} MHz at the least", "alpaserve"),
                _GOES_WITH,
            )
            for mhz in (400, 800)
        ),
        Row("AlpaServe with clock scaling alone", "fig. 7", "times", 1.7, times("alpaserve_scaling", "alpaserve")),
        Row("mu-Serve against that", "4.2", "times", 1.4, times("muserve", "alpaserve_scaling")),
        *(
            Row(
                f"mu-Serve against that, draw {seed}",
                "4.2",
                "times",
                1.4,
                times(f"muserve, draw {seed}", f"alpaserve_scaling, draw {seed}"),
                _OTHER_DRAWS[seed],
            )
            for seed in _DRAWS
        ),
        Row(
            "its P99 latency against that",
            "fig. 8",
            "%",
            9.0,
            change("muserve", "alpaserve_scaling", "e2e_s", "p99"),
            _UP_TO_LIMITS,
        ),
        Row(
            "AlpaServe's P99 latency with its scheduler, twice the rate",
            "fig. 8",
            "%",
            -26.0,
            change("alpaserve_sched, twice the rate", "alpaserve, twice the rate", "e2e_s", "p99"),
            _LITTLE_WAITS,
        ),
        Row(
            "mu-Serve's saving without its scheduler",
            "fig. 17",
            "times",
            1.92,
            times("muserve, FCFS", "alpaserve"),
            _SAME_CLOCKS,
        ),
        Row(
            "AlpaServe's with clock scaling alone, without it",
            "fig. 17",
            "times",
            1.42,
            times("alpaserve_scaling, FCFS", "alpaserve"),
            _SAME_CLOCKS,
        ),
        Row("power saved, long answers", "fig. 14", "%", 10.0, saving("muserve", "alpaserve"), _LONG),
        Row(
            "power saved, short answers",
            "fig. 14",
            "%",
            59.0,
            saving("muserve, short answers", "alpaserve, short answers"),
            _SHORT_ONES,
        ),
    ),
)

_SJF = "alpaserve_sched {aging_tokens_per_s: 1}"
_ORDERS = {
    "FCFS": ("alpaserve", ()),
    "SJF": (_SJF, ()),
    "SJF that knows the lengths": (_SJF, ("length_predictor=oracle",)),
    "SJF with measured aging": ("alpaserve_sched {aging_tokens_per_s: null}", ()),
    "SJF with wrong classes drawn evenly": (_SJF, ("length_predictor={misclass: 0.57}",)),
}
_QUEUES = {
    "many": ("fig. 9", ()),  # the scenario's own load
    "bursts": ("fig. 10", ("workload.rate_rps=1.6", "workload.cv=8")),
}
_LOADS = why(
    "it goes with the load, which the paper does not tell: at 2.4 requests/s completion changes by {few} and "
    "requests in time are {few_rps} times as many, at 3.2 by {more} and {more_rps} times. With measured aging "
    "completion changes by {aging} and its P99 by {tail}, at 2.4 requests/s by {few_aging} and {few_tail} "
    "(P99 without: {few_plain}). With wrong classes drawn evenly completion changes by {wrong}.",
    **{
        f"{name}{mark}": Claim(form(*runs, what, quantile), written, unit, by=by)
        for name, rps, both in (("few", 2.4, (-28.0, 0.98)), ("more", 3.2, (-47.0, 4.7)))
        for (mark, form, runs, what, quantile, unit, by), written in zip(
            (
                ("", change, (f"SJF, {rps:g}/s", f"FCFS, {rps:g}/s"), "e2e_s", "mean", "%", 2.0),
                ("_rps", times, (f"FCFS, {rps:g}/s", f"SJF, {rps:g}/s"), "goodput_rps", None, "", 0.05),
            ),
            both,
            strict=True,
        )
    },
    aging=Claim(change("SJF with measured aging, many", "FCFS, many", "e2e_s", "mean"), -12.6, "%", by=2.0),
    tail=Claim(change("SJF with measured aging, many", "FCFS, many", "e2e_s", "p99"), 14.1, "%", by=2.0),
    few_aging=Claim(change("SJF with measured aging, 2.4/s", "FCFS, 2.4/s", "e2e_s", "mean"), -24.4, "%", by=2.0),
    few_tail=Claim(change("SJF with measured aging, 2.4/s", "FCFS, 2.4/s", "e2e_s", "p99"), 47.4, "%", by=2.0),
    few_plain=Claim(change("SJF, 2.4/s", "FCFS, 2.4/s", "e2e_s", "p99"), 136.0, "%", by=2.0),
    wrong=Claim(change("SJF with wrong classes drawn evenly, many", "FCFS, many", "e2e_s", "mean"), -10.2, "%", by=2.0),
)
_FEW_LATE = why(
    "in these bursts {kept} of the requests are in time under FCFS, so that it could be {most} times at most; more are "
    "late where the pair has more to do than it can, as above.",
    kept=Claim(figure("FCFS, bursts", "slo_attainment", scale=100.0), 79.3, "%"),
    most=Claim(Quotient(lambda _: 1.0, figure("FCFS, bursts", "slo_attainment")), 1.26),
)
_PUBLISHED = (  # mean completion time against FCFS's in %, and throughput as a multiple of it
    ("many", "SJF", -41.3, 2.5),
    ("many", "SJF that knows the lengths", -49.8, 3.6),
    ("bursts", "SJF", -38.6, 2.2),
    ("bursts", "SJF that knows the lengths", -43.8, 3.6),
)


def _completion(results: Results) -> BarChart:
    bars = tuple(Bar(label, own["e2e_s"]["mean"]) for label, own in MUSERVE_ORDER.shown(results).items())
    return BarChart("mean completion time of each run, s (simulated)", bars)


MUSERVE_ORDER = Experiment(
    name="muserve-order",
    title="mu-Serve, fig. 9 and 10: the order of a queue, gpt2-large on two V100",
    headlines={"SJF, many: mean completion time against FCFS": "mean completion time, SJF against FCFS"},
    scenario="muserve-queue",
    stands_in=(
        "One service for the paper's models, 1.2 times what its two GPUs serve (many), or 0.7 times in bursts (cv 8). "
        "Throughput is that of requests in time: all are served in the end. The paper does not tell its aging; here a "
        "second of waiting counts as a token."
    ),
    runs=(
        *(
            Run(f"{order}, {queue}", policy, (*load, *settings))
            for queue, (_, load) in _QUEUES.items()
            for order, (policy, settings) in _ORDERS.items()
        ),
        *(
            Run(f"{order}, {rps:g}/s", _ORDERS[order][0], (f"workload.rate_rps={rps:g}",))
            for rps in (2.4, 3.2)
            for order in ("FCFS", "SJF", "SJF with measured aging")
        ),
    ),
    rows=tuple(
        row
        for queue, order, completion, throughput in _PUBLISHED
        for row in (
            Row(
                f"{order}, {queue}: mean completion time against FCFS",
                _QUEUES[queue][0],
                "%",
                completion,
                change(f"{order}, {queue}", f"FCFS, {queue}", "e2e_s", "mean"),
                _LOADS,
            ),
            Row(
                f"{order}, {queue}: requests in time",
                _QUEUES[queue][0],
                "times",
                throughput,
                times(f"FCFS, {queue}", f"{order}, {queue}", "goodput_rps"),
                _FEW_LATE if queue == "bursts" else _LOADS,
            ),
        )
    ),
    listed=tuple(f"{order}, {queue}" for queue in _QUEUES for order in _ORDERS),
    chart=_completion,
)
