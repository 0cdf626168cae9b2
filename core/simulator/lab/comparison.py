"""Published beside simulated, row by row, with what a saving cost in attainment, and what is said of the rows that are
off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.simulator.lab.experiment import Experiment, Row
from core.simulator.lab.measures import CALCULATED, Calculated, Results, in_words, pairs_of

OFF = 0.15  # by which a figure may differ from the published one without a word
KEPT = 0.99  # the attainment from which a saving is one without a mark
MARK = "†"


@dataclass(frozen=True, slots=True)
class Attained:
    """The SLO attainment of the run that saves, and of its baseline; None: it has no objectives, or no baseline."""

    own: float | None
    baseline: float | None

    @property
    def short(self) -> bool:
        """True where it keeps fewer requests in time than its baseline, or than 99 %, as far as tables show."""
        own = None if self.own is None else round(self.own, 3)
        return own is not None and own < max(KEPT, round(self.baseline or 0.0, 3))

    def words(self, unknown: str = "-", space: str = " ") -> str:
        """Writes `96.1 % (99.7 %) †`: the run's, the baseline's, and the mark of one that is short."""
        if self.own is None:
            return unknown
        words = [f"{100.0 * self.own:.1f} %"]
        words += [] if self.baseline is None else [f"({100.0 * self.baseline:.1f} %)"]
        return " ".join([*words, *([MARK] if self.short else [])]).replace(" ", space)


@dataclass(frozen=True, slots=True)
class Compared:
    """A row with our figure. None: its runs do not have it or, while `open`, are not all there.

    `reason`: the row's, with the figures of the runs. `attained`: of a row about what is spent.
    """

    row: Row
    ours: float | None
    reason: str
    attained: Attained | None = None
    open: bool = False

    @property
    def ratio(self) -> float | None:
        return None if self.ours is None else self.ours / self.row.published

    @property
    def off(self) -> bool:
        """True where it differs enough to need a word. One that the runs do not have does."""
        return not self.open and (self.ratio is None or abs(self.ratio - 1.0) > OFF)

    @property
    def why(self) -> str:
        """The explanation of a row that is off; empty for others."""
        return self.reason if self.off else ""

    @property
    def calculated(self) -> bool:
        return isinstance(self.row.ours, Calculated)

    def words(self, unknown: str = "-", space: str = " ") -> tuple[str, str, str, str]:
        """Returns published, simulated, attainment and ratio, as every table has them."""
        unit = f"{space}{self.row.unit}" if self.row.unit else ""
        ours = unknown if self.ours is None else f"{in_words(self.ours)}{unit}"
        ours += f", {CALCULATED}" if self.calculated else ""
        attained = "" if self.attained is None else self.attained.words(unknown, space)
        return f"{self.row.published:.4g}{unit}", ours, attained, unknown if self.ratio is None else f"{self.ratio:.2f}"

    def as_json(self) -> dict[str, Any]:
        own, attained = self.row, self.attained or Attained(None, None)
        return {
            **{"label": own.label, "place": own.place, "unit": own.unit, "published": own.published},
            **{"simulated": self.ours, "calculated": self.calculated, "ratio": self.ratio, "why": self.why},
            **{"attainment": attained.own, "baseline_attainment": attained.baseline, "short": attained.short},
        }


def compared(experiment: Experiment, results: Results) -> list[Compared]:
    """Compares an experiment that may still be under way, or some of whose runs failed."""
    whole = all(run.label in results for run in experiment.runs)
    found = []
    for row in experiment.rows:
        reason = row.why.words(results)
        try:
            ours = row.ours(results)
            found.append(Compared(row, ours, reason, _attained(row, results), open=ours is None and not whole))
        except KeyError:
            if whole:
                raise  # no run is missing: the row names one that does not exist
            found.append(Compared(row, None, reason, open=True))
    return found


def _attained(row: Row, results: Results) -> Attained | None:
    """Returns the attainment of the runs of a row about what is spent: of several pairs, the one that keeps least."""
    found = [
        Attained(*(None if run is None else results[run]["slo_attainment"] for run in pair))
        for pair in pairs_of(row.ours)
    ]
    return min(found, key=lambda pair: 1.0 if pair.own is None else pair.own, default=None)


def drifted(experiment: Experiment, results: Results) -> list[str]:
    """Says which figures of which sentences moved away from what these were written upon."""
    found = {row.why.sentence: (row.label, row.why.drifted(results)) for row in reversed(experiment.rows)}
    return [
        f"{experiment.name}, {label}: {words} ('{sentence}')"
        for sentence, (label, moved) in reversed(found.items())
        for words in moved
    ]


def sentences(rows: Sequence[Compared]) -> list[tuple[list[str], str]]:
    """Returns the labels of the rows that are off, grouped by what that comes from."""
    found: dict[str, list[str]] = {}
    for own in rows:
        if own.off:
            found.setdefault(own.why, []).append(own.row.label)
    return [(labels, why) for why, labels in found.items()]
