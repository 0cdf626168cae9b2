"""Learns the models of `boosted_carbon` from a grid's past: some 15 s on one core for two and a half years.

The last third of the past is held out first: a model of the rest forecasts it, from which follow how regression and
trees are weighted and how far off forecasts are. Then both are learned again from everything. All numbers below were
chosen on 2019 to mid 2021 and are the same for all grids.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from .boosted_carbon import BLOCK, BLOCKS, LEVELS, RECENT, CarbonModel, Trees, spread, terms
from .carbon_features import DAY, LEADS, MEMORY, Floats, Grid, Whole, features, logs, unrest

LEAST_DAYS = 60  # of known hours
MOST_DAYS = 1_100  # three years: bounds the time that learning takes
TREES, LEAVES, RATE = 200, 24, 0.06
MIN_SAMPLES_LEAF = 40
COLUMNS_SHARE = 0.3  # of the columns that a split may choose from
RIDGE = 0.03  # of the rows
EVERY_HOURS = 5  # between origins: no divisor of a day, so that all hours come up
LEADS_EACH = 24  # of the LEADS hours ahead of an origin, drawn anew for each
HELD_OUT = 1 / 3
_EXPORT_TOLERANCE = 1e-9
_LEAST_ERROR = 1e-6


class TooShort(ValueError):
    """The past is too short to learn from."""


@dataclass(frozen=True, slots=True)
class _Rows:
    rows: Floats  # as `features` gives them, all of them with a known value
    extra: Floats  # what is learned: the logarithm less the reference
    unrest: Floats
    origins: Whole
    hours: Whole  # that were forecast


def fit(grid: Grid, seed: int = 0) -> CarbonModel:
    """Learns a model of a grid, with weather where it has some. Deterministic.

    Raises:
        TooShort: There are less than LEAST_DAYS of known hours.
        RuntimeError: scikit-learn's trees are not laid out as the export reads them.
    """
    hours = int((~np.isnan(grid.carbon)).sum())
    if hours < LEAST_DAYS * DAY:
        raise TooShort(f"{hours / DAY:.0f} days are known, and {LEAST_DAYS} are needed to learn from")
    size = grid.carbon.size
    first = max(0, size - MOST_DAYS * DAY)
    border = size - round(HELD_OUT * (size - first))
    import sklearn.ensemble  # noqa: F401  loaded before the limit, which holds only for libraries that are there

    with threadpool_limits(1):  # more threads wait for each other, on matrices so small
        share, typical, errors = _held_out(_fit(grid, first, border, seed), grid, border, seed)
        final = _fit(grid, first, size, seed)
    until_hour = grid.first_hour + size
    return replace(final, share=share, typical=typical, errors=errors, hours=hours, until_hour=until_hour)


def _fit(grid: Grid, first: int, end: int, seed: int) -> CarbonModel:
    known = _rows(grid, first, end, seed)
    centre, scale, weights, offset = (np.stack(part) for part in zip(*_regressions(known), strict=True))
    nothing = np.zeros((BLOCKS, LEVELS.size))
    trees = _boosted(known, seed)
    weather = grid.weather is not None
    return CarbonModel(trees, centre, scale, weights, offset, np.full(BLOCKS, 0.5), nothing, weather, 0, 0)


def _rows(grid: Grid, first: int, end: int, seed: int) -> _Rows:
    """Draws forecasts whose origin and hour both lie in [first, end)."""
    rng = np.random.default_rng(seed)
    at: Whole = np.arange(min(first + MEMORY, end - 2 * LEADS), end, EVERY_HOURS)
    leads = np.stack([rng.permutation(LEADS)[:LEADS_EACH] for _ in at]).ravel()
    origins = np.repeat(at, LEADS_EACH)
    inside = (origins + leads < end) & (origins > 0)
    return _described(grid, origins[inside], leads[inside])


def _described(grid: Grid, origins: Whole, leads: Whole) -> _Rows:
    rows, reference = features(grid, origins, leads)
    extra = logs(grid.carbon)[origins + leads] - reference
    known = ~np.isnan(extra)
    hours = origins + leads
    return _Rows(rows[known], extra[known], unrest(grid, origins)[known], origins[known], hours[known])


def _regressions(known: _Rows) -> list[tuple[Floats, Floats, Floats, float]]:
    """Solves a ridge regression for each block; a feature that is unknown counts as its mean."""
    found = []
    block = known.rows[:, 0].astype(np.int64) // BLOCK
    for one in range(BLOCKS):
        of_block = terms(known.rows[block == one])
        extra = known.extra[block == one]
        seen = ~np.isnan(of_block)
        count = np.maximum(1, seen.sum(axis=0))
        centre = np.where(seen, of_block, 0.0).sum(axis=0) / count
        standard = np.where(seen, of_block - centre, 0.0)
        scale = np.sqrt((standard**2).sum(axis=0) / count)
        scale[scale < 1e-12] = 1.0
        standard /= scale
        offset = float(extra.mean())
        gram = standard.T @ standard + RIDGE * len(extra) * np.eye(standard.shape[1])
        found.append((centre, scale, np.linalg.solve(gram, standard.T @ (extra - offset)), offset))
    return found


def _held_out(model: CarbonModel, grid: Grid, border: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Returns what hours say that it has not seen: the regression's share (BLOCKS,), and of the errors the mean size
    (BLOCKS,) and the quantiles (BLOCKS, LEVELS)."""
    held = _rows(grid, border - MEMORY, grid.carbon.size, seed + 1)
    line, trees = model.regress(held.rows), model.trees.predict(held.rows)
    block = held.rows[:, 0].astype(np.int64) // BLOCK
    share, typical, off = np.empty(BLOCKS), np.empty(BLOCKS), np.empty(len(block))
    for one in range(BLOCKS):
        of_block = block == one
        apart, left = (line - trees)[of_block], (held.extra - trees)[of_block]
        power = float(apart @ apart)
        share[one] = min(1.0, max(0.0, float(apart @ left) / power)) if power > 0.0 else 0.5
        error = (left - share[one] * apart) / held.unrest[of_block]
        off[of_block] = error - np.median(error)
        typical[one] = max(_LEAST_ERROR, float(np.abs(off[of_block]).mean()))
    off /= _spreads(held, off / typical[block])
    blocks = (off[block == one] for one in range(BLOCKS))
    return share, typical, np.stack([np.quantile(errors - np.median(errors), LEVELS) for errors in blocks])


