"""The scheduler's Celery application and its beat schedule: the carbon, scale and shard epochs.

The agents' application is `pools.agent.app`: it needs no Django. Both share the broker and the queue names.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from celery import Celery
from celery.signals import task_prerun, worker_process_init

from core.types import Loop
from greenserve import task_counts  # noqa: F401 - counts each task
from greenserve.beat import every
from greenserve.process import set_leash
from pools import wire

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")

app = Celery("greenserve")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["scheduler", "telemetry"])


@worker_process_init.connect
def _leash_pool_process(**_: Any) -> None:
    """A pool process whose worker is killed would otherwise live on and hold its task's database connection."""
    set_leash(signal.SIGKILL)


@task_prerun.connect
def _know_gpu_types(**_: Any) -> None:
    """Lets tasks plan with the types that were stored meanwhile."""
    from pools import engine_knowledge

    engine_knowledge.refresh_if_due()


@app.on_after_configure.connect
def _beat(sender: Celery, **_: Any) -> None:
    from django.conf import settings

    from scheduler.control import loop_times

    for loop in (Loop.CARBON, Loop.SCALE, Loop.SHARD):
        period_s = loop_times.beat_s(loop)
        sender.add_periodic_task(
            every(period_s),
            sender.signature("scheduler.tasks.run_epochs", args=(loop.value,)),
            name=f"{loop.value} epoch",
            expires=period_s,
        )
    for name, task, period_s in (
        ("publish fleet", "scheduler.tasks.publish", 5.0),
        ("mind sleepers", "scheduler.tasks.mind_sleepers", 1.0),
        ("mind servers", "scheduler.tasks.mind_servers", 5.0),
        ("realise decisions", "scheduler.tasks.realise_decisions", 20.0),
        ("post ledger", "telemetry.tasks.post_ledger", 5.0),
        ("roll up samples", "telemetry.tasks.roll_up_samples", 15.0),
        ("settle ledger", "telemetry.tasks.settle_ledger", 60.0),
        ("restate ledger", "telemetry.tasks.restate_ledger", 3600.0),
        ("refresh carbon feeds", "telemetry.tasks.refresh_carbon_feeds", settings.GREENSERVE_CARBON_TICK_S),
        ("refresh weather", "telemetry.tasks.refresh_weather", settings.GREENSERVE_WEATHER_TICK_S),
        ("record load", "telemetry.tasks.record_load", 60.0),
        ("score forecasts", "telemetry.tasks.score_forecasts", 120.0),
        ("calibrate engines", "telemetry.tasks.calibrate_engines", 30.0),
        ("keep partitions", "telemetry.tasks.keep_partitions", 3600.0),
        ("replay dead rows", "telemetry.tasks.replay_dead_rows", 30.0),
        ("judge alerts", "telemetry.tasks.judge_alerts", settings.GREENSERVE_ALERTS["period_s"]),
        ("tidy alerts", "telemetry.tasks.tidy_alerts", 3600.0),
        ("make scheduled reports", "telemetry.reports.tasks.make_scheduled_reports", 3600.0),
        ("mind studies", "scheduler.whatif.tasks.mind_studies", 30.0),
        ("turn trials", "scheduler.trials.tasks.turn_trials", 30.0),
        ("tell webhooks", "scheduler.tasks.tell_webhooks", 10.0),
        ("tidy answers and webhooks", "scheduler.tasks.tidy_outside", 3600.0),
        ("count a run", "scheduler.tasks.heartbeat", 5.0),
    ):
        sender.add_periodic_task(every(period_s), sender.signature(task), name=name, expires=period_s)
    sender.add_periodic_task(
        every(3600.0),
        sender.signature("telemetry.tasks.learn_forecasts"),
        name="learn forecasts",
        queue=wire.SIMULATIONS_QUEUE,  # it computes for long, and nothing waits for it
        expires=3600.0,
    )
    if settings.GREENSERVE_OTLP_URL is not None:
        export = sender.signature("telemetry.tasks.export_traces")
        sender.add_periodic_task(every(10.0), export, name="export traces", expires=10.0)
    tick_s = settings.GREENSERVE_BATCHES["tick_s"]
    sender.add_periodic_task(
        every(tick_s),
        sender.signature("scheduler.tasks.run_batches"),
        name="run batches",
        queue=wire.BATCHES_QUEUE,
        expires=tick_s,
    )
