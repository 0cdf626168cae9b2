"""Reads what a trial has shown: metered figures of each block from the settled ledger, and differences by pairs.

A block counts where all of it is settled and nothing disturbed it; a pair where both of its blocks do. What is left
out is named with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import F, Q

from core.accounting.paired_differences import PairedDifference, paired_difference, paired_ratio
from core.units import UJ_PER_J
from pools.models import Node, Site
from scheduler.models import LoopPause, Override, Trial, TrialBlock
from telemetry.models import Alert, Settlement

NANO, UG_PER_G = 1e9, 1e6
LATE_SWITCH = timedelta(minutes=5)  # beat asks each 30 s; more late than that, the block is not the policy's

AMOUNTS_SQL = """
WITH newest AS (
    SELECT DISTINCT ON (site_id, start_at) id FROM telemetry_settlement
    WHERE start_at >= %(start)s AND end_at <= %(end)s ORDER BY site_id, start_at, revision DESC
)
SELECT coalesce(sum(l.energy_uj), 0)::bigint, coalesce(sum(l.carbon_ug), 0)::bigint,
       coalesce(sum(l.carbon_unknown_uj), 0)::bigint, coalesce(sum(l.cost_nano + l.rental_nano), 0)::bigint,
       coalesce(sum(l.cost_unknown_uj), 0)::bigint, coalesce(sum(l.output_tokens), 0)::bigint
FROM newest n JOIN telemetry_statementline l ON l.settlement_id = n.id AND l.entry <> 'reversal'
WHERE l.service = %(service)s OR l.pool_id IN (SELECT id FROM pools_pool WHERE service_id = %(service_id)s)
"""
JUDGED_SQL = """
SELECT count(slo_met), count(*) FILTER (WHERE slo_met) FROM telemetry_requestrecord
WHERE started_at >= %(start)s AND started_at < %(end)s AND service = %(service)s
"""


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """The metered figures of a block after its warm-up; None: not known for all of it. `left_out`: why it does not
    count."""

    index: int
    pair: int
    arm: str
    starts_at: datetime
    ends_at: datetime
    left_out: str
    energy_j: float
    carbon_g: float | None
    cost: float | None
    output_tokens: int
    attainment: float | None


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
    """A trial's blocks and differences. `currency`: empty where its sites have several, and so no common cost."""

    blocks: tuple[BlockFigures, ...]
    differences: tuple[Difference, ...]
    currency: str

    @property
    def left_out(self) -> tuple[BlockFigures, ...]:
        return tuple(block for block in self.blocks if block.left_out)


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
    ("slo_attainment", "SLO attainment", "share", False, lambda b: b.attainment),
)


def of(trial: Trial) -> Outcome:
    """Returns the figures of all blocks that have begun, and the differences of pairs that count."""
    found = set(Site.objects.filter(pools__service=trial.service).values_list("currency", flat=True))
    currency = found.pop() if len(found) == 1 else ""
    begun = trial.blocks.filter(switched_at__isnull=False)
    blocks = tuple(_block(trial, block, bool(currency)) for block in begun)
    return Outcome(blocks, differences(blocks), currency)


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


def _block(trial: Trial, block: TrialBlock, one_currency: bool) -> BlockFigures:
    start, end = block.starts_at + timedelta(seconds=trial.warm_up_s), block.ends_at
    params: dict[str, Any] = {"start": start, "end": end, "service": trial.service.name}
    with connection.cursor() as cursor:
        cursor.execute(AMOUNTS_SQL, {**params, "service_id": trial.service_id})
        energy_uj, carbon_ug, no_carbon_uj, cost_nano, no_cost_uj, tokens = cursor.fetchone()
        cursor.execute(JUDGED_SQL, params)
        judged, met = cursor.fetchone()
    return BlockFigures(
        index=block.index,
        pair=block.pair,
        arm=block.arm,
        starts_at=block.starts_at,
        ends_at=block.ends_at,
        left_out=_left_out(trial, block, start, end),
        energy_j=energy_uj / UJ_PER_J,
        carbon_g=None if no_carbon_uj else carbon_ug / UG_PER_G,
        cost=None if no_cost_uj or not one_currency else cost_nano / NANO,
        output_tokens=tokens,
        attainment=met / judged if judged else None,
    )


def _left_out(trial: Trial, block: TrialBlock, start: datetime, end: datetime) -> str:
    """Returns why a block does not count; empty: it does."""
    if block.switched_at is None or block.switched_at - block.starts_at > LATE_SWITCH:
        return "its policy came late"
    sites = Site.objects.filter(pools__service=trial.service).distinct()
    for site in sites:
        newest = Settlement.objects.filter(site=site, end_at__gte=end).exists()
        if not newest:
            return f"provisional: {site} is not settled until its end"
    during = Q(created_at__lt=end) & (Q(ended_at=None) | Q(ended_at__gt=start))
    lasting = Q(expires_at=None) | Q(expires_at__gt=start)
    if pause := LoopPause.objects.filter(during, lasting, service=trial.service).first():
        return f"the {pause.loop} loop was paused: {pause.reason}"
    own = Q(service=trial.service) | Q(site__in=sites)
    if override := Override.objects.filter(during & own, expires_at__gt=start).first():
        return f"{override} was overridden: {override.reason}"
    silent = Alert.objects.filter(
        rule="node_silent",
        subject__in=Node.objects.filter(cluster__site__in=sites).values("name"),
        since__lt=end,
    ).filter(Q(resolved_at=None) | Q(resolved_at__gt=start), last_seen_at__gte=F("since"))
    if alert := silent.first():
        return f"the meters of {alert.subject} were silent"
    return ""
