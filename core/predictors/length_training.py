"""Learns the trees of `boosted_lengths` from records, and judges them against the history's quantile.

Lengths are learned as logarithms, so that an answer of 2,000 tokens counts no more than one of 50 that is off by the
same factor; a quantile of the logarithm is the logarithm of the quantile. Loss is the quantile's own (for the median,
the absolute error): the median of what a request may bring is what puts most requests on the right side of a border.

Trees must earn their place: learned from the older records, they are compared with HistoryQuantilePredictor on the
newest, which it may learn from as it goes. Only if they do better by `LEAST_GAIN` are they learned again from all
records, and kept: to ask them, and to look at a request for them, takes some 15 us that history does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from core.ports import RequestFeatures

from .boosted_lengths import COLUMNS, FEATURES, HOUR, TENANT, LengthTrees, hour_of
from .output_length import HistoryQuantilePredictor

Floats = NDArray[np.float64]

TREES, LEAVES = 48, 8
LEAST_GAIN = 0.02  # share of history's loss
HOLDOUT = 0.2  # share of the records, the newest, that trees are judged on
_MIN_SAMPLES_LEAF = 20
_TENANT_PRIOR = 20.0  # requests that a tenant must have before its own level weighs more than the service's
_DAYS_FOR_HOURS = 2.0  # of records, before the hour of the day may be split on: a morning says nothing of evenings
_EXPORT_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class LengthScores:
    """The scores of predictions of lengths that had not been seen. `pinball` is the quantile's loss in tokens."""

    r2: float
    mae_tokens: float
    pinball: float
    tested_on: int


@dataclass(frozen=True, slots=True)
class Learned:
    """`trees` None: history does as well, or nearly."""

    trees: LengthTrees | None
    boosted: LengthScores
    history: LengthScores


def records_from_bytes(raw: bytes) -> Floats:
    """Reads what LengthRecords.to_bytes wrote, (requests, COLUMNS). Raises ValueError for what is not whole rows."""
    rows = np.frombuffer(raw, dtype=np.float64)
    if rows.size % COLUMNS:
        raise ValueError(f"records have {COLUMNS} columns; {rows.size} numbers are not whole rows")
    return rows.reshape(-1, COLUMNS)


def learn(records: Floats, quantile: float = 0.5) -> Learned:
    """Learns trees for a service from its records (requests, COLUMNS), oldest first, if they do better than history.

    Deterministic.

    Raises:
        ValueError: The records are too few to learn from and to judge by.
    """
    tested = round(HOLDOUT * len(records))
    if tested < 1 or len(records) - tested < 2 * _MIN_SAMPLES_LEAF:
        raise ValueError(f"{len(records)} records are too few to learn from and to judge by")
    outputs = records[-tested:, -1]
    boosted = score(predict(fit(records[:-tested], quantile), records[-tested:]), outputs, quantile)
    history = score(replay_history(records, quantile)[-tested:], outputs, quantile)
    keep = boosted.pinball < (1.0 - LEAST_GAIN) * history.pinball
    return Learned(fit(records, quantile) if keep else None, boosted, history)


def fit(records: Floats, quantile: float = 0.5) -> LengthTrees:
    """Fits trees to records, (requests, COLUMNS) with the output's tokens last.

    Raises:
        ValueError: A record is not finite, or has an output below one token.
        RuntimeError: scikit-learn's trees are not laid out as the export reads them.
    """
    # Imported here because it takes a second, and only those who learn need it.
    from sklearn.ensemble import HistGradientBoostingRegressor

    if not np.isfinite(records).all() or (records[:, -1] < 1.0).any():
        raise ValueError("records are finite, and each has an output of at least one token")
    logs = np.log(records[:, -1])
    levels, typical = _tenant_levels(records[:, TENANT], logs)
    rows = _rows(records, levels, typical)
    if np.ptp(records[:, HOUR]) < _DAYS_FOR_HOURS * 86_400.0:
        rows[:, HOUR] = 0.0  # a constant, so that no tree splits on it
    model = HistGradientBoostingRegressor(
        loss="quantile",
        quantile=quantile,
        max_iter=TREES,
        max_leaf_nodes=LEAVES,
        learning_rate=0.15,
        min_samples_leaf=_MIN_SAMPLES_LEAF,
        early_stopping=False,
        random_state=0,
    )
    with threadpool_limits(1, "openmp"):
        model.fit(rows, logs)
        expected = model.predict(rows[:256])
    trees = _exported(model, levels, typical, len(records))
    found = [trees.log_tokens(row) for row in rows[:256].tolist()]
    if not np.allclose(found, expected, rtol=0.0, atol=_EXPORT_TOLERANCE):
        raise RuntimeError("scikit-learn keeps its trees otherwise than this export reads them")
    return trees


