"""FREESH's sensitivity (arXiv 2511.00807, 4.4, A.2): load, classifier, and a carbon intensity below zero."""

from __future__ import annotations

from dataclasses import dataclass

from core.simulator.lab.experiment import Experiment, Row, Run
from core.simulator.lab.measures import Results, change
from core.simulator.lab.papers.freesh import CLOCKS_ALONE, NOON, STANDS_IN
from core.simulator.lab.why import Claim, why

_WRONG = {0.1: "10 %", 0.2: "20 %", 0.3: "30 %", 0.4: "40 %"}  # of the classes
_LOADS = {0.5: "half the load", 2.0: "twice the load"}
# Marginal rates of the three sites in time slots 0 to 4, lb/MWh: the paper's repository (AndrewFangZequan/
# LLM_Serving_FREESH, MIT), whose slots have five minutes. Here each has an hour.
_SLOTS = (
    (2500.76, 752.54, 871.75, 1513.52, 2996.05),
    (1046.95, 869.00, 575.25, 4140.52, -3679.90),
    (1977.78, 751.23, 924.32, 2634.91, 448.64),
)
_G_PER_KWH = 0.45359  # of 1 lb/MWh
_SIGNAL = (
    "workload.duration_s=18000",
    *(
        f"sites.location-{n}.carbon_g_per_kwh=[{', '.join(f'{_G_PER_KWH * rate:.1f}' for rate in rates)}]"
        for n, rates in enumerate(_SLOTS, 1)
    ),
)
_ONE_PARTITION, _BOTH = "one partition, slots 0 to 4", "freesh, slots 0 to 4"

_LAID_OUT = {words: f"{words}, clocks alone" for words in ("the load", *_LOADS.values())}
_TRIPLE = ", three times the load"
_FOLLOWS = why(
    "what FREESH has running follows the load here, and its energy does: {half} for half and {twice} for twice of it; "
    "with a fleet laid out once for each load and clocks alone {half_alone} and {twice_alone}. The published ones mean "
    "a draw that hardly depends on the load.",
    "fig. 8",
    half=Claim(change("half the load", "freesh", "energy_wh"), -37.4, "%"),
    twice=Claim(change("twice the load", "freesh", "energy_wh"), 72.9, "%"),
    half_alone=Claim(change(_LAID_OUT["half the load"], _LAID_OUT["the load"], "energy_wh"), -30.0, "%"),
    twice_alone=Claim(change(_LAID_OUT["twice the load"], _LAID_OUT["the load"], "energy_wh"), 85.0, "%"),
)


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest change, in per cent, against right classes, over all shares of wrong ones."""

    name: str
    quantile: str | None = None

    def __call__(self, results: Results) -> float | None:
        changes = (change(f"{words} wrong", "freesh", self.name, self.quantile) for words in _WRONG.values())
        known = [own for one in changes if (own := one(results)) is not None]
        return max(known, key=abs, default=None)


_BAND = why(
    "5 % is the width of the published band; ours, of {largest}, stays within it.",
    "fig. 8",
    largest=Claim(Largest("energy_wh"), 1.31, "%", by=1.0),
)
_TAIL = why(
    "that is the mean of 40 % wrong, for which the plan has {gpus} more GPU-hours; with 30 % wrong it moves by {less}. "
    "The published one is the top of a band, of which neither the measure nor the accuracies are given.",
    gpus=Claim(change("40 % wrong", "freesh", "gpu_hours"), 12.0, "%"),
    less=Claim(change("30 % wrong", "freesh", "e2e_s", "mean"), 2.0, "%", by=1.0),
)
_SIGN = why(
    "the sign goes with what runs at location 2 in the fifth slot, where carbon is below zero: {own} at this load, "
    "{triple} at three times, when more has to. What the paper's five minutes carry is not given.",
    own=Claim(change(_BOTH, _ONE_PARTITION, "carbon_g"), -72.9, "%"),
    triple=Claim(change(_BOTH + _TRIPLE, _ONE_PARTITION + _TRIPLE, "carbon_g"), -94.0, "%"),
)

FREESH_SENSITIVITY = Experiment(
    name="freesh-sensitivity",
    title="FREESH, fig. 8 and table 3: load, wrong classes, and a carbon intensity below zero",
    headlines=("energy at half the load",),
    scenario="freesh-three-sites",
    stands_in=f"{STANDS_IN} Table 3's slots of five minutes are hours here.",
    runs=(
        Run("freesh", "freesh", NOON),
        *(Run(words, "freesh", (*NOON, f"workload.rate_scale={scale:g}")) for scale, words in _LOADS.items()),
        *(
            Run(f"{words} wrong", "freesh", (*NOON, f"length_predictor.misclass={share:g}"))
            for share, words in _WRONG.items()
        ),
        Run(_ONE_PARTITION, "freesh {partition: default}", _SIGNAL),
        Run(_BOTH, "freesh", _SIGNAL),
        *(
            Run(_LAID_OUT[words], CLOCKS_ALONE, (*NOON, f"workload.rate_scale={scale:g}"))
            for scale, words in {1.0: "the load", **_LOADS}.items()
        ),
        Run(_ONE_PARTITION + _TRIPLE, "freesh {partition: default}", (*_SIGNAL, "workload.rate_scale=3")),
        Run(_BOTH + _TRIPLE, "freesh", (*_SIGNAL, "workload.rate_scale=3")),
    ),
    rows=(
        *(
            Row(f"{what} at {words}", "fig. 8", "%", published, change(words, "freesh", name), _FOLLOWS)
            for words, published in (("half the load", -7.0), ("twice the load", 1.0))
            for what, name in (("energy", "energy_wh"), ("carbon", "carbon_g"))
        ),
        Row("energy's largest change when classes are wrong", "fig. 8", "%", 5.0, Largest("energy_wh"), _BAND),
        Row("E2E's", "fig. 8", "%", 36.2, Largest("e2e_s", "mean"), _TAIL),
        Row(
            "carbon of both partitions against the first",
            "table 3",
            "%",
            -207.0,
            change(_BOTH, _ONE_PARTITION, "carbon_g"),
            _SIGN,
        ),
    ),
    listed=(
        *("freesh", *_LOADS.values(), *(f"{words} wrong" for words in _WRONG.values())),
        *(_ONE_PARTITION, _BOTH),
    ),
)
