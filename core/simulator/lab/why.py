"""Explains a row that is off: a sentence whose figures are read off runs, each with what it was written upon.

A sentence holds as long as its figures do. One whose figures moved is not printed: nobody knows whether it is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter

from core.simulator.lab.measures import Measure, Results, in_words

WITHIN = 0.1  # by which a figure may drift, relative to what the sentence was written upon


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure of runs that a sentence rests on.

    Args:
        written: its value when the sentence was written.
        within: the relative drift up to which the sentence holds; or `by`, an absolute one, where that is more.
    """

    measure: Measure
    written: float
    unit: str = ""
    within: float = WITHIN
    by: float = 0.0

    def holds(self, value: float) -> bool:
        return abs(value - self.written) <= max(self.within * abs(self.written), self.by)

    def words(self, value: float | None) -> str:
        return "-" if value is None else f"{in_words(value)} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Why:
    """`sentence` with a `{name}` for each claim. `cites`: the places in the paper of published facts in it."""

    sentence: str
    claims: Mapping[str, Claim] = field(default_factory=dict)
    cites: str = ""

    def __post_init__(self) -> None:
        named = {name for _, name, _, _ in Formatter().parse(self.sentence) if name is not None}
        if named != set(self.claims):
            raise ValueError(f"why '{self.sentence}': its figures {sorted(named)} are not its claims'")

    def words(self, results: Results) -> str:
        """Writes the sentence with the figures of these runs; where one moved too far, that it did."""
        if moved := self.drifted(results):
            return f"not known: what was written of it no longer holds ({'; '.join(moved)})."
        figures = {name: claim.words(_known(claim, results)) for name, claim in self.claims.items()}
        return self.sentence.format(**figures) + (f" ({self.cites})" if self.cites else "")

    def drifted(self, results: Results) -> list[str]:
        """Says of each claim that does not hold what it was written upon and what it is. Missing runs say nothing."""
        found = []
        for name, claim in self.claims.items():
            try:
                value = claim.measure(results)
            except KeyError:
                continue
            if value is None or not claim.holds(value):
                found.append(f"{name} is {claim.words(value)}, written upon {claim.words(claim.written)}")
        return found


def _known(claim: Claim, results: Results) -> float | None:
    """None: one of its runs is not there yet."""
    try:
        return claim.measure(results)
    except KeyError:
        return None


NOT_KNOWN = Why("not known.")


def why(sentence: str, cites: str = "", /, **claims: Claim) -> Why:
    """Makes an explanation; `cites` as `Why` has it.

    Raises:
        ValueError: It rests on nothing: neither on a run nor on a place in the paper. Say NOT_KNOWN.
    """
    if not claims and not cites:
        raise ValueError(f"why '{sentence}': rests on no run and cites no place; say NOT_KNOWN")
    return Why(sentence, claims, cites)
