"""Says what a person may know of: a role for some sites shows nothing of the others.

What is of one site (an instance, a pool's decision, a node's alert) is for those who may see the site. What is of a
whole service (its plans, the epochs that made them) names sites and their figures, and is for those who may see all of
the service's sites. Pauses, control modes and objectives name no site and are for everybody, as services are.
"""

from __future__ import annotations

from typing import Any, TypeVar

from django.core.exceptions import PermissionDenied
from django.db.models import F, Func, Model, Q, QuerySet, TextField, Value

from pools.access import rights
from pools.access.rights import AnyUser
from pools.models import Instance, Node, Pool, Service, Site
from scheduler.operations.configure.registry import Owned

Row = TypeVar("Row", bound=Model)
OF_TENANTS = "budget_"  # how alert rules begin whose subjects are a tenant and a month


def whole_services(user: AnyUser) -> QuerySet[Service]:
    """Returns the services all of whose sites this person may see."""
    if rights.everywhere(user):
        return Service.objects.all()
    others = Pool.objects.exclude(site__in=rights.sites_of(user).values("pk"))
    return Service.objects.exclude(pk__in=others.values("service"))


def of_services(user: AnyUser, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Leaves those epochs or approvals, which are of whole services, whose service this person may see whole."""
    return rows if rights.everywhere(user) else rows.filter(service__in=whole_services(user).values("pk"))


def trials(user: AnyUser, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Leaves those trials all of whose services, of which a trial by sites has two, this person may see whole."""
    if rights.everywhere(user):
        return rows
    own = whole_services(user).values("pk")
    return rows.filter(Q(other=None) | Q(other__in=own), service__in=own)


def decisions(user: AnyUser, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Leaves the decisions of pools at the person's sites, and of services that they may see whole."""
    if rights.everywhere(user):
        return rows
    of_service = Q(pool=None, instance_uid=None, service__in=whole_services(user).values("pk"))
    return rows.filter(of_service | Q(pool__site__in=rights.sites_of(user).values("pk")))


def overrides(user: AnyUser, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Leaves the overrides of the person's sites and their pools; a pinned partition names no site."""
    if rights.everywhere(user):
        return rows
    own = rights.sites_of(user).values("pk")
    return rows.filter(Q(pool__site__in=own) | Q(site__in=own) | Q(pool=None, site=None))


def for_sites(user: AnyUser, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Reports and their schedules, whose `asked.sites` are within the person's; none there are all of them."""
    if rights.everywhere(user):
        return rows
    own = list(rights.sites_of(user).values_list("name", flat=True))
    return rows.filter(asked__sites__contained_by=own).exclude(asked__sites=[])


def owned(user: AnyUser, kind: Owned) -> QuerySet[Any]:
    """Returns what an operator owns: rows of the person's sites, and of no single site."""
    rows = kind.at(rights.sites_of(user))
    return for_sites(user, rows) if kind.has("asked") else rows


def alerts(user: AnyUser, rows: QuerySet[Row]) -> QuerySet[Row]:
    """Leaves out the alerts and silences whose subject names another site, or a node, pool or instance of one.

    Subjects are a site or node, `site/feed`, `service/site/class`, `service/...`, `tenant/month`, or an instance's uid.
    What an epoch of a service failed for names sites too. Budgets are of all sites together.
    """
    if rights.everywhere(user):
        return rows
    own = rights.sites_of(user).values("pk")
    sites = Site.objects.exclude(pk__in=own).values("name")
    nodes = Node.objects.exclude(cluster__site__in=own)
    services = Service.objects.exclude(pk__in=whole_services(user).values("pk"))
    found: QuerySet[Any] = rows.alias(head=_part(1), second=_part(2))
    return found.exclude(
        Q(head__in=sites)
        | Q(second__in=sites)
        | Q(head__in=nodes.values("name"))
        | Q(head__in=Instance.objects.exclude(pool__site__in=own).annotate(_uid=_text("uid")).values("_uid"))
        | Q(rule="epoch_failed", head__in=services.values("name"))
        | Q(rule__startswith=OF_TENANTS)
    )


def require_subject(user: AnyUser, subject: str, rule: str = "") -> None:
    """Raises PermissionDenied unless all alerts of this subject are of the person's sites; empty: of everything.

    Args:
        rule: The subject is that of this rule. A tenant may be called as a site is.
    """
    if rights.everywhere(user):
        return
    if rule.startswith(OF_TENANTS):
        raise PermissionDenied("Your role is for some sites, and budgets are of all sites together.")
    own = rights.sites_of(user)
    head, *rest = subject.split("/")
    if own.filter(name=rest[0] if len(rest) == 2 else head).exists():
        return
    if Node.objects.filter(cluster__site__in=own, name=head).exists():
        return
    if Instance.objects.filter(pool__site__in=own).alias(_uid=_text("uid")).filter(_uid=head).exists():
        return
    words = f"'{subject}' is none of your sites" if subject else "this concerns all sites"
    raise PermissionDenied(f"Your role is for some sites, and {words}: name one of yours, or a node or pool there.")


def _part(number: int) -> Func:
    return Func(F("subject"), Value("/"), Value(number), function="split_part", output_field=TextField())


def _text(column: str) -> Func:
    return Func(F(column), template="(%(expressions)s)::text", output_field=TextField())
