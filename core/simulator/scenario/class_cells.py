"""Request classes, and the cells that all partitions of a service cut its requests into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.policy.request_classes import classify
from core.simulator.kernel.objectives import Slo
from core.types import Limits, Mode, ModeProfile

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """A request class: a range of lengths (lower bounds inclusive, upper ones exclusive), and its objectives.

    `thresholds`: limits that no request is judged by, and that policies with `class_limits` keep all the same; clocks
    act at them where they are the tighter ones.
    `profiles`: what modes do for the class, as measured or published elsewhere.
    """

    name: str
    rank: int
    input_min: int = 0
    input_max: int | None = None
    output_min: int = 0
    output_max: int | None = None
    slo: Slo = field(default_factory=Slo)
    thresholds: Limits = field(default_factory=Limits)
    profiles: Mapping[Mode, ModeProfile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Partition:
    """One way to cut requests into classes."""

    name: str
    classes: tuple[ClassSpec, ...]


@dataclass(frozen=True, slots=True)
class Cells:
    """The rectangles that the bounds of all partitions make of (prompt, output) lengths.

    Cell p x (outputs + 1) + o has prompts from `inputs[p-1]` up to, but not with, `inputs[p]`, and outputs likewise.
    Every class of every partition is a union of cells.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, partitions: Sequence[Partition]) -> Cells:
        classes = [c for partition in partitions for c in partition.classes]
        inputs = {bound for c in classes for bound in (c.input_min, c.input_max) if bound is not None and bound > 1}
        outputs = {bound for c in classes for bound in (c.output_min, c.output_max) if bound is not None and bound > 1}
        return cls(tuple(sorted(inputs)), tuple(sorted(outputs)))

    def __len__(self) -> int:
        return (len(self.inputs) + 1) * (len(self.outputs) + 1)

    def of_lengths(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        """Returns the cell of each request."""
        row = np.searchsorted(np.array(self.inputs, np.int64), prompt_tokens, side="right")
        column = np.searchsorted(np.array(self.outputs, np.int64), output_tokens, side="right")
        found: Ints = row * (len(self.outputs) + 1) + column
        return found

    def classes(self, partition: Partition) -> tuple[int, ...]:
        """For each cell the class it falls in, as `request_classes.classify` says: also where no class contains it."""
        index = {c.name: k for k, c in enumerate(partition.classes)}
        return tuple(
            index[classify(partition.classes, prompt, output)]
            for prompt in (1, *self.inputs)
            for output in (1, *self.outputs)
        )

    def name(self, cell: int) -> str:
        """Returns a name like `p256-1024 o100-`."""
        row, column = divmod(cell, len(self.outputs) + 1)
        return f"p{_range(self.inputs, row)} o{_range(self.outputs, column)}"


def _range(bounds: tuple[int, ...], place: int) -> str:
    low = bounds[place - 1] if place else 1
    return f"{low}-{bounds[place]}" if place < len(bounds) else f"{low}-"
