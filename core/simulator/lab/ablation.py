"""Measures what each idea of `greenserve` saves: switched off alone and, where that makes sense, on alone, over five
seeds.

The first ten minutes of the common hour are drawn anew for each seed (which requests have copies, and when these come).
All variants of a seed have the same requests, so that savings are compared in pairs. Beside them stands the whole hour,
once: what the ten minutes stand for. Intervals are Student's t, 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from core.chart_values import Bar, BarChart
from core.simulator.lab.experiment import CONVERSATION, Experiment, Run, Table
from core.simulator.lab.measures import Results

Seeds = Sequence[int | None]  # None: the whole hour
SEEDS: Seeds = tuple(range(1, 6))
HOUR: Seeds = (None,)
_T_95 = {5: 2.776, 10: 2.262}  # Student's t by the number of values, 95 % on both sides
_STRETCH = "workload.duration_s=600"
_PLAIN = "order: fcfs, chunk_tokens: 0"  # queues as every engine has them
_BY_PROFILE = "clock: profile, clock_floor: voltage, clock_tpot_share: 0.75"
_ONE_DEGREE = "fleet.tp_choices=[8]"


@dataclass(frozen=True, slots=True)
class Variant:
    """`greenserve` with other knobs, or settings of the scenario."""

    label: str
    knobs: str = ""
    settings: tuple[str, ...] = ()

    def named(self, seed: int | None) -> str:
        return f"{self.label}, the hour" if seed is None else f"{self.label}, seed {seed}"

    def run(self, seed: int | None) -> Run:
        drawn = () if seed is None else (_STRETCH, f"seed={seed}")
        policy = f"greenserve {{{self.knobs}}}" if self.knobs else "greenserve"
        return Run(self.named(seed), policy, (*self.settings, *drawn))

    def energy_wh(self, results: Results, seed: int | None) -> float:
        return float(results[self.named(seed)]["energy_wh"])


WHOLE = Variant("greenserve")
NOTHING = Variant("nothing of it", f"scale: static, clock: fixed, {_PLAIN}")
OFF = (  # each is what it is without
    Variant("the fleet follows the load", "scale: static"),
    Variant("the clock follows the load", "clock: fixed"),
    Variant("three TP degrees, not 8 alone", settings=(_ONE_DEGREE,)),
    Variant("the fleet each 10 s, not 300", "scale_period_s: 300"),
    Variant("clocks by deadlines, not by profile", _BY_PROFILE),
    Variant("clocks below the voltage's knee", "clock_floor: voltage"),
    Variant("counts by what came, not by rates alone", "tuning: {right_size: {replay: false}}"),
    Variant("routing by backlog, not by requests", "route: least_loaded"),
    Variant("servers stand ready, none is booted", "tuning: {starts: {warm_pool: 0}}"),
    Variant("shortest prompt first", "order: fcfs"),
    Variant("prompts in chunks", "chunk_tokens: 0"),
)
ALONE = (
    Variant("alone: the fleet follows the load", f"clock: fixed, {_PLAIN}"),
    Variant("alone: the fleet, of TP8", f"clock: fixed, {_PLAIN}", (_ONE_DEGREE,)),
    Variant("alone: the clock follows the load", f"scale: static, {_PLAIN}"),
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and half the width of its interval. None: of one value."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        return cls(
            fmean(values), _T_95[len(values)] * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        )

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.half is None else f"{self.mean:.1f} ± {self.half:.1f}"


def saving(results: Results, seeds: Seeds) -> Estimate:
    """Estimates the saving of all ideas together, in per cent of what a run with none of them takes."""
    return Estimate.of(
        [100.0 * (1.0 - WHOLE.energy_wh(results, seed) / NOTHING.energy_wh(results, seed)) for seed in seeds]
    )


def share(results: Results, variant: Variant, seeds: Seeds) -> Estimate:
    """Estimates, in per cent of that saving, what an idea saves alone, or else what is lost without it."""

    def of(seed: int | None) -> float:
        own, least, most = (one.energy_wh(results, seed) for one in (variant, WHOLE, NOTHING))
        return 100.0 * (most - own if variant in ALONE else own - least) / (most - least)

    return Estimate.of([of(seed) for seed in seeds])


def _attainment(results: Results, variant: Variant, seeds: Seeds) -> str:
    kept = [results[variant.named(seed)]["slo_attainment"] for seed in seeds]
    return "-" if None in kept else f"{fmean(kept):.4f}"


def table(results: Results) -> Table:
    """Lists what each idea saves alone and what is lost without it, with intervals and SLO attainment."""

    def row(variant: Variant, *figures: Estimate) -> tuple[str, ...]:
        both = (_attainment(results, variant, seeds) for seeds in (SEEDS, HOUR))
        return variant.label, *(cell for pair in zip(map(str, figures), both, strict=True) for cell in pair)

    def shares(variant: Variant) -> tuple[str, ...]:
        return row(variant, *(share(results, variant, seeds) for seeds in (SEEDS, HOUR)))

    return Table(
        "Of the saving, in per cent: what is lost without an idea, and what it saves alone. Ideas do each other's work "
        "in part, so that shares need not add up. The first line is the saving itself, in per cent of the energy that "
        "all GPUs take at TP8 and the top clock.",
        ("idea", "share, five seeds", "attainment", "share, the whole hour", "attainment"),
        (
            row(WHOLE, *(saving(results, seeds) for seeds in (SEEDS, HOUR))),
            *map(shares, OFF),
            *map(shares, ALONE),
        ),
    )


def chart(results: Results) -> BarChart:
    """Returns the bars of each idea's share of the saving."""
    shares = [(variant.label, share(results, variant, SEEDS)) for variant in (*OFF, *ALONE)]
    return BarChart(
        "share of greenserve's saving, %, with its 95 % interval",
        tuple(Bar(label, found.mean, found.half) for label, found in shares),
    )


_ALL = (WHOLE, NOTHING, *OFF, *ALONE)

ABLATION = Experiment(
    name="ablation",
    quick=False,
    title="What each idea of greenserve saves: the conversation hour on 12 x 8 H100",
    scenario="dynamollm-70b-h100",
    trace=CONVERSATION,
    stands_in=(
        "Five seeds of the hour's first ten minutes stand in for five hours; the hour itself stands beside them. One "
        "pool for all classes is no switch: what nine pools take is dynamollm's, among all policies on one scenario."
    ),
    runs=tuple(variant.run(seed) for seed in (*HOUR, *SEEDS) for variant in _ALL),
    table=table,
    chart=chart,
    listed=tuple(variant.named(None) for variant in _ALL),
)
