"""Reports under /api/v1/reports/: ask for one, see how it goes, download its files, sign it, stop it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import FileResponse, Http404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access import audit, rights
from pools.access.rights import Right
from pools.models import JobState
from scheduler.operations import visibility
from telemetry.models import Report, ReportFile
from telemetry.report_values.bill import BASES
from telemetry.report_values.errors import BadReport
from telemetry.report_values.market import MATCHINGS
from telemetry.report_values.report_request import FOCUS_VERSIONS, NO_BILL
from telemetry.reports import report_requests
from telemetry.reports.tasks import send

from ..rest.base import ReadOnly
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import idempotent
from ..rest.problems import Conflict


class ReportFileSerializer(serializers.ModelSerializer):
    class Meta:
        model = ReportFile
        fields = ("format", "name", "sha256", "size_bytes", "rows")


class ReportSerializer(serializers.ModelSerializer):
    """`state`, `progress` and `error` are the job's; `summary` is null until it is done."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("esrs",)  # of summaries in lists: as long as all the rest

    job = serializers.UUIDField(source="job.uid")
    state = serializers.ChoiceField(source="job.state", choices=JobState.choices)
    progress = serializers.FloatField(source="job.progress", help_text="Share done, 0 to 1.")
    error = serializers.CharField(source="job.error")
    files = ReportFileSerializer(many=True, read_only=True)

    class Meta:
        model = Report
        fields: tuple[str, ...] = (
            *("id", "asked", "period_start", "period_end", "revision", "revises", "ledger_version", "created_at"),
            *("job", "state", "progress", "error", "summary", "signed_by", "signed_at", "files"),
        )

    def to_representation(self, instance: Report) -> Any:
        found = super().to_representation(instance)
        if found["summary"] is not None:
            found["summary"] = {name: value for name, value in found["summary"].items() if name not in self.LEFT_OUT}
        return found


class ReportInputSerializer(serializers.Serializer):
    """A rate, factor, intensity, contract or reserved share. `used_...`: the time of the period that it valued."""

    kind = serializers.CharField()
    site = serializers.CharField(help_text="Empty: all.")
    value = serializers.CharField(help_text="With its unit.")
    quality = serializers.CharField()
    source = serializers.CharField()
    version = serializers.CharField()
    used_from_s = serializers.IntegerField(allow_null=True)
    used_to_s = serializers.IntegerField(allow_null=True)
    valid_from_s = serializers.IntegerField(allow_null=True)
    valid_to_s = serializers.IntegerField(allow_null=True)


class ReportDetailSerializer(ReportSerializer):
    LEFT_OUT: ClassVar[tuple[str, ...]] = ()

    inputs = serializers.SerializerMethodField()

    class Meta(ReportSerializer.Meta):
        fields = (*ReportSerializer.Meta.fields, "changes", "inputs")

    @extend_schema_field(ReportInputSerializer(many=True))
    def get_inputs(self, report: Report) -> Any:
        return ReportInputSerializer(report_requests.inputs(report), many=True).data


class NewReport(Body):
    """The report to make. docs/reports.md explains `by`, `formats` and `zone`; empty `sites` means all."""

    period = serializers.CharField(
        help_text="2026-11, 2026-W45, 2026-11-02, or two dates as 2026-11-01/2026-11-08, the second excluded."
    )
    zone = serializers.CharField(required=False)
    by = serializers.ListField(child=serializers.CharField(), required=False)
    formats = serializers.ListField(child=serializers.CharField(), required=False)
    sites = serializers.ListField(child=serializers.CharField(), required=False)
    baseline = serializers.BooleanField(required=False)
    basis = serializers.ChoiceField(
        choices=(*BASES, NO_BILL), required=False, help_text="How the bill shares out what is nobody's; none: no bill."
    )
    matching = serializers.ChoiceField(
        choices=MATCHINGS, required=False, help_text="How contracts for electricity cover what is used."
    )
    focus_version = serializers.ChoiceField(
        choices=FOCUS_VERSIONS,
        required=False,
        help_text="Version of FOCUS of these formats; the newest if it is not given. `asked` has it unless it is 1.4.",
    )


class ReportViewSet(ReadOnly):
    """Reports of energy, carbon and cost, the newest first. One is made by a worker; its state is its job's."""

    queryset = Report.objects.select_related("job").prefetch_related("files")
    writes: ClassVar[Right] = Right.FINANCE
    ordering = ("-id",)
    filterset_class = filterset(
        Report, state="job__state", created_after="created_at__gt", created_before="created_at__lt"
    )

    def get_serializer_class(self) -> type:
        return ReportSerializer if self.action == "list" else ReportDetailSerializer

    def get_queryset(self) -> Any:
        found = visibility.for_sites(self.request.user, super().get_queryset())
        return found.defer("basis", "changes") if self.action == "list" else found.defer("basis")

    @extend_schema(request=NewReport, responses={202: ReportDetailSerializer})
    @idempotent
    def create(self, request: Request) -> Response:
        """Asks for a report. 202: a worker makes it; look at it where Location says, or at its `job`."""
        if not isinstance(request.data, dict):
            raise ValidationError({"body": "send a JSON object with the report's fields, such as period"})
        self._check_sites(request.data.get("sites"))
        user = request.user if isinstance(request.user, User) else None
        try:
            report = report_requests.ask(request.data, user)
        except BadReport as error:
            raise ValidationError({error.field: error.message}) from None
        send(report)
        body = ReportDetailSerializer(report).data
        headers = {
            "Location": f"{request.path}{report.pk}/",
            "Link": f'</api/v1/jobs/{report.job.uid}/>; rel="monitor"',
        }
        return Response(body, status=status.HTTP_202_ACCEPTED, headers=headers)

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    @action(detail=True, methods=["get"], url_path=r"files/(?P<kind>[\w-]+)", pagination_class=None)
    def file(self, request: Request, pk: str, kind: str) -> FileResponse:
        """Returns the bytes of one file, as they were when the report was made."""
        found = self.get_object().files.filter(format=kind).first()
        if found is None:
            raise Http404("this report has no file of that format")
        return download(found)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def sign(self, request: Request, pk: str) -> Response:
        """Notes who has checked it, once. 409 where it is signed, or not finished."""
        report = self.get_object()
        if not report_requests.sign(report, audit.actor_of(request, "api"), timezone.now()):
            raise Conflict("It is signed already, or not finished.")
        return Response(ReportDetailSerializer(self.get_object()).data)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def cancel(self, request: Request, pk: str) -> Response:
        """Stops one that is not finished; 409 for one that is."""
        if not report_requests.cancel(self.get_object()):
            raise Conflict("It is finished: there is nothing to stop.")
        return Response(ReportDetailSerializer(self.get_object()).data)

    def _own_sites(self) -> list[str]:
        return list(rights.sites_of(self.request.user).values_list("name", flat=True))

    def _check_sites(self, asked: Any) -> None:
        """Raises PermissionDenied for sites that are not this person's: no sites are all of them."""
        if rights.everywhere(self.request.user):
            return
        own = self._own_sites()
        if not isinstance(asked, list) or not asked or not all(name in own for name in asked):
            raise PermissionDenied(f"Your role is for some sites only: give `sites`, of {', '.join(own) or 'none'}.")


def download(found: ReportFile) -> FileResponse:
    """Raises Http404 where the file has been taken away."""
    try:
        file = report_requests.path_of(found).open("rb")
    except FileNotFoundError:
        raise Http404("the file is gone: `greenserve report verify` makes it again") from None
    return FileResponse(file, as_attachment=True, filename=found.name, headers={"X-Checksum-Sha256": found.sha256})
