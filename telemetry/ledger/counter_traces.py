"""The GPUs' counters as the samples have them: one trace for each GPU, in whole microseconds and microjoules."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.accounting.counters import STATES, MeterTrace
from core.accounting.grouping import Groups
from telemetry.storage import copying

# A sample without a reading tells the meter nothing. States by their place in STATES, as `MeterTrace` has them.
MOST_J = 9e12  # a counter beyond this is not believed, and would not fit into 64 bits of microjoules
_COLUMNS = f"""
gpu_id, at, round(energy_j * 1e6)::bigint AS energy_uj, coalesce(instance_id, 0)::bigint AS instance,
coalesce(array_position(ARRAY[{", ".join(f"'{state}'" for state in STATES[1:])}], instance_state::text),
         CASE WHEN instance_state IS NULL THEN 0 ELSE -1 END)::bigint AS state,
coalesce(running, -1)::bigint AS running
"""
_KINDS = {
    "gpu": copying.BIGINT,
    "at_us": copying.MOMENT,
    "energy_uj": copying.BIGINT,
    "instance": copying.BIGINT,
    "state": copying.BIGINT,
    "running": copying.BIGINT,
}
READINGS_SQL = f"""
SELECT {_COLUMNS} FROM telemetry_gpusample
WHERE at >= %(since)s AND at <= %(until)s AND energy_j BETWEEN 0 AND {MOST_J}
  AND (%(gpus)s::bigint[] IS NULL OR gpu_id = ANY(%(gpus)s))
"""
FIRST_SQL = f"""
SELECT DISTINCT ON (gpu_id) {_COLUMNS} FROM telemetry_gpusample
WHERE at > %(since)s AND at <= %(until)s AND energy_j BETWEEN 0 AND {MOST_J}
  AND (%(gpus)s::bigint[] IS NULL OR gpu_id = ANY(%(gpus)s))
ORDER BY gpu_id, at
"""


def readings(since: datetime, until: datetime, gpus: Iterable[int] | None = None) -> dict[int, MeterTrace]:
    """The readings of [since, until] by GPU; of several at one moment the first that was stored."""
    return _traces(READINGS_SQL, since, until, gpus)


def first_after(since: datetime, until: datetime, gpus: Iterable[int]) -> dict[int, MeterTrace]:
    """Returns each GPU's first reading after a moment."""
    return _traces(FIRST_SQL, since, until, gpus)


def _traces(sql: str, since: datetime, until: datetime, gpus: Iterable[int] | None) -> dict[int, MeterTrace]:
    params = {"since": since, "until": until, "gpus": None if gpus is None else list(gpus)}
    found: dict[str, NDArray[Any]] = copying.read(sql, params, _KINDS)
    single = Groups.by(found["gpu"], found["at_us"])
    columns = {name: single.key(values) for name, values in found.items()}
    gpu = columns.pop("gpu")
    borders = np.flatnonzero(np.diff(gpu)) + 1
    starts, ends = [0, *borders.tolist()], [*borders.tolist(), len(gpu)]
    whole = MeterTrace(**columns)
    return {int(gpu[a]): whole.pick(slice(a, b)) for a, b in zip(starts, ends, strict=True) if b > a}
