"""Many models on one cluster, so that clocks can be low (mu-Serve, section 3.2).

In two steps: models go to groups of devices where they attain their latency objectives best, by a greedy choice that a
simulation guides (AlpaServe's, to which the paper refers), and the partitions of each group's models go to its devices
by like sensitivity (Algorithm 2), since a device's clock is set by the most sensitive partition on it.

Algorithm 2 as printed starts at an infinite best score and takes larger ones, so that it never finds a device; counts
partitions where its text counts devices; says nothing of empty devices; and appends to no device when none is left.
Here: the most similar device; the cap CT on distinct devices of a model, whose own stay open to it; and a model that
finds no place is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.algorithms.placement.operator_partitions import DEFAULT_THRESHOLD, OperatorGroup, weighted_mean


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """`max_devices`: CT, distinct devices of one model (a quality of communication, from measurements).

    `spread`: an empty device counts as that far in sensitivity, so that partitions less alike than this are kept apart
    while there are empty ones. 0 fills empty devices first.
    """

    max_devices: int
    spread: float = DEFAULT_THRESHOLD

    def __post_init__(self) -> None:
        if self.max_devices < 1 or self.spread < 0.0:
            raise ValueError("a placement needs max_devices from 1 and spread from 0")


@dataclass(frozen=True, slots=True)
class Bins:
    """Partitions of each device, and the models that found no place."""

    partitions: Mapping[str, tuple[OperatorGroup, ...]]
    unplaced: tuple[str, ...] = ()

    def devices_of(self, model: str) -> frozenset[str]:
        return frozenset(device for device, found in self.partitions.items() if any(p.model == model for p in found))


def place_partitions(
    memory_bytes: Mapping[str, float], models: Iterable[Sequence[OperatorGroup]], config: PlacementConfig
) -> Bins:
    """Algorithm 2: each model's partitions, least sensitive first, each to the device it is most like.

    Among equally similar devices the one with the least latency on it, then by name. A model is placed whole or not at
    all; where the order by sensitivity runs into the memory of its CT devices, it is tried once more largest first on
    the CT devices with the most room.
    """
    bins: dict[str, list[OperatorGroup]] = {device: [] for device in memory_bytes}
    unplaced = []
    for partitions in models:
        by_sensitivity = sorted(partitions, key=lambda p: p.sensitivity)
        by_size = sorted(partitions, key=lambda p: -p.memory_bytes)
        roomiest = sorted(bins, key=lambda d: (-_room(memory_bytes, bins, d), d))[: config.max_devices]
        found = _place(memory_bytes, bins, list(bins), by_sensitivity, config) or _place(
            memory_bytes, bins, roomiest, by_size, config
        )
        if found is None:
            unplaced.append(partitions[0].model)
        else:
            bins = found
    return Bins({device: tuple(found) for device, found in bins.items()}, tuple(unplaced))


def _place(
    memory_bytes: Mapping[str, float],
    bins: Mapping[str, Sequence[OperatorGroup]],
    offered: Sequence[str],
    partitions: Sequence[OperatorGroup],
    config: PlacementConfig,
) -> dict[str, list[OperatorGroup]] | None:
    """Places one model on top of what is placed; None when a partition finds no device."""
    found = {device: list(placed) for device, placed in bins.items()}
    own: set[str] = set()
    for partition in partitions:
        open_to_it = own if len(own) >= config.max_devices else offered
        fitting = [d for d in open_to_it if partition.memory_bytes <= _room(memory_bytes, found, d)]
        if not fitting:
            return None

        def order(device: str, partition: OperatorGroup = partition) -> tuple[float, float, str]:
            placed = found[device]
            distance = abs(partition.sensitivity - weighted_mean(placed)) if placed else config.spread
            return distance, sum(p.latency_s for p in placed), device

        best = min(fitting, key=order)
        found[best].append(partition)
        own.add(best)
    return found


def _room(memory_bytes: Mapping[str, float], bins: Mapping[str, Sequence[OperatorGroup]], device: str) -> float:
    return memory_bytes[device] * (1.0 + 1e-9) - sum(p.memory_bytes for p in bins[device])


# -- models to groups of devices -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """Groups of devices, and the models that each serves. A model in several groups is replicated."""

    groups: tuple[tuple[str, ...], ...]
    models: tuple[frozenset[str], ...]

    def with_model(self, model: str, group: int) -> GroupPlacement:
        models = list(self.models)
        models[group] |= {model}
        return GroupPlacement(self.groups, tuple(models))


@dataclass(frozen=True, slots=True)
class Selection:
    """The best placement found, its attainment in 0..1, and how often the simulation was asked."""

    placement: GroupPlacement
    attainment: float
    simulations: int


Attainment = Callable[[GroupPlacement], float]


def select_models(
    groups: Sequence[Sequence[str]],
    device_bytes: float,
    model_bytes: Mapping[str, float],
    attainment: Attainment,
) -> Selection:
    """Selects by AlpaServe's greedy: it adds again and again the (model, group) that lifts attainment most, while
    memory lasts.

    It goes on over steps that gain nothing, since a model may only help with another beside it, and returns the best
    placement on the way, with the fewest replicas. It ends early where every request is in time already.

    Args:
        groups: Devices of each group.
        device_bytes: Memory of each device that models may fill.
        model_bytes: Memory of one replica of each model.
        attainment: Simulates a placement: the share of requests served within their objective. The same placement must
            give the same answer.
    """
    now = GroupPlacement(tuple(tuple(group) for group in groups), tuple(frozenset[str]() for _ in groups))
    best, best_score, simulations = now, 0.0, 0
    while best_score < 1.0:
        options = [
            now.with_model(model, group)
            for model in sorted(model_bytes)
            for group in range(len(now.groups))
            if model not in now.models[group] and _fits(now, group, model, device_bytes, model_bytes)
        ]
        if not options:
            break
        scores = [attainment(option) for option in options]
        simulations += len(options)
        score = max(scores)
        now = options[scores.index(score)]
        if score > best_score:
            best, best_score = now, score
    return Selection(best, best_score, simulations)


def _fits(
    placement: GroupPlacement, group: int, model: str, device_bytes: float, model_bytes: Mapping[str, float]
) -> bool:
    needed_bytes = sum(model_bytes[name] for name in placement.models[group]) + model_bytes[model]
    return needed_bytes <= len(placement.groups[group]) * device_bytes * (1.0 + 1e-9)


def equal_groups(devices: Sequence[str]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Lists the ways to cut the devices into groups of one size, the last one perhaps smaller; sizes double, as in
    AlpaServe."""
    found = []
    size = 1
    while size < 2 * len(devices):
        size = min(size, len(devices))
        found.append(tuple(tuple(devices[k : k + size]) for k in range(0, len(devices), size)))
        size *= 2
    return tuple(dict.fromkeys(found))


def select_groups(
    devices: Sequence[str], device_bytes: float, model_bytes: Mapping[str, float], attainment: Attainment
) -> Selection:
    """Returns the best of `select_models` over all `equal_groups`; of equals the one with the smaller groups.

    Raises:
        ValueError: There are no devices.
    """
    if not devices:
        raise ValueError("a placement needs devices")
    found = [select_models(groups, device_bytes, model_bytes, attainment) for groups in equal_groups(devices)]
    best = max(found, key=lambda selection: selection.attainment)
    return Selection(best.placement, best.attainment, sum(selection.simulations for selection in found))


def place(
    selection: GroupPlacement,
    device_bytes: float,
    partitions: Callable[[str, int], Sequence[OperatorGroup]],
    config: PlacementConfig,
) -> tuple[Bins, ...]:
    """The second step for every group: `partitions(model, devices)` cuts a model for a group of so many devices."""
    return tuple(
        place_partitions(
            dict.fromkeys(group, device_bytes),
            [partitions(model, min(len(group), config.max_devices)) for model in sorted(models)],
            config,
        )
        for group, models in zip(selection.groups, selection.models, strict=True)
    )
