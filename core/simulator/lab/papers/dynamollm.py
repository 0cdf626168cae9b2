"""DynamoLLM (HPCA 2025)."""

from __future__ import annotations

from core.simulator.lab.experiment import CONVERSATION, Experiment, Row, Run, Table
from core.simulator.lab.measures import Measure, Results, change, figure, saving
from core.simulator.lab.why import NOT_KNOWN, Claim, Why, why

# Pools by class do not fit twelve nodes at 17 times the rate: their queues grow, and it is the figures that say so.
_CROWDED = "overload=allow"
_EIGHT = "workload.rate_scale=8"
_ONE_POOL = "single_pool"
_SIX = "single_pool of 6, 8 times"

_FULL = why(
    "at 17 times the rate nine pools do not fit twelve nodes, and what waits is served after the hour: ScaleInst keeps "
    "{full} of the requests in time, and {eighth} at 8 times, where it saves {inst}.",
    full=Claim(figure("scale_inst", "slo_attainment", scale=100.0), 59.7, "%"),
    eighth=Claim(figure("scale_inst, 8 times", "slo_attainment", scale=100.0), 99.4, "%", within=0.01),
    inst=Claim(saving("scale_inst, 8 times", "single_pool, 8 times"), 4.13, "%", by=1.0),
)
_CLOCK = why(
    "instances run at {full} in the mean at 17 times the rate and at {eighth} at 8 times, for SinglePool's {top}. The "
    "paper's measured energy of a request at TP8 is 19 to 21 % less at its best clock.",
    "table II",
    full=Claim(figure("scale_freq", "clock_mhz"), 1260.0, "MHz"),
    eighth=Claim(figure("scale_freq, 8 times", "clock_mhz"), 880.0, "MHz"),
    top=Claim(figure("single_pool", "clock_mhz"), 1980.0, "MHz"),
)
_ROOM = why(
    "it goes with how full the twelve servers are: {full} at 17 times the rate, where one pool just holds, {eighth} at "
    "8 times, where nine do; 35 % lies between.",
    full=Claim(saving("dynamollm", "single_pool"), 25.8, "%"),
    eighth=Claim(saving("dynamollm, 8 times", "single_pool, 8 times"), 51.4, "%"),
)
_SLACK = why(
    "the limits leave it: P99 TTFT may be 250 ms to 2 s, and TBT 100 ms, and each knob takes its part. At 8 times the "
    "rate P50 TTFT is {inst} above SinglePool's with the scale loop alone, {shard} with re-sharding, {freq} with "
    "clocks.",
    "table IV",
    **{
        name: Claim(change(f"scale_{name}, 8 times", "single_pool, 8 times", "ttft_s", "p50"), written, "%", by=1.0)
        for name, written in (("inst", 5.5), ("shard", 33.3), ("freq", 113.0))
    },
)
_MORE_SERVERS = why(
    "with twelve servers for both, those that MultiPool leaves idle draw less. One pool holds this rate on six servers "
    "({kept} in time), and against those MultiPool's twelve take {more} more.",
    kept=Claim(figure(_SIX, "slo_attainment", scale=100.0), 99.8, "%", within=0.01),
    more=Claim(change("multi_pool, 8 times", _SIX, "energy_wh"), 69.5, "%"),
)
_HALF_EMPTY = why(
    "fewer instances need TP8 when they are half as full: {gpus} less GPU time than SinglePool's at 8 times the rate, "
    "{full} at 17 times, where it saves {saved}.",
    gpus=Claim(saving("scale_shard, 8 times", "single_pool, 8 times", "gpu_hours"), 22.5, "%"),
    full=Claim(saving("scale_shard", "single_pool", "gpu_hours"), 5.3, "%", by=1.0),
    saved=Claim(saving("scale_shard", "single_pool"), 8.2, "%"),
)
_TWELVE = why(
    "it goes with the servers that the baseline has, which the paper does not tell. Ours has twelve at each load; "
    "against one, two and four, which just carry the loads in one pool, DynamoLLM takes {low}, {medium} and {high} "
    "more. The published savings lie between.",
    **{
        load: Claim(
            change(f"dynamollm, {load}", f"single_pool of {servers}, {load}", "energy_wh"), written, "%", by=2.0
        )
        for load, servers, written in (("low", 1, 18.3), ("medium", 2, 11.5), ("high", 4, 0.082))
    },
)
_RIGHT, _WRONG = "dynamollm, medium", "dynamollm, medium, 40 % wrong"
_OURS, _OURS_WRONG = "greenserve, medium", "greenserve, medium, 40 % wrong"
_FEWER = why(
    "a wrong class goes to a pool whose nodes are there anyway: it takes {gpus} more GPU time at this load, and the "
    "energy at the high load changes by {high}.",
    gpus=Claim(change(_WRONG, _RIGHT, "gpu_hours"), 1.6, "%", by=1.0),
    high=Claim(change("dynamollm, high, 40 % wrong", "dynamollm, high", "energy_wh"), -1.95, "%", by=2.0),
)
_LONGER = why(
    "greenserve plans for the mean of the predicted answers, which wrong classes, drawn evenly, make longer: it has "
    "{gpus} more GPU time than with right ones, and the first token comes {sooner} sooner.",
    gpus=Claim(change(_OURS_WRONG, _OURS, "gpu_hours"), 3.6, "%", by=1.5),
    sooner=Claim(saving(_OURS_WRONG, _OURS, "ttft_s", "mean"), 4.38, "%", by=1.5),
)


