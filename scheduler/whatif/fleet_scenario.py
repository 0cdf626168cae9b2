"""Today's fleet as a scenario: sites with their carbon and prices, GPUs, services with classes and objectives, and what
the loops decide by: policy, periods, declared load, profiles of classes, times of changes.

What the database does not say is left out of the scenario, never made up; what is assumed is said in `notes`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Min

from core.algorithms.fleet.gpu_parts import EQUAL
from core.cells import csv_text
from core.engine import gpu_slices, measured
from core.engine.corrections import configuration
from core.engine.engine_model import GPUS, UnknownConfiguration, engine_model
from core.engine.engine_params import split_fault
from core.engine.gpu_type_fields import values_of
from core.observations.demand.class_arrivals import counted
from core.simulator.policies import policy_registry
from core.simulator.policies.world import alike
from core.types import Loop, ModeProfile
from pools import engine_knowledge
from pools.models import Gpu, Partition, Service, Site
from scheduler.control import loop_times
from scheduler.control.snapshot import measured_overheads, published_profiles
from scheduler.control.snapshot.recorded_demand import arrivals
from scheduler.models import Epoch
from telemetry.carbon.site_signals import MIN_KNOWN_SHARE, IntensityCurve, price_steps
from telemetry.forecasts import histories
from telemetry.ledger.rates import InForce, Rates
from telemetry.models import CarbonFeed

from .errors import BadStudy
from .scenario_documents import Document

TPS = (8, 4, 2, 1)
STEP_S, HOUR_S, DAY_S, DAY_H, WEEK_H = 300, 3_600, 86_400, 24, 168
MARGIN = timedelta(hours=2)  # requests end after the period in which they came
MOST_NOTES = 30


@dataclass
class Draft:
    """A scenario on its way: its mapping, its files, what is to be said of it, the currency of its prices."""

    document: Document
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    currency: str = "USD"


def draft(
    sites: Sequence[Site], workloads: dict[str, dict[str, Any]], start: datetime, end: datetime | None, now: datetime
) -> Draft:
    """Makes a draft of the fleet at these sites under these workloads.

    Args:
        workloads: By service; services without one are left out.
        start: When t = 0 is, but for what it is on no whole minute, or step of a feed with shorter ones.
        end: Until when requests come, for carbon and prices as they were; None: a day as now is forecast, repeated.

    Raises:
        BadStudy: There is nothing to simulate, and what to do about it.
    """
    engine_knowledge.refresh()
    start = _whole_step(sites, start)
    services = list(Service.objects.filter(name__in=workloads).select_related("model_card", "partition"))
    if not services:
        raise BadStudy("base", "there is no service to simulate; set one up, or take one of the papers' scenarios")
    nodes = _nodes(sites)
    if not nodes:
        raise BadStudy("base", "no site has schedulable GPUs; set up nodes, or take one of the papers' scenarios")
    head = {"name": "fleet", "seed": 1, "start": start.isoformat(), "overload": "allow", "cut_fleet": True}
    made = Draft({**head, "periods": _periods(), "overheads": _overheads()})
    made.document["policy"] = _policy(services, made.notes)
    if end is not None and (due := _epochs_due(services, start, end)):
        made.document["epochs_due"] = due
    made.document["fleet"] = _groups(services, nodes, made.notes)
    stands = {group["site"] for group in made.document["fleet"]}
    kept = [site for site in sites if site.name in stands]
    if own_types := engine_knowledge.named(gpu_slices.whole(group["gpu"])[0] for group in made.document["fleet"]):
        made.document["gpu_types"] = {one.name: values_of(one) for one in own_types}
    made.notes += _measured(made.document["fleet"])
    made.document["sites"] = _sites(kept, nodes, start, end, now, made)
    made.document["services"] = {
        service.name: _service(service, workloads[service.name], start) for service in services
    }
    made.notes = made.notes[:MOST_NOTES]
    return made


def _whole_step(sites: Sequence[Site], at: datetime) -> datetime:
    """Returns the last whole minute, or step of five minutes of a feed that is played faster: energy is priced by steps
    from there on."""
    feeds = CarbonFeed.objects.filter(site__in=sites, signal=CarbonFeed.Signal.AVERAGE)
    shortest_day_s = min((histories.day_s(feed) for feed in feeds), default=float(DAY_S))
    step_s = max(1, math.floor(min(60.0, STEP_S * shortest_day_s / DAY_S)))
    return datetime.fromtimestamp(at.timestamp() // step_s * step_s, UTC)


# -- loops -----------------------------------------------------------------------------------------


def _periods() -> dict[str, float]:
    """Returns the periods of loops to which a policy gives none."""
    return {f"{loop.value}_s": float(settings.GREENSERVE_LOOPS[loop.value]["period_s"]) for loop in Loop}


def _epochs_due(services: Sequence[Service], start: datetime, end: datetime) -> dict[str, float]:
    """Returns when after `start` the first epoch of each loop began."""
    began = Epoch.objects.filter(service__in=services, advisory=False, started_at__gte=start, started_at__lt=end)
    first = began.order_by().values_list("kind").annotate(Min("started_at"))
    return {f"{kind}_s": round((at - start).total_seconds(), 3) for kind, at in first if kind in set(Loop)}


def _overheads() -> dict[str, float]:
    """Returns how long changes take, as this installation assumes of those that it has not measured."""
    found = measured_overheads.published()
    return asdict(found.start) | {name: getattr(found, name) for name in ("sync_s", "link_bytes_per_s", "clock_set_s")}


def _policy(services: Sequence[Service], notes: list[str]) -> dict[str, Any]:
    """Returns the policy in force of the services, with what of its settings the simulator reads."""
    policies = {service.name: service.own_policy() for service in services}
    name, found = next(iter(policies.items()))
    if len({(own.name, str(own.overrides)) for own in policies.values()}) > 1:
        notes.append(f"A run has one policy for all services; this scenario's own is that of {name}.")
    kept, live = policy_registry.read_live(found)
    if live:
        notes.append(f"Left out of the policy of {name}, because the simulator does not read it: {', '.join(live)}.")
    return {"name": found.name, **kept}


# -- GPUs ------------------------------------------------------------------------------------------


def _nodes(sites: Sequence[Site]) -> dict[tuple[str, str], list[int]]:
    """Returns how many GPUs, or slices, each schedulable node has, by (site, GPU type)."""
    counts: Counter[tuple[str, str, int]] = Counter()
    gpus = Gpu.objects.filter(node__cluster__site__in=sites, node__schedulable=True)
    for gpu in gpus.select_related("node__cluster__site"):
        counts[gpu.node.cluster.site.name, gpu.planned_type, gpu.node_id] += gpu.node.gpu_slices
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for (site, gpu_type, _), count in sorted(counts.items()):
        found[site, gpu_type].append(count)
    return dict(found)


def _groups(
    services: Sequence[Service],
    nodes: dict[tuple[str, str], list[int]],
    notes: list[str],
) -> list[dict[str, Any]]:
    """Returns, for each service, site and GPU type, the largest instances that fit on nodes, and the TP degrees that
    policies may choose.

    `count`, as many as there is room for, in equal parts where there are several services, is for those who change it.
    """
    found, share = [], 1.0 / len(services)
    unknown = sorted({gpu_type for _, gpu_type in nodes if gpu_type not in GPUS})
    notes += [f"{gpu_type} is not in the engine model: its GPUs are left out." for gpu_type in unknown]
    for service in services:
        card = service.model_card
        if card.shape:
            notes.append(f"{card.name} goes by its shape: {card.shape}.")
        for (site, gpu_type), sizes in nodes.items():
            if gpu_type in unknown:
                continue
            tps = [tp for tp in TPS if tp <= max(sizes) and _fits(card.engine_model_name, gpu_type, tp, card.engine)]
            if not tps:
                notes.append(f"{card.name} does not fit on nodes of {max(sizes)} {gpu_type} at {site}.")
                continue
            room: Counter[int] = Counter()  # for instances of the largest degree that each node takes
            for size in sizes:
                if top := next((tp for tp in tps if tp <= size), 0):
                    room[top] += size // top
            for top, most in sorted(room.items(), reverse=True):
                found.append(
                    {
                        "name": f"{service.name}-{site}-{gpu_type}-tp{top}".lower(),
                        "count": max(1, round(most * share)),
                        "model": card.engine_model_name,
                        "gpu": gpu_type,
                        "tp": top,
                        "tp_choices": [tp for tp in sorted(tps) if tp <= top],
                        "engine": card.engine,
                        "site": site,
                        "services": [service.name],
                    }
                )
    if not found:
        raise BadStudy("base", "no instance of these services' models fits on the nodes: " + " ".join(notes))
    return found


def _measured(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Says which engines were measured: runs follow that as it is when they begin, as plans of the fleet do."""
    kinds = {
        (group["model"], group["gpu"], tp, group["engine"]): None
        for group in groups
        for tp in group.get("tp_choices", [group["tp"]])
    }
    found = []
    for model, gpu, tp, engine in kinds:
        basis = measured.basis(configuration(model, gpu, tp, engine))
        if not basis.only_modelled:
            at_s = basis.measured_at_s
            when = "" if at_s is None else f" at {datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"
            found.append(f"{model} on {gpu}/TP{tp} goes by what was {basis.source.value}{when}.")
    return found


