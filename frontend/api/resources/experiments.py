"""The laboratory's experiments: /api/v1/experiments/. Each is started as a study of the base lab:NAME."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from core.simulator.lab.experiment import Experiment
from scheduler.whatif import experiment_studies

from ..rest.base import View, shown


class TraceSerializer(serializers.Serializer):
    """A public trace that does not come with the product: fetch it at `url`, and send it with the study."""

    title = serializers.CharField()
    url = serializers.CharField()
    licence = serializers.CharField()
    sha256 = serializers.CharField()


class ExperimentRunSerializer(serializers.Serializer):
    label = serializers.CharField()
    policy = serializers.CharField()
    set = serializers.ListField(child=serializers.CharField())


class PublishedSerializer(serializers.Serializer):
    label = serializers.CharField()
    place = serializers.CharField(help_text="Where in the paper.")
    unit = serializers.CharField()
    published = serializers.FloatField()


class ExperimentSerializer(serializers.Serializer):
    """`base`: of the study that runs it; `trace`: what has to come with that, null where nothing has to."""

    name = serializers.CharField()
    base = serializers.CharField()
    title = serializers.CharField()
    stands_in = serializers.CharField(help_text="What is not the paper's own.")
    scenario = serializers.CharField()
    trace = TraceSerializer(allow_null=True)
    bound = serializers.BooleanField(help_text="Whether the bound is worked out beside the runs.")
    runs = ExperimentRunSerializer(many=True)
    published = PublishedSerializer(many=True)


class ExperimentsSerializer(serializers.Serializer):
    """All of them: `next` and `previous`, as lists have them, are null."""

    next = serializers.CharField(allow_null=True)
    previous = serializers.CharField(allow_null=True)
    results = ExperimentSerializer(many=True)


class ComparedRowSerializer(serializers.Serializer):
    """A published figure beside ours: null while its runs are not done, or where they do not have it."""

    label = serializers.CharField()
    place = serializers.CharField(help_text="Where in the paper.")
    unit = serializers.CharField()
    published = serializers.FloatField()
    simulated = serializers.FloatField(allow_null=True)
    calculated = serializers.BooleanField(help_text="Whether it comes from profiles or the engine model, not a run.")
    ratio = serializers.FloatField(allow_null=True)
    why = serializers.CharField(
        allow_blank=True, help_text="Of a row that is off by more than 15 %; its figures are read off the runs."
    )
    attainment = serializers.FloatField(
        allow_null=True, help_text="Of the run, where the figure is about energy, carbon, power or GPU time."
    )
    baseline_attainment = serializers.FloatField(allow_null=True, help_text="Of the run that it is compared with.")
    short = serializers.BooleanField(help_text="Whether the attainment is below the baseline's, or below 99 %.")


class BoundSerializer(serializers.Serializer):
    """The needs of fleets that know all requests beforehand and change at no cost."""

    energy_wh = serializers.FloatField()
    gpu_hours = serializers.FloatField()


class ExperimentResultSerializer(serializers.Serializer):
    name = serializers.CharField()
    title = serializers.CharField()
    published = ComparedRowSerializer(many=True)
    bound = BoundSerializer(allow_null=True)


class ExperimentsView(View):
    @extend_schema(operation_id="experiments_list", responses=ExperimentsSerializer, tags=["experiments"])
    def get(self, request: Request) -> Response:
        """Lists the papers' experiments that the product knows."""
        results = [_values(own) for own in experiment_studies.catalogue().values()]
        return Response({"next": None, "previous": None, "results": results})


class ExperimentView(View):
    @extend_schema(operation_id="experiments_retrieve", responses=ExperimentSerializer, tags=["experiments"])
    def get(self, request: Request, name: str) -> Response:
        """Returns one experiment: its runs, what was published, and which trace it needs."""
        known = experiment_studies.catalogue()
        if name not in known:
            raise Http404(f"There is no such experiment; there are: {', '.join(known)}.")
        return shown(request, _values(known[name]))


def _values(own: Experiment) -> dict[str, Any]:
    trace = experiment_studies.trace_of(own)
    return {
        "name": own.name,
        "base": f"{experiment_studies.HEAD}{own.name}",
        "title": own.title,
        "stands_in": own.stands_in,
        "scenario": own.scenario,
        "trace": None if trace is None else TraceSerializer(trace).data,
        "bound": own.bound,
        "runs": [{"label": run.label, "policy": run.policy, "set": list(run.settings)} for run in own.runs],
        "published": PublishedSerializer(own.rows, many=True).data,
    }
