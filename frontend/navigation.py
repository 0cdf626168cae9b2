"""The areas of the product, as the rail lists them: in groups, each with the key that follows `g`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from pools.access import rights


@dataclass(frozen=True, slots=True)
class Area:
    """An entry of the rail. `names`: URL names of further pages that belong to it; `right`: who may see it."""

    label: str
    name: str
    key: str
    names: tuple[str, ...] = ()
    right: rights.Right = rights.Right.VIEW


@dataclass(frozen=True, slots=True)
class Entry:
    label: str
    url: str
    key: str
    here: bool


@dataclass(frozen=True, slots=True)
class Group:
    label: str
    entries: tuple[Entry, ...]


GROUPS: tuple[tuple[str, tuple[Area, ...]], ...] = (
    (
        "Now",
        (
            Area("Overview", "overview", "o"),
            Area("Alerts", "alerts", "a"),
            Area("Tenants", "tenants", "e", ("tenant",)),
            Area("Decisions", "decisions", "d", ("decision",)),
        ),
    ),
    (
        "Fleet",
        (
            Area("Sites", "sites", "s", ("site",)),
            Area("Pools", "pools-page", "p", ("pool",)),
            Area("Nodes", "nodes", "n", ("node",)),
            Area("GPU types", "gpu-types", "y", ("gpu-type",)),
            Area("Engine profiles", "engine-profiles", "i", ("engine-profile",)),
            Area("Models", "models", "m", ("model",)),
            Area("Services", "services", "v", ("service",)),
            Area("Carbon feeds", "feeds", "f", ("feed",)),
        ),
    ),
    (
        "Plan",
        (
            Area("What-if", "whatif", "w"),
            Area("Trials", "trials", "l", ("trial",)),
            Area("Reports", "reports", "r", ("report",)),
            Area("Jobs", "jobs", "j", ("job",)),
        ),
    ),
    (
        "Manage",
        (
            Area("Configure", "configure", "c"),
            Area("Overrides", "overrides", "b", ("advice",)),
            Area("People", "people", "u", right=rights.Right.ADMINISTER),
            Area("Keys", "keys", "k", right=rights.Right.ADMINISTER),
            Area("Audit", "audit", "t", right=rights.Right.ADMINISTER),
            Area("Health", "health", "h"),
        ),
    ),
)


KEPT = ("range", "from", "to", "zone")  # of a page's query: what its charts show, and other pages' with it


def groups(request: HttpRequest) -> tuple[Group, ...]:
    """Returns the navigation for this person on this page, without what they may not see."""
    match = request.resolver_match
    chosen = urlencode([(name, request.GET[name]) for name in KEPT if request.GET.get(name)])
    here = match.url_name if match else ""
    found = []
    for label, areas in GROUPS:
        entries = tuple(entry for area in areas if (entry := _entry(area, here or "", request, chosen)))
        if entries:
            found.append(Group(label, entries))
    return tuple(found)


def _entry(area: Area, here: str, request: HttpRequest, chosen: str) -> Entry | None:
    if not rights.has(request.user, area.right):
        return None
    try:
        url = reverse(area.name)
    except NoReverseMatch:
        return None
    within = here in (area.name, *area.names) or here.startswith(f"{area.name}-")
    return Entry(area.label, f"{url}?{chosen}" if chosen else url, area.key, within)
