"""Scenarios of what people ask for: the fleet's, a preset's, an earlier study's or one's own, with its requests."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pools.access import rights
from pools.access.rights import AnyUser
from pools.models import Service

from . import fleet_scenario, scenario_documents, scenario_traffic, shipped_scenarios
from .errors import BadStudy
from .fleet_scenario import Draft
from .studies import files_of, visible

FLEET = "fleet"
MOST_TRACE_BYTES = 64 << 20
MOST_PLAIN_BYTES = 512 << 20
LONGEST_PERIOD = timedelta(days=31)
KINDS = ("keep", "past", "generated", "trace")
TRACE = "trace.csv"


def draft(given: Mapping[str, Any], base: str, user: AnyUser, upload: bytes | None, now: datetime) -> Draft:
    """Makes the draft that is asked for. Raises BadStudy."""
    asked = wanted(given, upload)
    if base == FLEET and not given.get("scenario"):
        return _fleet(asked["kind"], asked, user, upload, now)
    made = draft_of(given, base, user)
    if asked["kind"] != "keep":
        _replace_traffic(made, asked["kind"], asked, user, upload)
    return made


def wanted(given: Mapping[str, Any], upload: bytes | None) -> dict[str, Any]:
    """Reads the traffic that is asked for, whose `kind` is known. Raises BadStudy."""
    found = given.get("traffic") or {}
    if not isinstance(found, Mapping):
        raise BadStudy("traffic", "an object with kind, like {kind: past, from: ..., to: ...}")
    kind = found.get("kind", "keep")
    if kind not in KINDS:
        raise BadStudy("traffic.kind", f"unknown '{kind}'; known: {', '.join(KINDS)}")
    if kind == "trace" and not upload:
        raise BadStudy("traffic.trace", "choose a trace: CSV with a header, in the Azure, BurstGPT or plain format")
    return {**found, "kind": kind}


def draft_of(given: Mapping[str, Any], base: str, user: AnyUser) -> Draft:
    """Makes a draft of a given scenario, a preset, or an earlier study; what is given goes before what is stored."""
    scenario, files, notes, currency = given.get("scenario"), {}, [], "USD"
    if base.startswith("study:"):
        number = base.removeprefix("study:")
        study = visible(user).filter(pk=int(number)).first() if number.isdecimal() and len(number) < 10 else None
        if study is None:
            raise BadStudy("base", f"there is no study '{number}'")
        files, notes, currency = files_of(study), list(study.notes), study.currency
        scenario = scenario or study.scenario
    elif base and not scenario:
        scenario = shipped_scenarios.load(base)
    if isinstance(scenario, str):
        scenario = scenario_documents.read_text(scenario)
    if not isinstance(scenario, Mapping):
        raise BadStudy("scenario", "a scenario is a mapping with the keys fleet, workload, policy ...")
    return Draft(scenario_documents.plain(scenario), files, notes, currency)


def draft_of_fleet(user: AnyUser, now: datetime) -> Draft:
    """Makes a draft of the fleet that this person may see, as it would be simulated now. Raises BadStudy."""
    return _fleet("keep", {}, user, None, now)


def _fleet(kind: str, wanted: Mapping[str, Any], user: AnyUser, upload: bytes | None, now: datetime) -> Draft:
    sites = list(rights.sites_of(user))
    site_ids = rights.site_ids(user)
    names = list(Service.objects.order_by("name").values_list("name", flat=True))
    wished = str(wanted.get("service") or "")
    if wished and wished not in names:
        raise BadStudy("traffic.service", f"there is no service '{wished}'; there are: {', '.join(names) or 'none'}")
    chosen = [wished] if wished else names
    if kind == "past":
        period = read_period(wanted, site_ids)
        seen = {name: own for name, own in scenario_traffic.counted(period).items() if name in chosen}
        if not seen:
            raise BadStudy("traffic.service", "none of its requests in this period can be simulated")
        files = {f"{n}.csv": scenario_traffic.trace(period, name) for n, name in enumerate(seen)}
        workloads: dict[str, dict[str, Any]] = {name: {"trace": f"{n}.csv"} for n, name in enumerate(seen)}
        made = fleet_scenario.draft(sites, workloads, min(own.first for own in seen.values()), period.end, now)
        begun = datetime.fromisoformat(made.document["start"])
        for name, own in seen.items():
            workloads[name]["starts_s"] = round((own.first - begun).total_seconds(), 6)
        made.files |= files
        made.notes[:0] = [_request_note(name, own.requests, own.left_out) for name, own in seen.items()]
        return made
    notes: list[str] = []
    workloads = {}
    for service in Service.objects.filter(name__in=chosen):
        if kind == "keep":
            workloads[service.name], words = scenario_traffic.generated(service, now, site_ids)
            notes.append(words)
        else:
            workloads[service.name] = {"trace": TRACE} if kind == "trace" else _generated(wanted)
    made = fleet_scenario.draft(sites, workloads, now, None, now)
    if kind == "trace":
        _one_service(workloads)
        made.files[TRACE] = plain_trace(upload or b"")
    made.notes[:0] = notes
    return made


def _replace_traffic(made: Draft, kind: str, wanted: Mapping[str, Any], user: AnyUser, upload: bytes | None) -> None:
    """Replaces the scenario's own workloads. Records go to the service of their name, or to the only one."""
    holders = {name: own for name, own in (made.document.get("services") or {}).items() if isinstance(own, dict)}
    targets: dict[str, dict[str, Any]] = holders or {"": made.document}
    if kind == "generated":
        for holder in targets.values():
            holder["workload"] = _generated(wanted)
        return
    if kind == "trace":
        _one_service(targets)
        made.files[TRACE] = plain_trace(upload or b"")
        next(iter(targets.values()))["workload"] = {"trace": TRACE}
        return
    period, seen = _period(wanted, user)
    wished = str(wanted.get("service") or "")
    for n, (name, holder) in enumerate(targets.items()):
        if len(targets) > 1 and name not in seen:
            raise BadStudy("traffic.service", f"the scenario's service {name} has no requests of its name then")
        file = f"past-{n}.csv"
        made.files[file], words = _taken(period, seen, wished or (name if name in seen else ""))
        holder["workload"] = {"trace": file}
        made.notes.append(words)


