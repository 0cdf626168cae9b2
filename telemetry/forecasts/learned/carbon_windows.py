"""Cuts the hours of several grids into what the network of `carbon_gru` reads: past days, and hours ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.predictors.carbon_features import (
    DAY,
    DAYS_BACK,
    LEADS,
    MEMORY,
    WEATHER,
    YEAR_DAYS,
    Floats,
    Grid,
    Whole,
    features,
    known_mean,
    logs,
    unrest,
)

BEFORE, AHEAD = MEMORY // DAY, LEADS // DAY  # days
HEAD_EXTRA = 6  # columns beside `features`: two harmonics of the hour, weekend, unrest
FURTHEST = 5.0  # standard deviations that an input may lie off
_WEEKEND = (2, 3)  # days since the epoch, a Thursday, in sevens

Single = NDArray[np.float32]


def step_columns(weather: bool) -> int:
    """Counts the numbers of a day: values and whether they are known, weather, year, weekend, when it begins."""
    return 2 * DAY + 5 + (len(WEATHER) if weather else 0)


@dataclass(frozen=True, slots=True)
class Aligned:
    """Grids over the same hours, from `first_hour` on; NaN where a grid has none. Weather reaches LEADS further."""

    first_hour: int
    grids: tuple[Grid, ...]

    @classmethod
    def of(cls, grids: Mapping[str, Grid], weather: bool, until_hour: int = 0) -> Aligned:
        """Returns all of them, up to `until_hour` at least; with weather, unknown where a grid has none, or without."""
        first = min(grid.first_hour for grid in grids.values())
        size = max(until_hour, *(grid.first_hour + grid.carbon.size for grid in grids.values())) - first
        return cls(first, tuple(_padded(grid, first, size, weather) for grid in grids.values()))

    @property
    def size(self) -> int:
        return self.grids[0].carbon.size


def _padded(grid: Grid, first: int, size: int, weather: bool) -> Grid:
    begin = grid.first_hour - first
    carbon = np.full(size, np.nan)
    carbon[begin : begin + grid.carbon.size] = grid.carbon
    if not weather:
        return Grid(first, carbon)
    sky = np.full((size + LEADS, len(WEATHER)), np.nan)
    if grid.weather is not None:
        known = grid.weather[: sky.shape[0] - begin]
        sky[begin : begin + len(known)] = known
    return Grid(first, carbon, sky)


@dataclass(frozen=True, slots=True)
class Windows:
    """Holds what is known at some origins, counted in hours from the first of the grids; arrays of single precision.

    `values` (n, grids, BEFORE, DAY): logarithms less those of the same hour of the last days, NaN where unknown;
    `sky` (n, grids, BEFORE + AHEAD, 5): daily means of the weather against those of the window, or None;
    `clock` (n, BEFORE + AHEAD, 5); `rows` (n, grids, LEADS, columns) as `features` gives them;
    `restless` (n, grids); `reference` and `extra` (n, grids, LEADS): what is added to, and what was to be added.
    """

    values: Single
    sky: Single | None
    clock: Single
    rows: Single
    restless: Single
    reference: Floats
    extra: Floats

    @classmethod
    def of(cls, aligned: Aligned, origins: Whole) -> Windows:
        described = [_described(grid, origins) for grid in aligned.grids]
        skies = [_sky(grid.weather, origins) for grid in aligned.grids if grid.weather is not None]
        rows, reference, extra = (np.stack(part, axis=1) for part in zip(*described, strict=True))
        return cls(
            values=np.stack([_values(grid, origins) for grid in aligned.grids], axis=1).astype(np.float32),
            sky=np.stack(skies, axis=1).astype(np.float32) if skies else None,
            clock=_clock(aligned.first_hour + origins).astype(np.float32),
            rows=rows,
            restless=np.stack([unrest(grid, origins) for grid in aligned.grids], axis=1).astype(np.float32),
            reference=reference,
            extra=extra,
        )

    def days(self, rows: Whole, spread: Single) -> Single:
        """Returns (rows, BEFORE + AHEAD, grids, columns) of what the GRU reads; unknown counts 0."""
        values = self.values[rows] / spread[None, :, None, None]
        known = ~np.isnan(values)
        past = np.concatenate([_bounded(values), known.astype(np.float32)], axis=-1)
        coming = np.zeros((*past.shape[:2], AHEAD, past.shape[3]), np.float32)
        clock = np.broadcast_to(self.clock[rows][:, None], (*past.shape[:2], *self.clock.shape[1:]))
        parts = [np.concatenate([past, coming], axis=2), clock]
        if self.sky is not None:
            parts.append(_bounded(self.sky[rows]))
        found: Single = np.ascontiguousarray(np.concatenate(parts, axis=-1).transpose(0, 2, 1, 3))
        return found

    def hours(self, rows: Whole, leads: Whole, spread: Single, centre: Single, scale: Single) -> Single:
        """Returns (rows, grids, leads, columns) of what the head reads of hours ahead; unknown counts as the mean."""
        asked = self.rows[np.ix_(rows, np.arange(self.rows.shape[1]), leads)]
        turn = 2.0 * np.pi * asked[..., 1:2] / DAY
        extra = [np.sin(turn), np.cos(turn), np.sin(2.0 * turn), np.cos(2.0 * turn), np.isin(asked[..., 2:3], _WEEKEND)]
        restless = _bounded(np.log(self.restless[rows] / spread))[:, :, None, None]
        extra.append(np.broadcast_to(restless, turn.shape))
        standard = _bounded((asked - centre[:, None]) / scale[:, None])
        found: Single = np.concatenate([standard, *(one.astype(np.float32) for one in extra)], axis=-1)
        return found


def _bounded(values: Single) -> Single:
    found: Single = np.clip(np.nan_to_num(values), -FURTHEST, FURTHEST)
    return found


def _described(grid: Grid, origins: Whole) -> tuple[Single, Floats, Floats]:
    leads = np.tile(np.arange(LEADS), origins.size)
    at = np.repeat(origins, LEADS)
    rows, reference = features(grid, at, leads)
    beyond = np.concatenate([logs(grid.carbon), np.full(LEADS, np.nan)])
    extra = beyond[at + leads] - reference
    shape = (origins.size, LEADS)
    return rows.reshape(*shape, -1).astype(np.float32), reference.reshape(shape), extra.reshape(shape)


def _values(grid: Grid, origins: Whole) -> Floats:
    padded = np.concatenate([np.full(MEMORY, np.nan), logs(grid.carbon)])
    table = padded[origins[:, None] + np.arange(MEMORY)].reshape(-1, BEFORE, DAY)
    off: Floats = table - known_mean(table[:, -DAYS_BACK:], 1, keepdims=True)
    return off


def _sky(weather: Floats, origins: Whole) -> Floats:
    padded = np.concatenate([np.full((MEMORY, len(WEATHER)), np.nan), weather])
    hours = padded[origins[:, None] + np.arange(MEMORY + LEADS)].reshape(origins.size, BEFORE + AHEAD, DAY, -1)
    days = known_mean(hours, axis=2)
    off = days - known_mean(days, 1, keepdims=True)
    usual = np.sqrt(known_mean(off**2, 1, keepdims=True))
    found: Floats = off / np.maximum(usual, 1e-6)
    return found


def _clock(hours: Whole) -> Floats:
    """Returns (n, BEFORE + AHEAD, 5): the year's course, weekend at a day's middle, and the hour at which it begins."""
    begins = hours[:, None] + DAY * np.arange(-BEFORE, AHEAD)
    year = 2.0 * np.pi * (begins / DAY) / YEAR_DAYS
    weekend = np.isin((begins + DAY // 2) // DAY % 7, _WEEKEND)
    of_day = 2.0 * np.pi * (begins % DAY) / DAY
    return np.stack([np.sin(year), np.cos(year), weekend, np.sin(of_day), np.cos(of_day)], axis=-1)
