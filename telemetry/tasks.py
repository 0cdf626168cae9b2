"""What beat asks of telemetry: the ledger, the carbon feeds, the partitions."""

from __future__ import annotations

from datetime import timedelta

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from telemetry import carbon, ledger, partitions
from telemetry.models import CarbonFeed, IngestBatch

# A batch can come again only while it is in the stream; two days is far beyond that.
BATCH_MEMORY = timedelta(days=2)


@shared_task  # type: ignore[untyped-decorator]
def post_ledger() -> int:
    return ledger.post(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def refresh_carbon_feeds() -> int:
    now = timezone.now()
    return sum(carbon.refresh_feed(feed, now) for feed in CarbonFeed.objects.select_related("site"))


@shared_task  # type: ignore[untyped-decorator]
def keep_partitions() -> list[str]:
    now = timezone.now()
    IngestBatch.objects.filter(received_at__lt=now - BATCH_MEMORY).delete()
    return partitions.keep(settings.GREENSERVE_SAMPLE_RETENTION_DAYS, now)
