"""Puts an observation together: what was recorded, what it used, emitted and cost, and within which objectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from core.accounting.allocation import TokenTime
from core.accounting.counters import KINDS, EnergyKind
from core.accounting.token_time import token_time_of
from core.simulator.policies.world import GPUS_PER_NODE
from core.simulator.site_series import Site
from core.units import J_PER_KWH, UJ_PER_J, US_PER_S, j_to_wh

from .engine_courses import EngineCourse, engine_course
from .gpu_energy import UNKNOWN_GPU, GpuEnergy, declared_energy, gpu_energies
from .increases import gaps, increases
from .objectives import E2E, attainments
from .observation import (
    Attainment,
    Figure,
    FigureSource,
    Observation,
    ObservedGap,
    ObservedTarget,
    Savings,
    Span,
    TenantShare,
)
from .recording import Recording
from .savings import ObservedFleet
from .scrapes import Target
from .tenant_shares import TENANTS_HOW, tenant_shares
from .traffic import UNNAMED, ModelTraffic, by_model

_WH = "Wh"
TIMES_OF = "vllm-v1"  # the engine whose times of a token are the weights of tenants
_NO_ENERGY = "no GPU was metered: give --dcgm URL, or --declared-w WATTS with --gpus COUNT"
_NO_CARBON = "no intensity was given: give --carbon G_PER_KWH, a CSV file of hours, or GB"
_NO_PRICE = "no price was given: give --price PER_KWH with --currency"
_NO_RATE = "no price of GPU-hours was given: give --gpu-hour with --currency"


@dataclass(frozen=True, slots=True)
class Terms:
    """What cannot be read from pages. `site` has PUE, carbon and prices; its seconds count from `start`.

    `declared_w` for each of `declared_gpus` GPUs, where nothing meters them. `objectives`: seconds by objective; None:
    what the fleet keeps now. `models`: what the engine model calls the models of pages; `gpu` and `tp` of all engines.
    """

    site: Site
    start: datetime
    objectives: Mapping[str, float | None]
    currency: str | None = None
    tenant_label: str | None = None
    declared_w: float | None = None
    declared_gpus: int = 0
    models: Mapping[str, str] = field(default_factory=dict)
    gpu: str | None = None
    tp: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """An observation without its savings, and what these are computed from."""

    observation: Observation
    traffic: tuple[ModelTraffic, ...]
    engine_gpus: tuple[GpuEnergy, ...]
    metered_wh: float | None


@dataclass(slots=True, eq=False)
class _Figures:
    """Figures by name, in the order in which they are shown."""

    found: dict[str, Figure] = field(default_factory=dict)

    def add(self, name: str, value: float | None, unit: str, source: FigureSource, note: str = "") -> None:
        self.found[name] = Figure.missing(unit, note) if value is None else Figure(value, unit, source, note)

    def ratio(self, name: str, above: str, below: str, times: float, unit: str) -> None:
        """Adds a figure for each of another one; where one of the two is missing it is, too."""
        parts = self.found[above], self.found[below]
        lacking = next((part for part in parts if part.value is None), None)
        if lacking is not None:
            self.add(name, None, unit, FigureSource.MISSING, lacking.note)
        elif not parts[1].value:
            self.add(name, None, unit, FigureSource.MISSING, f"no {below.replace('_', ' ')} were counted")
        else:
            self.add(name, times * (parts[0].value or 0.0) / parts[1].value, unit, FigureSource.COMPUTED)


def find(recording: Recording, terms: Terms) -> Findings:
    """Computes everything but savings from a recording."""
    pages = {target.name: engine_course(target) for target in recording.engines}
    courses = [course for course in pages.values() if course is not None]
    from_s, to_s = _span(recording)
    gpus = gpu_energies(recording.gpus, recording.max_gap_s)
    if not gpus and terms.declared_w is not None:
        gpus = _declared(courses, terms, recording.max_gap_s)
    used = tuple(gpu for gpu in gpus if gpu.engine is not False)
    others = tuple(gpu for gpu in gpus if gpu.engine is False)
    traffic = tuple(by_model(courses, from_s, to_s, recording.every_s))
    figures = _Figures()
    _count(figures, courses)
    _meter(figures, used, others)
    _value(figures, used, terms, from_s, to_s)
    shares, note = _tenants(courses, used, terms, figures.found)
    observation = Observation(
        span=Span(from_s, to_s, recording.asked_s, recording.source, recording.ended_early),
        targets=tuple(_target(target, pages.get(target.name)) for target in recording.targets),
        figures=figures.found,
        attainment=attainments(courses, terms.objectives),
        tenants=shares,
        tenants_note=note,
        savings=Savings(why_not="not asked for"),
        notes=_notes(used, others),
        currency=terms.currency,
    )
    energy = figures.found["energy_wh"].value
    return Findings(observation, traffic, used, energy)


def simulated_objectives(found: Sequence[Attainment]) -> dict[str, float]:
    """Returns the objectives that savings are computed under, as a scenario has them.

    An E2E latency that nobody asked for is none: it goes with the lengths of answers, and not with how they are served.
    """
    known = [own for own in found if not (own.derived and own.objective == E2E)]
    return {f"{own.objective}_s": own.limit_s for own in known if own.limit_s is not None}


def _span(recording: Recording) -> tuple[float, float]:
    """Returns the first and the last moment at which any page was read, Unix seconds."""
    read = [scrape.at_s for target in recording.targets for scrape in target.read]
    return (min(read), max(read)) if read else (0.0, 0.0)


def _declared(courses: Sequence[EngineCourse], terms: Terms, max_gap_s: float) -> list[GpuEnergy]:
    by_time: dict[float, float | None] = {}
    for course in courses:
        for at_s, count in course.running():
            before = by_time.get(at_s, 0.0)
            by_time[at_s] = None if count is None or before is None else before + count
    if terms.declared_w is None or len(by_time) < 2:
        return []
    running = sorted(by_time.items())
    return [declared_energy(terms.declared_w, terms.declared_gpus, terms.gpu or UNKNOWN_GPU, running, max_gap_s)]


def _count(figures: _Figures, courses: Sequence[EngineCourse]) -> None:
    """Adds what engines counted."""
    readers: tuple[tuple[str, str, Callable[[EngineCourse], float | None]], ...] = (
        ("requests", "requests", lambda own: own.requests()),
        ("prompt_tokens", "tokens", lambda own: own.counted(own.names.prompt_tokens)),
        ("output_tokens", "tokens", lambda own: own.counted(own.names.output_tokens)),
    )
    for name, unit, read in readers:
        known = [(own, read(own)) for own in courses]
        lacking = [own.target.name for own, value in known if value is None]
        counted = [value for _, value in known if value is not None]
        note = f"not counted by {', '.join(lacking)}" if lacking else ""
        figures.add(name, sum(counted) if counted else None, unit, FigureSource.COUNTER, note)


def _meter(figures: _Figures, used: Sequence[GpuEnergy], others: Sequence[GpuEnergy]) -> None:
    """Adds energy by kind, of the GPUs with an engine, and what the others used."""
    sources = {gpu.source for gpu in used}
    source = FigureSource.POWER if len(sources) > 1 else min(sources, default=FigureSource.MISSING)
    note = _meter_note(used) if used else _NO_ENERGY
    figures.add("energy_wh", _wh(used) if used else None, _WH, source, note)
    for kind in (EnergyKind.SERVING, EnergyKind.IDLE, EnergyKind.UNATTRIBUTED):
        figures.add(
            f"energy_{kind.value}_wh", _wh(used, kind) if used else None, _WH, source, "" if used else _NO_ENERGY
        )
    if others:
        note = "GPUs on whose memory there was never the size of an engine"
        figures.add("energy_other_gpus_wh", _wh(others), _WH, others[0].source, note)
    figures.add("gpu_hours", _gpu_s(used) / 3600.0 if used else None, "h", source, "" if used else _NO_ENERGY)


def _meter_note(used: Sequence[GpuEnergy]) -> str:
    said = []
    if (powers := sum(gpu.source is FigureSource.POWER for gpu in used)) not in (0, len(used)):
        said.append(f"{powers} of {len(used)} GPUs have no energy counter, but power alone")
    if gap_s := sum(gpu.unmetered_s for gpu in used):
        said.append(f"without {gap_s:.0f} GPU-seconds in which no power was read")
    if resets := sum(gpu.resets for gpu in used):
        said.append(f"{resets} counters began anew: what they counted before that, since the last scrape, is lost")
    return "; ".join(said)


def _value(figures: _Figures, used: Sequence[GpuEnergy], terms: Terms, from_s: float, to_s: float) -> None:
    """Adds carbon and cost, and what there is of all for each token."""
    site, currency = terms.site, terms.currency or "currency units"
    carbon_g = _valued(used, terms, site.intensity_g_per_kwh) if used else None
    reasons = _NO_ENERGY, "the intensity is not known for all of the time: give a file that has all of it"
    why = _NO_CARBON if site.carbon_g_per_kwh is None else reasons[bool(used)]
    figures.add("carbon_g", carbon_g, "gCO2e", FigureSource.COMPUTED, "" if carbon_g is not None else why)
    price = site.usd_per_kwh
    paid = _valued(used, terms, lambda t_s: _known(price.at(t_s)) if price else None) if used else None
    why = _NO_PRICE if price is None else reasons[0]
    figures.add("cost_energy", paid, currency, FigureSource.COMPUTED, "" if paid is not None else why)
    rate = site.usd_per_gpu_hour
    rented = None if rate is None or not used else rate * _gpu_s(used) / 3600.0
    why = _NO_RATE if rate is None else _NO_ENERGY
    figures.add("cost_gpu_hours", rented, currency, FigureSource.COMPUTED, "" if rented is not None else why)
    figures.ratio("energy_per_output_token_j", "energy_wh", "output_tokens", 3600.0, "J/token")
    figures.ratio("energy_per_request_wh", "energy_wh", "requests", 1.0, "Wh/request")
    figures.ratio("carbon_per_1000_output_tokens_g", "carbon_g", "output_tokens", 1e3, "gCO2e")
    figures.ratio("cost_energy_per_million_output_tokens", "cost_energy", "output_tokens", 1e6, currency)
    if rented is not None:
        figures.ratio("cost_gpu_hours_per_million_output_tokens", "cost_gpu_hours", "output_tokens", 1e6, currency)


def _wh(gpus: Sequence[GpuEnergy], kind: EnergyKind | None = None) -> float:
    place = None if kind is None else KINDS.index(kind)
    total_uj = sum(
        int(gpu.slices.energy_uj.sum() if place is None else gpu.slices.energy_uj[gpu.slices.kind == place].sum())
        for gpu in gpus
    )
    return j_to_wh(total_uj / UJ_PER_J)


def _gpu_s(gpus: Sequence[GpuEnergy]) -> float:
    return sum(gpu.gpus * int(gpu.slices.gpu_us.sum()) for gpu in gpus) / US_PER_S


def _valued(gpus: Sequence[GpuEnergy], terms: Terms, per_kwh: Callable[[float], float | None]) -> float | None:
    """Returns the energy, PUE included, times a value for each kWh; None: it is not known for all of the time."""
    total, start_s = 0.0, terms.start.timestamp()
    for gpu in gpus:
        middle_s = (gpu.slices.start_us + gpu.slices.end_us) / 2.0 / US_PER_S - start_s
        for t_s, energy_uj in zip(middle_s.tolist(), gpu.slices.energy_uj.tolist(), strict=True):
            value = per_kwh(t_s)
            if value is None:
                return None
            total += energy_uj / UJ_PER_J / J_PER_KWH * terms.site.pue * value
    return total


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _tenants(
    courses: Sequence[EngineCourse], used: Sequence[GpuEnergy], terms: Terms, figures: Mapping[str, Figure]
) -> tuple[tuple[TenantShare, ...], str]:
    if terms.tenant_label is None:
        return (), f"engines' metrics name no tenant. {TENANTS_HOW}"
    if not used:
        return (), _NO_ENERGY
    serving = KINDS.index(EnergyKind.SERVING)
    serving_uj = sum(int(gpu.slices.energy_uj[gpu.slices.kind == serving].sum()) for gpu in used)
    if not serving_uj:
        return (), "no GPU was seen at work: there is no serving energy, or the exporter lacks DCGM_FI_DEV_GPU_UTIL"
    total_j = sum(gpu.energy_uj for gpu in used) / UJ_PER_J
    carbon_g, cost = figures["carbon_g"].value, figures["cost_energy"].value
    return tenant_shares(
        courses,
        terms.tenant_label,
        [_token_time(course, terms, used) for course in courses],
        serving_uj,
        carbon_g / total_j if carbon_g is not None and total_j else None,
        cost / total_j if cost is not None and total_j else None,
    )


def _token_time(course: EngineCourse, terms: Terms, used: Sequence[GpuEnergy]) -> TokenTime:
    model = course.model or UNNAMED
    return token_time_of(model, terms.models.get(model, model), _gpu(terms, used) or "", terms.tp or 1, TIMES_OF)


def _gpu(terms: Terms, used: Sequence[GpuEnergy]) -> str | None:
    """Returns the type of the engines' GPUs: as given, else as the meter says where all are of one known type."""
    types = {gpu.gpu_type for gpu in used if gpu.known_type}
    return terms.gpu or (types.pop() if len(types) == 1 else None)