def predict(trees: LengthTrees, records: Floats) -> Floats:
    """Predicts whole tokens, (requests,), as BoostedLengthPredictor gives them without a limit."""
    return np.array([max(1.0, round(trees.tokens(record))) for record in records.tolist()])


def replay_history(records: Floats, quantile: float = 0.5) -> Floats:
    """Returns the tokens that HistoryQuantilePredictor would have predicted for each record, having seen those before
    it."""
    history = HistoryQuantilePredictor(quantile)
    found = np.empty(len(records))
    for number, record in enumerate(records.tolist()):
        tenant = int(record[TENANT])
        features = RequestFeatures(bool(record[2]), record[HOUR], tenant if tenant >= 0 else None)
        prompt_tokens, output_tokens = int(record[0]), int(record[-1])
        found[number] = history.predict("", prompt_tokens, None, features)
        history.observe("", prompt_tokens, output_tokens, features)
    return found


def score(predicted: Floats, outputs: Floats, quantile: float = 0.5) -> LengthScores:
    """Scores predicted against true output tokens, (requests,) each: R2, errors and the quantile's loss."""
    error = outputs - predicted
    spread = outputs - outputs.mean()
    variance = float(np.sum(spread**2))
    return LengthScores(
        r2=1.0 - float(np.sum(error**2)) / variance if variance else float("nan"),
        mae_tokens=float(np.mean(np.abs(error))),
        pinball=float(np.mean(np.maximum(quantile * error, (quantile - 1.0) * error))),
        tested_on=len(outputs),
    )


def _tenant_levels(tenants: Floats, logs: Floats) -> tuple[dict[int, float], float]:
    """Returns each tenant's mean logarithm, drawn towards the whole's as far as it rests on few requests."""
    typical = float(logs.mean())
    levels = {}
    for tenant in np.unique(tenants[tenants >= 0.0]).tolist():
        own = logs[tenants == tenant]
        levels[int(tenant)] = float((own.sum() + _TENANT_PRIOR * typical) / (own.size + _TENANT_PRIOR))
    return levels, typical


def _rows(records: Floats, levels: dict[int, float], typical: float) -> Floats:
    rows = records[:, : len(FEATURES)].copy()
    rows[:, HOUR] = [hour_of(at_s) for at_s in rows[:, HOUR].tolist()]
    rows[:, TENANT] = [levels.get(int(tenant), typical) for tenant in rows[:, TENANT].tolist()]
    return rows


def _exported(model: Any, levels: dict[int, float], typical: float, trained_on: int) -> LengthTrees:
    """Returns the model's trees as flat lists. scikit-learn has no public way to them; `fit` checks what comes of this
    one."""
    roots: list[int] = []
    feature: list[int] = []
    threshold: list[float] = []
    right: list[int] = []
    value: list[float] = []

    def add(nodes: Any, number: int) -> None:
        node = nodes[number]
        at = len(feature)
        leaf = bool(node["is_leaf"])
        feature.append(-1 if leaf else int(node["feature_idx"]))
        threshold.append(0.0 if leaf else float(node["num_threshold"]))
        right.append(-1)
        value.append(float(node["value"]) if leaf else 0.0)
        if not leaf:
            add(nodes, int(node["left"]))
            right[at] = len(feature)
            add(nodes, int(node["right"]))

    for (predictor,) in model._predictors:
        roots.append(len(feature))
        add(predictor.nodes, 0)
    baseline = float(np.ravel(model._baseline_prediction)[0])
    return LengthTrees(
        baseline,
        tuple(roots),
        tuple(feature),
        tuple(threshold),
        tuple(right),
        tuple(value),
        levels,
        typical,
        trained_on,
    )
