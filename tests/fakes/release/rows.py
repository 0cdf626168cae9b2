"""A small fleet with rows in every table: settled, restated and reported; what a release's dump is made of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.apps import apps
from django.db import models
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from pools.access import people
from pools.access.audit import Actor
from pools.models import Membership, Node
from pools.registration import join_tokens
from scheduler.models import (
    Approval,
    Batch,
    BatchLine,
    ControllerState,
    Epoch,
    File,
    FileChunk,
    IdempotentAnswer,
    Study,
    StudyFile,
)
from scheduler.operations import pauses
from telemetry.ingest import sample_rollups
from telemetry.ledger import settlement
from telemetry.models import (
    Alert,
    AlertNotice,
    AlertWatch,
    CarbonFeed,
    ForecastScore,
    GpuSample,
    IngestedBatches,
    LoadPoint,
    RollupDue,
    SloMinute,
    WeatherFeed,
    WeatherPoint,
)
from telemetry.reports import report_jobs, report_requests
from tests.fakes import metering, seed, several
from tests.fakes.house import moment, start_instance
from tests.fakes.people import person

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
PERIOD = f"{moment(metering.START):%Y-%m}"
OURS = ("pools", "telemetry", "scheduler")


def tables() -> dict[str, type[models.Model]]:
    """By the name of the table; those that only join two others are among them."""
    found = {model._meta.db_table: model for app in OURS for model in apps.get_app_config(app).get_models()}
    for app in OURS:
        for model in apps.get_app_config(app).get_models(include_auto_created=True):
            found.setdefault(model._meta.db_table, model)
    return found


def fill() -> None:
    """Fills an empty database. Reports' files go to the settings' folder."""
    actor = Actor(person("administrator"))
    seeded = several.of_everything(actor, NOW)
    _settled(seeded)
    _rolled_up()
    _people(actor, seeded)
    _decided(actor, seeded)
    _batches(seeded)
    _measured(seeded)


def _settled(seeded: seed.Seeded) -> None:
    """A quarter of an hour, settled, restated as its carbon was revised, and a report of each."""
    node = Node.objects.create(cluster=seeded.sites[0].clusters.get(), name="metered", simulated=True)
    seed._gpu(node, 0, seed.A100)
    instance = start_instance(seeded.pools[0], node, tp=1, start_kind="cold")
    metering.quarter_hour(instance)
    settlement.settle(moment(metering.LATER))
    reported("csv")
    later_s = metering.LATER + 60
    metering.intensity(instance.node.cluster.site, metering.START, 300.0, 500.0, issued_s=later_s)
    settlement.restate(moment(later_s), moment(metering.START))
    reported("csv")


def reported(formats: str) -> None:
    report = report_requests.ask({"period": PERIOD, "zone": "UTC", "by": "site,tenant", "formats": formats})
    if not report_jobs.make(report.pk):
        report.job.refresh_from_db()
        raise RuntimeError(f"the report was not made: {report.job.error}")


def _rolled_up() -> None:
    at_s = [at.timestamp() for at in GpuSample.objects.values_list("at", flat=True).distinct()]
    minutes = sample_rollups.touched_minutes(np.array([round(s * 1e6) for s in at_s], dtype=np.int64))
    RollupDue.objects.bulk_create([RollupDue(start_at=moment(minute)) for minute in minutes])
    while sample_rollups.roll_up(NOW + timedelta(minutes=5)):
        pass
    RollupDue.objects.create(start_at=NOW)


def _people(actor: Actor, seeded: seed.Seeded) -> None:
    viewer = person("viewer", sites=seeded.sites[:1])
    people.new_token(actor, viewer, "dashboards", ["view"])
    join_tokens.issue(actor, seeded.sites[0].clusters.get())
    assert Membership.objects.count() == 2


def _decided(actor: Actor, seeded: seed.Seeded) -> None:
    pauses.set_control_mode(actor, seeded.service, "approve", 600.0)
    state, _ = ControllerState.objects.get_or_create(kind="scale", service=seeded.service)
    Approval.objects.create(
        epoch=Epoch.objects.filter(kind="scale").first(),
        service=seeded.service,
        controller=state,
        loop="scale",
        commands=[{"type": "ScaleTo", "pool": "location-2/SS", "workers": {"A100-80GB/TP4": 2}}],
        state={},
        basis="0" * 64,
        created_at=NOW,
        expires_at=NOW + timedelta(minutes=10),
    )
    StudyFile.objects.create(study=Study.objects.first(), name="trace.csv", data=b"arrived_at_s,prompt,output\n0,9,9\n")
    IdempotentAnswer.objects.create(
        actor="administrator", key="k1", body_hash="0" * 64, status=201, headers={}, body={"id": 1}, created_at=NOW
    )


def _batches(seeded: seed.Seeded) -> None:
    data = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\n'
    tenant, whole = seeded.tenants[0], {"created_at": NOW, "expires_at": NOW + timedelta(hours=24)}
    file = File.objects.create(tenant=tenant, purpose="batch", filename="lines.jsonl", bytes=len(data), **whole)
    FileChunk.objects.create(file=file, index=0, data=data)
    batch = Batch.objects.create(
        tenant=tenant,
        service=seeded.service,
        endpoint="/v1/completions",
        completion_window="24h",
        input_file_uid=file.uid,
        total=1,
        **whole,
    )
    BatchLine.objects.create(batch=batch, number=1, custom_id="a", body="{}")


def _measured(seeded: seed.Seeded) -> None:
    """What the telemetry's own loops write."""
    alert = Alert.objects.first()
    AlertNotice.objects.create(alert=alert, event="raised", channel="webhook", due_at=NOW)
    AlertWatch.objects.create(rule="power_cap", subject="location-1", at=NOW, breach_since=NOW, alert=alert)
    IngestedBatches.objects.create(
        agent="n1", boot="boot-1", seqs=Multirange([Range(1, 40), Range(42, 43)]), received_at=NOW
    )
    LoadPoint.objects.create(
        service=seeded.service.name, request_class="SS", start_at=NOW, step_s=300.0, peak_rps=1.5, requests=400
    )
    SloMinute.objects.create(service=seeded.service.name, kind="ttft", start_at=NOW, judged=12, within=11)
    scored: dict[str, Any] = {"steps": 24, "origins": 14, "samples": 336, "quantile": 0.5, "pinball": 14.2}
    weather = WeatherFeed.objects.create(site=CarbonFeed.objects.first().site, provider="weather_csv")
    WeatherPoint.objects.create(feed=weather, start_at=NOW, temperature_k=281.4, fetched_at=NOW)
    ForecastScore.objects.create(
        feed=CarbonFeed.objects.first(), model="seasonal", scored_at=NOW, step_s=3_600.0, chosen=True, **scored
    )
