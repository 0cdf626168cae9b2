"""Adds lines up by group, and works out the ratios. Whole numbers throughout; money by currency only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

import polars

from core.accounting.whole_shares import cut

from .line_blocks import AMOUNTS, MARKET, MARKET_MISSING, Block, wide
from .lines import SloCount
from .scope2 import Scope2

IDLE_KINDS = ("idle", "transition")
NOBODYS = frozenset({"tenant", "adapter"})  # idle energy has none: groups by these cannot say what share is idle
Key = tuple[str | None, ...]
K = TypeVar("K")
SUMMED = tuple(name for name in AMOUNTS if name != "requests")  # those are counted where they began: `add_slo`
MEASURES = ("lines", *SUMMED, "idle_uj", MARKET, "market_missing_uj")


@dataclass(slots=True)
class Totals:
    """Sums over some lines and the requests that go with them. `..._missing_...`: that for which it is not known.

    Requests without a line used nothing that a meter saw: they were refused, or ran in another period. That is zero,
    and known. `unmetered` are the others: requests that engines worked on at sites of which nothing is settled.
    """

    lines: int = 0
    energy_uj: int = 0
    idle_uj: int = 0
    facility_uj: int = 0
    gpu_us: int = 0
    location_ug: int = 0
    location_missing_uj: int = 0
    market_ug: int = 0
    market_missing_uj: int = 0
    embodied_ug: int = 0
    embodied_missing_us: int = 0
    electricity_nano: int = 0
    electricity_missing_uj: int = 0
    rental_nano: int = 0
    rental_missing_us: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    host_uj: int = 0
    host_known_uj: int = 0
    requests: int = 0
    judged: int = 0
    met: int = 0
    without_tokens: int = 0
    unmetered: int = 0

    def add_slo(self, count: SloCount, metered: bool) -> None:
        """Adds a count. `metered`: the site that the requests came to, if any, has settled something in the period."""
        self.unmetered += 0 if metered else count.worked
        self.requests += count.requests
        self.judged += count.judged
        self.met += count.met
        self.without_tokens += count.without_tokens

    def __iadd__(self, other: Totals) -> Totals:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def metered(self, amount: int) -> int | None:
        """Returns a sum of lines; None where requests were served that no meter saw."""
        return None if self.unmetered else amount

    # What follows is None where it is not whole.

    @property
    def metered_uj(self) -> int | None:
        return self.metered(self.energy_uj)

    @property
    def host_missing_uj(self) -> int:
        """Returns how much of the GPUs' energy there is no host energy beside."""
        return self.energy_uj - self.host_known_uj

    @property
    def host_metered(self) -> bool:
        return bool(self.host_uj or self.host_known_uj)

    @property
    def host(self) -> int | None:
        return None if self.host_missing_uj else self.metered(self.host_uj)

    @property
    def host_known(self) -> int | None:
        """Returns the hosts' joules that are known; None: none is."""
        return None if self.host_missing_uj and not self.host_metered else self.metered(self.host_uj)

    @property
    def location(self) -> int | None:
        return None if self.location_missing_uj else self.metered(self.location_ug)

    @property
    def market(self) -> int | None:
        return None if self.market_missing_uj else self.metered(self.market_ug)

    @property
    def embodied(self) -> int | None:
        return None if self.embodied_missing_us else self.metered(self.embodied_ug)

    @property
    def cost_nano(self) -> int | None:
        missing = self.electricity_missing_uj or self.rental_missing_us
        return None if missing else self.metered(self.electricity_nano + self.rental_nano)

    @property
    def attainment(self) -> Fraction | None:
        return Fraction(self.met, self.judged) if self.judged else None

    @property
    def idle_share(self) -> Fraction | None:
        return Fraction(self.idle_uj, self.energy_uj) if self.energy_uj else None

    @property
    def j_per_token(self) -> Fraction | None:
        """Returns joules for each output token, as on the dashboard."""
        return self._per_token(self.metered_uj, 1_000_000)

    @property
    def g_per_1k_tokens(self) -> Fraction | None:
        """Location-based, operational; per thousand output tokens."""
        return self._per_token(self.location, 1_000)

    @property
    def sci_g_per_token(self) -> Fraction | None:
        """SCI 1.1: (E x I + M) / R with R an output token. E is all energy of the group, idle included."""
        if self.location is None or self.embodied is None:
            return None
        return self._per_token(self.location + self.embodied, 1_000_000)

    def _per_token(self, amount: int | None, unit: int) -> Fraction | None:
        """Unknown where some of the requests' tokens were not counted: the ratio would come out too high."""
        if amount is None or not self.output_tokens or self.without_tokens:
            return None
        return Fraction(amount, unit * self.output_tokens)


@dataclass(frozen=True, slots=True)
class Group:
    """One row of a report. `key` has a value for each dimension of it; `currency` parts what cannot be added up."""

    key: Key
    currency: str | None
    totals: Totals
    idle_known: bool

    @property
    def idle_share(self) -> Fraction | None:
        return self.totals.idle_share if self.idle_known else None


@dataclass(frozen=True, slots=True)
class Day:
    """A bar of the charts: one site's local day."""

    date: str
    site: str
    totals: Totals


