"""The request for a report. It is read in one place, for REST, the command line, the page and schedules alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from .bill import BASES
from .errors import BadReport
from .lines import DIMENSIONS
from .market import HOURLY, MATCHINGS, PERIOD
from .period import Period, parse_period

BILL_FORMATS = ("bill-csv", "invoices")
FORMATS = ("focus-csv", "focus-parquet", "csv", "xlsx", "pdf", *BILL_FORMATS, "scope2-csv", "esrs-csv")
USUAL_FORMATS = ("csv", "xlsx", "pdf")
FOCUS_FORMATS = ("focus-csv", "focus-parquet")
FOCUS_VERSIONS = ("1.0", "1.2", "1.4")
NEWEST_FOCUS = FOCUS_VERSIONS[-1]
FIRST_FOCUS = "1.4"  # what reports of before there was a choice have, for ever
USUAL_GROUPS = ("site", "service")
SITE_ZONE = "site"
NO_BILL = "none"  # also what reports of before there were bills have
USUAL_BASIS = "usage"


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """A report as it was asked for. `sites`: only these; empty: all. `baseline`: replay the requests to compare.

    `basis`: how the bill shares out what is nobody's (`bill.BASES`), or none. `matching`: how contracts for electricity
    cover the rows' energy; reports of before there was a choice matched over the period. `focus_version`: the version
    of FOCUS that the reader of those files knows.
    """

    period: str
    zone: str = "UTC"
    by: tuple[str, ...] = USUAL_GROUPS
    formats: tuple[str, ...] = USUAL_FORMATS
    sites: tuple[str, ...] = ()
    baseline: bool = False
    basis: str = NO_BILL
    matching: str = PERIOD
    focus_version: str = FIRST_FOCUS

    def as_json(self) -> dict[str, Any]:
        """Leaves the first version of FOCUS out: what was asked before there was a choice is signed without it."""
        found = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        if self.focus_version == FIRST_FOCUS:
            del found["focus_version"]
        return found

    @classmethod
    def from_json(cls, stored: object) -> ReportRequest:
        """What `as_json` gave: read already, so not checked against the sites that there are by now."""
        return msgspec.convert(stored, cls)

    def span(self) -> Period:
        return parse_period(self.period, self.zone)


def read(given: Mapping[str, Any], zones: Mapping[str, str]) -> ReportRequest:
    """Checks every field.

    Args:
        given: `period`, and what else `ReportRequest` has; lists may be texts with commas between.
        zones: Site name -> IANA zone of each site there is.

    Raises:
        BadReport: A field cannot be used; it is named with the remedy.
    """
    known = ReportRequest.__dataclass_fields__.keys()
    if strange := sorted(set(given) - set(known)):
        raise BadReport(strange[0], f"is no field of a report; there are {', '.join(known)}")
    period = given.get("period")
    if not isinstance(period, str) or not period.strip():
        raise BadReport("period", "is missing; name a period such as 2026-10")
    sites = _names(given, "sites", zones, ())
    zone = given.get("zone") or "UTC"
    if not isinstance(zone, str):
        raise BadReport("zone", "must be a text such as UTC")
    if zone == SITE_ZONE:
        if len(sites or zones) != 1:
            raise BadReport("zone", "'site' is the zone of one site: name that site in sites, or write UTC")
        zone = zones[next(iter(sites or zones))]
    baseline = given.get("baseline", False)
    if not isinstance(baseline, bool):
        raise BadReport("baseline", "must be true or false")
    formats = _names(given, "formats", FORMATS, USUAL_FORMATS)
    if not formats:
        raise BadReport("formats", f"name at least one of {', '.join(FORMATS)}")
    basis = _basis(given, formats)
    request = ReportRequest(
        period=period.strip(),
        zone=zone,
        by=_names(given, "by", DIMENSIONS, USUAL_GROUPS),
        formats=formats,
        sites=sites,
        baseline=baseline,
        basis=basis,
        matching=_one(given, "matching", HOURLY, MATCHINGS, "way of matching"),
        focus_version=_one(given, "focus_version", NEWEST_FOCUS, FOCUS_VERSIONS, "version of FOCUS"),
    )
    request.span()
    return request


def _one(given: Mapping[str, Any], field: str, usual: str, known: Collection[str], what: str) -> str:
    """Returns one of the known names, the usual one where none is given."""
    value = given.get(field) or usual
    if value not in known:
        raise BadReport(field, f"'{value}' is no {what}; choose from {', '.join(known)}")
    return str(value)


def _basis(given: Mapping[str, Any], formats: Collection[str]) -> str:
    basis = given.get("basis") or USUAL_BASIS
    if basis not in (*BASES, NO_BILL):
        raise BadReport("basis", f"'{basis}' is no basis of a bill; choose from {', '.join((*BASES, NO_BILL))}")
    if basis == NO_BILL and (without := [name for name in BILL_FORMATS if name in formats]):
        raise BadReport("basis", f"{without[0]} needs a bill: choose from {', '.join(BASES)}")
    return str(basis)


def _names(given: Mapping[str, Any], field: str, known: Collection[str], usual: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a list of known names, each once, in the order in which they are known."""
    value = given.get(field)
    if value is None:
        return usual
    items: Iterable[Any] = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise BadReport(field, f"must be a list of: {', '.join(known)}")
    wanted = {item for item in items if item}
    if strange := sorted(wanted - set(known)):
        choice = ", ".join(known) or "nothing: there is none"
        raise BadReport(field, f"'{strange[0]}' is not known; choose from {choice}")
    return tuple(name for name in known if name in wanted)
