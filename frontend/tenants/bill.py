"""Reads what a tenant would be billed for a month by the newest report of exactly that month and the reader's sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pools.access import rights
from pools.access.rights import AnyUser
from pools.models import Tenant
from scheduler.operations import visibility
from telemetry.models import Report
from telemetry.report_values.bill import BASES, BASIS_WORDS
from telemetry.report_values.report_request import USUAL_BASIS
from telemetry.reports import tenant_bills, tenant_use
from telemetry.reports.tenant_bills import DEMAND, OPEN, BilledPart, MonthReport, TenantBill

from .month import Month

WORDS = {
    "direct": "Direct: serving",
    "base": "Idle base of serving GPUs",
    "idle": "Shared idle",
    "transition": "Starting and draining",
    "unattributed": "Unattributed",
    DEMAND: "Demand charge, its share",
}
TABS = {"usage": "By usage", "allocation": "By allocation", "marginal": "By marginal cost"}


@dataclass(frozen=True, slots=True)
class MonthBill:
    """A tenant's bill of a month in a basis.

    Attributes:
        bill: By the newest report that is done; None: there is none.
        making: A newer report that a worker makes, or is to make.
        failed: Why the newest one of all was not made; empty: it was.
        older: The ledger has settled more of the month since the report.
    """

    basis: str
    bill: TenantBill | None
    making: MonthReport | None
    failed: str
    older: bool

    @property
    def explained(self) -> str:
        return BASIS_WORDS[self.basis]

    @property
    def bases(self) -> Sequence[tuple[str, str, bool]]:
        return [(name, words, name == self.basis) for name, words in TABS.items()]

    @property
    def rows(self) -> list[tuple[str, BilledPart]]:
        """Returns parts with their words, each currency's total after them."""
        if self.bill is None:
            return []
        found = []
        for total in self.bill.totals:
            parts = [one for one in self.bill.parts or () if one.currency == total.currency]
            found += [*((WORDS[one.part], one) for one in parts), ("", total)]
        return found


def basis_of(text: str | None) -> str:
    return text if text in BASES else USUAL_BASIS


def month_bill(user: AnyUser, month: Month, tenant: Tenant, basis: str) -> MonthBill:
    """Reads a tenant's bill at the sites that this person may see. Four queries, however many lines the month has."""
    found = reports(user, month, basis)
    done = next((one for one in found if one.done), None)
    newest = found[0] if found else None
    older = done is not None and tenant_use.newest_version(month.span()) > done.ledger_version
    failed = newest is not None and newest.state == "failed"
    return MonthBill(
        basis=basis,
        bill=None if done is None else tenant_bills.bill_of(done, tenant.name),
        making=newest if newest is not None and newest.state in OPEN else None,
        failed=_error(newest) if newest is not None and failed else "",
        older=older,
    )


def reports(user: AnyUser, month: Month, basis: str) -> list[MonthReport]:
    """Returns reports of the month with a bill by the basis, the newest first, of exactly the person's sites."""
    names = list(rights.sites_of(user).values_list("name", flat=True))
    seen = visibility.for_sites(user, Report.objects.all())
    found = tenant_bills.month_reports(seen, month.start, month.end, names, rights.everywhere(user))
    return [one for one in found if one.basis == basis]


def asked(user: AnyUser, month: Month, basis: str) -> dict[str, Any]:
    """Returns the report to ask for, so that this page has the month's bill."""
    sites = (
        []
        if rights.everywhere(user)
        else list(rights.sites_of(user).order_by("rank", "name").values_list("name", flat=True))
    )
    return {"period": month.key, "basis": basis, "sites": sites}


def _error(report: MonthReport) -> str:
    return str(Report.objects.values_list("job__error", flat=True).get(pk=report.pk))
