"""Finds the request class that a request belongs to, by its prompt and (predicted or true) output length."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol


class ClassBounds(Protocol):
    """A cell of a partition. Lower bounds are inclusive, upper ones exclusive; None: no bound."""

    @property
    def name(self) -> str: ...

    @property
    def rank(self) -> int: ...

    @property
    def input_min(self) -> int: ...

    @property
    def input_max(self) -> int | None: ...

    @property
    def output_min(self) -> int: ...

    @property
    def output_max(self) -> int | None: ...


def classify(classes: Sequence[ClassBounds], prompt_tokens: int, output_tokens: int) -> str:
    """Returns the name of the class that contains both lengths.

    When none does (bounds that leave gaps), the smallest class whose upper bounds hold takes the request, and when it
    is longer than every class, the largest. Raises ValueError when there is no class at all.
    """
    if not classes:
        raise ValueError("a partition needs at least one class")
    smallest: ClassBounds | None = None
    largest = classes[0]
    for cell in classes:
        if cell.rank > largest.rank:
            largest = cell
        if not (_below(prompt_tokens, cell.input_max) and _below(output_tokens, cell.output_max)):
            continue
        if prompt_tokens >= cell.input_min and output_tokens >= cell.output_min:
            return cell.name
        if smallest is None or cell.rank < smallest.rank:
            smallest = cell
    return (smallest or largest).name


def _below(tokens: int, bound: int | None) -> bool:
    return bound is None or tokens < bound


class ClassGrid:
    """`classify` for many requests of one partition: two binary searches in place of a look at every class."""

    __slots__ = ("_inputs", "_names", "_outputs", "classes")

    def __init__(self, classes: Sequence[ClassBounds]) -> None:
        """Raises ValueError when there is no class at all."""
        self.classes = classes
        self._inputs = _borders((c.input_min, c.input_max) for c in classes)
        self._outputs = _borders((c.output_min, c.output_max) for c in classes)
        # Between two borders all lengths are of one class, so the class of the lower one is that of all.
        self._names = [
            [classify(classes, prompt, output) for output in (0, *self._outputs)] for prompt in (0, *self._inputs)
        ]

    def name(self, prompt_tokens: int, output_tokens: int) -> str:
        """Returns what `classify` says of these lengths."""
        return self._names[bisect_right(self._inputs, prompt_tokens)][bisect_right(self._outputs, output_tokens)]

    def outputs(self, prompt_tokens: int, output_tokens: int) -> tuple[int, int | None]:
        """Returns between which output lengths a prompt of this length stays in the class that `name` says.

        The lower one is of the class, the upper one is not; None: it has no end.
        """
        names = self._names[bisect_right(self._inputs, prompt_tokens)]
        low = high = bisect_right(self._outputs, output_tokens)
        name = names[low]
        while low > 0 and names[low - 1] == name:
            low -= 1
        while high < len(self._outputs) and names[high + 1] == name:
            high += 1
        return self._outputs[low - 1] if low else 0, self._outputs[high] if high < len(self._outputs) else None

    @property
    def output_borders(self) -> tuple[int, ...]:
        """Returns the longest output lengths below each border between classes, ascending: LengthOdds' borders."""
        return tuple(length - 1 for length in self._outputs if length > 1)

    def has_border(self, low: int, high: int) -> bool:
        """Says whether prompts of `low` and of `high` tokens lie on different sides of a border between classes."""
        return bisect_right(self._inputs, low) != bisect_right(self._inputs, high)


def _borders(bounds: Iterable[tuple[int, int | None]]) -> list[int]:
    """Returns the lengths at which a class begins or ends; where all begin is none."""
    return sorted({length for pair in bounds for length in pair if length})
