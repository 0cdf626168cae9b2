"""The progress of a run, from a `simulations` worker to who asked for the run."""

from __future__ import annotations

from typing import Any

from pools.wire.message_codec import Message


class SimulationUpdate(Message, frozen=True):
    """The progress of a run. The last one has `figures`, or `error` in words for the operator."""

    simulated_s: float = 0.0
    share: float | None = None  # done, 0 to 1; None: not known
    figures: dict[str, Any] | None = None
    error: str = ""

    @property
    def last(self) -> bool:
        return self.figures is not None or bool(self.error)
