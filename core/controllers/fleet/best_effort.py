"""Says how much of its demand a fleet that is too small may be planned for.

Without this the carbon epoch keeps the last plan, which may be one for a calm night. Better is a plan for as much of
the demand as the fleet carries. Where there is not even an instance for each class, as many classes as need be have
none of their own: their requests go to larger classes' instances, as routing has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from core.algorithms.fleet.fleet_problem import FleetProblem, most_rps, options
from core.types import CarbonObservation, PartitionOption

# A fleet too small for the demand is planned for these parts of the most that it might carry, the first that works out:
# whole workers and several classes leave some GPUs over.
_PARTS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


def with_fewer_classes(obs: CarbonObservation) -> Iterator[CarbonObservation]:
    """Yields the observation, and then with ever fewer classes, down to the largest one of each partition: the demand
    of the smaller ones is the next larger one's."""
    for less in range(max((len(own.classes) for own in obs.partitions), default=0)):
        yield replace(obs, partitions=tuple(_without_smallest(own, less) for own in obs.partitions))


def _without_smallest(partition: PartitionOption, count: int) -> PartitionOption:
    count = min(count, len(partition.classes) - 1)
    *smaller, own = partition.classes[: count + 1]
    rates_rps = zip(own.demand_rps, *(item.demand_rps for item in smaller), strict=True)
    together = replace(own, demand_rps=tuple(sum(rps) for rps in rates_rps))
    return replace(partition, classes=(together, *partition.classes[count + 1 :]))


def reduced(obs: CarbonObservation, problem: FleetProblem) -> Iterator[tuple[float, CarbonObservation]]:
    """Yields the observation with shares of its demand, from the most that might be carried down to none."""
    most = _most_share(problem)
    for part in _PARTS:
        yield most * part, _scaled(obs, most * part)


def _most_share(problem: FleetProblem) -> float:
    """No plan carries a larger share of the demand than this: of each class by itself, on all GPUs."""
    shares = []
    for partition in problem.partitions:
        own = replace(problem, partitions=(partition,))
        choices = options(own, partition)
        shares.append(
            min((most_rps(own, choices, name) / rps for name, rps in own.need_rps(partition).items()), default=0.0)
        )
    return min(1.0, max(shares, default=0.0))


def _scaled(obs: CarbonObservation, share: float) -> CarbonObservation:
    partitions = tuple(
        replace(
            partition,
            classes=tuple(
                replace(item, demand_rps=tuple(rps * share for rps in item.demand_rps)) for item in partition.classes
            ),
        )
        for partition in obs.partitions
    )
    return replace(obs, partitions=partitions)
