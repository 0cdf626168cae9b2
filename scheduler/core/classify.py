"""Which request class a request belongs to, by its prompt and (predicted or true) output length."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Name of the class that contains both lengths.

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
