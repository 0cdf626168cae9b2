"""A stored `tuning.split.tolerance` of 0.002, the default that it had as a difference of times, takes today's default.

It is now the share by which a cut must sustain more than whole requests do; other values were chosen, and stay.
"""

from __future__ import annotations

from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

FORMER_DEFAULT = 0.002


def without_former(knobs: Any) -> Any:
    """Returns a policy's knobs without the former default of that setting."""
    tuning = knobs.get("tuning") if isinstance(knobs, dict) else None
    split = tuning.get("split") if isinstance(tuning, dict) else None
    if not isinstance(tuning, dict) or not isinstance(split, dict) or split.get("tolerance") != FORMER_DEFAULT:
        return knobs
    own = {name: value for name, value in split.items() if name != "tolerance"}
    records = {name: record for name, record in {**tuning, "split": own}.items() if record}
    rest = {name: value for name, value in knobs.items() if name != "tuning"}
    return {**rest, "tuning": records} if records else rest


def take_default(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for service in apps.get_model("pools", "Service").objects.all():
        found = without_former(service.knobs), without_former(service.acting_knobs)
        if found != (service.knobs, service.acting_knobs):
            service.knobs, service.acting_knobs = found
            service.save(update_fields=["knobs", "acting_knobs"])


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0021_identities_of_nodes"),
    ]

    operations = [
        migrations.RunPython(take_default, migrations.RunPython.noop),
    ]
