"""Says whose weights a machine's memory has room for while their engines sleep."""

from __future__ import annotations

from collections.abc import Mapping


def with_one_more(kept: Mapping[str, float], name: str, weights_bytes: float, room_bytes: float) -> dict[str, float]:
    """Returns the weights that stay once one more engine sleeps, in bytes by name: those that have slept longest first.

    It takes the place of those that have slept longest. One that is larger than all the room is not kept, and nobody
    gives way to it.

    Args:
        kept: Those that sleep, in the order in which they fell asleep.
        room_bytes: What there is for all of them together.
    """
    found = {other: size for other, size in kept.items() if other != name}
    if weights_bytes > room_bytes:
        return found
    while sum(found.values()) + weights_bytes > room_bytes:
        del found[next(iter(found))]
    return {**found, name: weights_bytes}
