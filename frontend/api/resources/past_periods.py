"""Past periods: their figures, and the fleet of then as a scenario that the simulator runs."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access import rights
from scheduler.whatif import scenario_archive, study_drafts
from scheduler.whatif.errors import BadStudy
from scheduler.whatif.past_figures import past_figures

from ..rest.base import View
from ..rest.filters import require_known

FROM = OpenApiParameter("from", OpenApiTypes.DATETIME, description="A time with its offset.")
TO = OpenApiParameter("to", OpenApiTypes.DATETIME, description="A later one, which is no part of the period.")
SERVICE = OpenApiParameter("service", str, description="Whose requests; all where left out.")


class LatencySerializer(serializers.Serializer):
    """Seconds, of requests that ended well; null: there was none."""

    p50 = serializers.FloatField(allow_null=True)
    p90 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)
    mean = serializers.FloatField(allow_null=True)


class PeriodFiguresSerializer(serializers.Serializer):
    """The figures of a period, of the names that a simulated run's have. Energy is the fleet's at the sites that the
    caller may see, as metered at the GPUs; null: not known, or of a part not."""

    start_at = serializers.DateTimeField()
    end_at = serializers.DateTimeField()
    requests = serializers.IntegerField(help_text="That began in the period.")
    finished = serializers.IntegerField()
    rejected = serializers.IntegerField()
    energy_wh = serializers.FloatField(allow_null=True)
    energy_wh_by = serializers.DictField(
        child=serializers.FloatField(), help_text="serving, idle, transition, unattributed; empty: without an engine."
    )
    carbon_g = serializers.FloatField(allow_null=True)
    carbon_missing_wh = serializers.FloatField(help_text="Energy without a carbon intensity.")
    gpu_hours = serializers.FloatField(allow_null=True, help_text="Of GPUs with an engine.")
    empty_gpu_hours = serializers.FloatField(help_text="Of powered GPUs without one.")
    clock_mhz = serializers.FloatField(allow_null=True, help_text="Mean of GPUs with an engine.")
    slo_attainment = serializers.FloatField(allow_null=True)
    ttft_s = LatencySerializer()
    tpot_s = LatencySerializer()
    e2e_s = LatencySerializer()
    decisions = serializers.DictField(
        child=serializers.DictField(child=serializers.IntegerField()), help_text="How many, by loop and reason."
    )


class PeriodFiguresView(View):
    """Figures of a past period."""

    @extend_schema(
        operation_id="period_figures_retrieve",
        tags=["period-figures"],
        responses=PeriodFiguresSerializer,
        parameters=[FROM, TO, SERVICE],
    )
    def get(self, request: Request) -> Response:
        """Returns energy by kind, GPU time, clock, latencies and attainment of [from, to)."""
        query = request.query_params
        require_known(query, ("from", "to", "service", "format"))
        sites = rights.site_ids(request.user)
        period = _asked(lambda: study_drafts.read_period(_times(query), sites))
        found = past_figures(period.start, period.end, query.get("service", ""), sites)
        return Response(PeriodFiguresSerializer({**found, "start_at": period.start, "end_at": period.end}).data)


class ScenarioView(View):
    """A scenario with its series and requests."""

    @extend_schema(
        operation_id="scenario_retrieve",
        tags=["scenario"],
        responses={(200, "application/zip"): OpenApiTypes.BINARY},
        parameters=[
            OpenApiParameter("base", str, description="fleet (default), a preset's name, or study:ID."),
            *(FROM, TO, SERVICE),
        ],
    )
    def get(self, request: Request) -> HttpResponse:
        """Returns a zip: scenario.yaml and the CSVs that it names; with `from` and `to` the requests of then."""
        query = request.query_params
        require_known(query, ("base", "from", "to", "service", "format"))
        past = "from" in query or "to" in query
        traffic: dict[str, Any] = {"kind": "past", **_times(query)} if past else {"kind": "keep"}
        traffic |= {"service": query["service"]} if "service" in query else {}
        base = query.get("base", study_drafts.FLEET)
        made = _asked(lambda: study_drafts.draft({"traffic": traffic}, base, request.user, None, timezone.now()))
        headers = {"Content-Disposition": 'attachment; filename="scenario.zip"'}
        return HttpResponse(scenario_archive.zipped(made), content_type="application/zip", headers=headers)


def _times(query: Any) -> dict[str, str]:
    """Returns the period's ends as they were given; a plus that was sent as it is has come as a blank."""
    return {key: query[key].replace(" ", "+") for key in ("from", "to") if key in query}


def _asked(read: Any) -> Any:
    """Returns what `read` does; what is wrong with it names a parameter."""
    try:
        return read()
    except BadStudy as error:
        raise ValidationError({error.field.removeprefix("traffic."): error.message}) from None