def fleet_of(found: Findings, terms: Terms, site: Mapping[str, Any]) -> ObservedFleet:
    """Returns what is known of the engines' GPUs, for the simulator. `site`: PUE, carbon and prices of its scenario."""
    by_host: dict[str, int] = {}
    for gpu in found.engine_gpus:
        by_host[gpu.host] = by_host.get(gpu.host, 0) + gpu.gpus
    return ObservedFleet(
        gpu=_gpu(terms, found.engine_gpus),
        gpus=sum(by_host.values()),
        gpus_per_node=max(by_host.values(), default=GPUS_PER_NODE),
        tp=terms.tp,
        models=terms.models,
        site=site,
    )


def _target(target: Target, course: EngineCourse | None) -> ObservedTarget:
    resets = sum(step.reset for step in increases(target)) if course is not None else 0
    return ObservedTarget(
        name=target.name,
        kind=target.kind.value,
        engine=None if course is None else course.names.engine,
        model=None if course is None else course.model,
        scrapes=len(target.scrapes),
        failed=len(target.scrapes) - len(target.read),
        resets=resets,
        gaps=tuple(ObservedGap(gap.from_s, gap.to_s, gap.reason, gap.counted) for gap in gaps(target)),
        missing=() if course is None else course.missing,
    )


def _notes(used: Sequence[GpuEnergy], others: Sequence[GpuEnergy]) -> tuple[str, ...]:
    said = []
    if any(gpu.engine is None for gpu in used):
        said.append("the exporter lacks DCGM_FI_DEV_FB_USED: GPUs without an engine cannot be distinguished, all count")
    if unknown := sorted({gpu.gpu_type for gpu in (*used, *others) if not gpu.known_type}):
        said.append(f"GPU types that are not in the catalogue: {', '.join(unknown)}; they are metered all the same")
    return tuple(said)


def start_of(recording: Recording) -> datetime:
    """Returns the whole second at which the observation begins."""
    return datetime.fromtimestamp(math.floor(_span(recording)[0]), UTC)
