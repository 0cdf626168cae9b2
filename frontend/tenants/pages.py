"""The pages of tenants: all of them, one of them, and the table that the Overview shows."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from frontend.charts.line_figures import LineChart, PlotLine
from frontend.fleet import chart_pages
from frontend.fleet.listing import Column, listing
from pools.access import rights
from pools.access.rights import Right
from pools.models import Site, Tenant
from telemetry.models import Budget
from telemetry.report_values.errors import BadReport
from telemetry.report_values.month_forecast import DAYS
from telemetry.reports import report_requests, tenant_use
from telemetry.reports.tasks import send

from . import bill as bills
from . import month as months
from .month import Month, TenantRow

SHOWN = 8  # on the Overview
COLUMNS = (
    Column("label", "Tenant"),
    Column("energy_j", "Energy", number=True),
    Column("carbon_g", "Carbon", number=True, hint="Scope 2, location-based, PUE included"),
    Column("cost", "Cost", number=True, hint="Electricity and GPU-hours; sorts where all of it is in one currency"),
    Column("budget_used", "Budget used", number=True),
)
CHARTS = ("energy", "carbon", "cost")
METHOD = (
    f"Forecast (modelled): what is settled, plus the mean of the newest {DAYS} settled days for each day left; "
    "four months of five end within the range."
)
SOURCE = "settled ledger: serving energy metered at the GPUs, shared out by token-time"


@never_cache
@require_safe
def tenants(request: HttpRequest) -> HttpResponse:
    month = _month(request)
    context = _context(request, month)
    where = "" if context["all_sites"] else ", at the sites of your role"
    context |= {
        "title": "Tenants",
        "lead": f"What each used, emitted and cost in {month.words} (UTC){where}.",
        "listing": listing(request, _rows(request, month), COLUMNS, search=lambda row: f"{row.name} {row.label}"),
    }
    return render(request, "frontend/tenants/list.html", context)


@never_cache
@require_safe
def this_month(request: HttpRequest) -> HttpResponse:
    """Renders the Overview's table: the tenants that used most."""
    month = _month(request)
    rows = [row for row in _rows(request, month) if row.figures.energy_j]
    context = _context(request, month) | {"tenants": rows[:SHOWN], "more": max(0, len(rows) - SHOWN)}
    return render(request, "frontend/tenants/this_month.html", context)


@never_cache
@require_safe
def tenant(request: HttpRequest, name: str) -> HttpResponse:
    month = _month(request)
    found = _find(request, month, name)
    everywhere = rights.everywhere(request.user)
    budget = Budget.objects.filter(tenant=found).first() if everywhere else None
    sites = dict(Site.objects.filter(pk__in=month.site_ids).values_list("pk", "name"))
    uses = months.month_uses(month, found)
    context = _context(request, month) | {
        "tenant": found,
        "budget": budget,
        "everywhere": everywhere,
        "quantities": months.quantities(month, found, budget, uses),
        "pivot": months.by_service_and_site(uses, sites),
        "unsettled_j": tenant_use.unsettled_uj(month.span()) / 1e6,
        "method": METHOD,
        "billed": bills.month_bill(request.user, month, found, bills.basis_of(request.GET.get("basis"))),
        "charts": CHARTS,
        "charts_url": reverse("tenant-figures", args=[found.name]),
    }
    return render(request, "frontend/tenants/tenant.html", context)


@never_cache
@require_safe
def tenant_bill(request: HttpRequest, name: str) -> HttpResponse:
    """Renders the bill of the month alone: the page asks for it while its report is made."""
    month = _month(request)
    found = _find(request, month, name)
    billed = bills.month_bill(request.user, month, found, bills.basis_of(request.GET.get("basis")))
    context = _context(request, month) | {"tenant": found, "billed": billed}
    return render(request, "frontend/tenants/bill.html", context)


@require_POST
@rights.needs(Right.FINANCE)
def make_bill(request: HttpRequest, name: str) -> HttpResponse:
    """Asks for the report that the month's bill is from, unless one is being made."""
    month, basis = _month(request), bills.basis_of(request.POST.get("basis"))
    found = _find(request, month, name)
    user = request.user if isinstance(request.user, User) else None
    try:
        if bills.month_bill(request.user, month, found, basis).making is None:
            send(report_requests.ask(bills.asked(request.user, month, basis), user))
    except BadReport as error:
        messages.error(request, f"No report is made. {error}")
    address = reverse("tenant", args=[found.name])
    return redirect(f"{address}?month={month.key}&basis={basis}#bill")


@never_cache
@require_safe
def tenant_figures(request: HttpRequest, name: str) -> HttpResponse:
    month = _month(request)
    found = _find(request, month, name)
    window, days = months.daily(month, found)
    currencies = sorted({currency for day in days if day for currency, _ in day.costs})
    energy = tuple(None if day is None else day.energy_j / 3_600 for day in days)
    carbon = tuple(None if day is None else day.carbon_g for day in days)
    costs = tuple(
        PlotLine(currency, tuple(None if day is None else dict(day.costs).get(currency) for day in days))
        for currency in currencies
    )
    until_s = month.until.timestamp() if month.until > month.start else None
    common: dict[str, Any] = {"window": window, "steps": True, "until_s": until_s}
    drawn = {
        "energy": LineChart(
            "How much energy does it use a day?",
            "Wh",
            SOURCE,
            lines=(PlotLine("energy", energy),),
            prefixed=True,
            **common,
        ),
        "carbon": LineChart(
            "What does it emit a day?",
            "gCO₂e",
            "settled ledger, location-based, PUE included; a gap: some intensity is not known",
            lines=(PlotLine("carbon", carbon),),
            prefixed=True,
            **common,
        ),
        "cost": LineChart(
            "What does it cost a day?",
            ", ".join(currencies),
            "settled ledger: electricity and GPU-hours; a gap: some tariff or rate is not known",
            lines=costs,
            **common,
        ),
    }
    return chart_pages.answer(request, name, drawn, window=window)


def _month(request: HttpRequest) -> Month:
    """Reads `month`, such as 2026-10; this month where it is left out. Raises Http404 for what is none."""
    try:
        start = months.month_named(request.GET.get("month", ""), timezone.now())
    except ValueError as error:
        raise Http404(f"month: {error}") from None
    sites = rights.sites_of(request.user).order_by("pk").values_list("pk", flat=True)
    return months.month_of(start, tuple(sites))


def _rows(request: HttpRequest, month: Month) -> list[TenantRow]:
    return months.tenant_rows(month, rights.everywhere(request.user))


def _find(request: HttpRequest, month: Month, name: str) -> Tenant:
    """Raises Http404: there is none, or none that this person may see: it used nothing at the sites of their role."""
    found = Tenant.objects.filter(name=name).first()
    if found is None or not (rights.everywhere(request.user) or any(row.name == name for row in _rows(request, month))):
        raise Http404("no such tenant that you may see")
    return found


def _context(request: HttpRequest, month: Month) -> dict[str, Any]:
    now = months.month_start(timezone.now())
    return {
        "month": month,
        "settled": month.until > month.start,
        "this_month": month.start == now,
        "earlier": f"{month.before:%Y-%m}",
        "later": f"{month.end:%Y-%m}" if month.start < now else "",
        "all_sites": rights.everywhere(request.user),
    }
