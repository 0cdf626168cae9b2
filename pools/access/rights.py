"""Says who may do what, and where: one rule for pages, REST and commands (docs/people.md).

A right comes from a person's role; it holds at the sites of the role, or everywhere where the role names none. Who came
with an access token has at most the token's rights and sites (`limit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase

from pools.models import Membership, Site

P = ParamSpec("P")
Role = Membership.Role
AnyUser = User | AnonymousUser  # as requests have them


class Right(StrEnum):
    VIEW = "view"  # see pages, figures and reports
    OPERATE = "operate"  # change what serves, and how
    FINANCE = "finance"  # make and sign reports, set prices and factors
    ADMINISTER = "administer"  # people, keys, all of the above


RIGHTS: Mapping[str, frozenset[Right]] = {
    Role.NONE: frozenset(),  # may sign in; an administrator or the identity provider gives a role
    Role.VIEWER: frozenset({Right.VIEW}),
    Role.OPERATOR: frozenset({Right.VIEW, Right.OPERATE}),
    Role.FINANCE: frozenset({Right.VIEW, Right.FINANCE}),
    Role.ADMINISTRATOR: frozenset(Right),
}
WORDS = {
    Right.VIEW: "to look at GreenServe",
    Right.OPERATE: "to operate the fleet",
    Right.FINANCE: "to work on reports, prices and factors",
    Right.ADMINISTER: "to administer people and keys",
}


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of somebody, and the sites that they are for. `site_ids` None: all sites."""

    role: str
    rights: frozenset[Right]
    site_ids: frozenset[int] | None = None

    def within(self, other: Grant) -> Grant:
        """Returns what both grants allow."""
        if self.site_ids is None or other.site_ids is None:
            sites = other.site_ids if self.site_ids is None else self.site_ids
        else:
            sites = self.site_ids & other.site_ids
        return Grant(self.role, self.rights & other.rights, sites)


NOTHING = Grant("", frozenset(), frozenset())


def grant_of(user: AnyUser | None) -> Grant:
    """Returns the role's rights and sites, within those of the token that the user came with.

    Asks the database once.
    """
    if user is None or not user.is_authenticated or not user.is_active:
        return NOTHING
    found: Grant | None = user.__dict__.get("_greenserve_grant")
    if found is None:
        found = user.__dict__["_greenserve_grant"] = _of_role(user)
    limits: Grant | None = user.__dict__.get("_greenserve_limits")
    return found if limits is None else found.within(limits)


def limit(user: User, rights: frozenset[Right], site_ids: frozenset[int] | None) -> None:
    """For the rest of this request the user has at most these: what an access token allows."""
    user.__dict__["_greenserve_limits"] = Grant("", rights, site_ids)


def has(user: AnyUser | None, right: Right, site: Site | None = None) -> bool:
    """Says whether the user has the right at the site, or without a site anywhere. Anonymous users have none.

    Only those whose role is for all sites administer.
    """
    grant = grant_of(user)
    if right not in grant.rights or (right is Right.ADMINISTER and grant.site_ids is not None):
        return False
    return grant.site_ids is None or (bool(grant.site_ids) if site is None else site.pk in grant.site_ids)


def require(user: AnyUser | None, right: Right, site: Site | None = None) -> None:
    """Raises PermissionDenied, whose words say what is missing and whom to ask."""
    if has(user, right, site):
        return
    grant = grant_of(user)
    role = f"Your role is {Role(grant.role).label.lower()}" if grant.role in RIGHTS else "You are not signed in"
    if user is not None and user.__dict__.get("_greenserve_limits"):
        role += ", and your token may allow less"
    if site is not None and right in grant.rights:
        role += f", and {site} is none of your sites"
    raise PermissionDenied(
        f"This needs the right {WORDS[right]} ({right}). {role}. Ask an administrator of GreenServe."
    )


def everywhere(user: AnyUser | None) -> bool:
    """Says whether the user's role is for all sites: what concerns no single site needs that to be changed."""
    return grant_of(user).site_ids is None


def site_ids(user: AnyUser | None) -> tuple[int, ...] | None:
    """Returns the keys of the sites that the user's role is for; None: all."""
    found = grant_of(user).site_ids
    return None if found is None else tuple(sorted(found))


def needs(
    right: Right,
) -> Callable[
    [Callable[Concatenate[HttpRequest, P], HttpResponseBase]], Callable[Concatenate[HttpRequest, P], HttpResponseBase]
]:
    """Makes a view that only those who have the right may call; others get the page 403 with words."""

    def decorate(
        view: Callable[Concatenate[HttpRequest, P], HttpResponseBase],
    ) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
        @wraps(view)
        def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            require(request.user, right)
            return view(request, *args, **kwargs)

        return guarded

    return decorate


def sites_of(user: AnyUser) -> QuerySet[Site]:
    """Returns the sites that this person may see and act on: all, unless the role or the token names some."""
    grant = grant_of(user)
    sites = Site.objects.all()
    if not grant.rights:
        return sites.none()
    return sites if grant.site_ids is None else sites.filter(pk__in=grant.site_ids)


def _of_role(user: User) -> Grant:
    if user.is_superuser:
        return Grant(Role.ADMINISTRATOR, RIGHTS[Role.ADMINISTRATOR])
    found = list(Membership.objects.filter(user_id=user.pk).values_list("role", "membershipsite__site_id"))
    role = found[0][0] if found else Role.VIEWER
    site_ids = frozenset(site_id for _, site_id in found if site_id is not None)
    return Grant(role, RIGHTS[role], site_ids or None)
