"""A tenant's files. Contents are rows beside what refers to them: the processes that write and read them need not share
a disk, and a file, a batch's end and its lines' end are one transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet, Sum

from pools.models import Tenant
from scheduler.batches.errors import Refused, not_found
from scheduler.models import File, FileChunk

CHUNK_BYTES = 1 << 20
LIFE_S = (3_600, 2_592_000)  # what a client may choose
BATCH_LIFE_S = 2_592_000  # of input files, unless the client chooses
MAX_NAME = 255


def limits() -> dict[str, Any]:
    found: dict[str, Any] = settings.GREENSERVE_BATCHES
    return found


def public_id(uid: uuid.UUID) -> str:
    return f"file-{uid.hex}"


def parse_id(text: str) -> uuid.UUID | None:
    return parse_uid(text, "file-")


def parse_uid(text: str, prefix: str) -> uuid.UUID | None:
    """Returns the uid of an id as clients know it; None: no such id can exist."""
    rest = text.removeprefix(prefix)
    if rest == text or len(rest) != 32:
        return None
    try:
        return uuid.UUID(hex=rest)
    except ValueError:
        return None


def shape(file: File) -> dict[str, Any]:
    """Returns a file as clients see it."""
    return {
        "id": public_id(file.uid),
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": int(file.expires_at.timestamp()) if file.expires_at else None,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def visible(tenant: Tenant, now: datetime) -> QuerySet[File]:
    """Returns the tenant's files that have not expired."""
    return File.objects.filter(tenant=tenant).filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now))


def find(tenant: Tenant, public: str, now: datetime) -> File:
    """Raises Refused 404."""
    uid = parse_id(public)
    found = visible(tenant, now).filter(uid=uid).first() if uid else None
    if found is None:
        raise not_found("File", public)
    return found


def create(tenant: Tenant, name: str, pieces: Iterable[bytes], life_s: int | None, now: datetime) -> File:
    """Stores an upload of a batch's input. Raises Refused when it is empty or too large, or all the room is taken."""
    if "\0" in name:
        raise Refused(400, "The file's name holds a character that it may not.", param="file")
    with transaction.atomic():
        Tenant.objects.select_for_update().get(pk=tenant.pk)  # uploads at the same time count each other
        stored = File.objects.filter(tenant=tenant).aggregate(sum=Sum("bytes"))["sum"] or 0
        room = limits()["tenant_bytes"] - stored
        file = write(tenant, File.Purpose.BATCH, name or "upload", _bounded(pieces, room), life_s or BATCH_LIFE_S, now)
        if not file.bytes:
            raise Refused(400, "The file is empty.", param="file", code="empty_file")
    return file


def _bounded(pieces: Iterable[bytes], room: int) -> Iterator[bytes]:
    most, seen = limits()["file_bytes"], 0
    for piece in pieces:
        seen += len(piece)
        if seen > most:
            raise Refused(413, f"The file exceeds {most} bytes.", param="file", code="file_too_large")
        if seen > room:
            raise Refused(
                400, "Your files take up all the room that they may: delete some.", param="file", code="storage_full"
            )
        yield piece


def write(
    tenant: Tenant, purpose: File.Purpose, name: str, pieces: Iterable[bytes], life_s: int | None, now: datetime
) -> File:
    """Stores a file. Call it inside a transaction: until that ends nobody sees the file."""
    expires_at = now + timedelta(seconds=life_s) if life_s else None
    file = File.objects.create(
        tenant=tenant, purpose=purpose, filename=name[:MAX_NAME], bytes=0, created_at=now, expires_at=expires_at
    )
    for index, data in enumerate(rechunk(pieces)):
        FileChunk.objects.create(file=file, index=index, data=data)
        file.bytes += len(data)
    file.save(update_fields=["bytes"])
    return file


def rechunk(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same bytes in pieces of CHUNK_BYTES, the last one shorter."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


def read(file: File) -> Iterator[bytes]:
    """Yields a file's contents, a chunk at a time."""
    for index in range(-(-file.bytes // CHUNK_BYTES)):
        yield bytes(FileChunk.objects.values_list("data", flat=True).get(file=file, index=index))


async def stream(file: File) -> AsyncIterator[bytes]:
    """Yields the same for a response, which is sent while it is read. Raises DoesNotExist when the file is deleted."""
    for index in range(-(-file.bytes // CHUNK_BYTES)):
        yield bytes(await FileChunk.objects.values_list("data", flat=True).aget(file=file, index=index))


def delete(tenant: Tenant, public: str, now: datetime) -> dict[str, Any]:
    """Deletes a file. A batch that is past its validation does not need its input any more."""
    file = find(tenant, public, now)
    file.delete()
    return {"id": public, "object": "file", "deleted": True}


def prune(now: datetime) -> int:
    """Deletes files that have expired."""
    found, _ = File.objects.filter(expires_at__lte=now).delete()
    return found