@dataclass(slots=True)
class ReportTotals:
    """A report's totals: rows by group, and by day and site; all of them sums of the same lines."""

    by: tuple[str, ...]
    scope2: Scope2
    days: Sequence[tuple[str, int, int]]
    groups: dict[tuple[Key, str | None], Totals] = field(default_factory=dict)
    daily: dict[tuple[str, str], Totals] = field(default_factory=dict)
    _day_of: dict[int, str] = field(default_factory=dict)

    def add(self, block: Block) -> Block:
        """Adds a block up, and returns it with each line's market-based Scope 2: what is known, and of how much not.

        A block has whole hours, and blocks come in the order of time.
        """
        block = self._with_market(block).with_columns(
            polars.col("start_s").replace_strict(self._days_of(block), return_dtype=polars.String).alias("day"),
        )
        self._add(sums_of_lines(block, (*self.by, "currency")))
        by = ("day", "site")
        for date, site, totals in _each(sums_of_lines(block, by), by):
            _at(self.daily, (date, site)).__iadd__(totals)
        return block

    def add_sums(self, sums: polars.DataFrame) -> None:
        """Adds up what `sums_of_lines` made of all lines, by at least these dimensions and the currency."""
        self._add(sums_of_sums(sums, (*self.by, "currency")))

    def _add(self, sums: polars.DataFrame) -> None:
        for *key, currency, totals in _each(sums, (*self.by, "currency")):
            _at(self.groups, (tuple(key), currency)).__iadd__(totals)

    def _with_market(self, block: Block) -> Block:
        """Cuts what contracts give each site's hour among its lines, by their energy: they add up to the hour."""
        ug, missing_uj = [0] * block.height, [0] * block.height
        facility_uj = block["facility_uj"].to_list()
        hours = (
            block.with_row_index("at")
            .group_by("start_s", "end_s", "site")
            .agg(
                polars.col("at"),
                *(wide(name).sum() for name in ("energy_uj", "facility_uj", "location_ug", "location_missing_uj")),
            )
        )
        for start_s, end_s, site, lines, *sums in hours.sort("start_s", "site").iter_rows():
            found = self.scope2.add(site, (start_s, end_s), (sums[0], sums[1]), (sums[2], sums[3]))
            if not sums[1]:
                continue
            own_uj = [facility_uj[at] for at in lines]
            for amounts, whole in ((ug, found.ug), (missing_uj, found.missing_uj)):
                for at, share in zip(lines, cut(whole[self.scope2.matching], own_uj), strict=True):
                    amounts[at] = share
        return block.with_columns(
            polars.Series(MARKET, ug, dtype=polars.Int64), polars.Series(MARKET_MISSING, missing_uj, dtype=polars.Int64)
        )

    def _days_of(self, block: Block) -> dict[int, str]:
        return {at_s: self._day(at_s) for at_s in block["start_s"].unique().to_list()}

    def add_slo(self, counts: Iterable[SloCount], currencies: Mapping[str, str]) -> None:
        """Adds SLO counts, after the lines. `currencies` by metered site: a request comes to the row of its money.

        Those that came to no site stand in a row that their group has, or else in that of the only currency.
        """
        only = next(iter(currencies.values())) if len(set(currencies.values())) == 1 else None
        for count in counts:
            key: Key = tuple(getattr(count, name) for name in self.by)
            currency = currencies.get(count.site or "", only)
            if (key, currency) not in self.groups:
                currency = next((c for k, c in sorted(self.groups, key=str) if k == key), currency)
            _at(self.groups, (key, currency)).add_slo(count, count.site is None or count.site in currencies)

    def rows(self) -> list[Group]:
        """Returns groups in the order of their names; what is nobody's comes last."""
        known = not NOBODYS & set(self.by)
        order = sorted(self.groups, key=lambda k: (*((v is None, v or "") for v in k[0]), k[1] is None, k[1] or ""))
        return [Group(key, currency, self.groups[key, currency], known) for key, currency in order]

    def days_and_sites(self) -> list[Day]:
        return [Day(date, site, self.daily[date, site]) for date, site in sorted(self.daily)]

    def total(self) -> Totals:
        """Returns the totals of all groups. Their money means something in one currency alone: see `by_currency`."""
        found = Totals()
        for totals in self.groups.values():
            found += totals
        return found

    def by_currency(self) -> dict[str | None, Totals]:
        """Returns the totals by currency, which are never added to each other."""
        found: dict[str | None, Totals] = {}
        for (_, currency), totals in sorted(self.groups.items(), key=lambda item: str(item[0])):
            one = found.setdefault(currency, Totals())
            one += totals
        return {currency: found[currency] for currency in sorted(found, key=lambda c: c or "~")}

    def _day(self, at_s: int) -> str:
        found = self._day_of.get(at_s)
        if found is None:
            found = next((name for name, start_s, end_s in self.days if start_s <= at_s < end_s), self.days[0][0])
            self._day_of[at_s] = found
        return found


def sums_of_lines(block: Block, by: Sequence[str]) -> polars.DataFrame:
    """Returns a row of `MEASURES` for each group of a block's lines, which have their market-based Scope 2."""
    idle = polars.col("kind").is_in(IDLE_KINDS)
    return block.group_by(by, maintain_order=True).agg(
        polars.len().alias("lines"),
        *(wide(name).sum() for name in SUMMED),
        wide("energy_uj").filter(idle).sum().alias("idle_uj"),
        wide(MARKET).sum(),
        wide(MARKET_MISSING).sum(),
    )


def sums_of_sums(sums: polars.DataFrame, by: Sequence[str]) -> polars.DataFrame:
    """Returns the same for larger groups, from the sums of smaller ones."""
    return sums.group_by(by, maintain_order=True).agg(wide(name).sum() for name in MEASURES)


def _each(sums: polars.DataFrame, by: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yields the values of `by` and the totals of each group."""
    names = sums.columns[len(by) :]
    for row in sums.iter_rows():
        yield *row[: len(by)], Totals(**dict(zip(names, row[len(by) :], strict=True)))


def _at(table: dict[K, Totals], key: K) -> Totals:
    found = table.get(key)
    if found is None:
        found = table[key] = Totals()
    return found
