"""Works out what a window's lines and request shares are: from energy entries and request records to whole amounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.accounting.allocation import PREFILL, Pieces, pieces, share_out
from core.accounting.counters import KINDS, SERVING, UNATTRIBUTED
from core.accounting.grouping import Groups
from core.accounting.host_shares import HostShares
from core.units import US_PER_S, ug_per_uj
from pools.models import Gpu, Site
from telemetry.ledger import host_shares, rollup_carbon
from telemetry.ledger.energy_entries import INTERVAL_S
from telemetry.ledger.served_requests import Served, Whose
from telemetry.ledger.window_sources import INTERVALS, WINDOW_S, Basis
from telemetry.storage import copying

Ints = NDArray[np.int64]
INTERVAL_US = round(INTERVAL_S * US_PER_S)
# Amounts that a GPU's interval has by itself, and that are shared out; the others are the requests' own.
SHARED = (
    *("energy_uj", "facility_uj", "gpu_us", "carbon_ug", "carbon_unknown_uj", "cost_nano", "cost_unknown_uj"),
    *("rental_nano", "rental_unknown_us", "embodied_ug", "embodied_unknown_us", "host_uj", "host_known_uj"),
)
OWN = ("prefill_uj", "requests", "prompt_tokens", "output_tokens")
NOBODY = 0  # the place of nobody among those whom lines are about

ENTRIES_SQL = f"""
SELECT gpu_id, start_at, array_position(ARRAY[{", ".join(f"'{kind}'" for kind in KINDS)}], kind::text)::bigint - 1,
       coalesce(pool_id, 0)::bigint, coalesce(instance_id, 0)::bigint, energy_uj, gpu_us
FROM telemetry_energyentry WHERE site_id = %(site)s AND start_at >= %(start)s AND start_at < %(end)s
"""
ENTRIES = {
    "gpu": copying.BIGINT,
    "start_us": copying.MOMENT,
    "kind": copying.BIGINT,
    "pool": copying.BIGINT,
    "instance": copying.BIGINT,
    "energy_uj": copying.BIGINT,
    "gpu_us": copying.BIGINT,
}


@dataclass(frozen=True, slots=True)
class WindowLine:
    kind: str
    pool_id: int | None
    service: str
    tenant_id: int | None
    adapter: str
    amounts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Shares:
    """What requests had of a window."""

    request_id: Sequence[str]
    started_us: Ints
    prefill_uj: Ints
    decode_uj: Ints
    gpu_us: Ints


@dataclass(frozen=True, slots=True)
class SettledWindow:
    start: datetime
    lines: Sequence[WindowLine]
    shares: Shares
    emitted: Mapping[rollup_carbon.Key, rollup_carbon.Emitted]  # of its entries, by minute


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of lines to be, by column; `who` is the place of a `Whose`."""

    window: Ints
    kind: Ints
    pool: Ints
    who: Ints
    amounts: Mapping[str, Ints]


