"""The page *Overrides*: control modes, pauses, approvals and overrides; and the button that undoes a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from pools.access import audit, rights
from pools.access.audit import Actor
from pools.models import Partition, Pool, Service, Site
from scheduler.control import active_operations, service_policy
from scheduler.models import (
    Approval,
    ApprovalStatus,
    ControlMode,
    Decision,
    DecisionKind,
    LoopPause,
    Override,
    OverrideKind,
    ServiceMode,
)
from scheduler.operations import approvals, overrides, pauses, undoing, visibility

from . import confirmations

LENGTHS = ((900, "15 min"), (3600, "1 h"), (4 * 3600, "4 h"), (24 * 3600, "1 day"), (7 * 24 * 3600, "1 week"))
RECENT = 20
ADVICE_SPAN = timedelta(minutes=10)  # of clocks: older advice is of another load
LOOPS = {
    "carbon": "which sites, partition and GPUs",
    "scale": "how many instances",
    "shard": "which TP degrees",
    "clock": "SM clocks; paused: all at their maximum",
}


@never_cache
@require_safe
@rights.needs(rights.Right.VIEW)
def page(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    open_pauses = {
        (row.service_id, row.loop): row for row in active_operations.open_pauses().select_related("created_by")
    }
    modes = {row.service_id: row for row in ServiceMode.objects.all()}
    rows = [
        {
            "service": service,
            "mode": (mode := modes.get(service.pk) or ServiceMode(service=service)),
            "configured": _configured(service, mode),
            "loops": [(loop, open_pauses.get((service.pk, loop))) for loop in LOOPS],
        }
        for service in Service.objects.all()
    ]
    waiting = Approval.objects.filter(status=ApprovalStatus.PENDING, expires_at__gt=now).select_related(
        "service", "epoch"
    )
    waiting = visibility.of_services(request.user, waiting)
    overrides = visibility.overrides(request.user, active_operations.open_overrides()).select_related(
        "service", "site", "pool__site", "pool__request_class", "created_by"
    )
    ended = (
        visibility.overrides(request.user, Override.objects.all())
        .exclude(pk__in=overrides.values("pk"))
        .select_related("service", "site", "pool__site", "pool__request_class", "created_by", "ended_by")
    )
    context = {
        "rows": rows,
        "loops": LOOPS,
        "modes": ControlMode.choices,
        "lengths": LENGTHS,
        "clocks": _clock_advice(request),
        "waiting": [(row, list(row.decisions())) for row in waiting.prefetch_related("epoch__decisions")],
        "overrides": [(row, described(row)) for row in overrides],
        "ended": [(row, described(row)) for row in ended[:RECENT]],
        "pools": Pool.objects.filter(site__in=rights.sites_of(request.user)).select_related(
            "service", "site", "request_class__partition"
        ),
        "sites": rights.sites_of(request.user),
        "partitions": Partition.objects.all(),
        "services": [row["service"] for row in rows],
        "may": rights.has(request.user, rights.Right.OPERATE),
    }
    return render(request, "frontend/configure/overrides.html", context)


def _configured(service: Service, mode: ServiceMode) -> str:
    """Says what the configured policy does where it is not the one in force; empty: it is."""
    if service_policy.is_in_force(service):
        return ""
    return f"{service.policy} {'asks for approval' if mode.mode == ControlMode.APPROVE else 'advises'}"


def _clock_advice(request: HttpRequest) -> list[Decision]:
    """Returns the clock loop's newest advice for each pool where it may not act until a person lets clocks go down."""
    waiting = set(ServiceMode.objects.filter(gateways_only=True).values_list("service_id", flat=True))
    if not waiting:
        return []
    since = timezone.now() - ADVICE_SPAN
    found = Decision.objects.filter(kind=DecisionKind.CLOCK, at__gt=since, service__in=waiting)
    found = visibility.decisions(request.user, found.filter(inputs__has_key="advised_mhz"))
    newest = found.order_by("pool_id", "-at").distinct("pool_id").select_related("pool__site", "pool__request_class")
    return [row for row in newest if row.pool is not None]


