"""Charts as values, for whatever draws them: the dashboard's figures, the pages of lab and profiler, documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Okabe and Ito's colour-blind safe palette. Each site has its place in it, everywhere; other series take the rest.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")


@dataclass(frozen=True, slots=True)
class Bar:
    """`half`: of the width of its interval; None: it has none."""

    label: str
    value: float
    half: float | None = None


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars that lie below each other.

    `about`: what they are, with the unit. `bound`: a value that none can beat, and its name.
    """

    about: str
    bars: tuple[Bar, ...]
    title: str = ""
    bound: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A point for each `x`; None: not known. `colour`: its place in `COLOURS`. Without a name it is in no legend."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class LinePanel:
    """One value axis, from 0. `about`: what it shows, with the unit."""

    about: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class LinePanels:
    """Panels above each other, on one axis of `x_about`. `doubling`: each step on that axis is twice the one before.

    `source`: where the values come from. `marked`: each point is measured by itself, and has a mark.
    """

    title: str
    source: str
    x_about: str
    panels: tuple[LinePanel, ...]
    doubling: bool = False
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """A part of each bar; None: not known. `colour`: its place in `COLOURS`. `light`: what of it is drawn lighter."""

    name: str
    colour: int
    values: Sequence[float | None]
    light: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class StackedBars:
    """A bar for each of `dates` (ISO), from zero. `light`: what the lighter parts of stacks are."""

    title: str
    unit: str
    dates: Sequence[str]
    stacks: tuple[Stack, ...]
    light: str = ""
