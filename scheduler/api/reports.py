"""Reports under /api/v1/reports/: ask for one, see how it goes, download its files, sign it, stop it."""

# mypy: allow-subclassing-any
# DRF brings no types of its own.

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.models import User
from django.http import FileResponse, Http404
from django.utils import timezone
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from pools.models import Job
from telemetry.models import Report, ReportFile
from telemetry.reports import asking
from telemetry.reports.errors import BadReport
from telemetry.reports.tasks import send

from .views import NewestFirst, ReadOnly


class Conflict(APIException):
    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


class ReportFileSerializer(serializers.ModelSerializer):
    class Meta:
        model = ReportFile
        fields = ("format", "name", "sha256", "size_bytes", "rows")


class ReportSerializer(serializers.ModelSerializer):
    """`state`, `progress` and `error` are the job's; `summary` is null until it is done."""

    job = serializers.UUIDField(source="job.uid")
    state = serializers.CharField(source="job.state")
    progress = serializers.FloatField(source="job.progress")
    error = serializers.CharField(source="job.error")
    files = ReportFileSerializer(many=True, read_only=True)

    class Meta:
        model = Report
        fields: tuple[str, ...] = (
            *("id", "asked", "period_start", "period_end", "revision", "revises", "ledger_version", "created_at"),
            *("job", "state", "progress", "error", "summary", "signed_by", "signed_at", "files"),
        )


class ReportDetailSerializer(ReportSerializer):
    class Meta(ReportSerializer.Meta):
        fields = (*ReportSerializer.Meta.fields, "changes")


class ReportViewSet(ReadOnly):
    queryset = Report.objects.select_related("job").prefetch_related("files")
    parser_classes: ClassVar = [JSONParser]
    filters = {"state": ("job__state", list(Job.State.values))}

    class pagination_class(NewestFirst):
        ordering = ("-id",)

    def get_serializer_class(self) -> type:
        return ReportSerializer if self.action == "list" else ReportDetailSerializer

    def get_queryset(self) -> Any:
        found = super().get_queryset()
        return found.defer("basis", "changes") if self.action == "list" else found.defer("basis")

    def create(self, request: Request) -> Response:
        """Asks for a report. 202: a worker makes it; look at it by its `id`."""
        if not isinstance(request.data, dict):
            raise ValidationError({"body": "send a JSON object with the report's fields, such as period"})
        user = request.user if isinstance(request.user, User) else None
        try:
            report = asking.ask(request.data, user)
        except BadReport as error:
            raise ValidationError({error.field: error.message}) from None
        send(report)
        body = ReportDetailSerializer(report).data
        return Response(body, status=status.HTTP_202_ACCEPTED, headers={"Location": f"{request.path}{report.pk}/"})

    @action(detail=True, methods=["get"], url_path=r"files/(?P<kind>[a-z-]+)", pagination_class=None)  # type: ignore[untyped-decorator]
    def file(self, request: Request, pk: str, kind: str) -> FileResponse:
        """Bytes of one file, as they were when the report was made."""
        found = self.get_object().files.filter(format=kind).first()
        if found is None:
            raise Http404("this report has no file of that format")
        return download(found)

    @action(detail=True, methods=["post"])  # type: ignore[untyped-decorator]
    def sign(self, request: Request, pk: str) -> Response:
        report = self.get_object()
        if not asking.sign(report, request.user.get_username(), timezone.now()):
            raise Conflict("It is signed already, or not finished.")
        return Response(ReportDetailSerializer(self.get_object()).data)

    @action(detail=True, methods=["post"])  # type: ignore[untyped-decorator]
    def cancel(self, request: Request, pk: str) -> Response:
        if not asking.cancel(self.get_object()):
            raise Conflict("It is finished: there is nothing to stop.")
        return Response(ReportDetailSerializer(self.get_object()).data)


def download(found: ReportFile) -> FileResponse:
    """Raises Http404 where the file has been taken away."""
    try:
        file = asking.path_of(found).open("rb")
    except FileNotFoundError:
        raise Http404("the file is gone: `greenserve report verify` makes it again") from None
    return FileResponse(file, as_attachment=True, filename=found.name, headers={"X-Checksum-Sha256": found.sha256})
