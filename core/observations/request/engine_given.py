"""Says what plans may count on in engines that run."""

from __future__ import annotations

from collections.abc import Iterable

from core.ports import EngineLimits


def chunk_in_force(wanted: EngineLimits, reported: Iterable[EngineLimits | None]) -> int:
    """Returns the most tokens of one prompt that engines take into an iteration; 0: as many as there is room for.

    An engine that cannot change while it runs keeps the chunk of its start, so a plan counts on the largest of all.

    Args:
        wanted: The limits that the policy has engines keep: without any, those that the first ones start with.
        reported: The limits in force in the service's engines, by their agents. None: nobody can say, so it is vLLM's
            own, which is all there is room for.
    """
    chunks = [0 if limits is None else limits.chunk_tokens for limits in reported] or [wanted.chunk_tokens]
    return 0 if 0 in chunks else max(chunks)
