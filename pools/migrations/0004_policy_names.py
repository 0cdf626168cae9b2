"""One name for a policy, live and simulated: `right_size` becomes `greenserve`, and what had that name live becomes
`greenserve_epochs`. Services of `single_pool` keep the route that they had, which is the preset's no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

import core.policy.presets

NAMES = {"greenserve": "greenserve_epochs", "right_size": "greenserve"}


def renamed(name: str, knobs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns a policy's new name, and its knobs without a null that has no meaning any more."""
    own = {key: value for key, value in knobs.items() if (key, value) != ("alpha", None)}
    if "itl_limit_s" in own and own["itl_limit_s"] is None:
        own["itl_limit_s"] = 0.0
    if name == "single_pool":
        own.setdefault("route", "least_loaded")
    return NAMES.get(name, name), own


def named_before(name: str, knobs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns what `renamed` had; a limit of 0 between tokens was null."""
    own = {key: None if (key, value) == ("itl_limit_s", 0.0) else value for key, value in knobs.items()}
    if (name, own.get("route")) == ("single_pool", "least_loaded"):
        del own["route"]
    return {new: old for old, new in NAMES.items()}.get(name, name), own


def _forwards(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    for service in apps.get_model("pools", "Service").objects.all():
        service.policy, service.knobs = renamed(service.policy, service.knobs)
        service.save(update_fields=["policy", "knobs"])


def _backwards(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    for service in apps.get_model("pools", "Service").objects.all():
        service.policy, service.knobs = named_before(service.policy, service.knobs)
        service.save(update_fields=["policy", "knobs"])


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0003_policy_choices"),
    ]

    operations = [
        migrations.AlterField(
            model_name="service",
            name="policy",
            field=models.CharField(
                choices=core.policy.presets.choices,
                default="greenserve_epochs",
                help_text="A preset: the policy of a paper, or GreenServe's own.",
                max_length=20,
            ),
        ),
        migrations.RunPython(_forwards, _backwards),
    ]
