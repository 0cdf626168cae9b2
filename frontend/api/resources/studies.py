"""What-if: /api/v1/studies/. A scenario under several policies in the simulator; docs/what-if.md has the fields."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.parsers import JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access import audit
from pools.models import JobState, Service
from scheduler.models import Study, StudyRun
from scheduler.whatif import applying, comparing, experiment_studies, studies, study_drafts, study_requests, tasks
from scheduler.whatif.errors import BadStudy

from ..rest.base import ReadOnly
from ..rest.bodies import Body
from ..rest.filters import filterset
from ..rest.idempotency import idempotent
from ..rest.problems import Conflict
from ..rest.references import KeyField, named
from .experiments import ExperimentResultSerializer

MOST_FORM_BYTES = study_drafts.MOST_TRACE_BYTES + (1 << 20)


class StudyRunSerializer(serializers.ModelSerializer):
    """A run. `set`: fields of the scenario set otherwise; `progress`: share done, null where it is not known;
    `figures`: the simulator's (docs/simulator.md), null until it is done."""

    class Meta:
        model = StudyRun
        fields: tuple[str, ...] = (
            *("index", "label", "policy", "knobs", "changes", "state", "progress", "simulated_s", "error"),
            *("started_at", "finished_at", "figures"),
        )


class StudySerializer(serializers.ModelSerializer):
    """`state`, `progress` and `error` are the job's."""

    job = serializers.UUIDField(source="job.uid")
    state = serializers.ChoiceField(source="job.state", choices=JobState.choices)
    progress = serializers.FloatField(source="job.progress", help_text="Share done, 0 to 1.")
    error = serializers.CharField(source="job.error")
    created_by = named("created_by.username")

    class Meta:
        model = Study
        fields: tuple[str, ...] = (
            *(
                "id",
                "name",
                "base",
                "job",
                "state",
                "progress",
                "error",
                "currency",
                "target",
                "created_by",
                "created_at",
            ),
        )


class StudyDetailSerializer(StudySerializer):
    """A study with its scenario, the scenario's assumptions, its runs, and their ratios to the first run. `experiment`
    compares published with simulated figures in a study of the base lab:NAME; it is null in others."""

    runs = StudyRunSerializer(many=True, read_only=True)
    comparison = serializers.SerializerMethodField()
    experiment = serializers.SerializerMethodField()

    class Meta(StudySerializer.Meta):
        fields = (*StudySerializer.Meta.fields, "notes", "scenario", "runs", "comparison", "experiment")

    @extend_schema_field(ExperimentResultSerializer(allow_null=True))
    def get_experiment(self, study: Study) -> dict[str, Any] | None:
        return experiment_studies.result(study)

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_comparison(self, study: Study) -> dict[str, Any]:
        runs = [(run.index, run.label, run.figures) for run in study.runs.all() if run.figures is not None]
        return comparing.as_json(runs, study.currency, study.target)


class NewStudy(Body):
    """The study to make; only `runs` is required. An experiment (lab:NAME) brings its own values of the rest, and takes
    only `name` and, where it needs a trace, `traffic`."""

    name = serializers.CharField(required=False, max_length=120)
    base = serializers.CharField(
        required=False, help_text="fleet (default), a preset's name, study:ID, or lab:EXPERIMENT."
    )
    scenario = serializers.JSONField(required=False, help_text="In place of a base: as in a scenario file.")
    traffic = serializers.JSONField(required=False, help_text="kind: keep | past (from, to, service) | generated.")
    changes = serializers.JSONField(required=False, help_text="rate_scale, duration_s, requests, gpus, slo ...")
    runs = serializers.JSONField(
        required=False, help_text='A list: "freesh {order: fcfs}", or objects of policy, knobs, set, label.'
    )


class StudyWithTrace(serializers.Serializer):
    """`study`: the JSON object of a study, whose `traffic.kind` is trace where it says any."""

    study = serializers.CharField(help_text='Such as {"base": "fleet", "runs": ["freesh"]}.')
    trace = serializers.FileField(help_text="CSV with a header, Azure, BurstGPT or plain format; gzip too; to 64 MiB.")


