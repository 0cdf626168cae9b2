"""ESRS E1-5: energy consumption and mix, by what contracts declare of the sources of purchased electricity.

AR 32(j): purchased electricity is deemed renewable only where contracts say clearly where it is from. So a mix counts
that a purchase agreement, a certificate or a supplier's contract declares. A residual mix is what nobody claims: it is
no origin, and has a line of its own among what is not known, as have contracts that declare no mix, and what has no
contract.

Whole microjoules: the lines add up to the facility's energy exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from core.accounting.whole_shares import cut, whole_weights

from ..contracts import FOSSIL, GROUPS, NUCLEAR, RENEWABLE, SOURCES, share_of
from ..inputs import PUE
from ..statement import Statement
from ..table import Cell
from .datapoints import (
    KNOWN,
    MWH,
    PARTIAL,
    PERCENT,
    UNKNOWN,
    Datapoint,
    added_up,
    exact_j,
    exact_share,
    mwh,
    printed_sum,
    to_supply,
    without_kwh,
)
from .sources import METER, CoveredContract, Sources

UNDECLARED, RESIDUAL, UNCOVERED = "undeclared", "residual", "uncovered"
NOT_KNOWN = (UNDECLARED, RESIDUAL, UNCOVERED)
LEAVES = (*GROUPS, *NOT_KNOWN)
E1_5 = "E1-5"


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of E1-5: an amount of some leaves, and its share; `..._id` are EFRAG's."""

    name: str
    leaves: tuple[str, ...]
    amount_id: str
    share_id: str
    paragraph: str
    label: str
    note: str = ""


LINES = (
    _Line(
        *(FOSSIL, (FOSSIL,), "E1-5_14", "E1-5_15", "38(e)", "Purchased electricity from fossil sources"),
        "With fuels it makes E1-5_02.",
    ),
    _Line(NUCLEAR, (NUCLEAR,), "E1-5_03", "E1-5_04", "37(b)", "Total energy consumption from nuclear sources"),
    _Line(
        *(RENEWABLE, (RENEWABLE,), "E1-5_07", "E1-5_09", "37(c)(ii)", "Purchased electricity from renewable sources"),
        "Where contracts declare it. With fuels and own generation it makes E1-5_05.",
    ),
    _Line("source_unknown", NOT_KNOWN, "", "", "AR 32(j)", "Purchased electricity whose source is not known"),
)
PARTS = {
    UNDECLARED: "of it by contracts that declare no mix",
    RESIDUAL: "of it by a residual mix",
    UNCOVERED: "of it without contract or residual mix",
}


@dataclass(slots=True)
class EnergySplit:
    """Energy at the sites' meters in microjoules by LEAVES, and the keys of the contracts that each is by."""

    uj: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEAVES, 0))
    keys: dict[str, list[str]] = field(default_factory=lambda: {leaf: [] for leaf in LEAVES})

    @classmethod
    def of(cls, facility_uj: int, contracts: tuple[CoveredContract, ...]) -> EnergySplit:
        """Shares what each contract covers among energy sources; what is left of the facility's energy has none."""
        found = cls()
        for one in contracts:
            for leaf, part_uj in _parts(one):
                found.uj[leaf] += part_uj
                found.keys[leaf].append(one.key)
        found.uj[UNCOVERED] = facility_uj - sum(one.covered_uj for one in contracts)
        return found

    @property
    def total_uj(self) -> int:
        return sum(self.uj.values())

    def share(self, energy_uj: int) -> Fraction | None:
        """Returns a part of all energy; None: nothing was used."""
        return Fraction(energy_uj, self.total_uj) if self.total_uj else None


def _parts(one: CoveredContract) -> Iterator[tuple[str, int]]:
    """Yields the energy of each group of sources that a contract has."""
    contract = one.contract
    if contract.kind == RESIDUAL:
        yield RESIDUAL, one.covered_uj
        return
    shares = {group: share_of(contract.mix, _of(group)) or Fraction(0) for group in GROUPS}
    if not any(shares.values()):
        yield UNDECLARED, one.covered_uj
        return
    weights = whole_weights(shares)
    for group, part_uj in zip(GROUPS, cut(one.covered_uj, [weights[group] for group in GROUPS]), strict=True):
        if weights[group]:
            yield group, part_uj


def _of(group: str) -> frozenset[str]:
    return frozenset(name for name, own in SOURCES.items() if own == group)


