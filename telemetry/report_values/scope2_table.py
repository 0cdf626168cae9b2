"""Scope 2 as a table, by site and by hour. Formats share the columns, and the hours of a site add up to the site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any

from core.cells import write_csv

from .lines import joules, kg, kwh
from .scope2 import Scope2, Scope2Sums
from .table import Cell, number, ratio_text

TOTAL = "total"
SITE_NAMES = ("site", "hour_start_utc", "hour_end_utc")


@dataclass(frozen=True, slots=True)
class Scope2Column:
    """`places` are those that people see."""

    name: str
    cell: Callable[[Scope2Sums], Cell]
    places: int = 3


def _kg(name: str, ug: str, missing: str) -> Scope2Column:
    return Scope2Column(name, lambda sums: None if getattr(sums, missing) else kg(getattr(sums, ug)))


def _kwh(name: str, uj: str) -> Scope2Column:
    return Scope2Column(name, lambda sums: kwh(getattr(sums, uj)))


def _share(name: str, uj: str) -> Scope2Column:
    return Scope2Column(name, lambda sums: ratio_text(sums.share(getattr(sums, uj))), places=4)


SCOPE2_COLUMNS = (
    Scope2Column("energy_j", lambda sums: joules(sums.energy_uj)),
    _kwh("facility_kwh", "facility_uj"),
    _kg("location_kgco2e", "location_ug", "location_missing_uj"),
    _kwh("without_intensity_kwh", "location_missing_uj"),
    _kg("market_hourly_kgco2e", "hourly_ug", "hourly_missing_uj"),
    _kwh("without_contract_hourly_kwh", "hourly_missing_uj"),
    _kwh("matched_hourly_kwh", "hourly_matched_uj"),
    _share("matched_hourly_share", "hourly_matched_uj"),
    _kwh("carbon_free_kwh", "carbon_free_uj"),
    _share("carbon_free_share", "carbon_free_uj"),
    _kwh("supplier_kwh", "supplier_uj"),
    _kwh("residual_kwh", "residual_uj"),
    _kwh("surplus_kwh", "surplus_uj"),
    _kg("market_period_kgco2e", "period_ug", "period_missing_uj"),
    _kwh("without_contract_period_kwh", "period_missing_uj"),
    _kwh("matched_period_kwh", "period_matched_uj"),
    _share("matched_period_share", "period_matched_uj"),
    Scope2Column("hours", lambda sums: str(sums.hours), places=0),
    Scope2Column("generation_unknown_hours", lambda sums: str(sums.silent_hours), places=0),
)
SCOPE2_CELLS: Mapping[str, Callable[[Scope2Sums], Cell]] = {column.name: column.cell for column in SCOPE2_COLUMNS}


def site_rows(scope2: Scope2) -> Iterator[tuple[str, Scope2Sums]]:
    """Yields each site, and then the total of several."""
    sites = scope2.by_site()
    yield from sites.items()
    if len(sites) > 1:
        yield TOTAL, scope2.total()


def write_scope2_csv(scope2: Scope2, fixed: Mapping[str, str], out: IO[str]) -> int:
    """Writes a row for each hour of each site, none for totals; an empty cell is not known. Returns the rows."""
    rows = (
        [
            *fixed.values(),
            site,
            _moment(start_s),
            _moment(end_s),
            *(number(cell(sums)) for cell in SCOPE2_CELLS.values()),
        ]
        for (site, start_s, end_s), sums in sorted(scope2.hours.items())
    )
    return write_csv(out, [*fixed, *SITE_NAMES, *SCOPE2_CELLS], rows)


def as_json(scope2: Scope2, local_hour: Callable[[int], int]) -> dict[str, Any]:
    """Returns what REST and pages show, as exact decimals: sites, their total, and shares by the hour of the day."""
    sites = scope2.by_site()
    matched, carbon_free = SCOPE2_CELLS["matched_hourly_share"], SCOPE2_CELLS["carbon_free_share"]
    return {
        "matching": scope2.matching,
        "sites": [{"site": site, **_cells(sums)} for site, sums in sites.items()],
        "total": _cells(scope2.total()),
        "hours_of_day": [
            {"hour": hour, "matched_share": matched(sums), "carbon_free_share": carbon_free(sums)}
            for hour, sums in scope2.by_hour_of_day(local_hour).items()
        ],
    }


def _cells(sums: Scope2Sums) -> dict[str, Cell]:
    return {name: cell(sums) for name, cell in SCOPE2_CELLS.items()}


def _moment(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
