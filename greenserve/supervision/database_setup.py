"""Brings the database up to date and prints what is to be run as JSON.

`python -m greenserve.supervision.database_setup RUN_ROLE` is a process of its own, so that the supervisor carries
neither Django nor database connections. It alone works as the owner of the tables, and gives RUN_ROLE its rights.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from core.engine.gpu_types import GpuType

WAIT_S = 240.0  # for another control plane that migrates


class Plan(msgspec.Struct, frozen=True):
    """`simulated_nodes` are GPUs by node (see pools.models), `gpu_types` those that operators entered. `credentials` is
    the demo's (see pools.demo); None without the demo."""

    simulated_nodes: dict[str, list[tuple[str, int]]]
    model: str | None
    credentials: dict[str, Any] | None
    gpu_types: list[GpuType] = []


def prepare(run_role: str) -> Plan:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")
    django.setup()
    from django.conf import settings
    from django.core import checks
    from django.core.management import call_command

    from greenserve.supervision import database_roles
    from pools import database_locks
    from pools.database_locks import Lock

    wrong = [message for message in checks.run_checks() if message.is_serious()]
    if wrong:
        raise SystemExit("greenserve: " + "; ".join(message.msg for message in wrong))
    if missing := _half_way():
        raise SystemExit(
            "greenserve: the database is of a development version before 0.1.0 and lacks its later migrations "
            f"({missing[0]} and on): run the last version that had them once, or begin with a new database"
        )
    with database_locks.held(Lock.MIGRATION, WAIT_S) as mine:
        if not mine:
            raise SystemExit("greenserve: another control plane brings the database up to date: start this one later")
        call_command("migrate", verbosity=0, interactive=False)
        database_roles.grant(run_role)
    credentials = None
    if settings.DEMO:
        from pools.demo import ensure_demo_credentials

        call_command("load_demo", stdout=sys.stderr)
        if settings.DEMO_DAYS:
            call_command("seed_demo", stdout=sys.stderr)
        credentials = ensure_demo_credentials(settings.ENV.var_dir)
    from pools.models import GpuType as Row
    from pools.models import simulated_gpus

    types = [row.sheet() for row in Row.objects.all()]
    return Plan(simulated_nodes=simulated_gpus(), model=_model(), credentials=credentials, gpu_types=types)


def _half_way() -> list[str]:
    from django.db import connection
    from django.db.migrations.recorder import MigrationRecorder

    return lacking(MigrationRecorder(connection).applied_migrations())


def lacking(applied: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the migrations, squashed since, that a database lacks though it has others of the same squash."""
    from django.db.migrations.loader import MigrationLoader

    had, missing = set(applied), []
    for key, migration in MigrationLoader(None).disk_migrations.items():
        squashed = set(migration.replaces)
        if key not in had and had & squashed:
            missing += [".".join(old) for old in sorted(squashed - had)]
    return missing


def _model() -> str | None:
    """Returns the name that requests are to ask for: the first service's."""
    from pools.models import Service

    name: str | None = Service.objects.order_by("pk").values_list("name", flat=True).first()
    return name


if __name__ == "__main__":
    gc.disable()  # what migrations make is kept until the end: to look through it for garbage is a third of their time
    sys.stdout.write(msgspec.json.encode(prepare(sys.argv[1])).decode() + "\n")