def _fits(model: str, gpu_type: str, tp: int, engine: str) -> bool:
    if split_fault(model, gpu_type, tp):
        return False
    try:
        return engine_model(model, gpu_type, tp, engine).fits
    except UnknownConfiguration as error:
        raise BadStudy("base", f"the simulator does not know this configuration: {error}") from None


# -- sites -----------------------------------------------------------------------------------------


def _sites(
    sites: Sequence[Site],
    nodes: dict[tuple[str, str], list[int]],
    start: datetime,
    end: datetime | None,
    now: datetime,
    made: Draft,
) -> dict[str, Any]:
    currencies = Counter(site.currency for site in sites)
    made.currency = currencies.most_common(1)[0][0]
    found = {}
    for site in sites:
        own = {gpu_type: sizes for (name, gpu_type), sizes in nodes.items() if name == site.name and gpu_type in GPUS}
        rates = Rates.of(site).at(start)
        section: dict[str, Any] = {
            "pue": rates.pue,
            "gpus": {gpu_type: sum(sizes) for gpu_type, sizes in own.items()},
            "gpus_per_node": (most := max(max(sizes) for sizes in own.values())),
            "empty_gpus_powered": True,
        }
        if site.power_cap_w is not None:
            section["power_cap_w"] = site.power_cap_w
        in_order = {gpu_type: sorted(sizes, reverse=True) for gpu_type, sizes in own.items()}
        if nodes_of := {name: sizes for name, sizes in in_order.items() if sizes != list(alike(sum(sizes), most))}:
            section["nodes"] = nodes_of
        carbon = _repeating(site, start, now, made) if end is None else _recorded(site, start, end, made)
        if carbon is not None:
            section["carbon_g_per_kwh"] = carbon
        else:
            made.notes.append(f"{site}: its carbon intensity is not known, so carbon is not either.")
        if site.currency == made.currency:
            section |= _prices(site, rates, section["gpus"], start, end, made)
        else:
            made.notes.append(f"{site}: pays in {site.currency}, not {made.currency}; its prices are left out.")
        found[site.name] = section
    return found


