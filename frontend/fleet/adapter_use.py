"""LoRA adapters on their service's page: which there are, and what requests by each name used in the last day."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pools.models import Adapter, Instance, Service, Site
from telemetry.reports import tenant_use
from telemetry.reports.tenant_month import Figures
from telemetry.reports.tenant_use import HourSpan, Use

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """An adapter, or what asked for none (`name` empty). `declared` None: somebody loaded it by hand, or it is gone."""

    name: str
    declared: Adapter | None
    served: int
    prompt_tokens: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class AdapterTable:
    """Rows that add up to the service's settled serving figures from `since` on; none where there is no adapter."""

    since: datetime
    rows: tuple[AdapterRow, ...]
    outdated: int  # instances that were started for less, and are to be replaced


def adapters(service: Service, sites: Iterable[Site], now: datetime) -> AdapterTable:
    """Returns the service's adapters with their settled use at these sites, of the last day in whole hours.

    Makes five queries.
    """
    end = tenant_use.whole_hour(now) + HOUR
    span = HourSpan(end - HOUR - DAY, end, tuple(site.pk for site in sites), service=service.name)
    used = tenant_use.grouped(tenant_use.use(span, ("adapter",)))
    declared: dict[str | None, Adapter] = {adapter.name: adapter for adapter in service.adapters.all()}
    names = [*declared, *(name for name in used if name is not None and name not in declared)]
    rows = [_row(name, declared.get(name), used.get(name, [])) for name in [*names, *((None,) if names else ())]]
    return AdapterTable(span.start, tuple(rows), _outdated(service, declared.values()))


def _outdated(service: Service, declared: Iterable[Adapter]) -> int:
    live = Instance.objects.filter(pool__service=service).exclude(state=Instance.State.STOPPED)
    rank = max((adapter.rank for adapter in declared), default=0)
    return sum(one.started_for_less(rank, service.max_loras) for one in live) if rank else 0


def _row(name: str | None, declared: Adapter | None, uses: list[Use]) -> AdapterRow:
    figures = Figures.of(tenant_use.added_up(uses))
    prompt_tokens = figures.tokens - figures.output_tokens
    return AdapterRow(name or "", declared, sum(one.served for one in uses), prompt_tokens, figures)
