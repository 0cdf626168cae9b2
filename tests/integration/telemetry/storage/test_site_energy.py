"""Energy by site: the sums of what its pools' roll-ups hold, whatever becomes of these."""

import random

import pytest
from django.db.models import F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pools import demo
from pools.models import Pool
from telemetry.models import EnergyRollup, SiteEnergy
from telemetry.models.rollups import STEPS_S
from tests.fakes import energy_sums
from tests.fakes.house import moment
from tests.fakes.metering import assert_sites_are_their_pools

pytestmark = pytest.mark.django_db
START = 1_767_225_600.0


def row(rng, pools):
    step_s, pool = rng.choice(STEPS_S), rng.choice(pools)
    start_s = START // step_s * step_s + step_s * rng.randint(0, 2)
    return EnergyRollup(
        step_s=step_s,
        start_at=moment(start_s),
        site_id=pool.site_id,
        pool=rng.choice([pool, None]),
        kind=rng.choice(["serving", "idle", "unattributed"]),
        energy_uj=rng.randint(0, 10**12),
        gpu_us=rng.randint(0, 10**9),
        carbon_gco2e=rng.uniform(0.0, 100.0),
        unknown_uj=rng.randint(0, 10**6),
        until=moment(start_s + rng.uniform(0.0, step_s)),
    )


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_sites_follow_when_roll_ups_of_pools_come_change_and_go(db, seed):
    demo.load()
    rng, pools = random.Random(seed), list(Pool.objects.all())
    unique = {(r.step_s, r.start_at, r.site_id, r.pool_id, r.kind): r for r in (row(rng, pools) for _ in range(60))}
    EnergyRollup.objects.bulk_create(unique.values())
    assert_sites_are_their_pools()
    some = EnergyRollup.objects.filter(kind=rng.choice(["serving", "idle"]))
    some.update(energy_uj=F("energy_uj") + rng.randint(-5, 10**9), carbon_gco2e=F("carbon_gco2e") * rng.random())
    EnergyRollup.objects.filter(kind="unattributed").update(kind="unattributed", unknown_uj=0)
    assert_sites_are_their_pools()
    EnergyRollup.objects.filter(pk__in=EnergyRollup.objects.order_by("?")[:20]).delete()
    assert_sites_are_their_pools()
    energy_sums.roll_up()
    assert not SiteEnergy.objects.exists(), "there are no entries"