def _recorded(site: Site, start: datetime, end: datetime, made: Draft) -> dict[str, Any] | None:
    """Returns the intensity as it was, in the feed's own steps, five minutes at most; after the last that is known it
    stays as that was."""
    curve = IntensityCurve(site, start - timedelta(seconds=STEP_S), end + MARGIN, modelled=True)
    step_s = _step_s(curve)
    first_s = math.floor(start.timestamp() / step_s) * step_s
    count = math.ceil((end.timestamp() + MARGIN.total_seconds() - first_s) / step_s)
    values = [curve.mean(at_s, at_s + step_s, MIN_KNOWN_SHARE) for at_s in _steps(first_s, count, step_s)]
    known = [k for k, value in enumerate(values) if value is not None]
    if not known:
        return None
    if known[-1] < len(values) - 1:
        values[known[-1] + 1 :] = [values[known[-1]]] * (len(values) - 1 - known[-1])
        if first_s + known[-1] * step_s < end.timestamp() - STEP_S:
            last = datetime.fromtimestamp(first_s + (known[-1] + 1) * step_s, UTC)
            made.notes.append(f"{site}: no intensity is known after {last:%Y-%m-%d %H:%M} UTC; the last one stays.")
    if gaps := sum(value is None for value in values):
        made.notes.append(f"{site}: {gaps} of {count} steps of {step_s} s have no intensity, and so no carbon.")
    return _series(site, first_s, step_s, values, made)


