"""Shows what a predictor of lengths is worth: measured classifiers against perfect foresight, and against none.

A classifier is its confusion. The published one has classes of other shares of the requests than ours, so that each
gets, on a load, the borders that leave its shares what they were where it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from core.simulator.lab.experiment import Experiment, Run, Table
from core.simulator.lab.measures import Results, in_words
from core.simulator.lab.papers.muserve_predictor import PUBLISHED_MODEL

Counts = tuple[tuple[int, ...], ...]

PUBLISHED: Counts = tuple(tuple(int(count) for count in row) for row in PUBLISHED_MODEL)
# Of `greenserve predictor score` on the answers of 219 models to 644 prompts (alpaca_eval): docs/predictors.md.
TEXT: Counts = (
    (2305, 8, 0, 12, 781),
    (1704, 4, 4, 8, 1372),
    (1276, 4, 4, 18, 1769),
    (977, 10, 5, 14, 2077),
    (698, 8, 3, 11, 2384),
)
MEMORY: Counts = (
    (2674, 329, 69, 24, 10),
    (695, 1446, 701, 207, 43),
    (92, 566, 1198, 1000, 215),
    (27, 137, 509, 1562, 848),
    (24, 52, 120, 653, 2255),
)
_PUBLISHED_SHARES = (0.304, 0.513, 0.728, 0.988)  # of its requests that lie below each border
_OWN_SHARES = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True, slots=True)
class AnswerLengths:
    """Holds a load's answers: the lengths at the shares that classes are cut at, and in the middle, in tokens."""

    published: tuple[int, ...]  # at _PUBLISHED_SHARES
    own: tuple[int, ...]  # at _OWN_SHARES
    median: int

    def predictors(self) -> Mapping[str, str]:
        """Returns the scenario's `length_predictor` by what each is called."""
        return {
            "perfect": "oracle",
            "memory across models": _confusion(self.own, MEMORY),
            "text alone": _confusion(self.own, TEXT),
            "the published classifier": _confusion(self.published, PUBLISHED),
            "none": f"{{constant: {self.median}}}",
        }


def _confusion(borders: tuple[int, ...], requests: Counts) -> str:
    return f"{{confusion: {{borders: {json.dumps(borders)}, requests: {json.dumps(requests)}}}}}"


CONVERSATION = AnswerLengths((91, 134, 392, 594), (77, 103, 177, 400), 129)
QUEUE = AnswerLengths((95, 142, 372, 600), (68, 111, 235, 438), 129)
_DRAWS = range(1, 6)
_SJF = "alpaserve_sched {aging_tokens_per_s: 1}"
_POLICIES = ("dynamollm", "greenserve")


def _label(policy: str, predictor: str) -> str:
    return f"{policy}, {predictor}"


def _draw(predictor: str, seed: int) -> str:
    return f"{predictor}, draw {seed}"


def _gains(results: Results) -> Table:
    """Sets what each predictor brings beside none, by policy."""
    rows = []
    for policy in _POLICIES:
        none = results[_label(policy, "none")]
        for predictor in CONVERSATION.predictors():
            run = results[_label(policy, predictor)]
            rows.append(
                (
                    policy,
                    predictor,
                    in_words(run["energy_wh"] / 1000.0),
                    f"{100.0 * (run['energy_wh'] / none['energy_wh'] - 1.0):+.1f} %",
                    in_words(run["e2e_s"]["mean"]),
                    f"{100.0 * (run['e2e_s']['mean'] / none['e2e_s']['mean'] - 1.0):+.1f} %",
                    f"{100.0 * run['slo_attainment']:.1f} %",
                )
            )
    return Table(
        "What a predictor brings, beside a policy that takes every answer for the median's length.",
        ("policy", "predictor", "energy, kWh", "against none", "mean E2E, s", "against none", "in time"),
        tuple(rows),
    )


def _order(results: Results) -> Table:
    """Sets mean completion times of all draws beside first come, first served."""
    fcfs = _mean(results, "FCFS", _e2e_s)
    rows = []
    for predictor in ("FCFS", *QUEUE.predictors()):
        own = _mean(results, predictor, _e2e_s)
        energy = _mean(results, predictor, lambda run: float(run["energy_wh"]))
        in_time = _mean(results, predictor, lambda run: float(run["slo_attainment"]))
        change = f"{100.0 * (own / fcfs - 1.0):+.1f} %"
        rows.append((predictor, in_words(own), change, in_words(energy), f"{100.0 * in_time:.1f} %"))
    return Table(
        f"Means of {len(_DRAWS)} draws: first come, first served, and shortest predicted first.",
        ("predictor", "mean E2E, s", "against FCFS", "energy, Wh", "in time"),
        tuple(rows),
    )


def _mean(results: Results, predictor: str, figure: Callable[[Mapping[str, Any]], float]) -> float:
    """Returns the mean over draws of a figure of a run."""
    return sum(figure(results[_draw(predictor, seed)]) for seed in _DRAWS) / len(_DRAWS)


def _e2e_s(run: Mapping[str, Any]) -> float:
    return float(run["e2e_s"]["mean"])


PREDICTORS = Experiment(
    name="predictors",
    title="What a length predictor brings: pools by class, on half an hour like the conversation trace",
    scenario="dynamollm-70b-h100",
    quick=False,
    stands_in=(
        "Half an hour at six times the trace's rate. A classifier says a class, and a request is taken for a typical "
        "length of that class, also where the class is right; perfect foresight knows the length itself."
    ),
    runs=tuple(
        Run(
            _label(policy, name),
            policy,
            (f"length_predictor={said}", "workload.rate_scale=6", "workload.duration_s=1800"),
        )
        for policy in _POLICIES
        for name, said in CONVERSATION.predictors().items()
    ),
    table=_gains,
)

PREDICTORS_ORDER = Experiment(
    name="predictors-order",
    title="What a length predictor brings: the order of a queue",
    scenario="muserve-queue",
    stands_in="The load of the experiment muserve-predictor.",
    runs=(
        *(Run(_draw("FCFS", seed), "alpaserve", (f"seed={seed}",)) for seed in _DRAWS),
        *(
            Run(_draw(name, seed), _SJF, (f"seed={seed}", f"length_predictor={said}"))
            for name, said in QUEUE.predictors().items()
            for seed in _DRAWS
        ),
    ),
    listed=tuple(_draw(name, 1) for name in ("FCFS", *QUEUE.predictors())),
    table=_order,
)
