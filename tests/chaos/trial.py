"""One fault from its begin to its end while the replay runs, and what is looked at afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from tests.chaos import account, ledger
from tests.chaos.account import Outage, Requests
from tests.chaos.fault import Fault, nothing
from tests.chaos.replay import Asked, Replay, drawn
from tests.chaos.stand import MODEL, ClockWatch, Stand
from tests.e2e.product import wait_for

SEED = 7
RATE_RPS = 3.0
BEFORE_S, AFTER_S = 3.0, 10.0  # of the replay, around the fault
LAST_S = 150.0  # requests that are still under way then have lost; above the gateway's own limits
BACK_WITHIN_S = 90.0
RECORDED_WITHIN_S = 60.0
_SET_ASIDE = """
SELECT traceparent, count(*) FROM (
  SELECT substring(convert_from(body, 'UTF8') from '"traceparent":"([^"]+)"') AS traceparent
  FROM telemetry_deadrow WHERE kind = 'request' AND due_at > now() + %s * interval '1 second'
) AS later WHERE traceparent LIKE %s GROUP BY 1
"""
CLOCKS_WITHIN_S = 10.0
EPOCH_WITHIN_S = 90.0
NO_OUTAGE = Outage(float("inf"), float("-inf"), forgets=False)


@dataclass(frozen=True, slots=True)
class Found:
    """What a trial measured.

    `back_s`: until all processes ran and all answered, since the fault's end. `clocks_s`: until the clocks that nobody
    held were at their default, since its begin. `broken`: the promises that did not hold.
    """

    requests: Requests
    back_s: float | None
    clocks_s: float | None
    broken: tuple[str, ...]
    alerts: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def take(stand: Stand, fault: Fault | None, lasts_s: float) -> Found:
    """Runs the replay with a fault, or without one, and looks at what became of all.

    Whatever the fault did, the product is whole again afterwards, or AssertionError says that it is not.
    """
    stand.spoiled = True  # until more is known
    wait_for("a whole product before the fault", stand.whole, timeout_s=BACK_WITHIN_S)
    [(began,)] = stand.sql("SELECT now()")
    requests = drawn(SEED, RATE_RPS, BEFORE_S + lasts_s + (fault.end_takes_s if fault else 0.0) + AFTER_S)
    keys = list(stand.product.credentials["api_keys"].values())
    replay = Replay(stand.product.gateway, keys, MODEL, requests, run=int.from_bytes(os.urandom(7), "big"))
    broken: list[str] = []
    stand.kept.clear()
    stand.unheld.clear()
    replay.start()
    time.sleep(BEFORE_S)
    began_s = time.monotonic()
    watch = _begin(stand, fault, broken)
    if fault is not None and fault.end is nothing:  # it is over with its begin
        back_s = _end(stand, fault, broken)
        time.sleep(max(0.0, lasts_s - (back_s or 0.0)))
    else:
        time.sleep(lasts_s)
        back_s = _end(stand, fault, broken)
    clocks_s = watch.end() if watch else None
    outage = Outage(began_s, time.monotonic(), fault.forgets) if fault and fault.stops else NO_OUTAGE
    asked = replay.finish(within_s=LAST_S)
    records = _records(stand, replay, asked, outage)
    figures = account.of(asked, records)
    broken += _lost(asked, records, figures, outage)
    broken += _promises(stand, fault, figures, clocks_s if watch else 0.0)
    stand.spoiled = bool(broken)
    alerts = stand.sql("SELECT DISTINCT rule FROM telemetry_alert WHERE opened_at >= %s", began)
    return Found(figures, back_s, clocks_s, tuple(broken), tuple(sorted(row[0] for row in alerts)))


def _begin(stand: Stand, fault: Fault | None, broken: list[str]) -> ClockWatch | None:
    if fault is None:
        return None
    try:
        fault.begin(stand)
    except Exception as error:  # the trial goes on: what was begun has to end
        broken.append(f"it could not begin: {error}")
        return None
    return ClockWatch(stand, list(stand.unheld)) if fault.clocks else None


def _end(stand: Stand, fault: Fault | None, broken: list[str]) -> float | None:
    """Ends the fault; returns how long until all is back, None where it is not."""
    began_s = time.monotonic()
    if fault is not None:
        try:
            fault.end(stand)
        except Exception as error:
            broken.append(f"it could not end: {error}")
    try:
        wait_for("a whole product after the fault", stand.whole, timeout_s=BACK_WITHIN_S, every_s=0.2)
    except AssertionError:
        broken.append(f"not whole {BACK_WITHIN_S:.0f} s after the fault")
        return None
    return round(time.monotonic() - began_s, 1)


def _records(stand: Stand, replay: Replay, asked: Sequence[Asked], outage: Outage) -> dict[str, int]:
    """Returns how many records there are by traceparent, once every whole answer has one that the outage did not
    forget, or the wait is over. Records of an hour that is still to come are set aside until then: they count."""

    def found() -> dict[str, int]:
        rows = stand.sql(
            "SELECT traceparent, count(*) FROM telemetry_requestrecord WHERE traceparent LIKE %s GROUP BY 1",
            replay.trace_prefix + "%",
        )
        waiting = stand.sql(_SET_ASIDE, RECORDED_WITHIN_S, replay.trace_prefix + "%")
        return {str(traceparent): int(number) for traceparent, number in [*waiting, *rows]}

    deadline_s = time.monotonic() + RECORDED_WITHIN_S
    while time.monotonic() < deadline_s:
        records = found()
        if account.of(asked, records).missing == outage.lacks(asked, records):
            break
        time.sleep(1.0)
    return records


def _lost(asked: Sequence[Asked], records: Mapping[str, int], figures: Requests, outage: Outage) -> list[str]:
    """Returns what of requests and records was lost for no reason that the fault has."""
    found = []
    if lost := figures.lost - outage.loses(asked):
        ends = ", ".join(f"{number} {end}" for end, number in sorted(figures.ends.items()))
        found.append(f"{lost} requests lost for no reason; all that were lost: {ends}")
    if missing := figures.missing - outage.lacks(asked, records):
        found.append(f"{missing} answered requests are not on record")
    return found


def _promises(stand: Stand, fault: Fault | None, figures: Requests, clocks_s: float | None) -> list[str]:
    """Returns those that did not hold."""
    found = []
    waits_s = fault.waits_s if fault else None
    if waits_s is not None and figures.longest_begin_s > waits_s:
        found.append(f"an answer began after {figures.longest_begin_s:g} s, {waits_s:g} s are promised")
    if figures.twice:
        found.append(f"{figures.twice} requests are on record twice")
    if clocks_s is None or clocks_s > CLOCKS_WITHIN_S:
        took = "not at all" if clocks_s is None else f"after {clocks_s:.1f} s"
        found.append(f"clocks at their default {took}, {CLOCKS_WITHIN_S:.0f} s are promised")
    try:
        [(now,)] = stand.sql("SELECT now()")
        ledger.marked_since(stand, now)
        wait_for("an epoch after the fault", lambda: _epoch_since(stand, now), timeout_s=EPOCH_WITHIN_S)
    except AssertionError as error:
        found.append(str(error).split(";")[0])
    found += ledger.wrong(stand)
    found += [wrong for look in (fault.look if fault else ()) if (wrong := look(stand))]
    return found


def _epoch_since(stand: Stand, moment: datetime) -> bool:
    """Whether one ended since, by a clock that is right."""
    between = "SELECT count(*) FROM scheduler_epoch WHERE finished_at BETWEEN %s AND now() + interval '1 second'"
    return stand.sql(between, moment) != [(0,)]
