"""The columns of a report's rows, for people: names with units, and what each cell is. CSV and XLSX share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import IO

from core.cells import write_csv

from .lines import gpu_hours, joules, kg, kwh, money
from .totals import Group, Totals

_ROUND = Context(prec=12, rounding=ROUND_HALF_EVEN)
Cell = str | None  # a decimal; None: not known


@dataclass(frozen=True, slots=True)
class Column:
    """`sums`: rows of one currency may be added. `ratio`: (numerator, denominator, factor) by the names of columns."""

    name: str
    cell: Callable[[Group], Cell]
    sums: bool = False
    ratio: tuple[str, str, str] | None = None
    places: int = 3  # that people see


def _of(value: Callable[[Totals], int | None], text: Callable[[int], str]) -> Callable[[Group], Cell]:
    def cell(group: Group) -> Cell:
        found = value(group.totals)
        return None if found is None else text(found)

    return cell


def _ratio(value: Callable[[Group], Fraction | None]) -> Callable[[Group], Cell]:
    def cell(group: Group) -> Cell:
        return ratio_text(value(group))

    return cell


def ratio_text(value: Fraction | None) -> Cell:
    """Writes twelve significant digits, in full."""
    if value is None:
        return None
    found = _ROUND.divide(Decimal(value.numerator), Decimal(value.denominator))
    text = f"{found:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _metered(value: Callable[[Totals], int]) -> Callable[[Totals], int | None]:
    return lambda totals: totals.metered(value(totals))


COLUMNS = (
    Column("energy_j", _of(lambda t: t.metered_uj, joules), sums=True),
    Column("energy_kwh", _of(lambda t: t.metered_uj, kwh), sums=True),
    Column("idle_kwh", _of(_metered(lambda t: t.idle_uj), kwh), sums=True),
    Column("facility_kwh", _of(_metered(lambda t: t.facility_uj), kwh), sums=True),
    Column("host_kwh", _of(lambda t: t.host, kwh), sums=True),
    Column("host_known_kwh", _of(lambda t: t.host_known, kwh), sums=True),
    Column("without_host_kwh", _of(_metered(lambda t: t.host_missing_uj), kwh), sums=True),
    Column("gpu_hours", _of(_metered(lambda t: t.gpu_us), gpu_hours), sums=True),
    Column("scope2_location_kgco2e", _of(lambda t: t.location, kg), sums=True),
    Column("scope2_location_known_kgco2e", _of(_metered(lambda t: t.location_ug), kg), sums=True),
    Column("without_intensity_kwh", _of(_metered(lambda t: t.location_missing_uj), kwh), sums=True),
    Column("scope2_market_kgco2e", _of(lambda t: t.market, kg), sums=True),
    Column("without_contract_kwh", _of(_metered(lambda t: t.market_missing_uj), kwh), sums=True),
    Column("embodied_kgco2e", _of(lambda t: t.embodied, kg), sums=True),
    Column("cost", _of(lambda t: t.cost_nano, money), sums=True, places=2),
    Column("electricity_cost", _of(_metered(lambda t: t.electricity_nano), money), sums=True, places=2),
    Column("gpu_hour_cost", _of(_metered(lambda t: t.rental_nano), money), sums=True, places=2),
    Column("without_tariff_kwh", _of(_metered(lambda t: t.electricity_missing_uj), kwh), sums=True),
    Column("requests", _of(lambda t: t.requests, str), sums=True, places=0),
    Column("prompt_tokens", _of(lambda t: t.prompt_tokens, str), sums=True, places=0),
    Column("output_tokens", _of(lambda t: t.output_tokens, str), sums=True, places=0),
    Column("requests_without_tokens", _of(lambda t: t.without_tokens, str), sums=True, places=0),
    Column("j_per_output_token", _ratio(lambda g: g.totals.j_per_token), ratio=("energy_j", "output_tokens", "1")),
    Column(
        "g_per_1k_output_tokens",
        _ratio(lambda g: g.totals.g_per_1k_tokens),
        ratio=("scope2_location_kgco2e", "output_tokens", "1000000"),
    ),
    Column("sci_g_per_output_token", _ratio(lambda g: g.totals.sci_g_per_token), places=6),
    Column("slo_judged", _of(lambda t: t.judged, str), sums=True, places=0),
    Column("slo_met", _of(lambda t: t.met, str), sums=True, places=0),
    Column("slo_attainment", _ratio(lambda g: g.totals.attainment), ratio=("slo_met", "slo_judged", "1"), places=4),
    Column("idle_share", _ratio(lambda g: g.idle_share), ratio=("idle_kwh", "energy_kwh", "1"), places=4),
)
NAMES = tuple(column.name for column in COLUMNS)


def write_rows(groups: Iterable[Group], by: tuple[str, ...], fixed: dict[str, str], out: IO[str]) -> int:
    """Writes one row for each group, none for totals; an empty cell is not known. Returns the number of rows.

    Args:
        fixed: Columns that are the same in all rows: the period's ends and the report's version.
    """
    rows = ([*fixed.values(), *group.key, group.currency, *map(number, _cells(group))] for group in groups)
    return write_csv(out, [*fixed, *by, "currency", *NAMES], rows)


def _cells(group: Group) -> Iterable[Cell]:
    return (column.cell(group) for column in COLUMNS)


def number(cell: Cell) -> Decimal | None:
    """Returns a cell's decimal with all of its digits; None is not known."""
    return None if cell is None else Decimal(cell)
