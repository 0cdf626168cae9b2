"""Several rows of everything that a page or the REST API lists."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from core.engine.corrections import KNOTS
from core.engine.gpu_types import SHIPPED
from pools.access import people
from pools.access.audit import Actor
from pools.models import Adapter, EngineResidual, GpuType, Job, ModelCard, Partition, Profile, RequestClass, Service
from scheduler import webhooks
from scheduler.models import Study, StudyRun, Trial, TrialBlock
from scheduler.operations import engine_profiles, overrides, pauses
from telemetry.models import (
    Alert,
    AlertSilence,
    Budget,
    EmbodiedFactor,
    GpuRate,
    Instrument,
    InstrumentHour,
    Pue,
    Report,
    ReportSchedule,
    Tariff,
    WeatherFeed,
)

from . import seed
from .engine_profiles import rows as measured_rows


def of_everything(actor: Actor, now: datetime | None = None) -> seed.Seeded:
    seeded = seed.everything(now, minutes=3, rps=0.3)
    now, soon = seeded.now, seeded.now + timedelta(hours=1)
    asked = {"period": "2026-01", "zone": "UTC", "sites": [], "by": []}
    version = {"valid_from": now, "source": "bill", "version": "1"}
    for n, site in enumerate(seeded.sites):
        Tariff.objects.create(site=site, currency="USD", price_per_kwh=0.1, **version)
        GpuRate.objects.create(site=site, currency="USD", gpu_type=f"g{n}", rate_per_gpu_hour=1.0, **version)
        Pue.objects.create(site=site, value=1.2, **version)
        WeatherFeed.objects.create(site=site, provider="weather_csv")
        EmbodiedFactor.objects.create(gpu_type=f"g{n}", gpu_kg=1.0, lifespan_years=4.0, **version)
        Instrument.objects.create(
            site=site, kind="residual", factor_g_per_kwh=1, valid_from=now, valid_to=soon, source="x"
        )
        metered = Instrument.objects.create(
            site=site, kind="ppa", factor_g_per_kwh=1, generation="metered", valid_from=now, valid_to=soon, source="x"
        )
        InstrumentHour.objects.create(instrument=metered, start_at=now, energy_kwh=n, source="x")
        ReportSchedule.objects.create(name=f"s{n}", cadence="weekly")
        Budget.objects.create(tenant=seeded.tenants[n], carbon_kg=1)
        job = Job.objects.create(kind="report", created_by=actor.user)
        Report.objects.create(asked=asked, period_start=now, period_end=soon, job=job)
        study = Study.objects.create(
            name=f"s{n}", base="fleet", scenario={}, heard_at=now, job=Job.objects.create(kind="study")
        )
        StudyRun.objects.create(study=study, index=0, label="a", policy="greenserve")
        trial = Trial.objects.create(
            service=seeded.service, policy_a="single_pool", policy_b="freesh", begins_at=now, seed=n, state="done"
        )
        block = TrialBlock(trial=trial, service=trial.service, index=0, arm="A", starts_at=now, switched_at=now)
        block.ends_at = now + timedelta(hours=24)
        block.save()
        moments = {"since": now, "opened_at": now, "last_seen_at": now, "acknowledged_by": actor.user if n else None}
        Alert.objects.create(rule="r", subject=f"{n}", level="bad", summary="s", step="s", threshold=1.0, **moments)
        AlertSilence.objects.create(rule="r", created_by=actor.user, created_at=now, expires_at=soon)
        people.new_key(actor, seeded.tenants[n], "key")
        webhooks.subscribe(actor, f"w{n}", "https://ops.example.org/", ["decision.made"])
        loop = ("carbon", "scale", "shard")[n]
        pauses.pause(actor, seeded.service, loop, "works")
        overrides.drain_site(actor, site, soon, "works")
        engine_profiles.bring_in(actor, measured_rows(slower=1.0 + 0.1 * n), publish=True)
        factors = [1.0 + 0.1 * n] * KNOTS if n else []
        kind = {"shape": f"m{n}", "gpu_type": "A100-80GB", "tp": 4, "engine": "vllm-v1"}
        EngineResidual.objects.create(**kind, time=factors, power=factors, windows=9.0, at=now)
        Profile.objects.create(
            model_card=seeded.service.model_card,
            request_class=seeded.pools[n].request_class,
            gpu_type="A100-80GB",
            tp=4,
            max_rps=1.0,
            power_w=1.0,
            kind="modelled",
            source="test",
        )
        GpuType.of_sheet(replace(SHIPPED["L40S-48GB"], name=f"g{n}")).save()
        Adapter.objects.create(service=seeded.service, name=f"a{n}", source=f"acme/a{n}", rank=16)
    other = Partition.objects.create(name="other")
    RequestClass.objects.create(partition=other, name="ALL", rank=0)
    card = ModelCard.objects.create(name="other", max_model_len=10, engine="vllm-v1")
    Service.objects.create(name="other", model_card=card, partition=other).partitions.add(other)
    webhooks.WebhookSubscription.objects.update(created_at=now - timedelta(hours=1))
    webhooks.collect(now)
    return seeded
