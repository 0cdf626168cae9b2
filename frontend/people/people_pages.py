"""The pages of administrators: people, and the keys of tenants and people."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from allauth.mfa.models import Authenticator
from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from pools.access import audit, people, rights
from pools.access.rights import Right
from pools.models import AccessToken, ApiKey, Membership, Tenant

from .account import shown_once, token_rows
from .forms import KeyForm, PersonForm, RoleForm, expiry
from .key_publishing import publish_to_gateways

PAGE = 50
SUGGESTED = 20


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(Right.ADMINISTER)
def people_list(request: HttpRequest) -> HttpResponse:
    form = PersonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        try:
            user, password = people.create(
                audit.actor_of(request), given["username"], given["role"], given["sites"], given["email"]
            )
        except ValidationError as error:
            form.take(error)
        else:
            title = f"{user.get_username()} can sign in"
            return shown_once(
                request, title, [("User name", user.get_username()), ("One-time password", password or "")], "people"
            )
    text = request.GET.get("q", "").strip()[:100]
    found = get_user_model().objects.order_by("-is_active", "username").prefetch_related("membership__sites")
    if text:
        found = found.filter(username__icontains=text)
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    two_step = set(
        Authenticator.objects.filter(
            user__in=[user.pk for user in page.object_list], type=Authenticator.Type.TOTP
        ).values_list("user_id", flat=True)
    )
    context = {
        "form": form,
        "page": page,
        "q": text,
        "keep": f"&{urlencode({'q': text})}" if text else "",
        "rows": [_row(user, user.pk in two_step) for user in page.object_list],
    }
    return render(request, "frontend/people/people.html", context, status=400 if form.errors else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(Right.ADMINISTER)
def person(request: HttpRequest, user_id: int) -> HttpResponse:
    """Shows one person: the role and its sites."""
    user = get_object_or_404(get_user_model(), pk=user_id)
    membership = Membership.objects.filter(user=user).prefetch_related("sites").first()
    initial = {
        "role": people.role_of(user),
        "sites": [site.name for site in membership.sites.all()] if membership is not None else [],
    }
    form = RoleForm(request.POST) if request.method == "POST" else RoleForm(initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            people.set_role(audit.actor_of(request), user, form.cleaned_data["role"], form.cleaned_data["sites"])
        except ValidationError as error:
            form.take(error)
        else:
            messages.success(request, f"{user} is {form.cleaned_data['role']} now.")
            return redirect("people")
    context = {
        "person": user,
        "row": _row(user, Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP).exists()),
        "form": form,
        "tokens": token_rows(AccessToken.objects.filter(user=user)),
    }
    return render(request, "frontend/people/person.html", context, status=400 if form.errors else 200)


@require_POST
@rights.needs(Right.ADMINISTER)
def person_active(request: HttpRequest, user_id: int) -> HttpResponse:
    user = get_object_or_404(get_user_model(), pk=user_id)
    active = request.POST.get("active") == "1"
    try:
        people.set_active(audit.actor_of(request), user, active)
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
    else:
        messages.success(request, f"{user} can sign in again." if active else f"{user} is blocked from now on.")
    return redirect("person", user_id)


@never_cache
@require_POST
@rights.needs(Right.ADMINISTER)
def person_password(request: HttpRequest, user_id: int) -> HttpResponse:
    user = get_object_or_404(get_user_model(), pk=user_id)
    password = people.reset_password(audit.actor_of(request), user)
    title = f"A one-time password for {user.get_username()}"
    return shown_once(request, title, [("One-time password", password)], "people")


@require_POST
@rights.needs(Right.ADMINISTER)
def person_two_step_off(request: HttpRequest, user_id: int) -> HttpResponse:
    user = get_object_or_404(get_user_model(), pk=user_id)
    if people.reset_codes(audit.actor_of(request), user):
        messages.success(request, f"{user} signs in by password alone now.")
    return redirect("person", user_id)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@rights.needs(Right.ADMINISTER)
def keys(request: HttpRequest) -> HttpResponse:
    form = KeyForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        given, actor = form.cleaned_data, audit.actor_of(request)
        try:
            key, secret = people.new_key(
                actor, given["tenant"], given["label"], expiry(given["lifetime"]), **form.may()
            )
        except ValidationError as error:
            form.take(error)
        else:
            publish_to_gateways()
            return shown_once(request, f"A key of {key.tenant}", [("API key", secret)], "keys")
    keys = ApiKey.objects.select_related("tenant").order_by("tenant__name", "-created_at")
    tokens = (
        AccessToken.objects.select_related("user").filter(revoked_at=None).order_by("user__username", "-created_at")
    )
    page = Paginator(keys, PAGE).get_page(request.GET.get("page"))
    tokens_page = Paginator(tokens, PAGE).get_page(request.GET.get("tokens"))
    context = {
        "form": form,
        "page": page,
        "tokens_page": tokens_page,
        "tokens": token_rows(tokens_page.object_list),
        "keep_keys": f"&page={page.number}#all-tokens",
        "keep_tokens": f"&tokens={tokens_page.number}",
    }
    return render(request, "frontend/people/keys.html", context, status=400 if form.errors else 200)


@never_cache
@require_safe
@rights.needs(Right.ADMINISTER)
def tenant_names(request: HttpRequest) -> HttpResponse:
    """Lists tenants that have in their name or label what is typed, as the options of an input."""
    text = request.GET.get("tenant", "").strip()[:100]
    found = Tenant.objects.filter(Q(name__icontains=text) | Q(label__icontains=text))
    return render(request, "frontend/people/tenant_names.html", {"tenants": found[:SUGGESTED]})


@require_POST
@rights.needs(Right.ADMINISTER)
def key_revoke(request: HttpRequest, key_id: int) -> HttpResponse:
    key = get_object_or_404(ApiKey.objects.select_related("tenant"), pk=key_id)
    if people.revoke_key(audit.actor_of(request), key):
        publish_to_gateways()
    messages.success(request, f"{key} is revoked; gateways hear of it within seconds.")
    return redirect("keys")


@require_POST
@rights.needs(Right.ADMINISTER)
def token_revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    token = get_object_or_404(AccessToken, pk=token_id)
    people.revoke_token(audit.actor_of(request), token)
    messages.success(request, f"{token} is revoked.")
    return redirect("keys")


def _row(user: User, two_step: bool) -> dict[str, Any]:
    membership = getattr(user, "membership", None)
    role = people.Role.ADMINISTRATOR if user.is_superuser else membership.role if membership else people.Role.VIEWER
    return {
        "user": user,
        "role": people.Role(role).label,
        "sites": [] if membership is None else list(membership.sites.all()),
        "two_step": two_step,
        "must_change": membership is not None and membership.must_change_password,
        "has_password": user.has_usable_password(),
    }
