"""AR 45(d) of ESRS E1: which share of purchased electricity is under which contractual instruments, bundled or not.

A share by energy is of the energy at the sites' meters, a share by emissions of the market-based emissions that are
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from ..contracts import KIND_WORDS, VOLUME_KINDS
from ..market import Cover, emitted_ug
from ..statement import Statement
from ..table import Cell
from .datapoints import (
    KNOWN,
    PARTIAL,
    PERCENT,
    UNKNOWN,
    Datapoint,
    added_up,
    exact_share,
    percent,
    printed_sum,
    without_kwh,
)
from .sources import CoveredContract, Sources

E1_6 = "E1-6"
NOTHING_USED = "Nothing was used."
INSTRUMENTS = (*VOLUME_KINDS, "supplier")  # a residual mix is what no instrument claims
BUNDLED = {
    True: ("bundled", "E1-6_21", "Share of energy under instruments that are bundled with it"),
    False: ("unbundled", "E1-6_22", "Share of energy under unbundled energy attribute claims"),
    None: ("bundled_undeclared", "", "Share of energy under instruments that do not declare it"),
}


@dataclass(frozen=True, slots=True)
class Instruments:
    """`partial`: market-based emissions are known in part alone."""

    statement: Statement
    sources: Sources
    partial: bool

    def rows(self) -> Iterator[Datapoint]:
        """Yields the share of contractual instruments, of each kind, and of bundled and unbundled ones."""
        shares = {kind: self._energy_share(_is_of(kind)) for kind in INSTRUMENTS}
        known = [share for share in shares.values() if share is not None]
        printed: dict[str, Cell] = dict.fromkeys(INSTRUMENTS)
        if known:
            printed = dict(zip(INSTRUMENTS, added_up([100 * share for share in known], PERCENT), strict=True))
        whole = sum(known, Fraction(0)) if known else None
        label = "Share of energy under contractual instruments"
        note = "By energy at the sites' meters. A residual mix is no instrument."
        yield self._share(
            *("instruments", "E1-6_18", label, printed_sum(printed.values()), whole, self._own(_is_instrument)),
            note=note if known else NOTHING_USED,
        )
        for kind, share in shares.items():
            label = f"of it by {KIND_WORDS[kind]}"
            own = self._own(_is_of(kind))
            yield self._share(f"instruments_{kind}", "E1-6_19", label, printed[kind], share, own, part=True)
        yield self._bundled_emissions()
        for bundled in BUNDLED:
            yield self._bundled(bundled)

    def _bundled(self, bundled: bool | None) -> Datapoint:
        """A share is open while some instruments declare neither: nothing of it is never zero."""
        name, ids, label = BUNDLED[bundled]
        own, undeclared = self._own(_is_bundled(bundled)), self._own(_is_bundled(None))
        open_uj = 0 if bundled is None else _covered_uj(undeclared)
        share = None if open_uj and not own else self._energy_share(_is_bundled(bundled))
        row = self._share(f"instruments_{name}", ids, label, percent(share), share, own, partial=bool(open_uj))
        if not open_uj:
            return row
        note = "Without instruments that do not declare it."
        return replace(row, not_covered=without_kwh(open_uj), not_covered_unit="kWh", note=note)

    def _bundled_emissions(self) -> Datapoint:
        """Returns how much of the market-based emissions comes from electricity with attributes bundled to it."""
        emitted = {one.key: emitted_ug(Cover(one.contract, one.covered_uj)) for one in self.sources.contracts}
        total_ug = sum(emitted.values(), Fraction(0))
        own, undeclared = self._own(_is_bundled(True)), self._own(_is_bundled(None))
        share = sum((emitted[one.key] for one in own), Fraction(0)) / total_ug if total_ug else None
        if undeclared and not own:
            share = None
        note = "Of what is known of the market-based emissions." if total_ug else "No market-based emission is known."
        if undeclared:
            note += " Without instruments that do not declare whether they are bundled."
        label = "Share of market-based Scope 2 emissions linked to electricity bundled with instruments"
        partial = bool(undeclared) or self.partial
        return self._share(
            "bundled_emissions", "E1-6_20", label, percent(share), share, own, note=note, partial=partial
        )

    def _own(self, chosen: Callable[[CoveredContract], bool]) -> list[CoveredContract]:
        return [one for one in self.sources.contracts if chosen(one)]

    def _energy_share(self, chosen: Callable[[CoveredContract], bool]) -> Fraction | None:
        return self.statement.scope2.total().share(_covered_uj(self._own(chosen)))

    def _share(
        self,
        name: str,
        ids: str,
        label: str,
        value: Cell,
        share: Fraction | None,
        own: list[CoveredContract],
        *,
        note: str = "",
        part: bool = False,
        partial: bool = False,
    ) -> Datapoint:
        return Datapoint(
            *(E1_6, name, ids, "AR 45(d)", label, PERCENT, value, exact_share(share)),
            status=UNKNOWN if share is None else PARTIAL if partial or self.statement.total.unmetered else KNOWN,
            part=part,
            note=note,
            sources=self.sources.ordered(*(one.key for one in own)),
        )


def _is_of(kind: str) -> Callable[[CoveredContract], bool]:
    return lambda one: one.contract.kind == kind


def _is_instrument(one: CoveredContract) -> bool:
    return one.contract.kind in INSTRUMENTS


def _covered_uj(contracts: list[CoveredContract]) -> int:
    return sum(one.covered_uj for one in contracts)


def _is_bundled(bundled: bool | None) -> Callable[[CoveredContract], bool]:
    return lambda one: one.contract.kind in INSTRUMENTS and one.contract.bundled is bundled
