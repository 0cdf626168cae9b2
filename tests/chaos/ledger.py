"""Whether the energy ledger has every joule once: what is looked at after each fault."""

from __future__ import annotations

import json
import urllib.request
from datetime import datetime

from tests.chaos.stand import Stand
from tests.e2e.product import wait_for

MARKED_WITHIN_S = 120.0
LONGEST_UNMARKED_W = 800.0  # of a GPU: what its node counted after the mark is at most so many joules a second

# Microjoules, and microseconds, of each GPU that its meter and the ledger differ by. Where the clock was set back, a
# GPU has passed through hours twice, and its time is not that between two moments.
_BALANCE = """
SELECT m.energy_uj - m.opened_energy_uj - coalesce(sum(e.energy_uj), 0),
  CASE WHEN m.passing = 0 THEN extract(epoch FROM m.at - m.opened_at) * 1000000 - coalesce(sum(e.gpu_us), 0) ELSE 0 END
FROM telemetry_metermark m LEFT JOIN telemetry_energyentry e USING (gpu_id)
GROUP BY m.gpu_id, m.energy_uj, m.opened_energy_uj, m.at, m.opened_at, m.passing
"""
# Entries are of intervals of ten seconds: more than ten seconds of a GPU in one passing of it are there twice.
_TWICE = """
SELECT count(*) FROM (
  SELECT 1 FROM telemetry_energyentry GROUP BY gpu_id, passing, date_bin('10 seconds', start_at, 'epoch')
  HAVING sum(gpu_us) > 10000000
) AS intervals
"""
# Each passing of the clock is entered without a gap.
_GAPS = """
SELECT count(*) FROM (
  SELECT 1 FROM telemetry_energyentry GROUP BY gpu_id, passing
  HAVING sum(gpu_us) <> extract(epoch FROM max(end_at) - min(start_at)) * 1000000
) AS passings
"""
_DOUBLE_EPOCHS = """
SELECT count(*) FROM (
  SELECT 1 FROM scheduler_epoch GROUP BY kind, service_id, index, advisory HAVING count(*) > 1
) AS doubles
"""


def marked_since(stand: Stand, moment: datetime) -> None:
    """Waits until every GPU's energy is entered up to `moment` (of the database's clock).

    A mark that a wrong clock has set ahead of it says nothing of the time since: it has to move first.
    """
    [(furthest,)] = stand.sql("SELECT max(at) FROM telemetry_metermark")

    def entered() -> bool:
        behind = "SELECT count(*) FROM telemetry_metermark WHERE at < %s OR (at <= %s AND %s)"
        return stand.sql(behind, moment, furthest, furthest > moment) == [(0,)]

    wait_for("energy of all GPUs in the ledger", entered, timeout_s=MARKED_WITHIN_S)


def wrong(stand: Stand) -> list[str]:
    """Returns what is wrong: entries lost, entered twice, or not what the nodes' own counters say."""
    found = []
    balances = stand.sql(_BALANCE)
    for unit, differences in (("uJ", [uj for uj, _ in balances]), ("us", [us for _, us in balances])):
        wrong_by = [by for by in differences if by != 0]
        if wrong_by:
            found.append(f"the ledger and the meters of {len(wrong_by)} GPUs differ, by {wrong_by[0]} {unit} at first")
    [(twice,)] = stand.sql(_TWICE)
    if twice:
        found.append(f"{twice} intervals are in the ledger twice")
    [(gaps,)] = stand.sql(_GAPS)
    if gaps:
        found.append(f"the entries of {gaps} passings of the clock by a GPU have gaps")
    found += _beside_counters(stand)
    [(doubles,)] = stand.sql(_DOUBLE_EPOCHS)
    if doubles:
        found.append(f"{doubles} epochs ran twice")
    return found


def _beside_counters(stand: Stand) -> list[str]:
    """A mark is at most what its node's counter shows, and behind it by no more than the time since."""
    rows = stand.sql(
        "SELECT g.uuid, m.energy_j, extract(epoch FROM now() - m.at) FROM telemetry_metermark m "
        "JOIN pools_gpu g ON g.id = m.gpu_id"
    )
    now: dict[str, float] = {}
    ports = json.loads((stand.product.var_dir / "run" / "simnodes.json").read_text())
    for port in ports.values():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/gpus", timeout=5) as answer:
            now |= {gpu["uuid"]: gpu["energy_j"] for gpu in json.load(answer)}
    off = [
        uuid
        for uuid, mark_j, age_s in rows
        if not mark_j <= now[uuid] <= mark_j + LONGEST_UNMARKED_W * (float(age_s) + 5.0)
    ]
    return [f"the marks of {len(off)} GPUs do not fit their counters"] if off else []
