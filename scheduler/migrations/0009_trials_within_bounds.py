"""Knobs of trials that are not over come within what their quantity can be, as those of services did.

The turns of a trial compare its knobs with the service's, and give them to it.
"""

from __future__ import annotations

from importlib import import_module

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

within = import_module("pools.migrations.0017_knobs_within_bounds").within
FIELDS = ("knobs_a", "knobs_b", "former_knobs", "former_knobs_other")


def bring_within(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for trial in apps.get_model("scheduler", "Trial").objects.filter(state__in=["planned", "running"]):
        before = {name: getattr(trial, name) for name in FIELDS}
        after = {name: within(knobs) for name, knobs in before.items()}
        changed = [name for name in FIELDS if after[name] != before[name]]
        if not changed:
            continue
        for name in changed:
            setattr(trial, name, after[name])
        trial.save(update_fields=changed)
        apps.get_model("pools", "AuditEntry").objects.create(
            channel="system",
            action="brought within bounds",
            kind="trial",
            object_key=str(trial.pk),
            label=f"trial of {trial.service.name}",
            before={name: before[name] for name in changed},
            after={name: after[name] for name in changed},
        )


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0008_trials_by_sites"),
        ("pools", "0017_knobs_within_bounds"),
    ]

    operations = [
        migrations.RunPython(bring_within, migrations.RunPython.noop),
    ]
