"""What we want otherwise than allauth: nobody signs up, sign-ins are recorded, secrets encrypted, groups are roles."""

from __future__ import annotations

import base64
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.crypto import salted_hmac

from pools.access import audit, people
from pools.models import Membership

from . import sign_in, sign_in_limits

EVERYBODY = "*"  # in the place of a group, in GREENSERVE_OIDC_GROUPS


class AccountAdapter(DefaultAccountAdapter):
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        return audit.client_address(request) or ""

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """The pages say themselves what they did."""

    def respond_user_inactive(self, request: HttpRequest, user: User) -> HttpResponse:
        messages.error(request, "This account is not in use. Ask an administrator of GreenServe.")
        return redirect("login")

    def post_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse:
        actor = audit.Actor(user, channel="page")
        name = user.get_username()
        audit.note(actor, sign_in_limits.KIND, sign_in_limits.KIND, sign_in_limits.name_key(name), name)
        if sign_in.must_change(user):
            request.session[sign_in.MUST_CHANGE] = True
        response: HttpResponse = super().post_login(request, user, **kwargs)
        return response


class MfaAdapter(DefaultMFAAdapter):
    """Keys of authenticator apps are encrypted with the installation's own (GREENSERVE_SECRET_KEY)."""

    def encrypt(self, text: str) -> str:
        return _fernet().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        try:
            return _fernet().decrypt(encrypted_text.encode()).decode()
        except InvalidToken:
            raise ValidationError(
                "The installation's secret key was changed: ask an administrator to reset your two-step sign-in."
            ) from None

    def get_totp_label(self, user: User) -> str:
        return str(user.get_username())


def _fernet() -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    digests = [salted_hmac("frontend.people.mfa", "", secret=key, algorithm="sha256").digest() for key in keys]
    return MultiFernet([Fernet(base64.urlsafe_b64encode(digest)) for digest in digests])


class SocialAdapter(DefaultSocialAccountAdapter):
    """People of an identity provider. They are known by its subject, never matched with people here by name or mail."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return True

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        if sociallogin.is_existing:
            self._take_role(sociallogin)

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        user: User = super().save_user(request, sociallogin, form)
        Membership.objects.create(user=user, role=Membership.Role.NONE)
        audit.record(audit.Actor(channel="system"), "create", user, None, people.shown(user))
        self._take_role(sociallogin)
        return user

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> None:
        """Sends the person back to the sign-in page with the error, in the place of allauth's own page."""
        name = settings.ENV.oidc.name if settings.ENV.oidc else "The provider"
        messages.error(request, f"{name} did not let you in. Try again, or ask who runs it.")
        raise ImmediateHttpResponse(redirect("login"))

    def _take_role(self, sociallogin: SocialLogin) -> None:
        """Where groups are mapped to roles, what the provider says now is the role; in none of them there is none."""
        provider = settings.ENV.oidc
        if provider is None or not provider.roles:
            return
        role = role_of(provider, sociallogin.account.extra_data)
        user = sociallogin.user
        if people.role_of(user) == role:
            return
        try:
            sites = () if role == Membership.Role.ADMINISTRATOR else user.membership.sites.all()
            people.set_role(audit.Actor(channel="system"), user, role, sites)
        except ValidationError:  # the last administrator stays one, whatever the provider says
            return


def role_of(provider: Any, claims: dict[str, Any]) -> str:
    """Returns the highest role that one of the person's groups is mapped to; none where no group is."""
    groups = {EVERYBODY}
    for part in (claims, claims.get("userinfo") or {}, claims.get("id_token") or {}):
        value = part.get(provider.groups_claim) or ()
        groups |= {value} if isinstance(value, str) else {str(group) for group in value}
    found = {role for group, role in provider.roles.items() if group in groups}
    ladder = list(Membership.Role.values)  # the last is the most
    return max(found, key=ladder.index, default=str(Membership.Role.NONE))
