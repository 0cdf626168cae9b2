"""Authentication of the REST API by a person's access token, `Authorization: Bearer gs_...` (docs/people.md)."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from pools.access import people, rights
from pools.models import AccessToken


class TokenAuthentication(BaseAuthentication):
    """`request.user` is the token's person, limited to the token's rights and sites; `request.auth` is the token."""

    def authenticate(self, request: Request) -> tuple[User, AccessToken] | None:
        words = get_authorization_header(request).split()
        if not words or words[0].lower() != b"bearer":
            return None  # another way may know them
        try:
            (secret,) = (word.decode("ascii") for word in words[1:])
        except ValueError:  # none, several, or no ASCII
            raise AuthenticationFailed("Send the token as 'Authorization: Bearer gs_...'.") from None
        token = people.find_token(secret, timezone.now())
        if token is None:
            raise AuthenticationFailed("This token is not known, or it has expired or was revoked.")
        site_ids = frozenset(token.site_ids) or None
        rights.limit(token.user, frozenset(rights.Right(right) for right in token.rights), site_ids)
        return token.user, token

    def authenticate_header(self, request: Any) -> str:
        """Makes the answer a 401 that says what to come with."""
        return 'Bearer realm="GreenServe"'


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The scheme as the OpenAPI document names it."""

    target_class = "frontend.api.rest.authentication.TokenAuthentication"
    name = "accessToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A person's access token, gs_..."}
