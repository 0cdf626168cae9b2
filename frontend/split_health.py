"""Services whose policy splits requests, and whose engines cannot serve one together: they serve all of them whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pools import kv_connectors, wire
from pools.models import Pool, Service

REMEDY = kv_connectors.REMEDY[0].upper() + kv_connectors.REMEDY[1:]


def splitting_pools(services: Iterable[Service]) -> dict[int, tuple[str, str]]:
    """Returns service and request class of each pool whose service splits requests. Makes one query at most."""
    names = {own.pk: own.name for own in services if own.policy_knobs().split != "none"}
    if not names:
        return {}
    pools = Pool.objects.filter(service__in=names).values_list("pk", "service", "request_class__name")
    return {pk: (names[service], request_class) for pk, service, request_class in pools}


def judge(pools: Mapping[int, tuple[str, str]], agents: Iterable[wire.AgentState]) -> dict[str, str]:
    """Returns by service why requests of it are not split. `pools`: as of `splitting_pools`."""
    connectors: dict[tuple[str, str], list[str]] = defaultdict(list)
    for instance in (instance for agent in agents for instance in agent.instances):
        if instance.state == "ready" and instance.pool_id in pools:
            connectors[pools[instance.pool_id]].append(instance.kv_connector)
    found = [(service, kv_connectors.hindrance(own)) for (service, _), own in sorted(connectors.items())]
    return {service: why for service, why in found if why}
