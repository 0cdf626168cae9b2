"""Stored knobs that are beyond what their quantity can be come within it: otherwise nobody could read the policy."""

from __future__ import annotations

from dataclasses import Field, fields
from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from core.policy.knobs import Knobs
from core.policy.tuning import Tuning
from core.policy.value_rules import limits_of


def _number(item: Field[Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _number(item, part) for name, part in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    limits = limits_of(item)
    if (least := limits["least"]) is not None and value < least:
        return type(value)(least)
    if (most := limits["most"]) is not None and value > most:
        return type(value)(most)
    return value


def _record(owner: Any, given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    known = {item.name: item for item in fields(owner)}
    return {name: _number(known[name], value) if name in known else value for name, value in given.items()}


def within(knobs: Any) -> Any:
    """Returns a policy's knobs and tuning, with each number at the nearest that it may be."""
    found = _record(Knobs, knobs)
    if isinstance(found, dict) and isinstance(found.get("tuning"), dict):
        records, known = Tuning(), {item.name for item in fields(Tuning)}
        found["tuning"] = {
            name: _record(getattr(records, name), values) if name in known else values
            for name, values in found["tuning"].items()
        }
    return found


def bring_within(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    for service in apps.get_model("pools", "Service").objects.all():
        for name in ("knobs", "acting_knobs"):
            setattr(service, name, within(getattr(service, name)))
        service.save(update_fields=["knobs", "acting_knobs"])


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0016_audit_refuses_truncate"),
    ]

    operations = [
        migrations.RunPython(bring_within, migrations.RunPython.noop),
    ]
