"""An experiment as a value: which runs, what was published of each, and what of a run stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core.chart_values import BarChart
from core.simulator.lab.measures import Calculated, Measure, Results
from core.simulator.lab.why import NOT_KNOWN, Why

CONVERSATION = "azure-2023-conv"


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario under a policy (`NAME {key: value}`). The label is what rows and pictures call it."""

    label: str
    policy: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A published figure and ours. `why`: where ours is off by more than 15 %, what that comes from."""

    label: str
    place: str
    unit: str
    published: float
    ours: Measure
    why: Why = NOT_KNOWN


@dataclass(frozen=True, slots=True)
class Table:
    """A table computed from all runs together, in words. `about` is said above it."""

    about: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """`trace`: a public trace that takes the workload's place; None: the scenario's own generator.

    `headlines`: labels of the rows that the document opens with, and what they are called there. `quick`: whether its
    runs are done when no experiment is named.
    `stands_in`: what is not the paper's own. `bound`: whether the bound is worked out beside the runs.
    `listed`: labels of the runs that table and picture show; none: all of them. `table`: of all runs. `chart`: of all
    runs, in place of the energy of each.
    `decomposed`: label of the run whose energy is taken apart, from the bound up; empty: none.
    """

    name: str
    title: str
    scenario: str
    runs: tuple[Run, ...]
    rows: tuple[Row, ...] = ()
    headlines: Mapping[str, str] = field(default_factory=dict)
    quick: bool = True
    trace: str | None = None
    stands_in: str = ""
    bound: bool = False
    listed: tuple[str, ...] = ()
    table: Callable[[Results], Table] | None = None
    chart: Callable[[Results], BarChart] | None = None
    decomposed: str = ""

    @property
    def paper(self) -> str:
        return self.title.partition(",")[0]

    @property
    def calculated(self) -> tuple[Calculated, ...]:
        """Returns the figures of its rows, and of what is said of them, that no run has."""
        measures = (m for row in self.rows for m in (row.ours, *(claim.measure for claim in row.why.claims.values())))
        return tuple({m.name: m for m in measures if isinstance(m, Calculated)}.values())

    def shown(self, results: Results) -> Results:
        """Returns those of the present runs that table and picture show."""
        return {own.label: results[own.label] for own in self.runs if own.label in results and self._lists(own.label)}

    def _lists(self, label: str) -> bool:
        return not self.listed or label in self.listed


def plain(*policies: str) -> tuple[Run, ...]:
    """Returns a run of each policy, labelled by its name."""
    return tuple(Run(policy, policy) for policy in policies)
