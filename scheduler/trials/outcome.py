"""Reads what a trial has shown: metered figures of each block from the settled ledger, and differences by pairs.

A block counts where all of it is settled and nothing disturbed it; a pair where both of its blocks do. What is left
out is named with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db.models import Max

from core.accounting.paired_differences import PairedDifference, paired_difference, paired_ratio
from pools.models import Pool, Site, Slo
from scheduler.models import Trial

from . import block_figures, disturbances
from .block_figures import BlockFigures

ATTAINMENT = "slo_attainment"


@dataclass(frozen=True, slots=True)
class Difference:
    """A row of the result: means of A and B, and B against A with its interval; None: nothing can be compared.

    `share`: the difference is in percent of A; else in the unit of the values.
    """

    key: str
    label: str
    unit: str
    share: bool
    mean_a: float | None
    mean_b: float | None
    difference: PairedDifference | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial's blocks and differences. `currency`: empty where its sites have several, and so no common cost.
    `objective`: the share of requests that is to keep every objective; None: the service has none.
    """

    blocks: tuple[BlockFigures, ...]
    differences: tuple[Difference, ...]
    currency: str
    objective: float | None

    @property
    def left_out(self) -> tuple[BlockFigures, ...]:
        return tuple(block for block in self.blocks if block.left_out)

    def is_below(self, row: Difference, value: float | None) -> bool:
        """Says whether a value of a row is an SLO attainment that does not keep the service's objective."""
        if row.key != ATTAINMENT or value is None or self.objective is None:
            return False
        return value < self.objective


def _per_1k(amount: float | None, tokens: int) -> float | None:
    return None if amount is None or not tokens else amount * 1000.0 / tokens


ROWS: tuple[tuple[str, str, str, bool, Callable[[BlockFigures], float | None]], ...] = (
    ("j_per_1k_tokens", "Energy per 1,000 output tokens", "J", True, lambda b: _per_1k(b.energy_j, b.output_tokens)),
    (
        "g_per_1k_tokens",
        "Carbon per 1,000 output tokens",
        "gCO₂e",
        True,
        lambda b: _per_1k(b.carbon_g, b.output_tokens),
    ),
    ("cost_per_1k_tokens", "Cost per 1,000 output tokens", "", True, lambda b: _per_1k(b.cost, b.output_tokens)),
    ("energy_j", "Energy of a block", "J", True, lambda b: b.energy_j),
    ("carbon_g", "Carbon of a block", "gCO₂e", True, lambda b: b.carbon_g),
    ("cost", "Cost of a block", "", True, lambda b: b.cost),
    (ATTAINMENT, "SLO attainment", "share", False, lambda b: b.attainment),
)


def of(trial: Trial) -> Outcome:
    """Returns the figures of all blocks that have begun, and the differences of pairs that count. Ten queries, however
    many blocks there are."""
    sites = _sites(trial)
    currencies = {site.currency for own in sites.values() for site in own}
    currency = currencies.pop() if len(currencies) == 1 else ""
    begun = [block for block in trial.blocks.all() if block.switched_at is not None]
    left_out = disturbances.left_out(trial, begun, sites)
    blocks = block_figures.figures(trial, begun, left_out, bool(currency))
    return Outcome(blocks, differences(blocks), currency, _objective(trial))


def _sites(trial: Trial) -> dict[int, list[Site]]:
    """Returns the sites of each of the trial's services."""
    found: dict[int, dict[int, Site]] = {service.pk: {} for service in trial.services}
    for pool in Pool.objects.filter(service__in=trial.services).select_related("site").order_by("site__rank", "pk"):
        found[pool.service_id][pool.site_id] = pool.site
    return {service: list(own.values()) for service, own in found.items()}


def _objective(trial: Trial) -> float | None:
    """Returns the share of requests that is to keep every objective: the strictest of the services' own."""
    found = Slo.objects.filter(service__in=trial.services).aggregate(most=Max("percentile"))["most"]
    return None if found is None else found / 100.0


def differences(blocks: Sequence[BlockFigures]) -> tuple[Difference, ...]:
    """Compares the blocks by pairs. A pair counts for a row where all of its blocks have the value.

    A pair of a trial by sites has two blocks of each arm, one at each service. Its value of an arm is their mean, the
    geometric one where the difference is a ratio: that of the pair is then the geometric mean of B / A within each
    service, in which what differs between the services cancels, and what changed with time for both alike does too.
    """
    services = len({block.service for block in blocks})
    arms: dict[tuple[int, str], list[BlockFigures]] = {}
    for block in blocks:
        if not block.left_out:
            arms.setdefault((block.pair, block.arm), []).append(block)
    whole = [
        (arms[pair, "A"], arms[pair, "B"])
        for pair in sorted({pair for pair, _ in arms})
        if all(len(arms.get((pair, arm), ())) == services for arm in ("A", "B"))
    ]
    return tuple(_difference(whole, *row) for row in ROWS)


def _mean(values: Sequence[float | None], share: bool) -> float | None:
    """Returns the mean of an arm's values of a pair; None: one is not known, or has no ratio."""
    known = [value for value in values if value is not None and (value > 0.0 or not share)]
    if len(known) < len(values):
        return None
    return math.prod(known) ** (1.0 / len(known)) if share else sum(known) / len(known)


def _difference(
    pairs: Sequence[tuple[Sequence[BlockFigures], Sequence[BlockFigures]]],
    key: str,
    label: str,
    unit: str,
    share: bool,
    value: Callable[[BlockFigures], float | None],
) -> Difference:
    means = [(_mean([*map(value, a)], share), _mean([*map(value, b)], share)) for a, b in pairs]
    both = [(x, y) for x, y in means if x is not None and y is not None]
    if not both:
        return Difference(key, label, unit, share, None, None, None)
    a, b = zip(*both, strict=True)
    found = paired_ratio(a, b) if share else paired_difference(a, b)
    return Difference(key, label, unit, share, sum(a) / len(a), sum(b) / len(b), found)