def recorded(wanted: Mapping[str, Any], user: AnyUser) -> tuple[bytes, str]:
    """Returns the requests of a period (of `service`, or of all) as a trace, and what they are. Raises BadStudy."""
    period, seen = _period(wanted, user)
    return _taken(period, seen, str(wanted.get("service") or ""))


def _period(
    wanted: Mapping[str, Any], user: AnyUser
) -> tuple[scenario_traffic.Period, dict[str, scenario_traffic.Counted]]:
    """Returns the period with what came in it, by service. Raises BadStudy."""
    site_ids = rights.site_ids(user)
    period, wished = read_period(wanted, site_ids), str(wanted.get("service") or "")
    seen = scenario_traffic.counted(period)
    if wished and wished not in seen:
        raise BadStudy("traffic.service", f"'{wished}' has no usable request in this period; {', '.join(seen)} have")
    return period, seen


def _taken(
    period: scenario_traffic.Period, seen: Mapping[str, scenario_traffic.Counted], source: str
) -> tuple[bytes, str]:
    """Returns a service's requests ("": everybody's) as a trace, and what they are."""
    own = [counted for service, counted in seen.items() if source in ("", service)]
    words = _request_note(source or "all services", sum(c.requests for c in own), sum(c.left_out for c in own))
    return scenario_traffic.trace(period, source), words


def _request_note(name: str, requests: int, left_out: int) -> str:
    words = f"{name}: {requests:,} requests as they came"
    return words + (f"; {left_out:,} that failed or lack tokens are left out." if left_out else ".")


def _one_service(targets: Mapping[str, Any]) -> None:
    if len(targets) > 1:
        raise BadStudy("traffic.service", f"whose requests are these? choose one of: {', '.join(targets)}")


def _generated(wanted: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in wanted.items() if key not in ("kind", "service") and value is not None}
    return {"generate": "poisson", **scenario_documents.plain(own)}


def plain_trace(data: bytes) -> bytes:
    """Returns a trace decompressed, since the study keeps it compressed itself. Raises BadStudy."""
    if len(data) > MOST_TRACE_BYTES:
        raise BadStudy("traffic.trace", f"larger than {MOST_TRACE_BYTES >> 20} MiB; cut it, or compress it with gzip")
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        plain = unpacker.decompress(data, MOST_PLAIN_BYTES)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise BadStudy("traffic.trace", f"not a gzip file after all: {error}") from None
    if unpacker.unconsumed_tail:
        raise BadStudy("traffic.trace", f"larger than {MOST_PLAIN_BYTES >> 20} MiB unpacked; cut it")
    return plain


def read_period(wanted: Mapping[str, Any], site_ids: Sequence[int] | None) -> scenario_traffic.Period:
    """Reads `from` and `to`, each a moment with its offset. Raises BadStudy."""
    moments = {}
    for key in ("from", "to"):
        value = wanted.get(key)
        try:
            at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            raise BadStudy(f"traffic.{key}", f"'{value}' is not a time; write it like 2026-01-31T14:00+00:00") from None
        if at.tzinfo is None:
            raise BadStudy(f"traffic.{key}", f"'{value}' has no offset; write it like 2026-01-31T14:00+00:00")
        moments[key] = at
    if moments["to"] <= moments["from"]:
        raise BadStudy("traffic.to", "must be later than from")
    if moments["to"] - moments["from"] > LONGEST_PERIOD:
        raise BadStudy("traffic.to", f"more than {LONGEST_PERIOD.days} days after from; take a shorter period")
    return scenario_traffic.Period(moments["from"], moments["to"], None if site_ids is None else tuple(site_ids))
