"""The audit trail as a page and as CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from core.cells import csv_line, flat
from pools.access import audit, rights
from pools.access.rights import Right
from pools.models import AuditEntry

PAGE = 50
MOST_ROWS = 100_000  # of a download
COLUMNS = (
    "entry",
    "at_utc",
    "who",
    "key",
    "channel",
    "action",
    "kind",
    "object_key",
    "label",
    "field",
    "before",
    "after",
    "address",
    "request_id",
)
RECENT = 2_000  # entries in which kinds are looked for


@dataclass(frozen=True, slots=True)
class Chosen:
    """The filter of the URL. Moments are in the reader's zone there; `wrong` names what could not be read."""

    who: str = ""
    kind: str = ""
    object: str = ""
    since: str = ""
    until: str = ""
    wrong: tuple[str, ...] = ()

    @classmethod
    def of(cls, query: QueryDict) -> Chosen:
        given = {name: query.get(name, "").strip()[:200] for name in ("who", "kind", "object", "since", "until")}
        wrong = tuple(name for name in ("since", "until") if given[name] and _moment(given[name]) is None)
        return cls(**given, wrong=wrong)

    def entries(self) -> QuerySet[AuditEntry]:
        found = AuditEntry.objects.order_by("-id")
        if self.who:
            found = found.filter(who=self.who)
        if self.kind:
            found = found.filter(kind=self.kind)
        if self.object:
            found = found.filter(Q(object_key=self.object) | Q(label__icontains=self.object))
        if (since := _moment(self.since)) is not None:
            found = found.filter(at__gte=since)
        if (until := _moment(self.until)) is not None:
            found = found.filter(at__lt=until)
        return found

    def query(self, **more: Any) -> str:
        given = {name: getattr(self, name) for name in ("who", "kind", "object", "since", "until")}
        return urlencode({name: value for name, value in (given | more).items() if value})


@never_cache
@require_safe
@rights.needs(Right.ADMINISTER)
def audit_trail(request: HttpRequest) -> HttpResponse:
    """Pages by cursor: `before` is the entry that the page before ended with."""
    chosen = Chosen.of(request.GET)
    before = request.GET.get("before", "")
    found = chosen.entries()
    if before.isdecimal() and len(before) < 19:
        found = found.filter(pk__lt=int(before))
    entries = list(found[: PAGE + 1])
    more = len(entries) > PAGE
    entries = entries[:PAGE]
    recent = AuditEntry.objects.order_by("-id")[:RECENT]
    kinds = sorted({*recent.values_list("kind", flat=True), chosen.kind} - {""})
    context = {
        "chosen": chosen,
        "kinds": kinds,
        "rows": [(entry, [_change(*row) for row in audit.changed(entry.before, entry.after)]) for entry in entries],
        "older": chosen.query(before=entries[-1].pk) if more else None,
        "first": chosen.query() if before else None,
        "csv": chosen.query(),
    }
    return render(request, "frontend/people/audit.html", context, status=400 if chosen.wrong else 200)


@never_cache
@require_safe
@rights.needs(Right.ADMINISTER)
def audit_csv(request: HttpRequest) -> StreamingHttpResponse:
    found = Chosen.of(request.GET).entries()[:MOST_ROWS]
    name = f"greenserve-audit-{timezone.now():%Y%m%dT%H%M%SZ}.csv"
    return StreamingHttpResponse(
        _lines(found),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _lines(found: QuerySet[AuditEntry]) -> Iterator[str]:
    """Yields a line for each field that an entry changes, or one for an entry that changes none."""
    yield csv_line(COLUMNS) + "\n"
    for entry in found.iterator(chunk_size=1_000):
        what = (f"{entry.at:%Y-%m-%dT%H:%M:%SZ}", entry.who, entry.key, entry.channel, entry.action, entry.kind)
        for change in _single_changes(entry) or [("", None, None)]:
            cells = (entry.pk, *what, entry.object_key, entry.label, *change, entry.address, entry.request_id)
            yield csv_line(cells) + "\n"


def _single_changes(entry: AuditEntry) -> list[tuple[str, object, object]]:
    """Returns what differs, nested values by parts: `knobs.margin`."""
    found: list[tuple[str, object, object]] = []
    for name, before, after in audit.changed(entry.before, entry.after):
        old, new = dict(flat(name, before)), dict(flat(name, after))
        found += [(part, old.get(part), new.get(part)) for part in {**old, **new} if old.get(part) != new.get(part)]
    return found


def _change(name: str, before: object, after: object) -> tuple[str, str, str]:
    return name.replace("_", " "), _text(before), _text(after)


def _text(value: object) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, list) and all(isinstance(part, (str, int, float)) for part in value):
        return ", ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _moment(text: str) -> datetime | None:
    """Parses `2026-11-21` or `2026-11-21T14:30`, in the reader's zone."""
    try:
        day, moment = parse_date(text), parse_datetime(text)
    except ValueError:  # well formed, but no such day
        return None
    found = moment or (datetime(day.year, day.month, day.day) if day is not None else None)
    return timezone.make_aware(found) if found is not None and timezone.is_naive(found) else found
