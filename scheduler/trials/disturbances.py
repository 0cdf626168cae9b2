"""Says why blocks of a trial do not count: unsettled, late, paused, overridden, or with silent meters. Four queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models import Max, Q

from pools.models import Node, Site
from scheduler.models import LoopPause, Override, Trial, TrialBlock
from telemetry.models import Alert, Settlement

from .block_figures import counted_from

LATE_SWITCH = timedelta(minutes=5)  # beat asks each 30 s; more late than that, the block is not the policy's


SitesOf = Mapping[int, Sequence[Site]]  # by service


def left_out(trial: Trial, blocks: Sequence[TrialBlock], sites: SitesOf) -> list[str]:
    """Returns why each block does not count; empty: it does.

    Args:
        sites: Those of each of the trial's services.
    """
    if not blocks:
        return []
    found = _Disturbances(trial, sites, blocks)
    return [found.why(block) for block in blocks]


class _Disturbances:
    """What may have disturbed any of the blocks, read at once for all of them."""

    def __init__(self, trial: Trial, sites: SitesOf, blocks: Sequence[TrialBlock]) -> None:
        self._trial, self._sites = trial, sites
        every = {site.pk for own in sites.values() for site in own}
        first, last = min(counted_from(trial, block) for block in blocks), max(block.ends_at for block in blocks)
        ends = Settlement.objects.filter(site__in=every, end_at__gte=first).values_list("site").annotate(Max("end_at"))
        self._settled_until = dict(ends)
        begun = Q(created_at__lt=last) & (Q(ended_at=None) | Q(ended_at__gt=first))
        lasting = Q(expires_at=None) | Q(expires_at__gt=first)
        self._pauses = list(LoopPause.objects.filter(begun, lasting, service__in=trial.services))
        own = Q(service__in=trial.services) | Q(site__in=every)
        related = ("service", "site", "pool__site", "pool__service", "pool__request_class")
        self._overrides = list(Override.objects.filter(begun & own, expires_at__gt=first).select_related(*related))
        self._site_of = dict(Node.objects.filter(cluster__site__in=every).values_list("name", "cluster__site"))
        silent = Alert.objects.filter(rule="node_silent", since__lt=last, last_seen_at__gte=first)
        self._silent = [alert for alert in silent if alert.subject in self._site_of]

    def why(self, block: TrialBlock) -> str:
        start, end, service = counted_from(self._trial, block), block.ends_at, block.service_id
        own = {site.pk for site in self._sites[service]}
        if block.switched_at is None or block.switched_at - block.starts_at > LATE_SWITCH:
            return "its policy came late"
        for site in self._sites[service]:
            until = self._settled_until.get(site.pk)
            if until is None or until < end:
                return f"provisional: {site} is not settled until its end"
        for pause in self._pauses:
            if pause.service_id == service and pause.created_at < end and _lasts_beyond(pause, start):
                return f"the {pause.loop} loop was paused: {pause.reason}"
        for override in self._overrides:
            its = override.service_id == service or override.site_id in own
            if its and override.created_at < end and _lasts_beyond(override, start):
                return f"{override} was overridden: {override.reason}"
        for alert in self._silent:
            # An alert stays open for some time after the node is heard again: it was silent until it was last seen so.
            if self._site_of[alert.subject] in own and alert.since < end and alert.last_seen_at >= start:
                return f"the meters of {alert.subject} were silent"
        return ""


def _lasts_beyond(item: LoopPause | Override, at: datetime) -> bool:
    return all(end is None or end > at for end in (item.ended_at, item.expires_at))
