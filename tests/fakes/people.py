"""People with roles, for tests."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User

from pools.models import Membership, Site

PASSWORD = "correct horse battery staple"
ROLES = ("viewer", "operator", "finance", "administrator")


def person(role: str, name: str = "", sites: Iterable[Site] = ()) -> User:
    """Somebody with that role, at all sites or some; the name is the role's unless given."""
    user = get_user_model().objects.create_user(name or role, password=PASSWORD)
    membership = Membership.objects.create(user=user, role=role)
    membership.sites.set(sites)
    return user
