"""DynamoLLM's Overhead Table (section IV-B): what each kind of change takes, measured values over published ones.

A value: `measured` returns a new one, and the mapping of numbers inside is JSON-able as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_WEIGHT = 0.3  # of a new measurement; the first one counts whole


def start_key(model: str, gpu: str, tp: int, *, warm: bool) -> str:
    """Returns the table's key of an instance's start, warm or cold."""
    return f"{'warm' if warm else 'cold'} start of {model} on {gpu}/TP{tp}"


def wake_key(model: str, gpu: str, tp: int) -> str:
    """Returns the table's key of waking from vLLM's level 1."""
    return f"waking of {model} on {gpu}/TP{tp}"


def reshard_key(model: str, gpu: str, source: Sequence[int], target: Sequence[int], *, in_place: bool = True) -> str:
    """Returns the table's key of a re-shard, in place or by the end of old instances and the start of new ones.

    The order of TP degrees in a layout does not count.
    """
    layouts = ("+".join(f"TP{tp}" for tp in sorted(layout)) for layout in (source, target))
    return f"{'re-shard' if in_place else 'restart'} of {model} on {gpu} from {' to '.join(layouts)}"


@dataclass(frozen=True, slots=True)
class OverheadTable:
    """Seconds by kind of change: an exponential mean of what was measured."""

    seconds: Mapping[str, float] = field(default_factory=dict)

    def get(self, key: str, published_s: float) -> float:
        return self.seconds.get(key, published_s)

    def measured(self, key: str, took_s: float) -> OverheadTable:
        """Raises ValueError when it took less than no time."""
        if took_s < 0.0:
            raise ValueError(f"{key} cannot take {took_s:g} s")
        before_s = self.seconds.get(key, took_s)
        return OverheadTable({**self.seconds, key: before_s + _WEIGHT * (took_s - before_s)})
