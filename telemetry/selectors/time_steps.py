"""In which steps energy is read: fine enough for a chart, and so coarse that a page need not wait for it."""

from __future__ import annotations

from django.core.cache import cache

from pools.models import Gpu, Site
from telemetry.models.rollups import MINUTE_S, STEPS_S
from telemetry.selectors.frames import INTERVAL_S, TimeRange
from telemetry.storage import synthetic

MOST_ENTRIES = 100_000  # that a chart's query sums up: some tenths of a second
MOST_SUMS = 50_000  # the same of sites' sums over time
KINDS_IN_USE = 2  # of a site's energy, nearly always: serving and idle
SIZE_KEY = "size-of-the-fleet"


def readable(time_range: TimeRange) -> TimeRange:
    """Returns `time_range`, or longer steps where its buckets would be summed from more rows than a page can wait for,
    or are finer than what was made up of the past.

    Three queries, once a minute.
    """
    size: tuple[int, int, float] | None = cache.get(SIZE_KEY)
    if size is None:
        made_up = synthetic.newest()
        size = Gpu.objects.count(), Site.objects.count(), made_up.end_at.timestamp() if made_up else 0.0
        cache.set(SIZE_KEY, size, MINUTE_S)
    gpus, sites, made_up_until_s = size
    span_s = time_range.end_s - time_range.start_s
    if time_range.start_s < made_up_until_s:
        time_range = time_range.coarser(MINUTE_S)
    if not rollup_step_s(time_range) and gpus * span_s / INTERVAL_S > MOST_ENTRIES:
        time_range = time_range.coarser(MINUTE_S)
    for step_s in STEPS_S[1:]:
        read_s = rollup_step_s(time_range)
        if not read_s or sites * KINDS_IN_USE * span_s / read_s <= MOST_SUMS:
            return time_range
        if step_s > read_s:
            time_range = time_range.coarser(step_s)
    return time_range


def rollup_step_s(time_range: TimeRange) -> int:
    """Returns the longest step of the sums over time that `time_range` is made of whole ones of; 0: of none."""
    return next(
        (step_s for step_s in reversed(STEPS_S) if not (time_range.bucket_s % step_s or time_range.start_s % step_s)), 0
    )
