"""A call as a value, what came of it, and whether it may be tried again: everything about HTTP but sending it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal
from urllib.parse import quote
from uuid import UUID

from .errors import NoAnswerError

Method = Literal["GET", "POST", "PATCH", "DELETE"]
JSON = "application/json"
TRY_LATER = frozenset({429, 503})  # the API did nothing
PERHAPS_DONE = frozenset({502, 504})  # something between here and the API gave up waiting


@dataclass(frozen=True, slots=True)
class Upload:
    """A form with one file, for the POSTs that take one."""

    texts: Mapping[str, object]
    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        path: below `/api/v1/`, such as `sites/ashburn/`.
        query: by name; None is not sent.
        body: what is sent as JSON, or a form with a file; None is no body.
        etag: for If-Match.
        key: for Idempotency-Key; such a POST has the same effect and answer however often it is sent.
        harmless: stores nothing, so that it may be sent twice.
    """

    method: Method
    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: object = None
    etag: str | None = None
    key: str | None = None
    harmless: bool = False
    accept: str = JSON

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again although the first may have been carried out."""
        return self.method == "GET" or self.key is not None or self.harmless


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the API, whatever its status."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def retry_after_s(self) -> float | None:
        """Seconds that Retry-After asks for, given as a number or as a time; None: it says nothing."""
        text = self.headers.get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return float(text[:9])
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(0.0, (at - datetime.now(UTC)).total_seconds())


@dataclass(frozen=True, slots=True)
class Retries:
    """Limits of how often and how long a call is tried again.

    A connection that fails, a 429 and a 503 are tried again for every call, since nothing was done. A lost answer, a
    502 and a 504 are tried again only where a second time does no harm.

    Attributes:
        attempts: the most requests for one call; 1 is no second try.
        first_wait_s: about how long the first wait is; each next one is twice as long.
        longest_wait_s: no wait is longer; where Retry-After asks for more, the error is raised at once.
    """

    attempts: int = 4
    first_wait_s: float = 0.5
    longest_wait_s: float = 65.0  # the API's rate limits are for windows of a minute

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_wait_s < 0 or self.longest_wait_s < 0:
            raise ValueError("attempts is at least 1, and waits are not negative")

    def wait_s(self, call: Call, attempt: int, outcome: Answer | NoAnswerError, dice: random.Random) -> float | None:
        """Returns the seconds to wait before the next attempt; None: the outcome is final. `attempt` counts from 1."""
        if attempt >= self.attempts or not _worth_it(call, outcome):
            return None
        asked = outcome.retry_after_s if isinstance(outcome, Answer) else None
        if asked is not None:
            return asked if asked <= self.longest_wait_s else None
        usual: float = self.first_wait_s * 2.0 ** (attempt - 1)
        return min(self.longest_wait_s, usual * dice.uniform(0.5, 1.5))  # not all clients at the same moment


def _worth_it(call: Call, outcome: Answer | NoAnswerError) -> bool:
    if isinstance(outcome, NoAnswerError):
        return call.repeatable or not outcome.sent
    return outcome.status in TRY_LATER or (outcome.status in PERHAPS_DONE and call.repeatable)


def segment(key: str | int | UUID) -> str:
    """Returns one part of a path. Raises ValueError for what no address has as a part."""
    text = str(key)
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} names no row")
    return quote(text, safe="~")


def key_segment(key: str | int) -> str:
    """Returns the last part of a row's address: its name, or `~` and its id where the id is given."""
    return segment(f"~{key}" if isinstance(key, int) else key)


def query_of(values: Mapping[str, object]) -> dict[str, str]:
    """Returns a query's texts; values of None are left out. Raises ValueError for a time without a zone."""
    return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return aware(value).isoformat()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(_text, value))
    return str(value)


def aware(at: datetime) -> datetime:
    """Returns the time; raises ValueError where it has no zone, since the API would take the site's or its own."""
    if at.tzinfo is None:
        raise ValueError(f"{at} has no time zone; give one, such as datetime(2026, 11, 2, tzinfo=UTC)")
    return at
