"""The Overhead Table on the live fleet (DynamoLLM IV-B): what changes of the last week took, by their rows.

A start is from the decision to the first answer of the engine (`Instance.created_at` to `ready_at`, which its agent
says once a completion has come). It is cold where the weights had to be fetched, which is then included. A start of
which nobody knows counts as warm. A re-shard is from the decision to the last of its instances: until it serves on its
new GPUs, or is ready where it started. An instance has the last decision that changed it only. Waking is from when it
was asked for to ready (`Instance.wake_asked_at` to `woken_at`); of each instance the last time counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet

from core.engine.engine_params import UnknownConfiguration
from core.engine.overhead_table import OverheadTable, reshard_key, start_key, wake_key
from core.engine.overheads import Overheads, SleepSteps, StartSteps
from core.observations.fleet import dynamo_given, sleep_given
from core.types import ChangeKind, Loop, Mode
from pools import server_states
from pools.models import Instance, PowerCycle, Service
from scheduler.control.snapshot.free_gpus import free_gpus
from scheduler.control.turn_context import TurnContext
from scheduler.models import Decision

MEASURED_FOR = timedelta(days=7)
_MEASURED_AT_MOST = 200  # of a service, by kind


@dataclass(frozen=True, slots=True)
class Change:
    """One that was made. `published_s`: what it is published to take; None: nothing is."""

    key: str
    took_s: float
    at: datetime
    published_s: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of change. `mean_s`: what plans assume, the newest counting most."""

    change: str
    mean_s: float
    least_s: float
    most_s: float
    count: int
    newest: datetime
    published_s: float | None


def table(service: Service, now: datetime) -> OverheadTable:
    """Returns the seconds that plans assume for each kind of change, as measured, by the engine model's names."""
    return _table(_changes(service, now, shown=False))


def _changes(service: Service, now: datetime, *, shown: bool) -> list[Change]:
    """Returns all that were made, the oldest of each kind first. `shown`: with the model's name for people."""
    found = (_starts(_of(service, now), shown=shown), _wakings(service, now, shown=shown))
    return [*found[0], *found[1], *_reshards(service, now, shown=shown)]


def rows(services: Sequence[Service], now: datetime) -> list[Row]:
    """Returns the rows that are shown, by kind of change.

    Starts of all services count together. It takes three queries for each service, and more for re-shards.
    """
    found: dict[str, list[Change]] = {}
    for service in services:
        for change in _changes(service, now, shown=True):
            found.setdefault(change.key, []).append(change)
    return [_row(key, sorted(changes, key=lambda one: one.at)) for key, changes in sorted(found.items())]


def published() -> Overheads:
    """Returns the times that changes take while none has been measured, as fast as this installation's time runs."""
    faster, found = float(settings.GREENSERVE_TRANSITION_SPEEDUP), Overheads()
    start = StartSteps(**{name: took_s / faster for name, took_s in asdict(found.start).items()})
    (first_s, second_s), (first_rate, second_rate) = found.sleep.wake_s, found.sleep.bytes_per_s
    sleep = SleepSteps((first_s / faster, second_s / faster), (first_rate * faster, second_rate * faster))
    link_bytes_per_s = found.link_bytes_per_s * faster
    return replace(found, start=start, sleep=sleep, sync_s=found.sync_s / faster, link_bytes_per_s=link_bytes_per_s)


def published_start_s(model: str, *, warm: bool) -> float:
    """Returns the seconds that a start takes while none has been measured (DynamoLLM, table V)."""
    return dynamo_given.published_start_s(published(), model, warm=warm, weights_cached=warm)


def start_s(found: OverheadTable, model: str, mode: Mode, *, warm: bool) -> float:
    """Returns the seconds that plans assume for a start: as the table has measured it, else as published."""
    return found.get(start_key(model, mode.gpu, mode.tp, warm=warm), published_start_s(model, warm=warm))


def starts_s(context: TurnContext, modes: Iterable[Mode]) -> dict[Mode, float]:
    """Returns the seconds that plans assume for a warm start in each mode, with the boot of the server it needs."""
    found, model = table(context.service, context.now), context.service.model_card.engine_model_name
    boots_s = _boots_s(context)
    return {mode: start_s(found, model, mode, warm=True) + boots_s(mode) for mode in modes}


def _boots_s(context: TurnContext) -> Callable[[Mode], float]:
    """Returns the seconds until a mode has a server that runs: none where free GPUs of one that does suffice."""
    states = {own.pk: own for own in server_states.switched().values()}
    if not states:
        return lambda mode: 0.0
    free: Counter[tuple[int, str]] = Counter()
    sites = {pool.site_id for pool in context.pools}
    for own in free_gpus(context.reporting):
        if own.site_id in sites:
            free[own.node_id, own.gpu] += own.count

    def boots_s(mode: Mode) -> float:
        fits = (node for (node, gpu), count in free.items() if gpu == mode.gpu and count >= mode.tp)
        return min((states[node].ready_in_s(context.now) if node in states else 0.0 for node in fits), default=0.0)

    return boots_s


