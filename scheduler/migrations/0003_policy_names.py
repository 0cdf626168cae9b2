"""What the loops have noted of their service's policy follows its new name: no loop begins anew for it."""

from __future__ import annotations

import importlib
import json
from typing import Any

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

names = importlib.import_module("pools.migrations.0004_policy_names")


def _rewrite(apps: Apps, change: Any) -> None:
    def signed(text: str) -> str:
        name, knobs, *overrides = json.loads(text)
        return json.dumps([*change(name, knobs), *overrides], sort_keys=True)

    for state in apps.get_model("scheduler", "ControllerState").objects.all():
        value, meta = state.value, state.value.get("_")
        if isinstance(value.get("signature"), str):
            value["signature"] = signed(value["signature"])
        if isinstance(meta, dict) and isinstance(meta.get("policy"), str):
            meta["policy"] = signed(meta["policy"])
        state.save(update_fields=["value"])


def _forwards(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    _rewrite(apps, names.renamed)


def _backwards(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    _rewrite(apps, names.named_before)


class Migration(migrations.Migration):
    dependencies = [
        ("pools", "0004_policy_names"),
        ("scheduler", "0002_words_of_fields"),
    ]

    operations = [
        migrations.RunPython(_forwards, _backwards),
    ]
