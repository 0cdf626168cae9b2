"""A person's own page: password, two-step sign-in, access tokens."""

from __future__ import annotations

import time
from typing import Any, cast

from allauth.account.authentication import get_authentication_records
from allauth.mfa.adapter import get_adapter
from allauth.mfa.base.forms import AuthenticateForm
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret, validate_totp_code
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render, resolve_url
from django.utils.safestring import mark_safe
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from pools.access import audit, people, rights
from pools.models import AccessToken, Site

from . import sign_in_limits
from .forms import PasswordForm, ProofForm, TokenForm, TwoStepForm, expiry
from .sign_in import MUST_CHANGE, PROVIDER

SECRET = "two_step_secret"  # in the session, until it is confirmed
FRESH_S = 300.0  # after a sign-in at the identity provider, which proves who sits there


@never_cache
@require_safe
def account(request: HttpRequest) -> HttpResponse:
    return _page(request)


@never_cache
@require_POST
@sensitive_post_parameters("current", "new", "again")
def password(request: HttpRequest) -> HttpResponse:
    user = _user(request)
    form = PasswordForm(request.POST)
    if not user.has_usable_password():
        messages.error(request, "Your password is your identity provider's: change it there.")
        return redirect("account")
    if form.is_valid() and _proven(request, form):
        try:
            people.change_password(audit.actor_of(request), user, form.cleaned_data["new"], field="new")
        except ValidationError as error:
            form.take(error)
    if not form.is_valid():
        return _page(request, password_form=form, status=400)
    update_session_auth_hash(request, user)
    request.session.pop(MUST_CHANGE, None)
    messages.success(request, "Your password is changed; where else you were signed in, you are no longer.")
    return redirect("account")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@sensitive_post_parameters("current", "code")
def two_step(request: HttpRequest) -> HttpResponse:
    """Shows the key as a picture and as text, takes a code that proves its arrival, then shows recovery codes once."""
    user = _user(request)
    if _has_two_step(user):
        messages.warning(request, "Two-step sign-in is on already.")
        return redirect("account")
    secret = request.session.get(SECRET)
    if request.method != "POST" or not secret:
        request.session[SECRET] = secret = generate_totp_secret()
        return _two_step_page(request, secret, TwoStepForm(user.has_usable_password()))
    form = TwoStepForm(user.has_usable_password(), request.POST)
    if form.is_valid() and _proven(request, form) and not validate_totp_code(secret, form.cleaned_data["code"]):
        form.add_error("code", "That is not the code of now. Look at your app, and at both clocks.")
    if not form.is_valid():
        return _two_step_page(request, secret, form, status=400)
    with transaction.atomic():
        TOTP.activate(user, secret)
        audit.record(audit.actor_of(request), "set up two-step sign-in", user)
    del request.session[SECRET]
    return _show_codes(request, user)


@never_cache
@require_POST
@sensitive_post_parameters("current")
def two_step_off(request: HttpRequest) -> HttpResponse:
    form = ProofForm(_user(request).has_usable_password(), request.POST)
    if form.is_valid() and _proven(request, form):
        people.reset_codes(audit.actor_of(request), _user(request))
        messages.success(request, "Two-step sign-in is off.")
        return redirect("account")
    return _page(request, off_form=form, status=400)


@never_cache
@require_POST
@sensitive_post_parameters("current")
def recovery_codes(request: HttpRequest) -> HttpResponse:
    """Makes new recovery codes; the old ones no longer count."""
    user = _user(request)
    form = ProofForm(user.has_usable_password(), request.POST)
    if not _has_two_step(user):
        return redirect("account")
    if not (form.is_valid() and _proven(request, form)):
        return _page(request, off_form=form, status=400)
    with transaction.atomic():
        audit.record(audit.actor_of(request), "make recovery codes", user)
        Authenticator.objects.filter(user=user, type=Authenticator.Type.RECOVERY_CODES).delete()
    return _show_codes(request, user)


@never_cache
@require_POST
@sensitive_post_parameters("current", "app_code")
def new_token(request: HttpRequest) -> HttpResponse:
    """Makes a token for who proves again that it is they: a session that somebody found open makes none."""
    user = _user(request)
    form = TokenForm(user, _has_two_step(user), request.POST)
    if form.is_valid() and _proven(request, form):
        given = form.cleaned_data
        try:
            token, secret = people.new_token(
                *(audit.actor_of(request), user, given["label"], given["rights"], given["sites"]),
                expiry(given["lifetime"]),
            )
        except ValidationError as error:
            form.take(error)
        else:
            use = f"Authorization: Bearer {secret}"
            return shown_once(request, f"Access token {token.label}", [("Token", secret), ("Header", use)], "account")
    return _page(request, token_form=form, status=400)