def described(held: Override) -> str:
    """Writes an override as a sentence."""
    if held.kind == OverrideKind.WORKERS:
        workers = ", ".join(f"{count} x {mode}" for mode, count in held.value.items()) or "no workers"
        return f"{held.pool} of {held.service} has {workers}"
    if "floor_mhz" in held.value:
        return f"clocks of {held.pool} of {held.service} may go down to {held.value['floor_mhz']:.0f} MHz"
    if held.kind == OverrideKind.CLOCK:
        what = f"instance {str(held.instance_uid)[:8]} of {held.pool}" if held.instance_uid else f"all of {held.pool}"
        return f"{what} at {held.value['mhz']:.0f} MHz"
    if held.kind == OverrideKind.PARTITION:
        return f"{held.service} keeps partition {held.value['partition']}"
    return f"{held.site} gets no new workers, and plans do without it"


def _done(
    request: HttpRequest,
    act: Callable[[Actor], str],
    back: str = "overrides",
    *args: Any,
    concerns: Iterable[Service] = (),
    title: str = "",
) -> HttpResponse:
    """Runs one act, says what came of it, and goes back to the page. One with a title is a switch: it asks first."""
    try:
        if title:
            actor = audit.actor_of(request)
            page = confirmations.asked(request, concerns, lambda: act(actor), title, reverse(back, args=args))
            if page is not None:
                return page
        messages.success(request, act(audit.actor_of(request)))
    except ValidationError as error:
        if hasattr(error, "error_dict"):
            words = "; ".join(f"{name}: {' '.join(texts)}" for name, texts in error.message_dict.items())
        else:
            words = " ".join(error.messages)
        messages.error(request, f"Nothing was changed. {words.removeprefix('__all__: ')}.")
    return redirect(back, *args)


def _until(request: HttpRequest, optional: bool = False) -> datetime | None:
    """Returns the moment that `for_s`, seconds from now, names. Raises ValidationError for what is no such number."""
    text = request.POST.get("for_s", "")
    if optional and not text:
        return None
    if not text.isdecimal() or not 0 < int(text) <= 30 * 24 * 3600:
        raise ValidationError({"for": "a number of seconds, up to 30 days"})
    return datetime.now(UTC) + timedelta(seconds=int(text))


def _for(request: HttpRequest) -> datetime:
    found = _until(request)
    assert found is not None
    return found


@require_POST
@rights.needs(rights.Right.OPERATE)
def pause(request: HttpRequest) -> HttpResponse:
    service = get_object_or_404(Service, pk=_number(request, "service"))

    def act(actor: Actor) -> str:
        made = pauses.pause(
            actor, service, request.POST.get("loop", ""), request.POST.get("reason", ""), _until(request, optional=True)
        )
        return f"The {made.loop} loop of {service} is paused."

    return _done(request, act, concerns=[service], title=f"Pause the {request.POST.get('loop', '')} loop of {service}?")


@require_POST
@rights.needs(rights.Right.OPERATE)
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    open_pause = get_object_or_404(LoopPause, pk=pk)

    def act(actor: Actor) -> str:
        pauses.resume(actor, open_pause)
        return f"The {open_pause.loop} loop of {open_pause.service} runs again."

    title = f"Resume the {open_pause.loop} loop of {open_pause.service}?"
    return _done(request, act, concerns=[open_pause.service], title=title)


@require_POST
@rights.needs(rights.Right.OPERATE)
def control_mode(request: HttpRequest) -> HttpResponse:
    service = get_object_or_404(Service, pk=_number(request, "service"))

    def act(actor: Actor) -> str:
        minutes = request.POST.get("approve_within_min", "")
        if minutes and not minutes.isdecimal():
            raise ValidationError({"approve within": "whole minutes"})
        made = pauses.set_control_mode(
            actor, service, request.POST.get("mode", ""), 60.0 * int(minutes) if minutes else None
        )
        return f"{service}: {made.get_mode_display()}."

    title = f"Set the control mode of {service} to {request.POST.get('mode', '')}?"
    return _done(request, act, concerns=[service], title=title)


