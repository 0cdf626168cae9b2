"""What a new service gets: greenserve, whose scale loop chooses within what each carbon epoch lets it have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta

import pytest
import redis

from core.controllers.fleet.explain import gpus_of
from core.types import Loop
from pools.models import Gpu, Pool, Service, Site
from scheduler.control import epochs, turn_context
from scheduler.control.snapshot import snapshot
from scheduler.control.snapshot.sites_ahead import sites_ahead
from scheduler.json_values import workers_from_json
from scheduler.models import Decision, Epoch
from tests.fakes.house import refresh_feeds, report_all, requests_came

pytestmark = pytest.mark.django_db
LOOPS = (Loop.CARBON, Loop.SCALE, Loop.SHARD)


def run_all(service: Service, at: datetime) -> list[Epoch | None]:
    found = [epochs.run(service, loop, at) for loop in LOOPS]
    service.refresh_from_db()
    return found


def used(pools: Iterable[Pool]) -> dict[str, Counter[str]]:
    """Returns the GPUs that the pools are to have, by site and type."""
    found: dict[str, Counter[str]] = {}
    for pool in pools:
        if gpus := gpus_of(workers_from_json(pool.workers)):
            found.setdefault(pool.site.name, Counter()).update(gpus)
    return found


def test_carbon_epoch_says_what_sites_have_and_emit_and_scale_keeps_to_it(
    new_service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    service = new_service
    assert service.policy == "greenserve"
    requests_came(now, count=300, over_s=100)
    carbon, scale, shard = run_all(service, now)
    assert None not in (carbon, scale, shard)
    assert service.partition.name == "whole"
    (own,) = Decision.objects.filter(epoch=carbon, kind=Loop.CARBON)
    for site in Site.objects.all():
        gpus = Counter(Gpu.objects.filter(node__cluster__site=site).values_list("gpu_type", flat=True))
        assert service.pools.get(site=site, request_class__partition=service.partition).gpu_budget == gpus
        there = " + ".join(f"{count} {gpu}" for gpu, count in sorted(gpus.items()))
        assert f"{there} at {site.label} ({own.inputs['g_per_kwh'][site.name]:.0f} g/kWh ahead)" in own.summary
    assert used(service.pools.all())
    at = now + timedelta(seconds=61)
    report_all(redis_client, at=at)
    refresh_feeds(at)
    requests_came(at, count=180, over_s=60)
    again, _, none = run_all(service, at)
    assert again is not None
    (later,) = again.decisions.all()
    assert (again.status, later.reason, later.commands) == ("held", "no_change", [])
    assert later.inputs["g_per_kwh"] != own.inputs["g_per_kwh"]
    assert none is None, "shard has said once that it has nothing to decide"


def test_scale_asks_for_no_more_than_the_carbon_epoch_lets_it_have(
    new_service: Service, redis_client: redis.Redis, now: datetime
) -> None:
    """A node that came since is not in the budgets: what was asked for on it was refused as a whole."""
    service = new_service
    requests_came(now, count=3000, over_s=100)
    run_all(service, now)
    before = used(service.pools.all())
    assert sum(gpus.total() for gpus in before.values()) > 8
    for pool in service.pools.filter(request_class__partition=service.partition):
        pool.gpu_budget = {"A100-80GB": 4} if pool.site.name == "location-3" else {}
        pool.workers = {}
        pool.save()
    at = now + timedelta(seconds=11)
    report_all(redis_client, at=at)
    requests_came(at, count=300, over_s=10)
    scale = epochs.run(service, Loop.SCALE, at)
    assert scale is not None
    assert used(service.pools.all()) == {"location-3": Counter({"A100-80GB": 4})}


def test_sites_are_weighed_by_their_carbon_until_a_carbon_period_from_now(new_service: Service, now: datetime) -> None:
    """The demo's day is 48 minutes long: half an hour of it would be most of a day."""
    context = turn_context.resolve(new_service, now, ())
    sites = list(Site.objects.order_by("rank"))
    assert context.times.carbon_s == 60.0
    ahead = snapshot.an_epoch_ahead(context, sites)
    assert ahead == sites_ahead(sites, now, 10.0, 6, prices=False)[0]
    assert all(None not in site.g_per_kwh for site in ahead)
