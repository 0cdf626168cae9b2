"""Getting in: a password, for those who set it up a second step, or the organisation's own sign-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import requests
from allauth.account.internal.flows.login import perform_password_login
from allauth.account.models import Login
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.base.views import AuthenticateView
from allauth.socialaccount.providers.openid_connect import views as openid
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import authenticate, get_user_model
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache

from pools.access import audit, rights
from pools.models import Membership

from . import session_limits, sign_in_limits

MUST_CHANGE = "must_change_password"  # in the session
FREE = {"account", "account-password", "login", "logout", "time-zone"}  # for who sees their own account alone
CHOOSE = "choose a password first, on your account's page"
NO_ROLE = "You are signed in, and have no role in GreenServe yet. Ask an administrator of GreenServe for one."


class SignInForm(AuthenticationForm):
    """Django's, but each try is counted; the words of a refusal are the same whoever exists."""

    def clean(self) -> dict[str, Any]:
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if name and password:
            key = sign_in_limits.name_key(name)
            assert self.request is not None
            with sign_in_limits.attempt(key, audit.client_address(self.request)):
                self.user_cache = authenticate(self.request, username=name, password=password)
                if self.user_cache is None:
                    sign_in_limits.failed(key, "password", _known(name))
            if self.user_cache is None:
                raise self.get_invalid_login_error()
            self.confirm_login_allowed(self.user_cache)
        return self.cleaned_data


class SignInView(LoginView):
    """The password is the first stage; allauth's next ones follow."""

    template_name = "frontend/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        user = form.get_user()
        login = Login(user=user, redirect_url=self.get_success_url())
        try:
            return cast(HttpResponse, perform_password_login(self.request, {"username": user.get_username()}, login))
        except ImmediateHttpResponse as error:
            return cast(HttpResponse, error.response)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        oidc = settings.ENV.oidc
        ended = self.request.session.get(session_limits.ENDED)
        more = {"oidc": oidc.name if oidc else None, "oidc_id": PROVIDER, "ended": ended}
        return super().get_context_data(**kwargs) | more


class CodeView(AuthenticateView):
    """The second step: a code of the person's app, or one of the recovery codes."""

    template_name = "frontend/people/code.html"
    form: Any
    auth_form: Any

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        name = self.stage.login.user.get_username()
        key = sign_in_limits.name_key(name, "code")
        try:
            with sign_in_limits.attempt(key, audit.client_address(request)):
                if good := self.form.is_valid():
                    self.form.save()
                else:
                    sign_in_limits.failed(key, "code", name)
        except ValidationError as error:
            self.form = self.auth_form = self.get_form_class()(user=self.stage.login.user)
            context = self.get_context_data() | {"throttled": error.messages}
            return cast(HttpResponse, self.render_to_response(context))
        return cast(HttpResponse, self.stage.exit() if good else self.form_invalid(self.form))


class SignOutView(LogoutView):
    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated:
            audit.note(audit.actor_of(request), "sign-out", sign_in_limits.KIND, label=request.user.get_username())
        return super().post(request, *args, **kwargs)


PROVIDER = "sso"


@login_not_required
@never_cache
def oidc_start(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    return _oidc(openid.login, request, provider_id)


@login_not_required
@never_cache
def oidc_callback(request: HttpRequest, provider_id: str) -> HttpResponseBase:
    return _oidc(openid.callback, request, provider_id)


def _oidc(view: Callable[..., HttpResponseBase], request: HttpRequest, provider_id: str) -> HttpResponseBase:
    if settings.ENV.oidc is None or provider_id != PROVIDER:
        raise Http404("no such provider")
    try:
        return view(request, provider_id)
    except (requests.RequestException, KeyError, ValueError):  # silent, or what it said is no configuration
        messages.error(request, f"{settings.ENV.oidc.name} does not answer as it should. Try again, or use a password.")
        return redirect("login")


def _known(name: str) -> str:
    """The name, where there is somebody of that name: what else was typed may be a password, and is not kept."""
    found = get_user_model().objects.filter(username=name).values_list("username", flat=True).first()
    return str(found) if found is not None else ""


def must_change(user: User) -> bool:
    return Membership.objects.filter(user_id=user.pk, must_change_password=True).exists()


class AccountFirstMiddleware:
    """Who came with a one-time password, or has no role yet, sees their own account and nothing else."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: object, args: object, kwargs: object) -> HttpResponse | None:
        match, user = request.resolver_match, request.user
        if match is not None and match.url_name in FREE:
            return None
        if request.session.get(MUST_CHANGE):
            words = CHOOSE
        elif (
            user.is_authenticated and getattr(view, "login_required", True) and not rights.has(user, rights.Right.VIEW)
        ):
            words = NO_ROLE
        else:
            return None
        if match is not None and match.route.startswith(("api/", "v1/")):
            return HttpResponse(f"{words}\n", status=403)
        if words == CHOOSE:
            return redirect("account")
        raise PermissionDenied(words)
