"""Services: what clients ask for by name, how well its objectives are met, and which policy runs it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from core.policy import presets
from core.policy.setting_texts import SETTINGS, by_name, documented, text_of, value_of, without_effect
from frontend import formats, reader_choices
from frontend.charts import chart_csv, figures
from frontend.fleet import adapter_use, chart_pages
from pools.access import rights
from pools.models import Service
from scheduler import selectors as scheduler_selectors
from scheduler import sleepers
from scheduler.control import shortages
from scheduler.operations.configure import registry
from telemetry import selectors
from telemetry.selectors.frames import SloFrame, SloSeries, TimeRange

from .listing import Column, listing

COLUMNS = (
    Column("name", "Service"),
    Column("model", "Model"),
    Column("policy", "Policy"),
    Column("changed", "Knobs changed", number=True, hint="Set otherwise than in the preset"),
    Column("partition", "Partition"),
    Column("judged", "Requests judged", number=True, hint="Of the last hour, by its most judged objective"),
    Column("margin", "Worst objective", number=True, hint="Attainment of the last hour less the target"),
    Column("burn", "Budget burn", number=True, hint="Share missed by the share that may be missed; above 1: too fast"),
)
HOUR_S, DAY_S = 3_600.0, 86_400.0
DECISIONS_SHOWN, POOLS_SHOWN = 15, 50


@dataclass(frozen=True, slots=True)
class ServiceRow:
    pk: int
    name: str
    model_id: int
    model: str
    policy: str
    changed: int
    partition: str
    judged: int
    worst: SloSeries | None
    description: str
    asleep_since: datetime | None = None

    @property
    def margin(self) -> float | None:
        return None if self.worst is None or self.worst.overall is None else self.worst.overall - self.worst.target

    @property
    def burn(self) -> float | None:
        return None if self.worst is None else burn(self.worst)


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective with what came of it in the last hour and day."""

    hour: SloSeries
    day: SloSeries | None

    @property
    def hour_burn(self) -> float | None:
        return burn(self.hour)

    @property
    def day_burn(self) -> float | None:
        return None if self.day is None else burn(self.day)

    @property
    def met(self) -> bool | None:
        return None if self.hour.overall is None else self.hour.overall >= self.hour.target


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    preset: str
    here: str
    doc: str
    changed: bool


def burn(series: SloSeries) -> float | None:
    """Returns the burn rate: the share missed by the share that may miss. None: nothing was judged, or no budget."""
    if series.overall is None or series.target >= 1.0:
        return None
    return (1.0 - series.overall) / (1.0 - series.target)


def attainment(range_s: float, now_s: float) -> dict[str, list[SloSeries]]:
    """Returns each service's objectives over the last `range_s` seconds. Makes three queries."""
    found: dict[str, list[SloSeries]] = {}
    for series in selectors.slo(TimeRange.last(range_s, now_s)).series:
        found.setdefault(series.service, []).append(series)
    return found


def worst(series: Sequence[SloSeries]) -> SloSeries | None:
    known = [s for s in series if s.overall is not None]
    return min(known, key=lambda s: (s.overall or 0.0) - s.target, default=None)


@never_cache
@require_safe
def services(request: HttpRequest) -> HttpResponse:
    attained, asleep = attainment(HOUR_S, time.time()), sleepers.asleep_since()
    rows = [
        ServiceRow(
            pk=service.pk,
            name=service.name,
            model_id=service.model_card_id,
            model=service.model_card.name,
            policy=service.policy,
            changed=len(by_name(service.knobs)),
            partition=service.partition.name,
            judged=max((s.total_judged for s in attained.get(service.name, ())), default=0),
            worst=worst(attained.get(service.name, ())),
            description=service.description,
            asleep_since=asleep.get(service.name),
        )
        for service in Service.objects.select_related("model_card", "partition")
    ]
    context = {
        "title": "Services",
        "makes": registry.OWNED["services"],
        "lead": "What clients ask for by name. Attainment is of the last hour.",
        "listing": listing(
            request,
            rows,
            COLUMNS,
            search=lambda s: f"{s.name} {s.model} {s.description}",
            filters={"policy": "Policy", "model": "Model"},
        ),
        "rows_template": "frontend/fleet/parts/service_rows.html",
        "nothing": "No service yet. A service offers a model to clients under a name, with its objectives.",
    }
    return render(request, "frontend/fleet/list.html", context)


def _find(name: str) -> Service:
    found = Service.objects.select_related("model_card", "partition").filter(name=name).first()
    if found is None:
        raise Http404("no such service")
    return found


@never_cache
@require_safe
def service(request: HttpRequest, name: str) -> HttpResponse:
    found, now_s = _find(name), time.time()
    hour, day = attainment(HOUR_S, now_s).get(name, []), attainment(DAY_S, now_s).get(name, [])
    settings, in_force = _settings(found.policy, found.knobs), found.policy_knobs()
    of_service = found.pools.filter(site__in=rights.sites_of(request.user)).values_list("pk", flat=True)
    sleep = sleepers.of(found, datetime.fromtimestamp(now_s, UTC))
    asleep, short = (name,) if sleep and sleep.asleep else (), shortages.of(found)
    pools, pool_count = selectors.first_pools(now_s, POOLS_SHOWN, pool_ids=of_service, asleep=asleep)
    context = chart_pages.context(request, reverse("service-figures", args=[name]), ("slo",)) | {
        "service": found,
        "partitions": () if in_force.partition else found.partitions.all(),
        "objectives": [Objective(s, next((d for d in day if d.kind == s.kind), None)) for s in hour],
        "changed": [setting for setting in settings if setting.changed],
        "knobs": settings,
        "without_effect": without_effect(found.knobs),
        "sleep": sleep,
        "short": "" if short is None else short.text(name),
        "pools": pools,
        "pool_count": pool_count,
        "adapters": adapter_use.adapters(found, rights.sites_of(request.user), datetime.fromtimestamp(now_s, UTC)),
        "may_operate": rights.has(request.user, rights.Right.OPERATE) and rights.everywhere(request.user),
        "decisions": scheduler_selectors.decisions().filter(service=found).exclude(kind="clock")[:DECISIONS_SHOWN],
    }
    return render(request, "frontend/fleet/service.html", context)


def _settings(policy: str, overrides: Mapping[str, Any]) -> list[Setting]:
    """Returns every knob, and of tuning what is set: its value in the preset, its value here, what it is for."""
    plain, own = presets.policy(policy), by_name(overrides)
    return [
        Setting(
            name=name,
            preset=_value(name, value_of(plain, name)),
            here=_value(name, own.get(name, value_of(plain, name))),
            doc=doc,
            changed=name in own,
        )
        for name, doc in documented().items()
        if "." not in name or name in own
    ]


def _value(name: str, value: object) -> str:
    if value is None or value in ("", (), []):
        return str(SETTINGS[name].metadata["unset"])
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return formats.plain(float(value))
    if isinstance(value, dict):
        return text_of(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


@never_cache
@require_safe
def service_figures(request: HttpRequest, name: str) -> HttpResponse:
    window, look = selectors.readable(reader_choices.chosen(request.GET).window), reader_choices.look(request.GET)
    frame = selectors.slo(window)
    own: SloFrame = replace(frame, series=tuple(s for s in frame.series if s.service == _find(name).name))
    return chart_pages.answer(
        request, name, {}, others={"slo": (figures.slo(own, look), chart_csv.slo(own))}, window=window
    )