def _step_s(curve: IntensityCurve) -> int:
    """Returns the length of a step in whole seconds: the feed's, but five minutes at most."""
    return STEP_S if curve.shortest_s is None else max(1, min(STEP_S, math.floor(curve.shortest_s + 1e-6)))


def _series(
    site: Site, first_s: float, step_s: int, values: Sequence[float | None], made: Draft, repeats: bool = False
) -> dict[str, Any]:
    """Writes a series into a file of the draft, and returns how a scenario names it."""
    name = f"carbon-{site.name}.csv"
    made.files[name] = _csv((datetime.fromtimestamp(first_s + k * step_s, UTC), v) for k, v in enumerate(values))
    return {"csv": name, "repeats": True} if repeats else {"csv": name}


def _repeating(site: Site, start: datetime, now: datetime, made: Draft) -> dict[str, Any] | list[float] | float | None:
    """Returns the day to come: the forecast, else what was at the same time of the day before. A value for each hour;
    of a feed that is played faster its days are shorter, and as finely as they are."""
    feed = CarbonFeed.objects.filter(site=site, signal=CarbonFeed.Signal.AVERAGE).first()
    day_s = DAY_S if feed is None else histories.day_s(feed)
    day = timedelta(seconds=day_s)
    curve = IntensityCurve(site, start - day, start + day, modelled=True)
    step_s = HOUR_S if day_s == DAY_S else _step_s(curve)
    values: list[float | None] = []
    for at_s in _steps(start.timestamp(), max(1, round(day_s / step_s)), step_s):
        ahead = curve.mean(at_s, at_s + step_s, MIN_KNOWN_SHARE)
        before_s = at_s - day_s
        values.append(curve.mean(before_s, before_s + step_s, MIN_KNOWN_SHARE) if ahead is None else ahead)
    known = [value for value in values if value is not None]
    if len(known) == len(values):
        if step_s != HOUR_S:
            return _series(site, start.timestamp(), step_s, values, made, repeats=True)
        return [round(value, 3) for value in known]
    last_hour_mean = curve.mean(now.timestamp() - HOUR_S, now.timestamp())
    at_hand = [value for value in (last_hour_mean, curve.at(now.timestamp()), *known) if value is not None]
    if not at_hand:
        return None
    words = f"{len(known)} of {len(values)} steps of a day have an intensity; {at_hand[0]:.0f} g/kWh is taken for all."
    made.notes.append(f"{site}: {words}")
    return round(at_hand[0], 3)


