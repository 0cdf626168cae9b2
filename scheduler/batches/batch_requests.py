"""Answers clients' requests about batches, in OpenAI's shapes. Every look-up is within the caller's tenant."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Q, QuerySet

from pools.models import ApiKey, Tenant
from scheduler.batches import tenant_files
from scheduler.batches.errors import Refused, not_found
from scheduler.batches.input_lines import ENDPOINTS
from scheduler.models import Batch, BatchStatus, File

WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
WINDOW_S = (60, 14 * 86_400)
METADATA_KEYS, METADATA_KEY, METADATA_VALUE = 16, 64, 512
M = TypeVar("M", Batch, File)


def public_id(uid: uuid.UUID) -> str:
    return f"batch_{uid.hex}"


def find(tenant: Tenant, public: str) -> Batch:
    """Raises Refused 404."""
    uid = tenant_files.parse_uid(public, "batch_")
    found = Batch.objects.filter(tenant=tenant, uid=uid).first() if uid else None
    if found is None:
        raise not_found("Batch", public)
    return found


def create(key: ApiKey, asked: Mapping[str, Any], now: datetime) -> Batch:
    """Makes a batch, which is validated in the background. Raises Refused."""
    endpoint, window = asked.get("endpoint"), str(asked.get("completion_window"))
    if endpoint not in ENDPOINTS:
        raise Refused(400, f"'endpoint' must be one of {', '.join(ENDPOINTS)}.", param="endpoint")
    window_s = seconds_of(window)
    metadata = _metadata(asked.get("metadata"))
    life_s = expiry(asked.get("output_expires_after"), "output_expires_after")
    file_id = asked.get("input_file_id")
    if not isinstance(file_id, str) or not file_id:
        raise Refused(400, "'input_file_id' is missing.", param="input_file_id")
    try:
        file = tenant_files.find(key.tenant, file_id, now)
    except Refused as error:
        raise Refused(error.status, error.message, param="input_file_id") from None
    if file.purpose != File.Purpose.BATCH:
        raise Refused(400, "The input file's purpose must be 'batch'.", param="input_file_id")
    with transaction.atomic():
        Tenant.objects.select_for_update().get(pk=key.tenant_id)
        most = tenant_files.limits()["open_batches"]
        if Batch.objects.filter(tenant=key.tenant).exclude(status__in=Batch.FINAL).count() >= most:
            raise Refused(429, f"{most} of your batches are under way, as many as may be.", code="too_many_batches")
        return Batch.objects.create(
            tenant=key.tenant,
            key=key,
            endpoint=endpoint,
            completion_window=window,
            metadata=metadata,
            input_file_uid=file.uid,
            output_expires_s=life_s,
            created_at=now,
            expires_at=now + timedelta(seconds=window_s),
        )


def cancel(tenant: Tenant, public: str, now: datetime) -> Batch:
    """Asks for the end. What has been done by then is kept. Raises Refused 409 when the batch is over."""
    batch = find(tenant, public)
    may = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
    moved = Batch.objects.filter(pk=batch.pk, status__in=may).update(status=BatchStatus.CANCELLING, cancelling_at=now)
    batch.refresh_from_db()
    if not moved and batch.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
        raise Refused(409, f"Cannot cancel a batch with status '{batch.status}'.", param="batch_id")
    return batch


def shape(batch: Batch) -> dict[str, Any]:
    """Returns a batch as clients see it."""

    def at(name: str) -> int | None:
        moment: datetime | None = getattr(batch, name)
        return int(moment.timestamp()) if moment else None

    def file(uid: uuid.UUID | None) -> str | None:
        return tenant_files.public_id(uid) if uid else None

    ended = ("cancelled_at", "cancelling_at", "completed_at", "expired_at", "expires_at", "failed_at", "finalizing_at")
    return {
        "id": public_id(batch.uid),
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.service.name if batch.service else None,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": file(batch.input_file_uid),
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": file(batch.output_file_uid),
        "error_file_id": file(batch.error_file_uid),
        "created_at": at("created_at"),
        "in_progress_at": at("in_progress_at"),
        **{name: at(name) for name in ended},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {  # engines do not say how much of it was cached, or reasoning
            "input_tokens": batch.prompt_tokens,
            "output_tokens": batch.output_tokens,
            "total_tokens": batch.prompt_tokens + batch.output_tokens,
        },
        "metadata": batch.metadata,
    }


def page(found: QuerySet[M], cursor: M | None, limit: int, newest_first: bool = True) -> tuple[list[M], bool]:
    """Returns the rows after the cursor by (created_at, id), and whether there are more."""
    sign, less = ("-", "lt") if newest_first else ("", "gt")
    if cursor is not None:
        at = cursor.created_at
        found = found.filter(Q(**{f"created_at__{less}": at}) | Q(created_at=at, **{f"pk__{less}": cursor.pk}))
    rows = list(found.order_by(f"{sign}created_at", f"{sign}pk")[: limit + 1])
    return rows[:limit], len(rows) > limit


def seconds_of(window: str) -> int:
    """Reads a duration such as `24h` as seconds. Raises Refused 400 where it is none, or a batch may not have it."""
    match = WINDOW.fullmatch(window)
    found = int(match[1]) * UNIT_S[match[2]] if match else 0
    if not WINDOW_S[0] <= found <= WINDOW_S[1]:
        raise Refused(
            400, "'completion_window' must be a duration like 24h, from 1m to 14d.", param="completion_window"
        )
    return found


def expiry(given: object, param: str) -> int | None:
    """Reads after how many seconds a file is to expire; None: nothing was given. Raises Refused 400."""
    if given is None:
        return None
    least, most = tenant_files.LIFE_S
    ok = isinstance(given, Mapping) and given.get("anchor") == "created_at"
    seconds = given.get("seconds") if isinstance(given, Mapping) else None
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit() and len(seconds) < 10:  # of a form
        seconds = int(seconds)
    if not ok or not isinstance(seconds, int) or isinstance(seconds, bool) or not least <= seconds <= most:
        raise Refused(400, f"'{param}' needs anchor 'created_at' and seconds from {least} to {most}.", param=param)
    return seconds


def _metadata(given: object) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict) or len(given) > METADATA_KEYS:
        raise Refused(400, f"'metadata' holds at most {METADATA_KEYS} pairs of texts.", param="metadata")
    for name, value in given.items():
        fits = isinstance(value, str) and len(name) <= METADATA_KEY and len(value) <= METADATA_VALUE
        if not fits or "\0" in name + value:
            raise Refused(
                400,
                f"In 'metadata' keys have at most {METADATA_KEY} characters, values {METADATA_VALUE}, no NUL.",
                param="metadata",
            )
    return given
