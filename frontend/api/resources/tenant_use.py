"""What a tenant used: /api/v1/tenants/NAME/use/, from the settled ledger, with the columns that reports have."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import Http404
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access import rights
from pools.models import Tenant
from telemetry.report_values.table import COLUMNS
from telemetry.report_values.totals import Group, Totals
from telemetry.reports import tenant_use
from telemetry.reports.tenant_use import HOUR_S, HourSpan, Use

from ..rest.base import View
from ..rest.filters import require_known

BY = ("site", "service", "adapter", "day")
LONGEST = timedelta(days=400)
KNOWN = ("from", "to", "by", "adapter", "format")
# Of a report's columns those that settled lines have: requests and objectives are counted where a request began.
AMOUNTS = (
    *("energy_j", "energy_kwh", "facility_kwh", "host_kwh", "host_known_kwh", "without_host_kwh", "gpu_hours"),
    *("scope2_location_kgco2e", "scope2_location_known_kgco2e"),
    *("without_intensity_kwh", "embodied_kgco2e", "cost", "electricity_cost", "gpu_hour_cost", "without_tariff_kwh"),
    *("prompt_tokens", "output_tokens"),
)
CELLS = {column.name: column.cell for column in COLUMNS if column.name in AMOUNTS}


@extend_schema_field({"type": "string", "format": "decimal"})
class Amount(serializers.CharField):
    """A decimal as a text, with all its digits."""


class UseSums(serializers.Serializer):
    """Decimals as texts, with all their digits; null: not known, or of a part not. Money is in `currency`."""

    currency = serializers.CharField()
    energy_j = Amount()
    energy_kwh = Amount()
    facility_kwh = Amount()
    host_kwh = Amount(allow_null=True, help_text="Of the hosts beside the GPUs; in no other figure.")
    host_known_kwh = Amount(allow_null=True)
    without_host_kwh = Amount(help_text="The GPUs' energy without a host meter beside it.")
    gpu_hours = Amount()
    scope2_location_kgco2e = Amount(allow_null=True)
    scope2_location_known_kgco2e = Amount()
    without_intensity_kwh = Amount()
    embodied_kgco2e = Amount(allow_null=True)
    cost = Amount(allow_null=True)
    electricity_cost = Amount()
    gpu_hour_cost = Amount()
    without_tariff_kwh = Amount()
    prompt_tokens = Amount()
    output_tokens = Amount()


class UseRow(UseSums):
    """One group: it has those of `site`, `service`, `adapter` and `day` that `by` names. A day is one of UTC."""

    site = serializers.CharField(required=False)
    service = serializers.CharField(required=False, allow_null=True)
    adapter = serializers.CharField(
        required=False, allow_null=True, help_text="The LoRA adapter that was asked for; null: the service itself."
    )
    day = serializers.DateField(required=False)

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Leaves out what `by` does not name; null is nobody's."""
        found: dict[str, Any] = super().to_representation(instance)
        return {name: value for name, value in found.items() if name in instance}


class TenantUseSerializer(serializers.Serializer):
    """Serving energy metered at the GPUs, shared out by token-time; what is settled of it."""

    tenant = serializers.CharField()
    start_at = serializers.DateTimeField()
    end_at = serializers.DateTimeField()
    settled_until = serializers.DateTimeField(
        allow_null=True, help_text="Up to then all sites are settled; null: none is. Sums have what is settled so far."
    )
    totals = UseSums(many=True, help_text="One for each currency.")
    rows = UseRow(many=True, help_text="Groups, where `by` names some.")


class TenantUseView(View):
    """Sums up what one tenant used at the sites that the caller may see."""

    @extend_schema(
        operation_id="tenants_use",
        tags=["tenants"],
        responses=TenantUseSerializer,
        parameters=[
            OpenApiParameter("name", str, OpenApiParameter.PATH),
            OpenApiParameter(
                "from", OpenApiTypes.DATETIME, description="A whole hour in UTC; the month's first where left out."
            ),
            OpenApiParameter(
                "to", OpenApiTypes.DATETIME, description="A whole hour; the end of this one where left out."
            ),
            OpenApiParameter("by", str, description=f"Groups, with commas between: {', '.join(BY)}."),
            OpenApiParameter("adapter", str, description="Only of requests that asked for this LoRA adapter."),
        ],
    )
    def get(self, request: Request, name: str) -> Response:
        """Returns a tenant's energy, carbon and cost: the same to the digit as a report's of the same hours."""
        query = request.query_params
        require_known(query, KNOWN)
        by = tuple(part for part in query.get("by", "").split(",") if part)
        if strange := [part for part in by if part not in BY]:
            raise ValidationError({"by": f"'{strange[0][:40]}' is not known; choose from {', '.join(BY)}"})
        tenant = Tenant.objects.filter(name=name).first()
        sites = dict(rights.sites_of(request.user).values_list("pk", "name"))
        now = timezone.now()
        start = _hour(query, "from", now.replace(day=1, hour=0, minute=0, second=0, microsecond=0))
        end = _hour(query, "to", tenant_use.whole_hour(now) + timedelta(hours=1))
        if not timedelta() < end - start <= LONGEST:
            raise ValidationError({"from": "before `to`, and at most 400 days before it"})
        settled = tenant_use.settled_until(tuple(sites), start)
        adapter = query.get("adapter", "")
        span = HourSpan(start, end, tuple(sites), tenant.pk if tenant else None, adapter=adapter)
        days_from = start.replace(hour=0)
        found = tenant_use.use(span, by, days_from) if tenant else []
        if tenant is None or not (found or rights.everywhere(request.user)):
            raise Http404("there is no such tenant that you may see, or it used nothing at your sites")
        body = {
            "tenant": tenant.name,
            "start_at": start,
            "end_at": end,
            "settled_until": settled,
            "totals": [_sums(currency, totals) for currency, totals in tenant_use.added_up(found).items()],
            "rows": [_row(one, by, sites, days_from) for one in found] if by else [],
        }
        return Response(TenantUseSerializer(body).data)


def _sums(currency: str, totals: Totals) -> dict[str, Any]:
    group = Group((), currency, totals, False)
    return {"currency": currency, **{name: cell(group) for name, cell in CELLS.items()}}


def _row(one: Use, by: tuple[str, ...], sites: Mapping[int, str], days_from: datetime) -> dict[str, Any]:
    found = _sums(one.currency, one.totals)
    for part, value in zip(by, one.key, strict=True):
        if part == "site":
            found[part] = sites[value]
        else:
            found[part] = (days_from + timedelta(days=value)).date() if part == "day" else value
    return found


def _hour(query: Mapping[str, str], name: str, usual: datetime) -> datetime:
    """Reads a time of the query. Raises ValidationError: it is none, or no whole hour of UTC."""
    text = query.get(name)
    if text is None:
        return usual
    try:
        moment = parse_datetime(text.replace(" ", "+"))
        day = parse_date(text) if moment is None else None
    except ValueError:
        moment = day = None
    if moment is None and day is not None:
        moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
    if moment is None:
        raise ValidationError({name: "a time such as 2026-11-01T00:00:00Z, or a date such as 2026-11-01"})
    found = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    if found.timestamp() % HOUR_S:
        raise ValidationError({name: "a whole hour in UTC: sums are by the hour"})
    return found
