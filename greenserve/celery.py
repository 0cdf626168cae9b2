"""The scheduler's Celery application and its beat schedule: the carbon, scale and shard epochs.

The agents' application is `pools.agent.app`: it needs no Django. Both share the broker and the queue names.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from celery import Celery
from celery.schedules import schedule
from celery.signals import worker_process_init

from greenserve.process import set_leash

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")

app = Celery("greenserve")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["scheduler", "telemetry"])


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _leash_pool_process(**_: Any) -> None:
    """A pool process whose worker is killed would otherwise live on and hold its task's database connection."""
    set_leash(signal.SIGKILL)


@app.on_after_configure.connect  # type: ignore[untyped-decorator]
def _beat(sender: Celery, **_: Any) -> None:
    from django.conf import settings

    loops = settings.GREENSERVE_LOOPS
    for kind in ("carbon", "scale", "shard"):
        period_s = loops[kind]["period_s"]
        sender.add_periodic_task(
            schedule(period_s),
            sender.signature("scheduler.tasks.run_epochs", args=(kind,)),
            name=f"{kind} epoch",
            expires=period_s,
        )
    for name, task, period_s in (
        ("publish fleet", "scheduler.tasks.publish", 5.0),
        ("realise decisions", "scheduler.tasks.realise_decisions", 20.0),
        ("post ledger", "telemetry.tasks.post_ledger", 5.0),
        ("refresh carbon feeds", "telemetry.tasks.refresh_carbon_feeds", settings.GREENSERVE_CARBON_REFRESH_S),
        ("keep partitions", "telemetry.tasks.keep_partitions", 3600.0),
        ("beat heartbeat", "scheduler.tasks.heartbeat", 5.0),
    ):
        sender.add_periodic_task(schedule(period_s), sender.signature(task), name=name, expires=period_s)
