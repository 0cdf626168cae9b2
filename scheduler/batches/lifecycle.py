"""A batch's way from one status to the next. Each step is one transaction, and finds out by itself whether it is due:
a crash between any two leaves nothing half done and nothing to repair.

validating -> failed | in_progress -> finalizing -> completed | expired; cancelling -> cancelled.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import QuerySet

from pools.models import Service
from scheduler.batches import batch_keys, tenant_files
from scheduler.batches.input_lines import Checker, Fault
from scheduler.models import Batch, BatchLine, BatchStatus, File

log = logging.getLogger(__name__)

BUFFERED_BYTES = 4 << 20  # of lines, until they are inserted
READ_ROWS = 20  # at a time, of results, which may have some megabytes each
EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
BUDGET_SPENT = "insufficient_quota"
CANCELLED = ("batch_cancelled", "This request was not executed: its batch was cancelled.")


def advance(now: datetime) -> None:
    """Takes every batch as far as it can go without a request being sent. What breaks one does not stop the others."""
    live = set(batch_keys.live_keys(now).values_list("pk", flat=True))
    for batch in Batch.objects.exclude(status__in=Batch.FINAL).order_by("expires_at"):
        try:
            _advance(batch, batch.key_id in live, now)
        except (OperationalError, InterfaceError):  # the database is away: no fault of the batch's
            raise
        except Exception:
            log.exception("%s cannot go on from '%s'", batch, batch.status)
            if batch.status == BatchStatus.VALIDATING:  # it would break in the same way for ever
                fault = Fault("internal_error", "The input file could not be read.").shape()
                Batch.objects.filter(pk=batch.pk, status=BatchStatus.VALIDATING).update(
                    status=BatchStatus.FAILED, failed_at=now, errors=[fault]
                )


def _advance(batch: Batch, key_is_live: bool, now: datetime) -> None:
    if not key_is_live and batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
        log.warning("%s is cancelled: its API key is revoked or has expired", batch)
        _move(batch, batch.status, BatchStatus.CANCELLING, now)
    if batch.status == BatchStatus.VALIDATING:
        validate(batch, now)
    if batch.status == BatchStatus.IN_PROGRESS and (
        batch.expires_at <= now or not batch.lines.filter(result__isnull=True).exists()
    ):
        _move(batch, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, now)
    if batch.status in (BatchStatus.FINALIZING, BatchStatus.CANCELLING):
        finish(batch, now)


def validate(batch: Batch, now: datetime) -> None:
    """Reads the input file: its lines become rows, or the batch fails with what is wrong with them."""
    with transaction.atomic():
        locked = Batch.objects.select_for_update().get(pk=batch.pk)
        if locked.status != BatchStatus.VALIDATING:
            batch.status = locked.status
            return
        services = {service.name: service for service in Service.objects.all()}
        checker = Checker(locked.endpoint, services.keys(), tenant_files.limits()["lines"])
        file = tenant_files.visible(locked.tenant, now).filter(uid=locked.input_file_uid).first()
        if file is None:
            checker.faults.append(Fault("file_not_found", "The input file was deleted before it was read."))
        else:
            _insert(locked, checker, file)
        if checker.faults:
            locked.lines.all().delete()
            locked.status, locked.failed_at = BatchStatus.FAILED, now
            locked.errors = [fault.shape() for fault in checker.faults]
        else:
            locked.status, locked.in_progress_at = BatchStatus.IN_PROGRESS, now
            locked.service = services[checker.model or ""]
            locked.total = locked.lines.count()
        locked.save()
    batch.status, batch.total = locked.status, locked.total


def _insert(batch: Batch, checker: Checker, file: File) -> None:
    rows: list[BatchLine] = []
    buffered = 0
    for line in checker.read(tenant_files.read(file)):
        if checker.faults:  # it will fail: only its faults are still of interest
            rows.clear()
            continue
        rows.append(BatchLine(batch=batch, number=line.number, custom_id=line.custom_id, body=line.body.decode()))
        buffered += len(line.body) + 500
        if buffered >= BUFFERED_BYTES:
            BatchLine.objects.bulk_create(rows)
            rows.clear()
            buffered = 0
    if not checker.faults:
        BatchLine.objects.bulk_create(rows)


def stop(batch_id: int, message: str) -> None:
    """Sends nothing more of a batch whose tenant's budget is spent: what is left fails with what the gateway said."""
    fault = Fault(BUDGET_SPENT, message).shape()
    Batch.objects.filter(pk=batch_id, status=BatchStatus.IN_PROGRESS).update(errors=[fault])


def finalize(batch: Batch, now: datetime) -> None:
    """Ends a batch before all of its lines have a result."""
    _move(batch, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, now)


def finish(batch: Batch, now: datetime) -> None:
    """Writes what came of the lines into the batch's files, and deletes the lines. Lines without a result get the
    reason.
    """
    with transaction.atomic():
        locked = Batch.objects.select_for_update().get(pk=batch.pk)
        if locked.status == BatchStatus.CANCELLING:
            final, moment, reason = BatchStatus.CANCELLED, "cancelled_at", CANCELLED
        elif locked.status == BatchStatus.FINALIZING and locked.errors:
            final, moment = BatchStatus.COMPLETED, "completed_at"
            reason = locked.errors[0]["code"], locked.errors[0]["message"]
        elif locked.status == BatchStatus.FINALIZING:
            undone = locked.lines.filter(result__isnull=True).exists()
            final, moment, reason = (
                (BatchStatus.EXPIRED, "expired_at", EXPIRED)
                if undone
                else (BatchStatus.COMPLETED, "completed_at", EXPIRED)
            )
        else:
            batch.status = locked.status
            return
        name = f"batch_{locked.uid.hex}"
        results, faults = locked.lines.filter(ok=True), locked.lines.exclude(ok=True)
        if results.exists():
            locked.output_file_uid = _write(locked, f"{name}_output.jsonl", _contents(results, reason), now)
        if faults.exists():
            locked.error_file_uid = _write(locked, f"{name}_error.jsonl", _contents(faults, reason), now)
            locked.failed = faults.count()
        locked.lines.all().delete()
        locked.status = final
        setattr(locked, moment, now)
        locked.save()
    batch.status = locked.status


def _write(batch: Batch, name: str, contents: Iterator[bytes], now: datetime) -> uuid.UUID:
    return tenant_files.write(batch.tenant, File.Purpose.BATCH_OUTPUT, name, contents, batch.output_expires_s, now).uid


def _contents(lines: QuerySet[BatchLine], reason: tuple[str, str]) -> Iterator[bytes]:
    """Yields the lines of an output or error file in the order of the input file."""
    for line in lines.order_by("number").iterator(chunk_size=READ_ROWS):
        if line.result is not None:
            yield line.result.encode() + b"\n"
        else:
            yield result_of(line, None, {"code": reason[0], "message": reason[1]}) + b"\n"


def result_of(line: BatchLine, response: dict[str, Any] | None, error: dict[str, str] | None = None) -> bytes:
    """Returns a line of an output or error file."""
    return msgspec.json.encode(
        {"id": request_id(line), "custom_id": line.custom_id, "response": response, "error": error}
    )


def request_id(line: BatchLine) -> str:
    """Returns the request's id: the same at each attempt, and on record as what the client called it."""
    return f"batch_req_{line.batch_id:x}_{line.number:x}"


def _move(batch: Batch, source: str, target: BatchStatus, now: datetime) -> None:
    moved = Batch.objects.filter(pk=batch.pk, status=source).update(**{"status": target, f"{target.value}_at": now})
    if moved:
        batch.status = target
    else:
        batch.refresh_from_db(fields=["status"])
