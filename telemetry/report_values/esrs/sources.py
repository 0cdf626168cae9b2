"""Sources of datapoints, by keys: meters, PUE, intensities, contracts and embodied factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from ..contracts import KIND_WORDS, Contract
from ..inputs import EMBODIED, INTENSITY, PUE, ReportInput
from ..lines import joules, kwh
from ..market import Cover
from ..statement import Statement

METER, CONTRACT = "meters", "contract"
LETTERS = {METER: "M", PUE: "P", INTENSITY: "I", CONTRACT: "C", EMBODIED: "H"}


@dataclass(frozen=True, slots=True)
class Source:
    """`site` as people call it; empty: all."""

    key: str
    kind: str
    site: str
    words: str


@dataclass(frozen=True, slots=True)
class CoveredContract:
    """A contract with its key, and the energy that it covers in the period by the report's way of matching."""

    key: str
    contract: Contract
    covered_uj: int


@dataclass(frozen=True, slots=True)
class Sources:
    """All sources of a report's datapoints, in the order of their keys."""

    rows: tuple[Source, ...]
    contracts: tuple[CoveredContract, ...]

    @classmethod
    def of(cls, statement: Statement) -> Sources:
        rows: list[Source] = []
        for kind, found in (
            (METER, _meters(statement)),
            *((kind, _inputs(statement, kind)) for kind in (PUE, INTENSITY)),
            (CONTRACT, ((site, _contract_words(statement, cover)) for site, cover in _covers(statement))),
            (EMBODIED, _inputs(statement, EMBODIED)),
        ):
            rows += [Source(f"{LETTERS[kind]}{n}", kind, site, words) for n, (site, words) in enumerate(found, start=1)]
        letter = LETTERS[CONTRACT]
        contracts = tuple(
            CoveredContract(f"{letter}{n}", cover.contract, cover.covered_uj)
            for n, (_, cover) in enumerate(_covers(statement), start=1)
        )
        return cls(tuple(rows), contracts)

    @property
    def all_keys(self) -> tuple[str, ...]:
        return tuple(row.key for row in self.rows)

    def keys(self, *kinds: str) -> tuple[str, ...]:
        return tuple(row.key for row in self.rows if row.kind in kinds)

    def ordered(self, *keys: str) -> tuple[str, ...]:
        """Returns these keys, each once, in the order of the sources."""
        return tuple(key for key in self.all_keys if key in keys)

    def words(self, keys: tuple[str, ...]) -> str:
        """Returns these sources in full, for a table that has to speak for itself."""
        found = {row.key: row for row in self.rows}
        return " | ".join(f"{key}: {found[key].site}: {found[key].words}" for key in keys)


def shortened(keys: tuple[str, ...]) -> str:
    """Writes `M1-M3, P1, C2`: neighbours are joined."""
    parts = []
    for (letter, _), group in groupby(enumerate(keys), lambda item: (item[1][0], int(item[1][1:]) - item[0])):
        numbers = [key[1:] for _, key in group]
        parts.append(f"{letter}{numbers[0]}" + (f"-{letter}{numbers[-1]}" if len(numbers) > 1 else ""))
    return ", ".join(parts)


def _meters(statement: Statement) -> Iterator[tuple[str, str]]:
    for name, site in statement.sites():
        own = [meter for meter in statement.basis.meters if meter.site == name]
        counted = f"{joules(sum(meter.period_uj for meter in own))} J at {len(own)} GPU counters (NVML)"
        yield site.label, f"{counted}, in the reconciliation each with its own"


def _inputs(statement: Statement, kind: str) -> Iterator[tuple[str, str]]:
    for one in statement.inputs():
        if one.kind == kind:
            yield statement.site_label(one.site), _input_words(statement, one)


def _input_words(statement: Statement, one: ReportInput) -> str:
    used = statement.span_words(one.used_from_s, one.used_to_s)
    parts = (one.value, one.source, one.version, one.quality, used and f"used {used}")
    return "; ".join(filter(None, parts))


def _covers(statement: Statement) -> Iterator[tuple[str, Cover]]:
    scope2 = statement.scope2
    for name, market in scope2.sites.items():
        for cover in market.covers(scope2.matching):
            yield statement.site_label(name), cover


def _contract_words(statement: Statement, cover: Cover) -> str:
    """Returns the contract's papers and what they say: kind, factor, mix, bundled, vintage, cancellation, and gaps."""
    one = cover.contract
    bundled = {True: "bundled with the energy", False: "unbundled", None: "bundled or not: not declared"}[one.bundled]
    mix = ", ".join(f"{name} {share}" for name, share in sorted(one.mix.items()))
    site = statement.basis.sites.get(one.site)
    gaps = one.unproven(site.market if site else "", datetime.fromtimestamp(statement.period.start_s, UTC).year)
    parts = (
        f"{KIND_WORDS[one.kind]}, {one.source}",
        f"{one.factor_g_per_kwh} gCO2e/kWh",
        f"mix {mix}" if mix else "mix not declared",
        bundled if one.kind != "residual" else "",
        f"vintage {one.vintage_year}" if one.vintage_year else "",
        f"market {one.market}" if one.market else "",
        f"cancellation {one.cancellation}" if one.cancellation else "",
        f"covers {kwh(cover.covered_uj)} kWh",
        *gaps,
    )
    return "; ".join(filter(None, parts))
