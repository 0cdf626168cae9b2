"""What an upgrade makes of a stored tolerance of splits."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps

from pools.models import Service
from tests.fakes import seed

pytestmark = pytest.mark.django_db
OTHER = {"max_probes": 4}


@pytest.mark.parametrize(
    ("stored", "left"),
    [
        ({"tuning": {"split": {"tolerance": 0.002}}}, {}),
        ({"tp": 2, "tuning": {"split": {"tolerance": 0.002, **OTHER}}}, {"tp": 2, "tuning": {"split": OTHER}}),
        ({"tuning": {"split": {"tolerance": 0.05}}}, {"tuning": {"split": {"tolerance": 0.05}}}),
        ({"tuning": {"eq1": {"floor_rps": 1.0}}}, {"tuning": {"eq1": {"floor_rps": 1.0}}}),
    ],
)
def test_former_default_takes_todays_and_other_values_stay(stored, left):
    service = seed.fleet().service
    Service.objects.filter(pk=service.pk).update(
        policy="dynaserve", knobs=stored, acting_policy="dynaserve", acting_knobs=stored
    )
    import_module("pools.migrations.0022_tolerance_of_splits").take_default(apps, None)
    service.refresh_from_db()
    assert (service.knobs, service.acting_knobs) == (left, left)
    tolerance = stored["tuning"].get("split", {}).get("tolerance", 0.1)
    assert service.own_policy().tuning.split.tolerance == (0.1 if tolerance == 0.002 else tolerance)