_FULL_HOUR = why(
    "it goes with how full the servers are, as the energy does: at 8 times the rate it is {less} less.",
    less=Claim(saving("dynamollm, 8 times", "single_pool, 8 times", "power_w", "p50"), 51.0, "%"),
)

_FIG_6 = (  # what a row is called; the policy; published; why ours is off at 17 and at 8 times the rate
    ("MultiPool's saving against SinglePool", "multi_pool", -20.0, _FULL, _MORE_SERVERS),
    ("ScaleInst's", "scale_inst", 4.1, _FULL, NOT_KNOWN),
    ("ScaleShard's", "scale_shard", 7.0, _FULL, _HALF_EMPTY),
    ("ScaleFreq's", "scale_freq", 19.0, _CLOCK, _CLOCK),
    ("DynamoLLM's saving against SinglePool", "dynamollm", 35.0, _ROOM, _ROOM),
)
_FIG_7 = (  # against SinglePool's at 17 times the rate
    ("DynamoLLM's P99 TTFT against SinglePool's", -5.3, "ttft_s", "p99"),
    ("its P99 TBT", -11.1, "itl_s", "p99"),
    ("its P50 TTFT", 11.4, "ttft_s", "p50"),
    ("its P50 TBT", 7.6, "itl_s", "p50"),
)


def _percent(label: str, place: str, published: float, ours: Measure, reason: Why = NOT_KNOWN) -> Row:
    return Row(label, place, "%", published, ours, reason)


def _eighth(name: str) -> str:
    return f"{name}, 8 times"


def _both_rates(name: str) -> tuple[Run, Run]:
    crowded = () if name in (_ONE_POOL, "dynamollm") else (_CROWDED,)
    return Run(name, name, crowded), Run(_eighth(name), name, (_EIGHT, *crowded))


DYNAMOLLM = Experiment(
    name="dynamollm",
    title="DynamoLLM, fig. 6 to 8: Llama2-70B on 12 x 8 H100, the conversation hour",
    headlines={
        "DynamoLLM's saving against SinglePool": "energy saved, 17 times the hour",
        "DynamoLLM's saving against SinglePool, 8 times": "energy saved, 8 times the hour",
    },
    scenario="dynamollm-70b-h100",
    trace=CONVERSATION,
    stands_in=(
        "The hour at 17 times its rate, the most that twelve TP8 instances hold within table IV in one pool, and at 8 "
        "times, what nine pools hold; shape kept. The paper scales nothing. GPUs are the engine model's. Fig. 9 and "
        "10 give no numbers in the text."
    ),
    runs=(
        *(run for name in (_ONE_POOL, *(name for _, name, *_ in _FIG_6)) for run in _both_rates(name)),
        Run(_SIX, _ONE_POOL, (_EIGHT, "fleet.count=6")),
    ),
    rows=(
        *(_percent(label, "fig. 6", given, saving(name, _ONE_POOL), full) for label, name, given, full, _ in _FIG_6),
        *(
            _percent(f"{label}, 8 times", "fig. 6", given, saving(_eighth(name), _eighth(_ONE_POOL)), eighth)
            for label, name, given, _, eighth in _FIG_6
        ),
        *(_percent(label, "V-B", given, change("dynamollm", _ONE_POOL, *of), _SLACK) for label, given, *of in _FIG_7),
        *(
            _percent(label, "fig. 8", given, change("dynamollm", _ONE_POOL, "power_w", quantile), _FULL_HOUR)
            for label, given, quantile in (("its P50 power", -43.0, "p50"), ("its P99 power", -9.0, "p99"))
        ),
    ),
)

