"""Services whose stored knobs were beyond what there can be go on with the nearest that there can."""

from importlib import import_module

import pytest
from django.apps import apps

from pools.models import Service

pytestmark = pytest.mark.django_db
ABSURD = {
    "clock": "fixed",
    "tp": 4,
    "carbon_period_s": 1e12,
    "max_queued_requests": 10**12,
    "tenant_weights": {"acme": 1e30},
    "tuning": {"eq1": {"steps": 10**9, "floor_rps": 1e12}},
}


def test_stored_knobs_come_within_their_bounds_when_they_are_beyond(demo_rows):
    Service.objects.update(policy="freesh", knobs=ABSURD, acting_knobs={"carbon_period_s": 0.001})
    with pytest.raises(ValueError, match="must be at most"):
        Service.objects.first().configured_policy()
    import_module("pools.migrations.0017_knobs_within_bounds").bring_within(apps, None)
    service = Service.objects.first()
    knobs, tuning = service.configured_policy().knobs, service.configured_policy().tuning
    assert (knobs.clock, knobs.tp, knobs.carbon_period_s) == ("fixed", 4, 31 * 86_400.0)
    assert (knobs.max_queued_requests, knobs.tenant_weights) == (1_000_000, {"acme": 1e6})
    assert (tuning.eq1.steps, tuning.eq1.floor_rps) == (10_000, 1e6)
    assert service.acting_knobs == {"carbon_period_s": 1.0}
