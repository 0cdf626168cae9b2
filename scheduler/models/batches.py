"""Files and batches of OpenAI's Batch API."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from pools.models import ApiKey, Service, Tenant


class File(models.Model):
    """A file of a tenant (OpenAI's Files API). Its contents are rows too: a file is there whole, or not at all."""

    class Purpose(models.TextChoices):
        BATCH = "batch"
        BATCH_OUTPUT = "batch_output"

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="files")
    purpose = models.CharField(max_length=20, choices=Purpose)
    filename = models.CharField(max_length=255)
    bytes = models.BigIntegerField()
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [models.Index(fields=["tenant", "-created_at", "-id"])]

    def __str__(self) -> str:
        return self.filename


class FileChunk(models.Model):
    """A piece of a file, in order; all but the last are of one size."""

    file = models.ForeignKey(File, on_delete=models.CASCADE, related_name="chunks")
    index = models.PositiveIntegerField()
    data = models.BinaryField()

    class Meta:
        ordering = ["file", "index"]
        constraints = [models.UniqueConstraint(fields=["file", "index"], name="file_chunk_once")]

    def __str__(self) -> str:
        return f"{self.file_id}#{self.index}"


class BatchStatus(models.TextChoices):
    """A batch's status in OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class Batch(models.Model):
    """Requests that may wait until `expires_at` (OpenAI's Batch API). Files are named by uid: they may be deleted.

    Lines exist from `in_progress` until the batch is final; then what came of them stands in its files.
    """

    FINAL = (BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="batches")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, help_text="Whose requests its lines are.")
    service = models.ForeignKey(Service, on_delete=models.SET_NULL, null=True, help_text="Known once it is validated.")
    endpoint = models.CharField(max_length=60)
    completion_window = models.CharField(max_length=10)
    metadata = models.JSONField(null=True)
    status = models.CharField(max_length=12, choices=BatchStatus, default=BatchStatus.VALIDATING)
    errors = models.JSONField(default=list)
    input_file_uid = models.UUIDField()
    output_file_uid = models.UUIDField(null=True)
    error_file_uid = models.UUIDField(null=True)
    output_expires_s = models.PositiveIntegerField(null=True)
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True)
    finalizing_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    expired_at = models.DateTimeField(null=True)
    cancelling_at = models.DateTimeField(null=True)
    cancelled_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name_plural = "batches"
        indexes = [
            models.Index(fields=["tenant", "-created_at", "-id"]),
            models.Index(
                fields=["expires_at"],
                name="batch_unfinished",
                condition=Q(status__in=["validating", "in_progress", "finalizing", "cancelling"]),
            ),
        ]

    def __str__(self) -> str:
        return f"batch_{self.uid.hex}"


class BatchLine(models.Model):
    """One request of a batch, as it goes to the gateway. `result` is written once: the line of a file to come."""

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="lines")
    number = models.PositiveIntegerField(help_text="In the input file, from 1.")
    custom_id = models.CharField(max_length=512)
    body = models.TextField()
    attempts = models.PositiveSmallIntegerField(default=0)
    not_before = models.DateTimeField(null=True)
    result = models.TextField(null=True)  # noqa: DJ001 - null is "none yet"
    ok = models.BooleanField(null=True)

    class Meta:
        ordering = ["batch", "number"]
        constraints = [models.UniqueConstraint(fields=["batch", "number"], name="batch_line_once")]
        indexes = [
            models.Index(fields=["batch", "number"], name="batch_line_open", condition=Q(result__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.batch_id}:{self.number}"