def _spreads(held: _Rows, off: Floats) -> Floats:
    """Returns (n,) the `spread` of each held forecast, by those of the RECENT hours before it that were over then."""
    origins, number = np.unique(held.origins, return_inverse=True)
    found = np.empty(origins.size)
    for one, at in enumerate(origins.tolist()):
        found[one] = spread(off[(held.origins >= at - RECENT) & (held.origins < at) & (held.hours < at)])
    return found[number]


def _boosted(known: _Rows, seed: int) -> Trees:
    # Imported here because it takes a second, and only those who learn need it.
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_iter=TREES,
        max_leaf_nodes=LEAVES,
        learning_rate=RATE,
        min_samples_leaf=MIN_SAMPLES_LEAF,
        max_features=COLUMNS_SHARE,
        early_stopping=False,
        random_state=seed,
    )
    model.fit(known.rows, known.extra)
    expected = model.predict(known.rows[:256])
    trees = _exported(model)
    if not np.allclose(trees.predict(known.rows[:256]), expected, rtol=0.0, atol=_EXPORT_TOLERANCE):
        raise RuntimeError("scikit-learn keeps its trees otherwise than this export reads them")
    return trees


def _exported(model: Any) -> Trees:
    """Returns the model's trees as flat arrays. scikit-learn has no public way to them; `_boosted` checks what comes of
    this one."""
    tables = [predictor.nodes for (predictor,) in model._predictors]
    starts = np.concatenate([[0], np.cumsum([len(table) for table in tables])]).astype(np.int64)
    nodes = np.concatenate(tables)
    shift = np.repeat(starts[:-1], [len(table) for table in tables])
    leaf = nodes["is_leaf"].astype(bool)
    return Trees(
        baseline=np.asarray(np.ravel(model._baseline_prediction)[0], dtype=np.float64),
        roots=starts[:-1],
        feature=np.where(leaf, -1, nodes["feature_idx"].astype(np.int64)),
        threshold=np.where(leaf, 0.0, nodes["num_threshold"]),
        left=np.where(leaf, 0, nodes["left"].astype(np.int64) + shift),
        right=np.where(leaf, 0, nodes["right"].astype(np.int64) + shift),
        missing_left=nodes["missing_go_to_left"].astype(bool),
        value=np.where(leaf, nodes["value"], 0.0),
    )
