"""Limits on wrong passwords and codes. Failures are counted in the audit trail: nothing else is kept.

Three limits over the same while: of one name from one address (guessing), of one address (trying many people), and of
one name from everywhere (many machines), which is wide, so that nobody locks out another easily. Names count as they
are typed, known or not, so that a refusal does not say who exists; they are kept as a keyed digest, because people type
passwords into the wrong field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import OperationalError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac

from pools.access import audit
from pools.models import AuditEntry

WINDOW = timedelta(minutes=15)
OF_NAME_AND_ADDRESS, OF_ADDRESS, OF_NAME = 5, 30, 100
REFUSED = "refuse"
KIND = "sign-in"
_SALT = "frontend.people.throttle"  # as in the first release: what was counted counts on over an upgrade


def name_key(name: str, step: str = "password") -> str:
    return f"{step}:{salted_hmac(_SALT, name.strip().lower(), algorithm='sha256').hexdigest()[:32]}"


@contextmanager
def attempt(key: str, address: str | None) -> Iterator[None]:
    """Checks the limits around one try. Raises ValidationError, which says when to try again, if there were too many.

    Tries of one name wait for one another, so that many at once are not checked before the first is counted.
    """
    with transaction.atomic():
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '3s'")
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [key])
                cursor.execute("SET LOCAL lock_timeout = DEFAULT")
        except OperationalError:
            raise ValidationError("Somebody is trying this name right now. Try again in some seconds.") from None
        free_at = free_again_at(key, address, timezone.now())
        if free_at is None:
            yield
    if free_at is not None:
        minutes = max(1, math.ceil((free_at - timezone.now()).total_seconds() / 60))
        at = timezone.localtime(free_at)
        raise ValidationError(
            f"Too many failed attempts. Try again in {minutes} min, at {at:%H:%M %Z}.", code="throttled"
        )


def failed(key: str, what: str, name: str = "") -> None:
    """Counts a failure; `what` was wrong. `name`: who it was about, where it is known that they exist."""
    audit.note(audit.Actor(channel="page"), REFUSED, KIND, key, name, after={"wrong": what})


def free_again_at(key: str, address: str | None, now: datetime) -> datetime | None:
    """Returns when the next try is allowed; None: now. A success resets the failures of that name and address."""
    recent = AuditEntry.objects.filter(kind=KIND, at__gt=now - WINDOW)
    refused = recent.filter(action=REFUSED)
    pair = refused.filter(object_key=key, address=address)
    success = recent.filter(action=KIND, object_key=key, address=address).values_list("at", flat=True).first()
    if success is not None:
        pair = pair.filter(at__gt=success)
    ends = [_nth(pair, OF_NAME_AND_ADDRESS), _nth(refused.filter(object_key=key), OF_NAME)]
    if address is not None:
        ends.append(_nth(refused.filter(address=address), OF_ADDRESS))
    return max((at + WINDOW for at in ends if at is not None), default=None)


def _nth(found: QuerySet[AuditEntry], limit: int) -> datetime | None:
    """Returns the moment of the limit-th newest failure: as long as it is recent, the limit is reached."""
    moments = list(found.order_by("-at").values_list("at", flat=True)[limit - 1 : limit])
    return moments[0] if moments else None
