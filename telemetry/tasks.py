"""The tasks of telemetry that beat starts: the ledger, carbon and price feeds, forecasts, the partitions."""

from __future__ import annotations

import logging
from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from pools import agent_states, redis_address
from pools.models import Node
from telemetry import tracing
from telemetry.alerts import evaluation
from telemetry.alerts import notices as alert_notices
from telemetry.calibration import residual_rows
from telemetry.carbon import feeds
from telemetry.forecasts import carbon_forecasts, carbon_networks, learned_carbon, load_forecasts
from telemetry.ingest import dead_rows, replaying, sample_rollups
from telemetry.ledger import host_posting, posting, settlement
from telemetry.models import DemandSketch, IngestedBatches
from telemetry.models.demand import KEPT_S
from telemetry.reports.tasks import make_report as make_report
from telemetry.reports.tasks import make_scheduled_reports as make_scheduled_reports
from telemetry.storage import time_partitions
from telemetry.weather import weather_feeds

log = logging.getLogger(__name__)

# A batch can come again only while it is in the stream; two days after the agent's last one is far beyond that.
BATCH_MEMORY = timedelta(days=2)
SCORING_S = 10.0  # of a run, for feeds and for load each
LEARNING_S = 60.0  # of a run; a feed takes some 15 s, with weather 30 s, and is not begun after it


@shared_task
def post_ledger() -> int:
    now = timezone.now()
    return posting.post(now) + host_posting.post(now)


@shared_task
def roll_up_samples() -> int:
    """Rolls up until nothing is due: after an outage of the ingester there is more than one turn's worth."""
    done = 0
    while made := sample_rollups.roll_up(timezone.now()):
        done += made
    return done


@shared_task
def settle_ledger() -> int:
    return settlement.settle(timezone.now())


@shared_task
def restate_ledger() -> int:
    return settlement.restate(timezone.now())


@shared_task
def refresh_carbon_feeds() -> int:
    """Asks the feeds whose time has come, and makes the forecasts that their providers do not.

    One whose history no forecast can be made of stops neither the others nor the task.
    """
    now = timezone.now()
    asked = feeds.poll(now)
    for feed in asked:
        try:
            with transaction.atomic():
                carbon_forecasts.extend(feed, now)
        except Exception:
            log.exception("forecast of the carbon feed of %s", feed.site)
    return len(asked)


@shared_task
def refresh_weather() -> int:
    """Asks the weather feeds whose time has come, for a limited time at once."""
    return len(weather_feeds.poll(timezone.now()))


@shared_task
def record_load() -> int:
    """Counts the load of the steps that are over, and forgets sketches that no loop reads any more."""
    now = timezone.now()
    DemandSketch.objects.filter(start_at__lt=now - timedelta(seconds=KEPT_S)).delete()
    return load_forecasts.record_load(now)


@shared_task
def score_forecasts() -> int:
    """Back-tests what was not back-tested for a period, for a limited time at once."""
    now, period_s = timezone.now(), settings.GREENSERVE_FORECAST_SCORE_S
    return carbon_forecasts.score_due(now, period_s, SCORING_S) + load_forecasts.score_due(now, period_s, SCORING_S)


@shared_task(acks_late=False)
def learn_forecasts() -> int:
    """Learns models of carbon for the feeds whose models are a day old, for a limited time at once, and the network of
    all of them where it is a day old, which takes two minutes at most."""
    now = timezone.now()
    return learned_carbon.learn_due(now, LEARNING_S) + carbon_networks.learn_due(now)


@shared_task(acks_late=False)
def calibrate_engines() -> int:
    """Adds what engines did of late to what is known of them."""
    with agent_states.connect() as client:
        reported = agent_states.states(client, Node.objects.values_list("name", flat=True)).values()
    there = [instance for state in reported for instance in state.instances]
    limits = {instance.uid: instance.engine_limits for instance in there if instance.engine_limits is not None}
    return residual_rows.calibrate(timezone.now(), limits)


@shared_task
def keep_partitions() -> list[str]:
    now = timezone.now()
    IngestedBatches.objects.filter(received_at__lt=now - BATCH_MEMORY).delete()
    dead_rows.forget(now)
    feeds.forget(now - timedelta(days=settings.GREENSERVE_FORECAST_RETENTION_DAYS))
    weather_feeds.forget(now)
    dropped = time_partitions.keep(settings.GREENSERVE_SAMPLE_RETENTION_DAYS, now)
    return dropped + sample_rollups.drop_old(settings.GREENSERVE_MINUTE_RETENTION_DAYS, now)


@shared_task
def replay_dead_rows() -> int:
    """Stores rows that were ahead of the clock and whose time has come."""
    sink = import_string(settings.GREENSERVE_CLOCK_DECISION_SINK)
    return len(replaying.replay_due(timezone.now(), sink))


@shared_task(acks_late=False)
def judge_alerts() -> int:
    """Makes one round; notices that follow are sent by a task of its own, which may take its time."""
    steps = evaluation.run(timezone.now())
    send_alert_notices.delay()
    return len(steps)


@shared_task(acks_late=False)
def send_alert_notices() -> int:
    return alert_notices.deliver(timezone.now())


@shared_task
def tidy_alerts() -> int:
    return evaluation.tidy(timezone.now())


@shared_task(acks_late=False)
def export_traces() -> int:
    """Beat asks for it only where a collector is named."""
    if settings.GREENSERVE_OTLP_URL is None:
        return 0
    with redis_address.connect(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5) as client:
        return tracing.export(client, settings.GREENSERVE_OTLP_URL, timezone.now())
