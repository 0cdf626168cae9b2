"""Waits for long work. The API has no request that waits, so the client looks again and again."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from .errors import JobError

if TYPE_CHECKING:
    from .models import JobDetail

EVERY_S = 1.0
LONGEST_S = 600.0


class Reads(Protocol):
    def get(self, uid: UUID | str, /) -> JobDetail: ...


class AsyncReads(Protocol):
    async def get(self, uid: UUID | str, /) -> JobDetail: ...


class Waits:
    """`wait` of jobs."""

    def wait(self: Reads, uid: UUID | str, /, *, timeout_s: float = LONGEST_S, every_s: float = EVERY_S) -> JobDetail:
        """Returns the job once it is done.

        Raises:
            JobError: it failed, was cancelled, or is not done after `timeout_s` seconds.
        """
        end = time.monotonic() + timeout_s
        while True:
            job = self.get(uid)
            left_s = end - time.monotonic()
            if ended(job, left_s, timeout_s):
                return job
            time.sleep(min(every_s, left_s))


class AsyncWaits:
    """`wait` of jobs, for asyncio."""

    async def wait(
        self: AsyncReads, uid: UUID | str, /, *, timeout_s: float = LONGEST_S, every_s: float = EVERY_S
    ) -> JobDetail:
        """Returns the job once it is done; raises as `Waits.wait` does."""
        end = time.monotonic() + timeout_s
        while True:
            job = await self.get(uid)
            left_s = end - time.monotonic()
            if ended(job, left_s, timeout_s):
                return job
            await asyncio.sleep(min(every_s, left_s))


def ended(job: JobDetail, left_s: float, timeout_s: float) -> bool:
    """Returns whether the job is done. Raises JobError where it will not be, or the time is over."""
    if job.state == "done":
        return True
    if job.state in ("failed", "cancelled"):
        words = f"The job {job.uid} ({job.kind}) is {job.state}: {job.error or 'no reason given'}"
        raise JobError(words, uid=str(job.uid), state=job.state)
    if left_s <= 0:
        words = f"The job {job.uid} ({job.kind}) is {job.state} after {timeout_s:g} s, at {job.progress:.0%}."
        raise JobError(words, uid=str(job.uid), state=job.state)
    return False
