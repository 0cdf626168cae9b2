"""Lists and forms of everything that an operator owns, made from one registry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Model, Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.fields import CharField
from django.forms import BoundField
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from pools.access import audit, rights
from pools.access.audit import Actor
from pools.models import Node, Service
from scheduler.operations import visibility
from scheduler.operations.configure import changes, consequences, dry_run, registry
from scheduler.operations.configure.consequences import Consequence
from scheduler.operations.configure.dry_run import Tried
from scheduler.operations.configure.forms import OwnedForm, form_of, label_of
from scheduler.operations.configure.registry import Owned
from scheduler.operations.configure.transfer import key_of

from . import confirmations, model_config

PAGE = 50
AREAS = (
    ("Fleet", ("sites", "clusters", "nodes", "gpu-types", "gpus")),
    (
        "What is served",
        ("models", "services", "slos", "adapters", "pools", "partitions", "classes", "profiles", "tenants"),
    ),
    (
        "Carbon and prices",
        (
            "feeds",
            "weather-feeds",
            "tariffs",
            "gpu-rates",
            "pues",
            "embodied-factors",
            "instruments",
            "instrument-hours",
        ),
    ),
    ("Reports", ("budgets", "report-schedules")),
)


def owned_or_404(kind: str) -> Owned:
    found = registry.OWNED.get(kind)
    if found is None:
        raise Http404(f"nothing of the kind '{kind}' is configured")
    return found


@never_cache
@require_safe
@rights.needs(rights.Right.VIEW)
def index(request: HttpRequest) -> HttpResponse:
    areas = [
        (title, [(owned, owned.model._default_manager.count()) for kind in kinds if (owned := registry.OWNED[kind])])
        for title, kinds in AREAS
    ]
    return render(request, "frontend/configure/index.html", {"areas": areas})


@never_cache
@require_safe
@rights.needs(rights.Right.VIEW)
def rows(request: HttpRequest, kind: str) -> HttpResponse:
    owned = owned_or_404(kind)
    text = request.GET.get("q", "").strip()[:100]
    found = _theirs(request, owned).select_related(*_related(owned)).order_by(*_order(owned))
    if text:
        found = found.filter(_search(owned, text))
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    context = {
        "owned": owned,
        "may": rights.has(request.user, owned.right),
        "columns": [label_of(name) for name in owned.columns],
        "rows": [(item, [_shown(item, name) for name in owned.columns]) for item in page.object_list],
        "bulk": [(name, label_of(name)) for name in _bulk_fields(owned)],
        "page": page,
        "q": text,
    }
    return render(request, "frontend/configure/rows.html", context)


def _theirs(request: HttpRequest, owned: Owned) -> QuerySet[Any]:
    """Returns the rows that this person may see."""
    return visibility.owned(request.user, owned)


def _related(owned: Owned) -> list[str]:
    """Returns the relations to join, with the relations that their own labels need."""
    found = list(owned.related)
    for name in owned.related:
        found += [f"{name}__{inner}" for inner in registry.of(owned.field(name).related_model).related]
    return found


def _order(owned: Owned) -> list[str | Combinable]:
    return [*(owned.model._meta.ordering or ()), "pk"]


def _search(owned: Owned, text: str) -> Q:
    found = Q()
    for name in {*owned.lookup, *owned.columns}:
        field = owned.field(name)
        if isinstance(field, CharField):
            found |= Q(**{f"{name}__icontains": text})
        elif field.is_relation and not field.many_to_many:
            inner = [own for own in ("name", "label") if any(f.name == own for f in field.related_model._meta.fields)]
            for own in inner:
                found |= Q(**{f"{name}__{own}__icontains": text})
    return found


def _shown(item: Model, name: str) -> str:
    value = getattr(item, name)
    display = getattr(item, f"get_{name}_display", None)
    if display is not None:
        value = display()
    if value is None or value in ("", {}, []):
        return "–"  # noqa: RUF001 - as all pages show what is not there
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return ", ".join(f"{count} x {key}" for key, count in value.items())
    if isinstance(value, list):
        return ", ".join(str(part) for part in value)
    return f"{value:%Y-%m-%d %H:%M}" if hasattr(value, "strftime") else str(value)


def _bulk_fields(owned: Owned) -> list[str]:
    """Returns the fields that may have the same value in several rows."""
    if owned.versions:
        return []
    fixed = {*owned.lookup, *owned.many, "knobs", "policy", "index", "rank", "name"}
    return [name for name in owned.fields if name not in fixed and not owned.field(name).unique]


# -- one row ---------------------------------------------------------------------------------------


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(rights.Right.VIEW)
def create(request: HttpRequest, kind: str) -> HttpResponse:
    """Makes a new row; `?clone=` takes over the values of another."""
    owned = owned_or_404(kind)
    rights.require(request.user, owned.right)
    initial = {name: value for name, value in request.GET.items() if name in owned.fields}
    source = request.GET.get("clone", "")
    if source.isdecimal():
        initial = _cloned(owned, get_object_or_404(_theirs(request, owned), pk=source)) | initial
    form = form_of(owned)(request.POST if request.method == "POST" else None, initial=initial)
    if (filled := model_config.filled(request, owned, None)) is not None:
        form = filled
    return _filled(request, owned, form, None)


def _cloned(owned: Owned, source: Model) -> dict[str, Any]:
    """Returns the values of a row, except those that must differ in each row."""
    shown = form_of(owned)(instance=source)
    found = {name: shown.get_initial_for_field(field, name) for name, field in shown.fields.items()}
    return {name: value for name, value in found.items() if not owned.field(name).unique}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(rights.Right.VIEW)
def edit(request: HttpRequest, kind: str, pk: int) -> HttpResponse:
    owned = owned_or_404(kind)
    instance = get_object_or_404(_theirs(request, owned), pk=pk)
    if request.method == "POST":
        rights.require(request.user, owned.right)
    form = form_of(owned)(request.POST if request.method == "POST" else None, instance=instance)
    if (filled := model_config.filled(request, owned, instance)) is not None:
        form = filled
    return _filled(request, owned, form, instance)


def _filled(request: HttpRequest, owned: Owned, form: OwnedForm, instance: Model | None) -> HttpResponse:
    name = str(instance) if instance is not None else ""
    found: tuple[Consequence, ...] = ()
    if request.method == "POST" and form.is_valid():
        found = consequences.of(form.instance)
        if _seen(request, found) and not model_config.asked(request):
            act = changes.create if instance is None else changes.update
            actor = audit.actor_of(request)
            try:
                if (page := _asked(request, actor, form, instance)) is not None:
                    return page
                made = act(actor, form.instance, form.related)
            except ValidationError as error:
                form.take(error)
            else:
                messages.success(request, f"{owned.one.capitalize()} {made} is stored.")
                if isinstance(made, Node) and instance is None:
                    return redirect("node", made.name)  # which says what it waits for, and the line to paste
                return redirect("configure", owned.kind)
    context = {
        "owned": owned,
        "form": form,
        "fieldsets": _groups(owned, form),
        "instance": instance,
        "name": name,
        "consequences": found,
        "seen": _digest(found),
        "may": rights.has(request.user, owned.right),
    }
    return render(request, "frontend/configure/form.html", context)


def _asked(request: HttpRequest, actor: Actor, form: OwnedForm, instance: Model | None) -> HttpResponse | None:
    """Returns the page that asks to confirm a change of a service's policy; None: it is none, or is confirmed."""
    row = form.instance
    if instance is None or not isinstance(row, Service) or not {"policy", "knobs"} & set(form.changed_data):
        return None
    title, back = f"Give {row} the policy {row.policy}?", request.get_full_path()
    return confirmations.asked(request, [row], lambda: changes.update(actor, row, form.related), title, back)