def _prices(
    site: Site, rates: InForce, gpus: dict[str, int], start: datetime, end: datetime | None, made: Draft
) -> dict[str, Any]:
    """Returns `usd_per_kwh` of the tariff, else of the price feed; `usd_per_gpu_hour`, a mean where types differ."""
    found: dict[str, Any] = {}
    if (terms := rates.terms) is not None:
        means = [
            math.fsum(terms.price_at(at_s + n * STEP_S) for n in range(HOUR_S // STEP_S)) * STEP_S / HOUR_S
            for at_s in _steps(start.timestamp(), WEEK_H if terms.windows else 1, HOUR_S)
        ]
        found["usd_per_kwh"] = means if terms.windows else means[0]
    else:
        hours = DAY_H if end is None else math.ceil((end + MARGIN - start).total_seconds() / HOUR_S)
        steps = price_steps(site, start, HOUR_S, hours, site.currency)
        if steps and all(price is not None for price in steps):
            found["usd_per_kwh"] = list(steps)
        else:
            made.notes.append(f"{site}: has neither a tariff nor a whole price series, so cost is not known.")
    wholes = {kind: gpu_slices.whole(kind) for kind in gpus}  # a slice costs its part of a GPU
    known = {kind: rates.rates[own] / slices for kind, (own, slices) in wholes.items() if own in rates.rates}
    if known and len(known) == len(gpus):
        found["usd_per_gpu_hour"] = sum(known[name] * gpus[name] for name in gpus) / max(1, sum(gpus.values()))
        if len(set(known.values())) > 1:
            made.notes.append(f"{site}: its GPU types' hourly rates are taken as their mean.")
    return found


def _steps(first_s: float, count: int, step_s: float) -> list[float]:
    return [first_s + k * step_s for k in range(count)]


def _csv(rows: Iterable[tuple[datetime, float | None]]) -> bytes:
    rounded = ((at, None if value is None else round(value, 3)) for at, value in rows)
    return csv_text(("start", "value"), rounded).encode()


# -- services --------------------------------------------------------------------------------------


def _service(service: Service, workload: dict[str, Any], start: datetime) -> dict[str, Any]:
    """Its partitions, the one in force first, its objectives (percentiles are the figures' to show), and the load that
    its loops begin with."""
    known = [service.partition, *service.partitions.exclude(pk=service.partition_id)]
    found: dict[str, Any] = {"model": service.model_card.engine_model_name, "workload": workload}
    found |= {key: value for key, value in asdict(service.share).items() if value != getattr(EQUAL, key)}
    if partitions := {partition.name: own for partition in known if (own := _classes(service, partition))}:
        found["partitions"] = partitions
    if slo := {f"{slo.kind}_s": slo.objective_s for slo in service.slos.all()}:
        found["slo"] = slo
    return found | {"declared": _declared(service, start)}


def _declared(service: Service, start: datetime) -> list[dict[str, float]]:
    """Returns the load that loops begin with at `start`: what had come of each class by then, else what is declared."""
    seen = arrivals(service, start, loop_times.times(service.policy_knobs()).look_back_s)
    came = {name: counted(own) for name, own in seen.by_class(list(service.partition.classes.all())).items()}
    found = [(own.peak_rps, own.lengths()) for own in came.values() if own.requests]
    if not found and seen.declared is not None:
        found = [(seen.declared.rps, seen.declared.lengths)]
    return [
        {"rps": rps, "prompt_tokens": lengths.prompt_tokens, "output_tokens": lengths.output_tokens}
        for rps, lengths in found
        if rps > 0.0 and lengths is not None
    ]


def _classes(service: Service, partition: Partition) -> list[dict[str, Any]]:
    names = ("input_min", "input_max", "output_min", "output_max")
    rows = list(partition.classes.order_by("rank"))
    published = published_profiles.published(service, [own.pk for own in rows])
    found: list[dict[str, Any]] = []
    for own in rows:
        bounds = {name: value for name in names if (value := getattr(own, name))}
        found.append({"name": own.name} | bounds)
        if limits := {name: value for name, value in asdict(own.thresholds).items() if value is not None}:
            found[-1]["thresholds"] = limits
        if profiles := {mode.name: _profile(one) for mode, one in sorted(published[own.pk].items())}:
            found[-1]["profiles"] = profiles
    return found


def _profile(own: ModeProfile) -> dict[str, Any]:
    figures = {name: getattr(own, name) for name in ("max_rps", "power_w", "ttft_s", "tpot_s", "e2e_s")}
    return {name: value for name, value in figures.items() if value is not None} | {"source": own.source.value}
