"""Clock decisions of the agents become rows of `Decision`: the sink that settings name for the ingester."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from pools.models import Instance
from pools.wire import ClockDecision
from scheduler.models import Decision, DecisionKind


def store(rows: Sequence[ClockDecision], agent: str, boot: str, seq: int) -> None:
    """Stores the clock decisions of one batch inside the caller's transaction; twice is once."""
    uids = {uid for row in rows if (uid := _uid(row.instance_uid)) is not None}
    owners = {
        uid: (pool_id, service_id)
        for uid, pool_id, service_id in Instance.objects.filter(uid__in=uids).values_list(
            "uid", "pool_id", "pool__service_id"
        )
    }
    decisions = []
    for number, row in enumerate(rows):
        uid = _uid(row.instance_uid)
        pool_id, service_id = owners.get(uid, (None, None)) if uid else (None, None)
        command = {"type": "SetSmClock", "instance": row.instance_uid, "mhz": row.to_mhz}
        decisions.append(
            Decision(
                kind=DecisionKind.CLOCK,
                at=datetime.fromtimestamp(row.at_s, UTC),
                service_id=service_id,
                pool_id=pool_id,
                instance_uid=uid,
                reason=row.reason[:20],
                summary=row.summary.replace("\0", "")[:500],
                inputs={**row.inputs, "from_mhz": row.from_mhz, "to_mhz": row.to_mhz},
                commands=[] if row.from_mhz == row.to_mhz else [command],
                held=max(0, row.held),
                source_key=f"{agent}/{boot}/{seq}/{number}",
            )
        )
    Decision.objects.bulk_create(decisions, ignore_conflicts=True)


def _uid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