@require_POST
@rights.needs(rights.Right.OPERATE)
def answer(request: HttpRequest, pk: int, answer: str) -> HttpResponse:
    if answer not in ("approve", "reject"):
        raise Http404("approve or reject")
    approval = get_object_or_404(visibility.of_services(request.user, Approval.objects.all()), pk=pk)

    def act(actor: Actor) -> str:
        if answer == "reject":
            approvals.reject(actor, approval, request.POST.get("note", ""))
            return f"The plan of the {approval.loop} loop is rejected."
        found = approvals.approve(actor, approval)
        if found.status != ApprovalStatus.APPROVED:
            raise ValidationError(f"The plan is {str(found.get_status_display()).lower()}. {found.note.rstrip('.')}")
        return f"The plan of the {approval.loop} loop is approved and carried out."

    return _done(request, act)


@require_POST
@rights.needs(rights.Right.OPERATE)
def override(request: HttpRequest) -> HttpResponse:
    def act(actor: Actor) -> str:
        return f"In force: {described(_made(request, actor))}."

    return _done(request, act)


def _made(request: HttpRequest, actor: Actor) -> Override:
    given, reason, until = request.POST, request.POST.get("reason", ""), _for(request)
    kind = given.get("kind", "")
    if kind == OverrideKind.DRAIN:
        return overrides.drain_site(actor, get_object_or_404(Site, pk=_number(request, "site")), until, reason)
    if kind == OverrideKind.PARTITION:
        service = get_object_or_404(Service, pk=_number(request, "service"))
        partition = get_object_or_404(Partition, pk=_number(request, "partition"))
        return overrides.pin_partition(actor, service, partition, until, reason)
    pool = get_object_or_404(Pool, pk=_number(request, "pool"))
    if kind == OverrideKind.CLOCK:
        name = "floor_mhz" if "floor_mhz" in given else "mhz"
        try:
            mhz = float(given.get(name, ""))
        except ValueError:
            raise ValidationError({name: "a number of MHz"}) from None
        act = overrides.let_clocks_down if name == "floor_mhz" else overrides.fix_clock
        return act(actor, pool, mhz, until, reason)
    if kind == OverrideKind.WORKERS:
        return overrides.pin_workers(actor, pool, _workers(given.get("workers", "")), until, reason)
    raise ValidationError({"kind": f"one of {', '.join(OverrideKind.values)}"})


def _workers(text: str) -> dict[str, int]:
    """Parses `2 x A100-80GB/TP4, 1 x A100-80GB/TP8`; empty: no workers."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        count, _, mode = part.partition(" x ")
        if not count.strip().isdecimal() or not mode.strip():
            raise ValidationError({"workers": f"written like 2 x A100-80GB/TP4, not '{part}'"})
        found[mode.strip()] = found.get(mode.strip(), 0) + int(count)
    return found


@require_POST
@rights.needs(rights.Right.OPERATE)
def end(request: HttpRequest, pk: int) -> HttpResponse:
    made = get_object_or_404(visibility.overrides(request.user, Override.objects.all()), pk=pk)

    def act(actor: Actor) -> str:
        overrides.end(actor, made)
        return f"Ended: {described(made)}."

    drained = Service.objects.filter(pools__site=made.site).distinct()
    concerns = drained if made.service is None else [made.service]
    return _done(request, act, concerns=concerns, title=f"End the override: {described(made)}?")


@require_POST
@rights.needs(rights.Right.OPERATE)
def undo(request: HttpRequest, pk: int) -> HttpResponse:
    decision = get_object_or_404(visibility.decisions(request.user, Decision.objects.all()), pk=pk)

    def act(actor: Actor) -> str:
        made = undoing.undo(actor, decision, _for(request), request.POST.get("reason", ""))
        return f"In force: {'; '.join(described(row) for row in made)}."

    return _done(request, act, "decision", pk)


def _number(request: HttpRequest, name: str) -> int:
    text = request.POST.get(name, "")
    if not text.isdecimal():
        raise Http404(f"choose a {name}")
    return int(text)