def _groups(owned: Owned, form: OwnedForm) -> list[tuple[str, list[BoundField]]]:
    found = [(group.title, [form[name] for name in group.fields if name in form.fields]) for group in owned.groups]
    return [(title, fields) for title, fields in found if fields]


def _seen(request: HttpRequest, found: Iterable[Consequence]) -> bool:
    """Says whether these warnings stood beside the form when it was sent."""
    found = tuple(found)
    if any(item.level == "error" for item in found):
        return True  # the change itself refuses, beside the field
    return not any(item.level == "warning" for item in found) or request.POST.get("seen") == _digest(found)


def _digest(found: Iterable[Consequence]) -> str:
    texts = "\n".join(item.text for item in found if item.level == "warning")
    return hashlib.sha256(texts.encode()).hexdigest()[:16] if texts else ""


@never_cache
@require_POST
@rights.needs(rights.Right.VIEW)
def show_consequences(request: HttpRequest, kind: str) -> HttpResponse:
    """Renders the consequences of storing the form as it stands: a fragment beside it."""
    owned = owned_or_404(kind)
    pk = request.GET.get("pk", "")
    instance = get_object_or_404(_theirs(request, owned), pk=pk) if pk.isdecimal() else None
    form = model_config.filled(request, owned, instance) or form_of(owned)(request.POST, instance=instance)
    form.is_valid()
    found = consequences.of(form.instance)
    return render(request, "frontend/configure/consequences.html", {"consequences": found, "seen": _digest(found)})


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(rights.Right.VIEW)
def delete(request: HttpRequest, kind: str, pk: int) -> HttpResponse:
    """Asks for the name where other rows would go with it."""
    owned = owned_or_404(kind)
    rights.require(request.user, owned.right)
    instance = get_object_or_404(_theirs(request, owned), pk=pk)
    found, name, wrong = consequences.of_deletion(instance), key_of(instance), ""
    if request.method == "POST":
        if found and request.POST.get("name", "").strip() != name:
            wrong = f"That is not its name: type {name}"
        else:
            try:
                changes.delete(audit.actor_of(request), instance)
            except ValidationError as error:
                wrong = " ".join(error.messages)
            else:
                messages.success(request, f"{owned.one.capitalize()} {name} is deleted.")
                return redirect("configure", kind)
    context = {"owned": owned, "instance": instance, "name": name, "consequences": found, "wrong": wrong}
    context["refused"] = any(item.level == "error" for item in found)
    return render(request, "frontend/configure/delete.html", context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(rights.Right.VIEW)
def bulk(request: HttpRequest, kind: str) -> HttpResponse:
    """Changes one field of all ticked rows, or of none; `?part=` only tries, and shows the consequences for each."""
    owned = owned_or_404(kind)
    rights.require(request.user, owned.right)
    given = request.POST if request.method == "POST" else request.GET
    ids = [int(pk) for pk in given.getlist("id") if pk.isdecimal()][:500]
    name = given.get("field", "")
    if name not in _bulk_fields(owned) or not ids:
        messages.error(request, "Tick some rows and choose a field first.")
        return redirect("configure", kind)
    items = list(_theirs(request, owned).filter(pk__in=ids))
    if not items:
        raise Http404("none of these rows is there")
    form = form_of(owned, (name,))(request.POST if request.method == "POST" else None, instance=items[0])
    actor, tried = audit.actor_of(request), list[Tried]()
    if request.method == "POST" and form.is_valid():
        for item in items:
            setattr(item, name, form.cleaned_data[name])
        tried = dry_run.of_several(items, lambda item: changes.update(actor, item))
        wanted = "part" not in request.GET and all(row.possible for row in tried)
        if wanted and _seen(request, [item for row in tried for item in row.consequences]):
            with transaction.atomic():
                for item in items:
                    changes.update(actor, item)
            messages.success(request, f"{label_of(name)} of {len(items)} {owned.title.lower()} is changed.")
            return redirect("configure", kind)
    context = {
        "owned": owned,
        "form": form,
        "items": items,
        "field": name,
        "tried": [row for row in tried if row.consequences],
        "refused": not all(row.possible for row in tried),
        "seen": _digest(item for row in tried for item in row.consequences),
    }
    part = "bulk_consequences" if "part" in request.GET else "bulk"
    return render(request, f"frontend/configure/{part}.html", context)
