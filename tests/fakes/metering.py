"""A few minutes of one instance's meters and requests, and the rates that value them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models import Max, Sum

from pools.models import Gpu, Instance, Site, Tenant
from telemetry.ledger import posting
from telemetry.models import (
    CarbonFeed,
    CarbonPoint,
    EnergyRollup,
    GpuRate,
    GpuSample,
    Pue,
    RequestRecord,
    SiteEnergy,
    Tariff,
)
from telemetry.storage import time_partitions

from .house import moment

START = 1_767_225_600.0  # 2026-01-01 00:00 UTC
END = START + 900.0
LATER = END + 2_000.0  # all of it is due to be settled


def quarter_hour(instance: Instance) -> list[Tenant]:
    """From START to END: two thirds serve two tenants' sixty requests, the last is idle. Priced, and unsettled."""
    site = instance.node.cluster.site
    intensity(site, START, 300.0, 400.0)
    intensity(site, START + 300, 600.0, 200.0)
    rates(site)
    meters(instance, END + 2, running=lambda at_s: 1 if at_s < START + 600 else 0)
    tenants = [Tenant.objects.get_or_create(name=f"tenant-{n}")[0] for n in range(2)]
    for n in range(60):
        request(instance, START + 3 + 9.7 * n, f"r{n}", tenants[n % 2], ttft_s=0.4 + 0.01 * n)
    return tenants


def meters(
    instance: Instance,
    until_s: float,
    power_w: Callable[[float], float] = lambda at_s: 300.0,
    running: Callable[[float], int] = lambda at_s: 1,
    since_s: float = START,
) -> list[Gpu]:
    """Samples of the instance's GPUs each second, entered into the ledger."""
    time_partitions.ensure({moment(since_s).date(), moment(until_s).date()})
    gpus = [hold.gpu for hold in instance.gpu_holds.select_related("gpu").order_by("gpu")]
    rows, counter_j = [], {gpu.pk: 1e6 for gpu in gpus}
    at_s = since_s
    while at_s <= until_s:
        for gpu in gpus:
            rows.append(
                GpuSample(
                    at=moment(at_s),
                    gpu=gpu,
                    energy_j=counter_j[gpu.pk],
                    power_w=power_w(at_s),
                    instance=instance,
                    instance_state="ready",
                    running=running(at_s),
                )
            )
            counter_j[gpu.pk] += power_w(at_s)
        at_s += 1.0
    GpuSample.objects.bulk_create(rows, batch_size=2_000)
    posting.post(moment(until_s + 3))
    return gpus


def request(
    instance: Instance, at_s: float, name: str, tenant: Tenant | None = None, **values: object
) -> RequestRecord:
    usual = {
        "started_at": moment(at_s),
        "request_id": name,
        "service": instance.pool.service.name,
        "tenant": tenant,
        "endpoint": "chat",
        "stream": True,
        "status": "ok",
        "http_status": 200,
        "prompt_tokens": 1_000,
        "output_tokens": 100,
        "pool": instance.pool,
        "instance_uid": instance.uid,
        "ttft_s": 0.5,
        "e2e_s": 8.0,
        "attempts": 1,
        "route_reason": "",
        "error": "",
        "slo_failed": "",
        "predicted_energy_j": 123.0,
    }
    return RequestRecord.objects.create(**{**usual, **values})


def intensity(site: Site, start_s: float, length_s: float, g_per_kwh: float | None, issued_s: float = START) -> None:
    feed, _ = CarbonFeed.objects.get_or_create(
        site=site, signal="average", defaults={"provider": "static_csv", "source": "a test"}
    )
    CarbonPoint.objects.create(
        feed=feed,
        start_at=moment(start_s),
        end_at=moment(start_s + length_s),
        value_g_per_kwh=g_per_kwh,
        raw_unit="gCO2e/kWh",
        forecast=False,
        issued_at=moment(issued_s),
    )


def rates(site: Site, price_per_kwh: float = 0.2, **values: object) -> Tariff:
    """A tariff, a rate for an hour of each of the site's GPU types, and a PUE, from a day before START on."""
    since = moment(START) - timedelta(days=1)
    named = {"valid_from": since, "source": "a test", "version": "1"}
    Pue.objects.create(site=site, value=1.2, **named)
    for gpu_type in Gpu.objects.filter(node__cluster__site=site).values_list("gpu_type", flat=True).distinct():
        GpuRate.objects.create(site=site, gpu_type=gpu_type, currency=site.currency, rate_per_gpu_hour=1.8, **named)
    return Tariff.objects.create(
        site=site, currency=site.currency, **{"price_per_kwh": price_per_kwh, **named, **values}
    )


SITE_KEY = ("step_s", "start_at", "site_id", "kind")
SITE_SUMS = ("energy_uj", "gpu_us", "unknown_uj", "carbon_gco2e")


def assert_sites_are_their_pools() -> None:
    """What the database keeps by site, against the roll-ups of its pools."""
    sums = (
        EnergyRollup.objects.order_by()
        .values_list(*SITE_KEY)
        .annotate(*(Sum(name) for name in SITE_SUMS), Max("until"))
    )
    expected = {row[:4]: row[4:] for row in sums}
    held = {row[:4]: row[4:] for row in SiteEnergy.objects.values_list(*SITE_KEY, *SITE_SUMS, "until")}
    assert expected
    assert set(expected) <= set(held)
    for key, (*counts, carbon_g, until) in held.items():
        *exact, grams, latest = expected.get(key, (0, 0, 0, 0.0, until))
        assert (counts, until >= latest) == (exact, True), key
        assert carbon_g == pytest.approx(grams, abs=1e-6), key