_LOADS = {  # requests/s; published saving in %; servers that just carry it in one pool
    "low": (6.75, 51.0, 1),
    "medium": (20.8, 40.0, 2),
    "high": (41.6, 23.4, 4),
}
_MISCLASS = "length_predictor.misclass=0.4"


def poisson(load: str, *more: str) -> tuple[str, ...]:
    """Returns the settings of half an hour of Poisson arrivals at one of fig. 12's loads, in requests/s."""
    rps = _LOADS[load][0]
    plain = ("workload.generate=poisson", "workload.lengths=azure-conv", "workload.rate_scale=1")
    return (*plain, "workload.duration_s=1800", f"workload.rate_rps={rps}", *more)


_SYSTEMS = (*(name for _, name, *_ in _FIG_6[:-1]), "dynamollm")


def by_load(results: Results) -> Table:
    """Lists what each of the systems saves against SinglePool at each load, and the requests in time."""
    rows = []
    for system in _SYSTEMS:
        pairs = [(results[f"{system}, {load}"], results[f"{_ONE_POOL}, {load}"]) for load in _LOADS]
        cells = [
            (f"{100.0 * (1.0 - own['energy_wh'] / one['energy_wh']):.1f}", f"{own['slo_attainment']:.3f}")
            for own, one in pairs
        ]
        rows.append((system, *(cell for pair in cells for cell in pair)))
    return Table(
        "Fig. 12's systems: what each saves against SinglePool, in per cent, and the requests in time. Published, in "
        "the text: DynamoLLM's alone.",
        ("", *(head for load in _LOADS for head in (f"{load} load", "attainment"))),
        tuple(rows),
    )


DYNAMOLLM_LOADS = Experiment(
    name="dynamollm-loads",
    quick=False,
    title="DynamoLLM, fig. 11 and 12: three loads, and lengths that are predicted wrong",
    headlines={"saving at medium load": "energy saved at medium load"},
    scenario="dynamollm-70b-h100",
    stands_in=(
        "Half an hour of Poisson arrivals at 650, 2,000 and 4,000 prompt tokens/s a server (tables I and II), with the "
        "conversation hour's lengths."
    ),
    runs=(
        *(Run(f"{name}, {load}", name, poisson(load)) for load in _LOADS for name in (_ONE_POOL, "dynamollm")),
        *(
            Run(f"{name}, {load}", name, poisson(load, _CROWDED))
            for load in _LOADS
            for name in _SYSTEMS
            if name != "dynamollm"
        ),
        *(
            Run(f"{_ONE_POOL} of {servers}, {load}", _ONE_POOL, poisson(load, f"fleet.count={servers}"))
            for load, (_, _, servers) in _LOADS.items()
        ),
        *(
            Run(label, policy, poisson(load, *more))
            for policy, label, load, *more in (
                ("dynamollm", _WRONG, "medium", _MISCLASS),
                ("dynamollm", "dynamollm, high, 40 % wrong", "high", _MISCLASS),
                ("greenserve", _OURS, "medium"),
                ("greenserve", _OURS_WRONG, "medium", _MISCLASS),
            )
        ),
    ),
    table=by_load,
    rows=(
        *(
            _percent(
                f"saving at {load} load",
                "fig. 12",
                given,
                saving(f"dynamollm, {load}", f"{_ONE_POOL}, {load}"),
                _TWELVE,
            )
            for load, (_, given, _) in _LOADS.items()
        ),
        _percent(
            "energy when 40 % of the classes are wrong", "fig. 11", 13.0, change(_WRONG, _RIGHT, "energy_wh"), _FEWER
        ),
        _percent("TTFT then", "fig. 11", 7.3, change(_WRONG, _RIGHT, "ttft_s", "mean"), _FEWER),
        _percent("greenserve's energy then", "fig. 11", 13.0, change(_OURS_WRONG, _OURS, "energy_wh"), _LONGER),
        _percent("its TTFT", "fig. 11", 7.3, change(_OURS_WRONG, _OURS, "ttft_s", "mean"), _LONGER),
    ),
)
