"""Long work: /api/v1/jobs/. Whatever takes long answers 202 and names its job; here is how it goes, and its end."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access import rights
from pools.access.rights import Right
from pools.models import Job
from scheduler import jobs

from ..rest.base import ReadOnly
from ..rest.filters import filterset
from ..rest.idempotency import idempotent
from ..rest.permissions import require_at
from ..rest.problems import Conflict
from ..rest.references import named


class JobSerializer(serializers.ModelSerializer):
    """`progress` is the share done, 0 to 1."""

    created_by = named("created_by.username")

    class Meta:
        model = Job
        fields: tuple[str, ...] = (
            *("uid", "kind", "state", "progress", "error", "cancel_requested", "created_by"),
            *("created_at", "started_at", "finished_at"),
        )


class JobDetailSerializer(JobSerializer):
    class Meta(JobSerializer.Meta):
        fields = (*JobSerializer.Meta.fields, "parameters", "result", "log")


class JobViewSet(ReadOnly):
    """Jobs, the newest first. A single one has its parameters, log and result."""

    queryset = Job.objects.select_related("created_by")
    writes: ClassVar[Right] = Right.VIEW  # who asked for a job may stop it; for others' jobs see `cancel`
    lookup_field = "uid"
    lookup_value_regex = "[0-9a-f-]{36}"
    ordering = ("-created_at", "-id")
    ordering_fields = ("created_at",)
    filterset_class = filterset(
        Job, kind="kind", state="state", created_after="created_at__gt", created_before="created_at__lt"
    )

    def get_serializer_class(self) -> type:
        return JobSerializer if self.action == "list" else JobDetailSerializer

    def get_queryset(self) -> QuerySet[Any]:
        """People whose role is for some sites see their own jobs: others may tell of other sites."""
        found: QuerySet[Any] = super().get_queryset()
        if not rights.everywhere(self.request.user):
            found = found.filter(created_by=self.request.user)
        return found.defer("parameters", "result", "log") if self.action == "list" else found

    @extend_schema(request=None, responses=JobDetailSerializer)
    @action(detail=True, methods=["post"])
    @idempotent
    def cancel(self, request: Request, uid: str) -> Response:
        """Stops it: at once where no worker has it yet, else soon. Others' jobs need the right to operate."""
        job = self.get_object()
        if job.created_by_id != request.user.pk:
            require_at(request.user, Right.OPERATE, None)
        if not jobs.cancel(job):
            raise Conflict(f"The job is {job.state}: there is nothing to stop.")
        return Response(JobDetailSerializer(self.get_object()).data)