def _row(key: str, changes: Sequence[Change]) -> Row:
    took = [one.took_s for one in changes]
    newest = changes[-1]
    mean_s = _table(changes).seconds[key]
    return Row(key, mean_s, min(took), max(took), len(took), newest.at, newest.published_s)


def _table(changes: Sequence[Change]) -> OverheadTable:
    found = OverheadTable()
    for change in changes:
        found = found.measured(change.key, change.took_s)
    return found


def _of(service: Service, now: datetime) -> QuerySet[Instance]:
    """Returns our instances that became ready recently; one that registered itself was started by somebody else, and
    one whose server had to boot first says nothing of starts."""
    own = Instance.objects.filter(pool__service=service, node__isnull=False)
    there = PowerCycle.objects.filter(node=OuterRef("node"), off_asked_at__lte=OuterRef("created_at"))
    own = own.exclude(Exists(there.filter(ready_at__gte=OuterRef("created_at"))))
    return own.filter(ready_at__gte=now - MEASURED_FOR).order_by("-ready_at")


def _starts(ready: QuerySet[Instance], *, shown: bool) -> Iterator[Change]:
    """Yields the starts, the oldest first, but of instances that changed their TP degree since.

    `shown`: with the model's name for people, not the engine model's.
    """
    newest = ready.filter(reshard_at__isnull=True).select_related("model_card")[:_MEASURED_AT_MOST]
    for instance in reversed(newest):
        if instance.ready_at is not None:
            card, warm = instance.model_card, instance.start_kind != Instance.Start.COLD
            name = card.name if shown else card.engine_model_name
            key = start_key(name, instance.gpu_type, instance.tp, warm=warm)
            took_s = max(0.0, (instance.ready_at - instance.created_at).total_seconds())
            yield Change(key, took_s, instance.ready_at, published_start_s(card.engine_model_name, warm=warm))


def _wakings(service: Service, now: datetime, *, shown: bool) -> Iterator[Change]:
    woken = Instance.objects.filter(pool__service=service, woken_at__gte=now - MEASURED_FOR).order_by("-woken_at")
    newest, overheads = woken.select_related("model_card")[:_MEASURED_AT_MOST], published()
    for instance in reversed(newest):
        if instance.woken_at is not None and instance.wake_asked_at is not None:
            model = instance.model_card.engine_model_name
            key = wake_key(instance.model_card.name if shown else model, instance.gpu_type, instance.tp)
            took_s = max(0.0, (instance.woken_at - instance.wake_asked_at).total_seconds())
            yield Change(key, took_s, instance.woken_at, _published_waking_s(overheads, model, instance.tp))


def _published_waking_s(overheads: Overheads, model: str, tp: int) -> float | None:
    try:
        return sleep_given.waking_s(sleep_given.LEVEL, overheads, model, tp)
    except UnknownConfiguration:
        return None


def _reshards(service: Service, now: datetime, *, shown: bool) -> Iterator[Change]:
    """Only of decisions that changed one server: of several nobody knows whose instance was whose.

    Of changes with shadows the starts count. Decisions of 0.1 do not say how they made a change.
    """
    card = service.model_card
    name = card.name if shown else card.engine_model_name
    decided = Decision.objects.filter(kind=Loop.SHARD, service=service, at__gte=now - MEASURED_FOR).exclude(commands=[])
    for decision in reversed(decided.order_by("-at")[:_MEASURED_AT_MOST]):
        changes = [c for c in decision.commands if c.get("type") == "ReshardNode" and c["source"] and c["target"]]
        if len(changes) != 1 or changes[0].get("change") not in (ChangeKind.IN_PLACE, ChangeKind.RESTART):
            continue
        times = [_there_at(one, decision.at) for one in Instance.objects.filter(decision_id=decision.pk)]
        if not times or None in times:
            continue
        took_s = max((at - decision.at).total_seconds() for at in times if at is not None)
        in_place = changes[0]["change"] == ChangeKind.IN_PLACE
        key = reshard_key(*(name, changes[0]["gpu"], changes[0]["source"], changes[0]["target"]), in_place=in_place)
        yield Change(key, max(0.0, took_s), decision.at, None)


def _there_at(instance: Instance, decided_at: datetime) -> datetime | None:
    """Returns when an instance did as was decided; None: not yet."""
    in_place = instance.reshard_at is not None and instance.reshard_at >= decided_at
    return instance.resharded_at if in_place else instance.ready_at
