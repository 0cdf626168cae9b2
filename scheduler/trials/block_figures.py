"""Reads what was metered of a trial's blocks, from the settled ledger and the requests. Two queries for all blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from core.units import UJ_PER_J
from scheduler.models import Trial, TrialBlock

NANO, UG_PER_G = 1e9, 1e6

SPANS = """
unnest(%(indexes)s::int[], %(starts)s::timestamptz[], %(ends)s::timestamptz[], %(services)s::text[],
       %(service_ids)s::bigint[]) AS span(index, start_at, end_at, service, service_id)
"""
AMOUNTS_SQL = f"""
WITH newest AS (
    SELECT DISTINCT ON (span.index, s.site_id, s.start_at) span.index, span.service, span.service_id, s.id
    FROM {SPANS} JOIN telemetry_settlement s ON s.start_at >= span.start_at AND s.end_at <= span.end_at
    ORDER BY span.index, s.site_id, s.start_at, s.revision DESC
)
SELECT n.index, coalesce(sum(l.energy_uj), 0)::bigint, coalesce(sum(l.carbon_ug), 0)::bigint,
       coalesce(sum(l.carbon_unknown_uj), 0)::bigint, coalesce(sum(l.cost_nano + l.rental_nano), 0)::bigint,
       coalesce(sum(l.cost_unknown_uj), 0)::bigint, coalesce(sum(l.output_tokens), 0)::bigint
FROM newest n JOIN telemetry_statementline l ON l.settlement_id = n.id AND l.entry <> 'reversal'
WHERE l.service = n.service OR (n.service_id, l.pool_id) IN (SELECT service_id, id FROM pools_pool)
GROUP BY n.index
"""
JUDGED_SQL = f"""
SELECT span.index, count(r.slo_met), count(*) FILTER (WHERE r.slo_met)
FROM {SPANS} JOIN telemetry_requestrecord r ON r.started_at >= span.start_at AND r.started_at < span.end_at
WHERE r.started_at >= %(first)s AND r.started_at < %(last)s AND r.service = span.service
GROUP BY span.index
"""


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """The metered figures of a block after its warm-up; None: not known for all of it. `left_out`: why it does not
    count."""

    index: int
    pair: int
    arm: str
    service: str
    starts_at: datetime
    ends_at: datetime
    left_out: str
    energy_j: float
    carbon_g: float | None
    cost: float | None
    output_tokens: int
    attainment: float | None


def counted_from(trial: Trial, block: TrialBlock) -> datetime:
    """Returns when a block begins to count: after its warm-up."""
    return block.starts_at + timedelta(seconds=trial.warm_up_s)


def figures(
    trial: Trial, blocks: Sequence[TrialBlock], left_out: Sequence[str], one_currency: bool
) -> tuple[BlockFigures, ...]:
    """Returns the figures of blocks in their order.

    Args:
        left_out: Of each block, why it does not count; empty: it does.
        one_currency: The sites have the same, so that their costs can be added up.
    """
    if not blocks:
        return ()
    starts, names = [counted_from(trial, block) for block in blocks], {one.pk: one.name for one in trial.services}
    params = {
        "indexes": [block.index for block in blocks],
        "starts": starts,
        "ends": [block.ends_at for block in blocks],
        "first": min(starts),
        "last": max(block.ends_at for block in blocks),
        "services": [names[block.service_id] for block in blocks],
        "service_ids": [block.service_id for block in blocks],
    }
    amounts, judged = _by_index(AMOUNTS_SQL, params), _by_index(JUDGED_SQL, params)
    return tuple(
        _figures(
            block,
            names[block.service_id],
            why,
            amounts.get(block.index, (0,) * 6),
            judged.get(block.index, (0, 0)),
            one_currency,
        )
        for block, why in zip(blocks, left_out, strict=True)
    )


def _figures(
    block: TrialBlock, service: str, left_out: str, amounts: Sequence[int], judged: Sequence[int], one_currency: bool
) -> BlockFigures:
    energy_uj, carbon_ug, no_carbon_uj, cost_nano, no_cost_uj, tokens = amounts
    return BlockFigures(
        index=block.index,
        pair=block.pair,
        arm=block.arm,
        service=service,
        starts_at=block.starts_at,
        ends_at=block.ends_at,
        left_out=left_out,
        energy_j=energy_uj / UJ_PER_J,
        carbon_g=None if no_carbon_uj else carbon_ug / UG_PER_G,
        cost=None if no_cost_uj or not one_currency else cost_nano / NANO,
        output_tokens=tokens,
        attainment=judged[1] / judged[0] if judged[0] else None,
    )


def _by_index(sql: str, params: dict[str, Any]) -> dict[int, tuple[int, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return {index: tuple(values) for index, *values in cursor.fetchall()}
