"""The chart of a decision with two lines: the predicted power, and the metered power."""

from __future__ import annotations

import time

from frontend.charts.line_figures import LineChart, PlotLine
from pools.models import Pool
from scheduler.models import Decision
from telemetry.selectors import single_entities
from telemetry.selectors.frames import TimeRange, Values

BEFORE_SHARE = 0.5  # of the decision's horizon, shown before it
USUAL_HORIZON_S = 300.0  # of a decision without an epoch


def horizon_s(decision: Decision) -> float:
    """Returns for how long the decision's prediction is valid, in seconds: a period of its loop."""
    return decision.epoch.period_s if decision.epoch else USUAL_HORIZON_S


def predicted_w(decision: Decision) -> float | None:
    """Returns the predicted mean power; of a predicted energy, over the horizon. None: nothing was predicted."""
    said = decision.predicted or {}
    for name in ("mean_power_w", "power_w"):
        if isinstance(said.get(name), (int, float)):
            return float(said[name])
    energy_j = said.get("energy_j")
    return energy_j / horizon_s(decision) if isinstance(energy_j, (int, float)) else None


def charts(decision: Decision, window: TimeRange | None = None) -> dict[str, LineChart]:
    """Draws the power of the decision's pool, or of all its service's pools, around it. Makes two queries."""
    at_s, span_s = decision.at.timestamp(), horizon_s(decision)
    end_s = at_s + span_s
    window = window or TimeRange.last(span_s * (1 + BEFORE_SHARE), end_s)
    pools = Pool.objects.filter(service=decision.service_id)
    ids = [decision.pool_id] if decision.pool_id else list(pools.values_list("pk", flat=True))
    powers = single_entities.power_of(single_entities.pools_energy(ids, window), window)
    realised: Values = (
        tuple(
            sum(v or 0.0 for v in values) if any(v is not None for v in values) else None
            for values in zip(*powers.values(), strict=True)
        )
        or (None,) * window.count
    )
    watts = predicted_w(decision)
    predicted: Values = tuple(watts if at_s <= middle_s <= end_s else None for middle_s in window.middles_s)
    whose = f"pool {decision.pool}" if decision.pool else f"all pools of {decision.service}"
    lines = (PlotLine("predicted", predicted, forecast=True), PlotLine("realised", realised, colour=0))
    return {
        "power": LineChart(
            "Did it draw what was predicted?",
            "W",
            f"energy ledger, {whose}, metered at the GPUs; dashed: predicted for the mean of the period",
            window,
            lines if watts is not None else lines[1:],
            prefixed=True,
            now_s=min(time.time(), window.end_s),
        )
    }
