"""A tenant's bill: /api/v1/tenants/NAME/bill/, by the newest report of exactly that month."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from frontend.tenants import bill as bills
from frontend.tenants import month as months
from pools.access import rights
from pools.models import Tenant
from telemetry.report_values.bill import BASES, PARTS
from telemetry.report_values.report_request import USUAL_BASIS
from telemetry.reports import tenant_use
from telemetry.reports.tenant_bills import DEMAND, BilledPart

from ..rest.base import View
from ..rest.filters import require_known

KNOWN = ("month", "basis", "format")


class BillSums(serializers.Serializer):
    """Decimals as texts, with all their digits; null: not known, or of a part not. Money is in `currency`."""

    currency = serializers.CharField()
    energy_j = serializers.CharField(allow_null=True)
    energy_kwh = serializers.CharField(allow_null=True)
    facility_kwh = serializers.CharField(allow_null=True)
    gpu_hours = serializers.CharField(allow_null=True)
    scope2_location_kgco2e = serializers.CharField(allow_null=True)
    scope2_market_kgco2e = serializers.CharField(allow_null=True)
    embodied_kgco2e = serializers.CharField(allow_null=True)
    electricity_cost = serializers.CharField(allow_null=True)
    gpu_hour_cost = serializers.CharField(allow_null=True)
    demand_charge = serializers.CharField(allow_null=True)
    due = serializers.CharField(allow_null=True)


class BillPart(BillSums):
    part = serializers.ChoiceField(choices=(*PARTS, DEMAND))


class BillReport(serializers.Serializer):
    """The report that the bill is from. `warnings`: why its figures are not to be paid as they are."""

    id = serializers.IntegerField(source="pk")
    version = serializers.CharField()
    signature = serializers.CharField(help_text="SHA-256 over the report's figures and inputs.")
    signed_by = serializers.CharField(help_text="Empty: nobody has signed it.")
    warnings = serializers.ListField(child=serializers.CharField())
    made_at = serializers.DateTimeField()


class TenantBillSerializer(serializers.Serializer):
    """A tenant's share of a month, by the report's own bill. Without a `report` nothing of it is known."""

    tenant = serializers.CharField()
    month = serializers.CharField(help_text="Of UTC.")
    basis = serializers.ChoiceField(choices=BASES)
    report = BillReport(allow_null=True, help_text="Null: there is none; POST /api/v1/reports/ asks for one.")
    older = serializers.BooleanField(help_text="The ledger has settled more of the month since the report.")
    totals = BillSums(many=True, help_text="One for each currency; none: it bears nothing.")
    parts = BillPart(many=True, allow_null=True, help_text="Null: the report is from before its parts were kept.")


class TenantBillView(View):
    """Returns what one tenant would be billed, at exactly the sites that the caller may see."""

    @extend_schema(
        operation_id="tenants_bill",
        tags=["tenants"],
        responses=TenantBillSerializer,
        parameters=[
            OpenApiParameter("name", str, OpenApiParameter.PATH),
            OpenApiParameter("month", str, description="Such as 2026-10; this month where left out."),
            OpenApiParameter("basis", str, enum=BASES, description=f"{USUAL_BASIS} where left out."),
        ],
    )
    def get(self, request: Request, name: str) -> Response:
        """Returns a tenant's part of a month's fully loaded bill: the same to the digit as the report's."""
        query = request.query_params
        require_known(query, KNOWN)
        basis = query.get("basis", USUAL_BASIS)
        if basis not in BASES:
            raise ValidationError({"basis": f"'{basis[:40]}' is not known; choose from {', '.join(BASES)}"})
        sites = tuple(rights.sites_of(request.user).order_by("pk").values_list("pk", flat=True))
        try:
            start = months.month_named(query.get("month", ""), timezone.now())
        except ValueError as error:
            raise ValidationError({"month": str(error)}) from None
        month = months.month_of(start, sites)
        tenant = Tenant.objects.filter(name=name).first()
        if tenant is None or not (rights.everywhere(request.user) or tenant_use.use(month.span(tenant.pk))):
            raise Http404("there is no such tenant that you may see, or it used nothing at your sites")
        found = bills.month_bill(request.user, month, tenant, basis)
        bill = found.bill
        body = {
            "tenant": tenant.name,
            "month": month.key,
            "basis": basis,
            "report": None if bill is None else bill.report,
            "older": found.older,
            "totals": [] if bill is None else [_sums(one) for one in bill.totals],
            "parts": None
            if bill is None or bill.parts is None
            else [{**_sums(one), "part": one.part} for one in bill.parts],
        }
        return Response(TenantBillSerializer(body).data)


def _sums(one: BilledPart) -> dict[str, Any]:
    return {"currency": one.currency, **one.cells}