@require_POST
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    token = get_object_or_404(AccessToken, pk=token_id, user=_user(request))
    people.revoke_token(audit.actor_of(request), token)
    messages.success(request, f"{token} is revoked.")
    return redirect("account")


def shown_once(request: HttpRequest, title: str, secrets: list[tuple[str, str]], back: str) -> HttpResponse:
    """Shows a new secret once. It is in no session and no log: who leaves the page cannot see it again.

    `back` is an address, or a page's name.
    """
    return render(
        request, "frontend/people/secret.html", {"title": title, "secrets": secrets, "back": resolve_url(back)}
    )


def token_rows(tokens: Any) -> list[dict[str, Any]]:
    """Returns tokens as tables have them. Makes one query for the names of sites."""
    tokens = list(tokens)
    names = dict(Site.objects.filter(pk__in={pk for t in tokens for pk in t.site_ids}).values_list("pk", "name"))
    return [
        {"token": token, "sites": [names.get(pk, "a deleted site") for pk in token.site_ids] or ["all of theirs"]}
        for token in tokens
    ]


def _page(request: HttpRequest, status: int = 200, **forms: Any) -> HttpResponse:
    user = _user(request)
    grant = rights.grant_of(user)
    two_step = _has_two_step(user)
    context = {
        "role": people.role_of(user).label,
        "rights": [str(right) for right in rights.Right if rights.has(user, right)],
        "sites": None if grant.site_ids is None else list(rights.sites_of(user)),
        "has_password": user.has_usable_password(),
        "must_change": bool(request.session.get(MUST_CHANGE)),
        "two_step": two_step,
        "sign_in_again": None if user.has_usable_password() or _fresh(request) else _provider_name(),
        "oidc_id": PROVIDER,
        "tokens": token_rows(AccessToken.objects.filter(user=user)),
        "password_form": PasswordForm(),
        "token_form": TokenForm(user, two_step),
        "off_form": ProofForm(user.has_usable_password()),
    }
    return render(request, "frontend/people/account.html", context | forms, status=status)


def _two_step_page(request: HttpRequest, secret: str, form: TwoStepForm, status: int = 200) -> HttpResponse:
    adapter = get_adapter()
    svg = adapter.build_totp_svg(adapter.build_totp_url(_user(request), secret))
    picture = mark_safe(svg[svg.index("<svg") :])
    grouped = " ".join(secret[at : at + 4] for at in range(0, len(secret), 4))
    context = {"picture": picture, "secret": grouped, "form": form}
    return render(request, "frontend/people/two_step.html", context, status=status)


def _show_codes(request: HttpRequest, user: User) -> HttpResponse:
    codes = RecoveryCodes.activate(user)
    codes.mark_as_viewed()
    context = {"codes": codes.get_unused_codes()}
    return render(request, "frontend/people/codes.html", context)


def _proven(request: HttpRequest, form: ProofForm | PasswordForm) -> bool:
    """Says whether the typed password or code is the person's, else adds the error; each try counts as one to sign in.

    Where the form has neither the person's sign-in at the identity provider counts, while it is fresh.
    """
    field = next((name for name in ("app_code", "current") if name in form.fields), None)
    if field is None:
        if not (fresh := _fresh(request)):
            form.add_error(None, f"Sign in at {_provider_name()} again first: that was too long ago.")
        return fresh
    user, given = _user(request), form.cleaned_data[field]
    what, wrong = ("password", "That is not your password.") if field == "current" else ("code", "Incorrect code.")
    key = sign_in_limits.name_key(user.get_username(), "proof")
    try:
        with sign_in_limits.attempt(key, audit.client_address(request)):
            good: bool = (
                user.check_password(given)
                if field == "current"
                else AuthenticateForm({"code": given}, user=user).is_valid()
            )
            if not good:
                sign_in_limits.failed(key, what, user.get_username())
    except ValidationError as error:
        form.add_error(field, error)
        return False
    if not good:
        form.add_error(field, wrong)
    return good


def _fresh(request: HttpRequest) -> bool:
    """Says whether the person signed in at the identity provider within FRESH_S."""
    records = get_authentication_records(request, _user(request))
    at_s = [record["at"] for record in records if record["method"] == "socialaccount"]
    return bool(at_s) and time.time() - max(at_s) < FRESH_S


def _provider_name() -> str:
    return settings.ENV.oidc.name if settings.ENV.oidc else "your identity provider"


def _has_two_step(user: User) -> bool:
    return bool(Authenticator.objects.filter(user=user, type=Authenticator.Type.TOTP).exists())


def _user(request: HttpRequest) -> User:
    return cast(User, request.user)
