"""Time series under /api/v1/series/: as JSON, CSV or Arrow, in buckets of a step or thinned to so many points."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, ClassVar

import msgspec
from django.http import Http404
from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from core.cells import csv_text
from pools.access import rights
from pools.models import Gpu
from telemetry import selectors
from telemetry.selectors.frames import INTERVAL_S, TimeRange

from ..rest.base import View
from ..rest.filters import require_known
from ..rest.sampling import METHODS, reduced
from .series_sources import SERIES, LabelledSeries, LabelledSums, Series, SeriesRequest

RANGE_S, LONGEST_S = 3_600.0, 400 * 86_400.0
POINTS, MOST_POINTS, MOST_BUCKETS = 360, 5_000, 10_000
NICE_S = (10, 20, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
KNOWN = ("from", "to", "site", "service", "gpu", "step", "points", "method", "format")
COLUMNS = ("at", "unit", "value", "source", "heard_share", "silent", "unknown_share")
BESIDE = COLUMNS[4:]  # lists of a line as long as its points
MEAN, SUM = "mean", "sum"


class LineSerializer(serializers.Serializer):
    """`points`: pairs of Unix seconds (the bucket's start) and a value; null is a gap.

    Lines of `energy` and `carbon` are sums, as exact decimals: nothing entered is left out. Beside each point they say
    which share of the site's meters was heard, and whether the bucket counts as silent; those of `carbon` also which
    share of its energy has no intensity, so that its carbon is not in the value.
    """

    labels = serializers.DictField(child=serializers.CharField())
    unit = serializers.CharField()
    source = serializers.CharField()
    points = serializers.ListField(child=serializers.ListField(child=serializers.FloatField(allow_null=True)))
    heard_share = serializers.ListField(child=serializers.FloatField(allow_null=True), required=False)
    silent = serializers.ListField(child=serializers.BooleanField(), required=False)
    unknown_share = serializers.ListField(child=serializers.FloatField(allow_null=True), required=False)


class SeriesSerializer(serializers.Serializer):
    """Buckets are whole: from `start_at` up to `end_at`, which may be later than what was asked for."""

    name = serializers.CharField()
    description = serializers.CharField()
    start_at = serializers.DateTimeField()
    end_at = serializers.DateTimeField()
    step_s = serializers.FloatField()
    method = serializers.CharField()
    series = LineSerializer(many=True)


class ExactJsonRenderer(JSONRenderer):
    """JSON whose decimals are numbers with all their digits."""

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        if not (isinstance(data, dict) and "series" in data):  # a problem
            return bytes(super().render(data, accepted_media_type, renderer_context))
        return msgspec.json.Encoder(decimal_format="number").encode(data)


class CsvRenderer(BaseRenderer):
    """One line a point; an empty value is a gap."""

    media_type, format, charset = "text/csv", "csv", "utf-8"

    def render(self, data: Any, media_type: Any = None, context: Any = None) -> bytes:
        return csv_text(_columns(data), _rows(data)).encode()


class ArrowRenderer(BaseRenderer):
    """Apache Arrow's IPC stream, of the same columns as CSV."""

    media_type, format, charset = "application/vnd.apache.arrow.stream", "arrow", None
    render_style = "binary"

    def render(self, data: Any, media_type: Any = None, context: Any = None) -> bytes:
        import polars as pl  # large, and few ask for it

        value = pl.Decimal(38, 6) if data["method"] == SUM else pl.Float64
        text = pl.String
        names = _columns(data)
        labels = [text] * (len(names) - len(COLUMNS))
        types = (pl.Datetime("us", "UTC"), *labels, text, value, text, pl.Float64, pl.Boolean, pl.Float64)
        frame = pl.DataFrame(_rows(data), schema=dict(zip(names, types, strict=True)), orient="row")
        out = io.BytesIO()
        frame.write_ipc_stream(out)
        return out.getvalue()


def _labels(data: Mapping[str, Any]) -> list[str]:
    return sorted({name for line in data["series"] for name in line["labels"]})


def _columns(data: Mapping[str, Any]) -> list[str]:
    """Returns the columns: each label of any line has its own, after the moment."""
    return ["at", *(f"labels.{name}" for name in _labels(data)), *COLUMNS[1:]]


def _rows(data: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    found, names = [], _labels(data)
    for line in data["series"]:
        labels = [line["labels"].get(name) for name in names]
        beside = zip_longest(line["points"], *(line.get(name, ()) for name in BESIDE))
        for (at_s, value), *shares in beside:
            at = datetime.fromtimestamp(at_s, UTC)
            found.append((at, *labels, line["unit"], value, line["source"], *shares))
    return found


def _parameter(name: str, kind: Any, words: str, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, kind, OpenApiParameter.QUERY, description=words, **more)


class SeriesView(View):
    """One series. Which there are: power, energy, carbon, carbon_rate, intensity, slo, jain, gpu."""

    renderer_classes: ClassVar = [ExactJsonRenderer, CsvRenderer, ArrowRenderer]

    @extend_schema(
        operation_id="series",
        tags=["series"],
        responses={
            200: SeriesSerializer,
            (200, "text/csv"): OpenApiTypes.STR,
            (200, "application/vnd.apache.arrow.stream"): OpenApiTypes.BINARY,
        },
        parameters=[
            OpenApiParameter("name", str, OpenApiParameter.PATH, enum=list(SERIES)),
            _parameter("from", OpenApiTypes.DATETIME, "The start; an hour before the end where it is left out."),
            _parameter("to", OpenApiTypes.DATETIME, "The end; now where it is left out."),
            _parameter("site", str, "Only this site."),
            _parameter("service", str, "Only this service (slo; of jain the classes)."),
            _parameter("gpu", str, "The GPU's uuid (gpu)."),
            _parameter("step", {"type": "integer", "minimum": 10}, "Length of a bucket in seconds: multiples of 10."),
            _parameter(
                "points", {"type": "integer", "minimum": 2, "maximum": MOST_POINTS}, "At most about so many a line."
            ),
            _parameter(
                "method",
                str,
                "How: means of buckets, or what lttb or minmax choose. Energy and carbon are sums of buckets, always.",
                enum=[MEAN, SUM, *METHODS],
            ),
            _parameter("format", str, "Instead of the Accept header.", enum=["json", "csv", "arrow"]),
        ],
    )
    def get(self, request: Request, name: str) -> Response:
        """Returns buckets of `step` seconds, or thinned to `points`, with unit and source; null or none is a gap."""
        found = SERIES.get(name)
        if found is None:
            raise Http404(f"There is no series '{name[:40]}'; there are {', '.join(SERIES)}.")
        query = request.query_params
        require_known(query, KNOWN)
        method = _method(query, found)
        points = _number(query.get("points"), "points", 2, MOST_POINTS)
        window = _window(query, found, points, method)
        lines = found.read(_asked(request, window))
        return Response(_document(name, found, window, method, points, lines))


def _method(query: Mapping[str, str], series: Series) -> str:
    """Returns how the points come about. Raises ValidationError."""
    usual = SUM if series.sums else MEAN if "step" in query or "points" not in query else "lttb"
    method = query.get("method") or usual
    known = (SUM,) if series.sums else (MEAN, *METHODS)
    if method not in known:
        why = "its values are sums, of which none may be left out; `step` or `points` makes fewer of them"
        raise ValidationError({"method": why if series.sums else f"one of {', '.join(known)}"})
    return method


def _document(
    name: str, series: Series, window: TimeRange, method: str, points: int | None, lines: Any
) -> dict[str, Any]:
    def shown(line: LabelledSeries | LabelledSums) -> dict[str, Any]:
        found = {"labels": dict(line.labels), "unit": line.unit, "source": line.source}
        if isinstance(line, LabelledSums):
            beside = {name: getattr(line, name) for name in BESIDE if getattr(line, name) is not None}
            return {**found, "points": line.points, **beside}
        keep = line.points if method == MEAN else reduced(line.points, points or POINTS, method)
        return {
            **found,
            "points": [[at_s, value if value is None or math.isfinite(value) else None] for at_s, value in keep],
        }

    return {
        "name": name,
        "description": series.description,
        "start_at": datetime.fromtimestamp(window.start_s, UTC).isoformat(),
        "end_at": datetime.fromtimestamp(window.ends_s[-1], UTC).isoformat(),
        "step_s": window.bucket_s,
        "method": method,
        "series": [shown(line) for line in lines],
    }


def _asked(request: Request, window: TimeRange) -> SeriesRequest:
    query = request.query_params
    sites = frozenset(rights.sites_of(request.user).values_list("name", flat=True))
    if (site := query.get("site")) is not None:
        if site not in sites:
            raise ValidationError({"site": "there is no such site that you may see"})
        sites = frozenset({site})
    gpu = None
    if (uuid := query.get("gpu")) and "\0" not in uuid:
        gpu = Gpu.objects.filter(uuid=uuid, node__cluster__site__name__in=sites).first()
        if gpu is None:
            raise ValidationError({"gpu": "there is no GPU of this uuid that you may see; gpus/ lists them"})
    return SeriesRequest(window, sites, query.get("service"), gpu)


def _window(query: Mapping[str, str], series: Series, points: int | None, method: str) -> TimeRange:
    """Buckets aligned to the epoch, so that points stay put as time goes on. Raises ValidationError."""
    end_s = _moment(query.get("to"), "to", time.time())
    start_s = _moment(query.get("from"), "from", end_s - RANGE_S)
    if not 0 < end_s - start_s <= LONGEST_S:
        raise ValidationError({"from": "before `to`, and at most 400 days before it"})
    step = _number(query.get("step"), "step", int(INTERVAL_S), int(LONGEST_S))
    if step is None:
        buckets = (points or POINTS) if method in (MEAN, SUM) else MOST_POINTS
        step = next((one for one in NICE_S if one % series.step_s == 0 and (end_s - start_s) / one <= buckets), None)
        step = step or 86_400 * math.ceil((end_s - start_s) / buckets / 86_400)
    if step % series.step_s:
        raise ValidationError({"step": f"a multiple of {series.step_s:g} s"})
    if (end_s - start_s) / step > MOST_BUCKETS:
        raise ValidationError({"step": f"too fine for so long a time: at most {MOST_BUCKETS} buckets"})
    window = TimeRange(math.floor(start_s / step) * step, end_s, float(step))
    return window if "step" in query else selectors.readable(window)


def _moment(text: str | None, name: str, default_s: float) -> float:
    if text is None:
        return default_s
    try:
        found = parse_datetime(text.replace(" ", "+"))
        at_s = float(text) if found is None else found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        at_s = math.nan
    if not 0.0 <= at_s <= 4e9:
        raise ValidationError({name: "a time such as 2026-11-02T08:30:00Z, or Unix seconds"})
    return at_s


def _number(text: str | None, name: str, least: int, most: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise ValidationError({name: f"a whole number from {least} to {most}"})
    return int(text)
