from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import models

from core import bounds
from pools.models import Gpu, Service, Site
from scheduler.operations.configure import row_limits
from scheduler.operations.configure.registry import OWNED, Owned
from telemetry.models import CarbonFeed, Pue

pytestmark = pytest.mark.django_db  # PostgreSQL judges them


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Site(pue=1.2, currency="USD", power_cap_w=5.0), {}),
        (Site(pue=1.2, currency="USD"), {}),
        (Site(pue=1.2, currency="USD", power_cap_w=-5.0), {"power_cap_w": ["must be above 0"]}),
        (Site(pue=0.2, currency="eu"), {"pue": ["must be at least 1"], "currency": ["must be three capital letters"]}),
        (Site(pue=1.2, currency="USD", latitude=0.0, longitude=-180.0), {}),
        (
            Site(pue=1.2, currency="USD", latitude=39.0),
            {"longitude": ["is needed with latitude: give all or none"]},
        ),
        (
            Site(pue=1.2, currency="USD", latitude=90.1, longitude=-180.1),
            {"latitude": ["must be at most 90"], "longitude": ["must be at least -180"]},
        ),
        (Gpu(min_mhz=500, max_mhz=200, memory_gb=80, tdp_w=700), {"max_mhz": ["must be at least min_mhz"]}),
        (Service(expected_rps=1.0, expected_prompt_tokens=5), {"expected_output_tokens": ["is needed here: above 0"]}),
        (
            Pue(value=1.1, valid_from=datetime(2026, 2, 1, tzinfo=UTC), valid_to=datetime(2026, 1, 1, tzinfo=UTC)),
            {"valid_to": ["must be above valid_from"]},
        ),
    ],
)
def test_a_broken_limit_is_described_at_its_field(row: Any, expected: dict[str, list[str]]) -> None:
    found = row_limits.broken(row)
    assert found.keys() == expected.keys()
    for name, words in expected.items():
        assert found[name][0].startswith(words[0])


NUMBERS = [
    (owned, owned.field(name))
    for owned in OWNED.values()
    for name in owned.fields
    if isinstance(owned.field(name), models.FloatField | models.IntegerField | models.DecimalField)
]


@pytest.mark.parametrize(("owned", "field"), NUMBERS, ids=lambda one: getattr(one, "kind", getattr(one, "name", "")))
def test_each_number_that_people_set_has_both_limits(owned: Owned, field: Any) -> None:
    """A new field must end with its unit, or be named in core.bounds."""
    bound = bounds.of(field.name, owned.model._meta.model_name or "")
    assert bound is not None, f"{field.name} of {owned.kind} has no bounds: give it some in core/bounds.py"
    whole = isinstance(field, models.IntegerField)
    for value in (bound.most * 2.0 + 1.0, *(() if whole else (math.inf, math.nan))):
        found = row_limits.broken(owned.model(**{field.name: value}))
        assert field.name in found, value
    below = row_limits.broken(owned.model(**{field.name: bound.least - 1.0}))
    assert field.name in below


@pytest.mark.parametrize("value", [math.inf, [math.nan], {"a": [{"b": -math.inf}]}, {"a\0": 1}, {"a": "\0"}])
def test_json_that_the_database_cannot_keep_is_described_at_its_field(value: Any) -> None:
    assert set(row_limits.broken(CarbonFeed(config={"zone": value}))) == {"config"}
    assert row_limits.broken(CarbonFeed(config={"zone": [1.0, "DE", None, True]})) == {}


def test_a_field_that_is_left_out_is_not_judged() -> None:
    assert row_limits.broken(Site(pue=0.2, currency="USD"), ["pue"]) == {}