def energy_rows(statement: Statement, sources: Sources) -> list[Datapoint]:
    """Returns the rows of E1-5: what is known of the fleet, then what the organisation supplies."""
    split = EnergySplit.of(statement.scope2.total().facility_uj, sources.contracts)
    return [*_Rows(split, sources, statement.total.unmetered).rows(), *_supplied()]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Writes a split as rows. `unmetered`: requests of which no meter saw what they used."""

    split: EnergySplit
    sources: Sources
    unmetered: int

    def rows(self) -> Iterator[Datapoint]:
        """Yields the total, and each line with its share; printed lines add up to the printed total."""
        split = self.split
        amounts: dict[str, Cell] = dict(zip(LEAVES, added_up(map(mwh, split.uj.values()), MWH), strict=True))
        shares: dict[str, Cell] = dict.fromkeys(LEAVES)
        if split.total_uj:
            fractions = (Fraction(100 * uj, split.total_uj) for uj in split.uj.values())
            shares = dict(zip(LEAVES, added_up(fractions, PERCENT), strict=True))
        total = _Line("energy", LEAVES, "E1-5_01", "", "37", "Total energy consumption related to own operations")
        yield self._amount(total, amounts, f"Electricity of the fleet: GPU counters x PUE.{self._gap()}")
        for line in LINES:
            yield self._amount(line, amounts, line.note)
            for leaf in (leaf for leaf in line.leaves if leaf in PARTS):
                yield self._amount(_Line(leaf, (leaf,), "", "", "AR 32(j)", PARTS[leaf]), amounts, "", part=True)
            yield self._share(line, shares)

    def _amount(self, line: _Line, amounts: Mapping[str, Cell], note: str, part: bool = False) -> Datapoint:
        value = printed_sum(amounts[leaf] for leaf in line.leaves)
        return self._row(line.name, line, MWH, value, exact_j(self._uj(line.leaves)), note, part)

    def _share(self, line: _Line, shares: Mapping[str, Cell]) -> Datapoint:
        value = printed_sum(shares[leaf] for leaf in line.leaves)
        exact = exact_share(self.split.share(self._uj(line.leaves)))
        label = f"Share of {line.name if line.name in GROUPS else 'unknown'} sources in total energy consumption"
        shared = replace(line, amount_id=line.share_id, paragraph="AR 34", label=label)
        note = "" if self.split.total_uj else "Nothing was used."
        return self._row(f"{line.name}_share", shared, PERCENT, value, exact, note, True)

    def _row(self, name: str, line: _Line, unit: str, value: Cell, exact: Cell, note: str, part: bool) -> Datapoint:
        """Fossil and nuclear energy may be more, while the source of some is not known: nothing of it is never zero."""
        open_uj = self._uj(NOT_KNOWN) if line.leaves[0] in (FOSSIL, NUCLEAR) and line.leaves != LEAVES else 0
        if open_uj and not self._uj(line.leaves):
            value = exact = None
        status = UNKNOWN if value is None else PARTIAL if self.unmetered or open_uj else KNOWN
        keys = (key for leaf in line.leaves for key in self.split.keys[leaf])
        return Datapoint(
            *(E1_5, name, line.amount_id, line.paragraph, line.label, unit, value, exact, status, part),
            not_covered=without_kwh(open_uj),
            not_covered_unit="kWh" if open_uj else "",
            note=note,
            sources=self.sources.ordered(*self.sources.keys(METER, PUE), *keys),
        )

    def _uj(self, leaves: tuple[str, ...]) -> int:
        return sum(self.split.uj[leaf] for leaf in leaves)

    def _gap(self) -> str:
        gap = f" {self.unmetered:,} requests were served at sites that no meter saw: they are not in it."
        return gap if self.unmetered else ""


def _supplied() -> Iterator[Datapoint]:
    """Yields what GreenServe has no meter for: fuels, own generation, and net revenue."""
    for name, ids, paragraph, label, unit, why in (
        ("fossil_fuels", "E1-5_10 to E1-5_13", "38(a)-(d)", "Fuel consumption from fossil sources", MWH, "fuels"),
        ("renewable_fuels", "E1-5_06", "37(c)(i)", "Fuel consumption from renewable sources", MWH, "fuels"),
        ("self_generated", "E1-5_08", "37(c)(iii)", "Self-generated non-fuel renewable energy", MWH, "own generation"),
        ("production", "E1-5_16, E1-5_17", "39", "Production of non-renewable and renewable energy", MWH, "generation"),
    ):
        yield to_supply(E1_5, name, ids, paragraph, label, unit, f"GreenServe meters no {why}.")
    yield to_supply(
        *(E1_5, "energy_intensity", "E1-5_18", "40", "Energy intensity: total energy consumption over net revenue"),
        "MWh per currency unit",
        "net revenue of activities in high climate impact sectors.",
    )