def windows(
    site: Site, starts: Sequence[datetime], found: Mapping[datetime, Basis], requests: Served
) -> list[SettledWindow]:
    """Returns the windows that begin at `starts` (sorted), which lie in one stretch that fits into memory."""
    end = starts[-1] + timedelta(seconds=WINDOW_S)
    numbers = np.array([_number(at) for at in starts], dtype=np.int64)
    entries = copying.read(ENTRIES_SQL, {"site": site.pk, "start": starts[0], "end": end}, ENTRIES)
    entries["interval"] = entries.pop("start_us") // INTERVAL_US
    entries = _pick(entries, np.isin(entries["interval"] // INTERVALS, numbers))
    hosts = host_shares.of_entries(site, (starts[0], end), entries)
    amounts = {**_amounts(entries, starts, found), "host_uj": hosts.host_uj, "host_known_uj": hosts.known_uj}

    serving = entries["kind"] == SERVING
    intervals = Groups.by(*(entries[name][serving] for name in ("instance", "interval")))
    instance, interval = (intervals.key(entries[name][serving]) for name in ("instance", "interval"))
    pool = intervals.key(entries["pool"][serving])
    totals = {name: intervals.sum(values[serving]) for name, values in amounts.items()}
    found_pieces = pieces(requests.spans, instance, interval, INTERVAL_S)
    shared = {name: share_out(values, found_pieces.interval, found_pieces.weight) for name, values in totals.items()}
    orphan = np.ones(len(interval), dtype=np.bool_)
    orphan[found_pieces.interval] = False

    parts = [
        _part(entries["interval"], entries["kind"], entries["pool"], amounts, ~serving),
        _part(interval, np.full(len(interval), UNATTRIBUTED), pool, totals, orphan),
        _of_requests(found_pieces, requests, interval, pool, shared),
        _counted(requests, numbers),
        _hosts_alone(hosts, numbers),
    ]
    lines = _lines(parts, requests.whose)
    shares = _shares(found_pieces, requests, interval, shared) if requests.request_id else {}
    emitted: dict[int, dict[rollup_carbon.Key, rollup_carbon.Emitted]] = {}
    carbon = amounts["carbon_ug"], amounts["carbon_unknown_uj"]
    minutes = rollup_carbon.by_minute(entries["interval"] * INTERVAL_US, entries["pool"], entries["kind"], *carbon)
    for key, value in minutes.items():
        emitted.setdefault(key[0] // round(WINDOW_S), {})[key] = value
    return [
        SettledWindow(at, lines.get(number, ()), shares.get(number, _none()), emitted.get(number, {}))
        for at, number in zip(starts, numbers.tolist(), strict=True)
    ]


def _number(at: datetime) -> int:
    return round(at.timestamp() / WINDOW_S)


def _pick(columns: Mapping[str, Any], which: NDArray[np.bool_]) -> dict[str, Any]:
    return {name: values[which] for name, values in columns.items()}


def _amounts(
    entries: Mapping[str, Ints], starts: Sequence[datetime], found: Mapping[datetime, Basis]
) -> dict[str, Ints]:
    """Returns what each entry emitted and cost, in whole units."""
    energy, gpu_us = entries["energy_uj"], entries["gpu_us"]
    at = np.searchsorted([_number(start) for start in starts], entries["interval"] // INTERVALS)
    of = [found[start] for start in starts]
    intensity = np.array([[np.nan if g is None else g for g in one.g_per_kwh] for one in of])
    pue = np.array([one.in_force.pue for one in of])[at]
    price = np.array(
        [_or_nan(one.in_force.cost_nano_per_uj(start.timestamp())) for start, one in zip(starts, of, strict=True)]
    )[at]
    ids, gpu = np.unique(entries["gpu"], return_inverse=True)
    types = dict(Gpu.objects.filter(pk__in=ids.tolist()).values_list("pk", "gpu_type"))
    rental = np.array([[_or_nan(one.in_force.rental_nano_per_us(types[pk])) for pk in ids.tolist()] for one in of])
    embodied = np.array([[one.in_force.embodied_ug_per_us(types[pk]) for pk in ids.tolist()] for one in of])
    carbon_ug, carbon_unknown = _times(energy, intensity[at, entries["interval"] % INTERVALS] * ug_per_uj(1.0) * pue)
    cost_nano, cost_unknown = _times(energy, price)
    rental_nano, rental_unknown = _times(gpu_us, rental.reshape(len(of), -1)[at, gpu])
    embodied_ug, embodied_unknown = _times(gpu_us, embodied.reshape(len(of), -1)[at, gpu])
    return {
        "energy_uj": energy,
        "facility_uj": _times(energy, pue)[0],
        "gpu_us": gpu_us,
        "carbon_ug": carbon_ug,
        "carbon_unknown_uj": carbon_unknown,
        "cost_nano": cost_nano,
        "cost_unknown_uj": cost_unknown,
        "rental_nano": rental_nano,
        "rental_unknown_us": rental_unknown,
        "embodied_ug": embodied_ug,
        "embodied_unknown_us": embodied_unknown,
    }


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _times(quantity: Ints, rate: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Returns the whole amounts, and the quantity of which the rate (NaN) is not known."""
    unknown = np.isnan(rate)
    amount = np.rint(quantity * np.where(unknown, 0.0, rate)).astype(np.int64)
    return amount, np.where(unknown, quantity, 0)


def _part(interval: Ints, kind: Ints, pool: Ints, amounts: Mapping[str, Ints], which: NDArray[np.bool_]) -> _Part:
    """Returns nobody's joules of `which`."""
    who = np.full(int(which.sum()), NOBODY, dtype=np.int64)
    return _Part(interval[which] // INTERVALS, kind[which], pool[which], who, _pick(amounts, which))


def _of_requests(found: Pieces, requests: Served, interval: Ints, pool: Ints, shared: Mapping[str, Ints]) -> _Part:
    prefill_uj = np.where(found.phase == PREFILL, shared["energy_uj"], 0)
    kind = np.full(len(found), SERVING, dtype=np.int64)
    who = requests.who[found.request]
    return _Part(
        interval[found.interval] // INTERVALS, kind, pool[found.interval], who, {**shared, "prefill_uj": prefill_uj}
    )


def _counted(requests: Served, numbers: Ints) -> _Part:
    """Returns each row of requests once, with its tokens: in the window in which it started."""
    window = requests.started_us // (INTERVAL_US * INTERVALS)
    here = np.isin(window, numbers)
    amounts = {
        "requests": requests.requests[here],
        "prompt_tokens": requests.prompt_tokens[here],
        "output_tokens": requests.output_tokens[here],
    }
    kind = np.full(int(here.sum()), SERVING, dtype=np.int64)
    return _Part(window[here], kind, requests.pool[here], requests.who[here], amounts)


def _hosts_alone(hosts: HostShares, numbers: Ints) -> _Part:
    """Returns the hosts' joules of intervals in which no GPU of their node was metered: nobody's."""
    window = hosts.alone_interval // INTERVALS
    here = np.isin(window, numbers)
    count = int(here.sum())
    kind, nobody = np.full(count, UNATTRIBUTED, dtype=np.int64), np.full(count, NOBODY, dtype=np.int64)
    return _Part(window[here], kind, np.zeros(count, dtype=np.int64), nobody, {"host_uj": hosts.alone_uj[here]})


def _lines(parts: Sequence[_Part], whose: Sequence[Whose]) -> dict[int, list[WindowLine]]:
    """Lines by window, in the order of their keys: the same input gives the same lines."""
    keys = [np.concatenate([getattr(part, name) for part in parts]) for name in ("window", "kind", "pool", "who")]
    groups = Groups.by(*keys)
    columns = {}
    for name in (*SHARED, *OWN):
        given = [part.amounts.get(name, np.zeros(len(part.window), dtype=np.int64)) for part in parts]
        columns[name] = groups.sum(np.concatenate(given)).tolist()
    found: dict[int, list[WindowLine]] = {}
    rows = zip(*(groups.key(key).tolist() for key in keys), strict=True)
    for i, (window, kind, pool, who) in enumerate(rows):
        own, amounts = whose[who], {name: values[i] for name, values in columns.items()}
        found.setdefault(window, []).append(
            WindowLine(KINDS[kind].value, pool or None, own.service, own.tenant_id, own.adapter, amounts)
        )
    return found


def _shares(found: Pieces, requests: Served, interval: Ints, shared: Mapping[str, Ints]) -> dict[int, Shares]:
    window, energy = interval[found.interval] // INTERVALS, shared["energy_uj"]
    groups = Groups.by(window, found.request)
    of, request = groups.key(window), groups.key(found.request)
    prefill_uj = groups.sum(np.where(found.phase == PREFILL, energy, 0))
    decode_uj = groups.sum(np.where(found.phase == PREFILL, 0, energy))
    gpu_us = groups.sum(shared["gpu_us"])
    made = {}
    for number in np.unique(of).tolist():
        a, b = np.searchsorted(of, [number, number + 1]).tolist()
        which = request[a:b]
        ids = [requests.request_id[i] for i in which.tolist()]
        made[number] = Shares(ids, requests.started_us[which], prefill_uj[a:b], decode_uj[a:b], gpu_us[a:b])
    return made


def _none() -> Shares:
    nothing = np.zeros(0, dtype=np.int64)
    return Shares((), nothing, nothing, nothing, nothing)
