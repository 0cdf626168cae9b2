"""Published beside simulated, row by row, and what is said of the rows that are off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.simulator.lab.experiment import Experiment, Row
from core.simulator.lab.measures import Results, in_words

OFF = 0.15  # by which a figure may differ from the published one without a word


@dataclass(frozen=True, slots=True)
class Compared:
    """A row with our figure. None: its runs do not have it or, while `open`, are not all there."""

    row: Row
    ours: float | None
    reason: str  # the row's, with the figures of the runs
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

    def words(self, unknown: str = "-", space: str = " ") -> tuple[str, str, str]:
        """Returns published, simulated and ratio, as every table has them."""
        unit = f"{space}{self.row.unit}" if self.row.unit else ""
        ours = unknown if self.ours is None else f"{in_words(self.ours)}{unit}"
        return f"{self.row.published:.4g}{unit}", ours, unknown if self.ratio is None else f"{self.ratio:.2f}"

    def as_json(self) -> dict[str, Any]:
        own = self.row
        found = {"label": own.label, "place": own.place, "unit": own.unit, "published": own.published}
        return {**found, "simulated": self.ours, "ratio": self.ratio, "why": self.why}


def compared(experiment: Experiment, results: Results) -> list[Compared]:
    """Compares an experiment that may still be under way, or some of whose runs failed."""
    whole = all(run.label in results for run in experiment.runs)
    found = []
    for row in experiment.rows:
        reason = row.why.words(results)
        try:
            found.append(Compared(row, row.ours(results), reason))
        except KeyError:
            if whole:
                raise  # no run is missing: the row names one that does not exist
            found.append(Compared(row, None, reason, open=True))
    return found


def sentences(rows: Sequence[Compared]) -> list[tuple[list[str], str]]:
    """Returns the labels of the rows that are off, grouped by what that comes from."""
    found: dict[str, list[str]] = {}
    for own in rows:
        if own.off:
            found.setdefault(own.why, []).append(own.row.label)
    return [(labels, why) for why, labels in found.items()]
