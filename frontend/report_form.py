"""The form that asks for a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict

from pools.access import rights
from pools.access.rights import AnyUser
from telemetry.report_values.market import HOURLY, PERIOD
from telemetry.report_values.report_request import (
    NEWEST_FOCUS,
    NO_BILL,
    SITE_ZONE,
    USUAL_BASIS,
    USUAL_FORMATS,
    USUAL_GROUPS,
)

MATCHINGS_SHOWN = ((HOURLY, "by the hour"), (PERIOD, "over the period"))
BASES_SHOWN = (
    ("usage", "by usage"),
    ("allocation", "by allocation"),
    ("marginal", "by marginal cost"),
    (NO_BILL, "no bill"),
)


@dataclass(frozen=True, slots=True)
class Form:
    """What stands in the form, and what is wrong with it by field: nothing that was typed is lost."""

    period: str
    zone: str = "UTC"
    site: str = ""
    by: tuple[str, ...] = USUAL_GROUPS
    formats: tuple[str, ...] = USUAL_FORMATS
    baseline: bool = False
    basis: str = USUAL_BASIS
    matching: str = HOURLY
    focus_version: str = NEWEST_FOCUS
    errors: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: QueryDict, errors: dict[str, str] | None = None) -> Form:
        return cls(
            period=given.get("period", "").strip()[:40],
            zone=SITE_ZONE if given.get("zone") == SITE_ZONE else "UTC",
            site=given.get("site", "")[:100],
            by=tuple(given.getlist("by")),
            formats=tuple(given.getlist("formats")),
            baseline="baseline" in given,
            basis=given.get("basis", USUAL_BASIS)[:20],
            matching=given.get("matching", HOURLY)[:20],
            focus_version=given.get("focus_version", NEWEST_FOCUS)[:20],
            errors=errors or {},
        )

    def asked(self) -> dict[str, Any]:
        return {
            "period": self.period,
            "zone": self.zone,
            "sites": [self.site] if self.site else [],
            "by": list(self.by),
            "formats": list(self.formats),
            "baseline": self.baseline,
            "basis": self.basis,
            "matching": self.matching,
            "focus_version": self.focus_version,
        }

    def wrong_site(self, user: AnyUser) -> str | None:
        """Says what is wrong with the site if the person's role is not for it; None: nothing."""
        if rights.everywhere(user):
            return None
        own = list(rights.sites_of(user).values_list("name", flat=True))
        return None if self.site in own else f"your role is for {', '.join(own) or 'no site'}: choose one of these"
