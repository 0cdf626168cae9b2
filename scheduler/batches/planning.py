"""Decides whether a service's lines run now: rows -> core.controllers.request.deferral -> a Decision that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Q

from core.controllers.request import deferral
from core.controllers.request.deferral import Backlog, DeferralConfig, DeferralObservation
from core.types import Effects, RunDeferred, SiteView
from pools.models import Pool, Service
from scheduler.batches.tenant_files import limits
from scheduler.json_values import to_json
from scheduler.models import Batch, BatchStatus, ControllerState, Decision, DecisionKind
from telemetry.carbon.site_signals import for_decisions
from telemetry.models import RequestRecord

KIND = DecisionKind.DEFERRAL.value
RECENT_REQUESTS = 200
RECENT = timedelta(hours=1)
WEIGHT = 0.3  # of the newest rate in what has been learned


@dataclass
class RateMeter:
    """Lines a second, while lines run. Time in which none runs does not count."""

    lines_per_s: float | None = None
    _busy_s: float = 0.0
    _done: int = 0
    _at_s: float | None = None

    def ran(self, now_s: float, busy: bool, done: int) -> None:
        if self._at_s is not None and busy:
            self._busy_s += now_s - self._at_s
        self._at_s = now_s if busy or done else None
        self._done += done

    def learn(self, least_s: float = 0.0) -> None:
        """Takes in what was seen since the last time, once a line has ended and `least_s` have passed."""
        if self._done and self._busy_s > max(0.0, least_s):
            seen = self._done / self._busy_s
            known = self.lines_per_s
            self.lines_per_s = seen if known is None else known + WEIGHT * (seen - known)
            self._busy_s, self._done = 0.0, 0


@dataclass(frozen=True, slots=True)
class Permit:
    """Lines that may be begun, until a moment (Unix seconds), after which it is to be decided anew."""

    lines: int = 0
    until_s: float = field(default=0.0)


def decide(service: Service, rate: RateMeter, now: datetime) -> Permit:
    """Plans, puts the reason on record, and says how many lines may begin."""
    observation = observe(service, rate.lines_per_s, now)
    _, effects = deferral.step(None, observation, config())
    if observation.backlogs:
        record(service, effects, now)
    soon_s = now.timestamp() + limits()["epoch_s"]
    until_s = soon_s if effects.next_tick_s is None else min(soon_s, effects.next_tick_s)
    command = next((c for c in effects.commands if isinstance(c, RunDeferred)), None)
    return Permit(command.lines if command else 0, until_s)


def config() -> DeferralConfig:
    return DeferralConfig(caution=limits()["caution"], reserve_s=limits()["reserve_s"])


def observe(service: Service, lines_per_s: float | None, now: datetime) -> DeferralObservation:
    backlogs = tuple(
        Backlog(str(batch), batch.left, batch.expires_at.timestamp())
        for batch in Batch.objects.filter(service=service, status=BatchStatus.IN_PROGRESS, expires_at__gt=now)
        .annotate(left=Count("lines", filter=Q(lines__result__isnull=True)))
        .order_by("expires_at", "pk")
        if batch.left
    )
    return DeferralObservation(
        now_s=now.timestamp(),
        service=service.name,
        step_s=limits()["step_s"],
        sites=_sites(service, now, backlogs),
        backlogs=backlogs,
        lines_per_s=lines_per_s,
        energy_j_per_line=_energy_j(service, now),
    )


def _sites(service: Service, now: datetime, backlogs: Sequence[Backlog]) -> tuple[SiteView, ...]:
    """Returns the sites of the service's pools with its GPUs there, and their intensity until the last deadline."""
    if not backlogs:
        return ()
    step_s, now_s = limits()["step_s"], now.timestamp()
    horizon_s = min(limits()["horizon_s"], max(backlog.deadline_s for backlog in backlogs) - now_s)
    steps = int(horizon_s / step_s) + 1
    gpus: dict[int, dict[str, int]] = {}
    sites = {}
    for pool in Pool.objects.filter(service=service).select_related("site"):
        sites[pool.site_id] = pool.site
        at_site = gpus.setdefault(pool.site_id, {})
        for gpu_type, count in pool.gpu_budget.items():
            at_site[gpu_type] = at_site.get(gpu_type, 0) + count
    curves = for_decisions(list(sites.values()), now, now + timedelta(seconds=steps * step_s))
    return tuple(
        SiteView(site.name, gpus[pk], site.pue, curves.steps(site, now, step_s, steps)) for pk, site in sites.items()
    )


def _energy_j(service: Service, now: datetime) -> float | None:
    """Returns a request's mean joules, as the gateway predicted for the recent ones."""
    recent = RequestRecord.objects.filter(
        service=service.name, started_at__gte=now - RECENT, predicted_energy_j__isnull=False
    ).order_by("-started_at")
    values = [v for v in recent.values_list("predicted_energy_j", flat=True)[:RECENT_REQUESTS] if v is not None]
    return sum(values) / len(values) if values else None


def record(service: Service, effects: Effects, now: datetime) -> None:
    """Stores a row when what is done, or why, changes; else counts one more in the last row (run-length encoding)."""
    rationale, runs = effects.rationale, bool(effects.commands)
    last = Decision.objects.filter(kind=KIND, service=service).order_by("-at", "-pk").first()
    batches = rationale.inputs.get("batches")
    same = last is not None and (last.reason, bool(last.commands)) == (rationale.reason.value, runs)
    if last is not None and same and last.inputs.get("batches") == batches:
        Decision.objects.filter(pk=last.pk).update(held=F("held") + 1)
        return
    Decision.objects.create(
        kind=KIND,
        at=now,
        service=service,
        reason=rationale.reason.value,
        summary=rationale.summary[:500],
        inputs=to_json(rationale.inputs),
        alternatives=to_json(rationale.alternatives),
        commands=to_json(effects.commands),
        predicted=_predicted(effects),
    )


def _predicted(effects: Effects) -> dict[str, Any]:
    chosen = next((row for row in effects.rationale.alternatives if row.chosen), None)
    figures = {} if chosen is None else {"energy_j": chosen.energy_j, "carbon_gco2e": chosen.carbon_gco2e}
    found: dict[str, Any] = {name: value for name, value in figures.items() if value is not None}
    return found | {"source": "modelled"} if found else {}


# -- what is learned outlives the process ----------------------------------------------------------


def load_rate(service: Service) -> RateMeter:
    state = ControllerState.objects.filter(kind=KIND, service=service).first()
    return RateMeter(state.value.get("lines_per_s") if state else None)


def save_rate(service: Service, rate: RateMeter) -> None:
    if rate.lines_per_s is not None:
        value = {"lines_per_s": rate.lines_per_s}
        ControllerState.objects.update_or_create(kind=KIND, service=service, defaults={"value": value})