def _study_and_trace(request: Request) -> tuple[dict[str, Any], bytes | None]:
    """Returns the requested study, and the trace that was sent with it. Raises ValidationError."""
    if not request.content_type.startswith("multipart/"):
        if not isinstance(request.data, dict):
            raise ValidationError({"body": "send a JSON object with the study's fields, such as runs"})
        return request.data, None
    asked = StudyWithTrace(data=request.data)
    asked.is_valid(raise_exception=True)
    try:
        given = json.loads(asked.validated_data["study"], parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValidationError({"study": f"not JSON: {error}"}) from None
    if not isinstance(given, dict):
        raise ValidationError({"study": "a JSON object with the study's fields, such as runs"})
    wanted = given.get("traffic") or {}
    if not isinstance(wanted, dict) or wanted.get("kind", "trace") != "trace":
        raise ValidationError({"study": 'its traffic is of kind "trace" where a trace comes with it'})
    given["traffic"] = {**wanted, "kind": "trace"}
    return given, asked.validated_data["trace"].read(study_drafts.MOST_TRACE_BYTES + 1)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


class ApplyStudy(Body):
    service = KeyField(queryset=Service.objects.all())
    advise = serializers.BooleanField(default=True)


class AppliedStudy(serializers.Serializer):
    """`without_effect`: sentences on what the service has now and changes nothing live."""

    policy = serializers.CharField()
    knobs = serializers.JSONField()
    without_effect = serializers.ListField(child=serializers.CharField())


class StudyViewSet(ReadOnly):
    """Studies, the newest first. A worker runs one after the other; how far each is its job and its runs say."""

    queryset = Study.objects.select_related("job", "created_by")
    parser_classes: ClassVar[list[Any]] = [JSONParser, MultiPartParser]
    ordering = ("-id",)
    filterset_class = filterset(
        Study, state="job__state", created_after="created_at__gt", created_before="created_at__lt"
    )

    def get_serializer_class(self) -> type:
        return StudySerializer if self.action == "list" else StudyDetailSerializer

    def get_queryset(self) -> QuerySet[Any]:
        found = studies.visible(self.request.user)
        if self.action == "list":
            return found.defer("scenario", "notes")
        return found.prefetch_related("runs")

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuses a form that is too long before it is read."""
        super().initial(request, *args, **kwargs)
        length = request.META.get("CONTENT_LENGTH") or "0"
        if request.content_type.startswith("multipart/") and int(length) > MOST_FORM_BYTES:
            raise ValidationError(
                {"trace": f"larger than {study_drafts.MOST_TRACE_BYTES >> 20} MiB; compress it with gzip"}
            )

    @extend_schema(
        request={"application/json": NewStudy, "multipart/form-data": StudyWithTrace},
        responses={202: StudyDetailSerializer},
    )
    @idempotent
    def create(self, request: Request) -> Response:
        """Asks for a study. 202: a worker runs it; look at it where Location says, or at its `job`.

        With a trace of one's own as multipart/form-data: `study` is the JSON object, `trace` the file.
        """
        given, upload = _study_and_trace(request)
        try:
            study = study_requests.ask(given, request.user, upload)
        except BadStudy as error:
            raise ValidationError({error.field: error.message}) from None
        tasks.send(study)
        headers = {
            "Location": f"{request.path}{study.pk}/",
            "Link": f'</api/v1/jobs/{study.job.uid}/>; rel="monitor"',
        }
        return Response(StudyDetailSerializer(study).data, status=status.HTTP_202_ACCEPTED, headers=headers)

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    @idempotent
    def cancel(self, request: Request, pk: str) -> Response:
        """Stops one that is not finished; 409 for one that is."""
        if not studies.cancel(self.get_object()):
            raise Conflict("It is finished: there is nothing to stop.")
        return Response(StudyDetailSerializer(self.get_object()).data)

    @extend_schema(request=ApplyStudy, responses=AppliedStudy)
    @action(detail=True, methods=["post"], url_path=r"runs/(?P<index>[0-9]{1,4})/apply")
    @idempotent
    def apply(self, request: Request, pk: str, index: str) -> Response:
        """Gives a service the policy of a run; with `advise` its decisions are at first only shown."""
        run = self.get_object().runs.filter(index=int(index)).first()
        if run is None:
            raise Http404("This study has no such run.")
        asked = ApplyStudy(data=request.data)
        asked.is_valid(raise_exception=True)
        given = asked.validated_data
        try:
            done = applying.apply(audit.actor_of(request, "api"), run, given["service"], given["advise"])
        except BadStudy as error:
            raise Conflict(error.message) from None
        body = {"policy": done.policy, "knobs": dict(done.knobs), "without_effect": done.without_effect}
        return Response(AppliedStudy(body).data)
