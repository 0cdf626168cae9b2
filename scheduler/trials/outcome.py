"""Reads what a trial has shown: metered figures of each block from the settled ledger, and differences by pairs.

A block counts where all of it is settled and nothing disturbed it; a pair where both of its blocks do. What is left
out is named with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.accounting.paired_differences import PairedDifference, paired_difference, paired_ratio
from pools.models import Service, Site
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
    """Returns the figures of all blocks that have begun, and the differences of pairs that count. Nine queries, however
    many blocks there are."""
    sites = list(Site.objects.filter(pools__service=trial.service).distinct())
    currencies = {site.currency for site in sites}
    currency = currencies.pop() if len(currencies) == 1 else ""
    begun = [block for block in trial.blocks.all() if block.switched_at is not None]
    left_out = disturbances.left_out(trial, begun, sites)
    blocks = block_figures.figures(trial, begun, left_out, bool(currency))
    return Outcome(blocks, differences(blocks), currency, _objective(trial.service))


def _objective(service: Service) -> float | None:
    """Returns the share of requests that is to keep every objective: the strictest of the service's own."""
    found = max((slo.percentile for slo in service.slos.all()), default=None)
    return None if found is None else found / 100.0


def differences(blocks: Sequence[BlockFigures]) -> tuple[Difference, ...]:
    """Compares the blocks by pairs. A pair counts for a row where both of its blocks have the value."""
    arms = {(block.pair, block.arm): block for block in blocks if not block.left_out}
    whole = [(a, arms[pair, "B"]) for (pair, arm), a in sorted(arms.items()) if arm == "A" and (pair, "B") in arms]
    return tuple(_difference(whole, *row) for row in ROWS)


def _difference(
    pairs: Sequence[tuple[BlockFigures, BlockFigures]],
    key: str,
    label: str,
    unit: str,
    share: bool,
    value: Callable[[BlockFigures], float | None],
) -> Difference:
    both = [(x, y) for a, b in pairs if (x := value(a)) is not None and (y := value(b)) is not None]
    if share:
        both = [(x, y) for x, y in both if x > 0.0 and y > 0.0]
    if not both:
        return Difference(key, label, unit, share, None, None, None)
    a, b = zip(*both, strict=True)
    found = paired_ratio(a, b) if share else paired_difference(a, b)
    return Difference(key, label, unit, share, sum(a) / len(a), sum(b) / len(b), found)
