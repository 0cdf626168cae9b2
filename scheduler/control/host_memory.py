"""Says which engines end rather than sleep by `level`: their machine's memory has no room for their weights.

Agents of real nodes report how much is free, in which the weights of those that sleep already are not. Where none does,
as many sleep as like to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from django.db.models import Max, QuerySet

from core.algorithms.fleet.host_memory import with_one_more
from core.engine.engine_params import UnknownConfiguration
from core.engine.overheads import weight_bytes
from pools import wire
from pools.models import Instance, Service

_Desired = Instance.Desired


def ending(service: Service, agents: Mapping[str, wire.AgentState]) -> dict[int, str]:
    """Returns the engines that end when a service falls asleep by `level`, by key, and why in a sentence.

    They are its own, or those of others that have slept longest.
    """
    found: dict[int, str] = {}
    for node, agent in sorted(agents.items()):
        if agent.memory_free_bytes is not None:
            found.update(_ending(service, node, agent, agent.memory_free_bytes))
    return found


def _ending(service: Service, node: str, agent: wire.AgentState, free_bytes: int) -> Iterator[tuple[int, str]]:
    asleep = _engines(node, _Desired.SLEEPING).annotate(since=Max("gpu_holds__released_at")).order_by("since", "pk")
    there: dict[str, Instance] = {str(own.uid): own for own in asleep}
    kept = {uid: _bytes(own) for uid, own in there.items()}
    in_memory = {seen.uid for seen in agent.instances if seen.asleep}
    room_bytes = free_bytes + sum(size for uid, size in kept.items() if uid in in_memory)
    for own in _engines(node, _Desired.RUNNING).filter(pool__service=service).order_by("pk"):
        uid = str(own.uid)
        there[uid] = own
        before, kept = kept, with_one_more(kept, uid, _bytes(own), room_bytes)
        for gone in {*before, uid} - kept.keys():
            yield (
                there[gone].pk,
                f"The engine of {there[gone].pool.service.name} on {node} ends: {node} has room for "
                f"{room_bytes / 1e9:.0f} GB of weights of engines that sleep, and {service.name} has "
                f"{_bytes(own) / 1e9:.0f} GB.",
            )


def _engines(node: str, desired: str) -> QuerySet[Instance]:
    rows = Instance.objects.filter(desired=desired, node__name=node).exclude(state=Instance.State.STOPPED)
    return rows.select_related("model_card", "pool__service")


def _bytes(instance: Instance) -> float:
    """Returns the bytes of its weights; 0: nobody knows how large its model is."""
    try:
        return weight_bytes(instance.model_card.engine_model_name)
    except UnknownConfiguration:
        return 0.0
