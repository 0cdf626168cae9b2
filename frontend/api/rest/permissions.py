"""Permissions over REST: as on the pages (`rights`), by method, and at the sites that the person's role is for."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from pools.access import rights
from pools.access.rights import AnyUser, Right
from pools.models import Site


class Allowed(BasePermission):
    """Reading needs the view's `reads`, all else its `writes`. Raises PermissionDenied with what is missing."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.user is None or not request.user.is_authenticated:
            return False
        rights.require(request.user, right_of(view, str(request.method)))
        return True


def right_of(view: Any, method: str) -> Right:
    found: Right = view.reads if method in SAFE_METHODS else view.writes
    return found


def within(user: AnyUser, rows: QuerySet[Any], site_path: str | None) -> QuerySet[Any]:
    """Returns the rows at this person's sites. `site_path`: the lookup from a row to its site; None: rows have none."""
    if site_path is None or rights.everywhere(user):
        return rows
    sites = rights.sites_of(user).values("pk")
    return rows.filter(Q(**{f"{site_path}__in": sites}))


def require_at(user: AnyUser, right: Right, site: Site | None) -> None:
    """Raises PermissionDenied unless the user has the right there; without a site: at all sites."""
    if site is not None:
        rights.require(user, right, site)
        return
    rights.require(user, right)
    if not rights.everywhere(user):
        raise PermissionDenied("This concerns all sites, and your role is for some only; ask an administrator.")
