"""The rules that there are, with their usual thresholds; settings may change numbers, not meanings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

from core.engine.calibration import DRIFT

from .alert_state_machine import Level, Rule
from .burn_rates import WINDOWS, BurnWindow

LATE_PERIODS = 3.0  # of a feed's refresh, as the health page has it
ADJUSTABLE = {"threshold", "clear", "for_s", "resolve_s", "level"}
_BURN_TITLES = {
    "slo_burn_fast": "Error budget burns fast",
    "slo_burn_slow": "Error budget burns",
    "slo_burn_steady": "Error budget will not last",
}


def rules(feed_refresh_s: float, changes: Mapping[str, Mapping[str, object]] | None = None) -> dict[str, Rule]:
    """Returns all rules by name.

    Args:
        feed_refresh_s: How often carbon feeds are asked.
        changes: By rule, fields to set otherwise.

    Raises:
        ValueError: A change names a rule or field that there is not, or makes no sense.
    """
    found = {
        rule.name: rule
        for rule in (
            *map(_burn, WINDOWS),
            *_plant(feed_refresh_s),
            *_service(),
            *_budgets(),
            *_upkeep(),
            *_disks(),
        )
    }
    for name, change in (changes or {}).items():
        if name not in found:
            raise ValueError(f"there is no alert rule '{name}'; known are {', '.join(sorted(found))}")
        found[name] = _changed(found[name], change)
    return found


def _changed(rule: Rule, change: Mapping[str, object]) -> Rule:
    values: dict[str, object] = {}
    for field, value in change.items():
        if field not in ADJUSTABLE:
            raise ValueError(f"{rule.name}: '{field}' cannot be set; these can: {', '.join(sorted(ADJUSTABLE))}")
        if field == "level":
            values[field] = Level(str(value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            values[field] = float(value)
        else:
            raise ValueError(f"{rule.name}: {field} must be a number, not {value!r}")
    assert values.keys() <= {field.name for field in fields(Rule)}
    return replace(rule, **values)  # type: ignore[arg-type]  # checked above


def _burn(window: BurnWindow) -> Rule:
    return Rule(
        name=window.rule,
        title=_BURN_TITLES[window.rule],
        level=Level.WARN if window.factor <= 1.0 else Level.BAD,
        threshold=window.factor,
        clear=0.9 * window.factor,
        unit="times",
        for_s=0.0,  # the windows themselves wait until it matters
        resolve_s=120.0,
        step="See which pool waits in the Overview's table of pools, and what the last decisions were",
    )


def feed_late_after_s(refresh_s: float) -> float:
    return LATE_PERIODS * refresh_s + 5.0


def _plant(feed_refresh_s: float) -> Iterable[Rule]:
    """Returns the rules for what stands in the data centres, and what is metered there."""
    feed = feed_late_after_s(feed_refresh_s)
    yield Rule(
        *("feed_stale", "Carbon feed is stale", Level.WARN, feed, feed / 2.0 + 2.5, "s"),
        for_s=0.0,  # an age needs no waiting
        resolve_s=feed_refresh_s,
        step="`greenserve logs epochs`: what the provider answered; decisions go on without its site's intensity",
    )
    yield Rule(
        *("node_silent", "Node is silent", Level.BAD, 30.0, 15.0, "s"),
        for_s=30.0,
        resolve_s=30.0,
        step="`greenserve logs node.{subject}`",
    )
    yield Rule(
        *("server_not_switched", "Server is not switched", Level.BAD, 1.0, 0.5, ""),
        for_s=30.0,
        resolve_s=30.0,
        step="Check its power port under Configure, Nodes, and its secret (docs/servers.md)",
    )
    yield Rule(
        *("agent_too_old", "Agent is too old", Level.WARN, 1.0, 0.5, ""),
        for_s=0.0,  # a version does not come and go
        resolve_s=60.0,
        step="Install a later GreenServe on node {subject}, and start its agent again",
    )
    yield Rule(
        *("ledger_imbalance", "Ledger does not balance", Level.BAD, 0.01, 0.005, "share"),
        for_s=60.0,
        resolve_s=60.0,
        step="Sign no report of this site; `greenserve logs epochs` for what the postings say",
    )
    yield Rule(
        *("energy_unattributed", "Energy is nobody's", Level.WARN, 0.05, 0.03, "share"),
        for_s=300.0,
        resolve_s=300.0,
        step="Samples are missing: `greenserve logs ingester`, and the nodes' agents",
    )
    yield Rule(
        *("power_near_cap", "Power is near the cap", Level.WARN, 0.9, 0.85, "share"),
        for_s=60.0,
        resolve_s=120.0,
        step="Lower the load or the clocks of this site; the carbon plan moves work elsewhere if it has room",
    )
    yield Rule(
        *("node_power_near_limit", "Node draws nearly all it can", Level.WARN, 0.98, 0.95, "share"),
        for_s=300.0,
        resolve_s=300.0,
        step="Look at the pools that run on it: more instances at a lower clock take less",
    )


def _service() -> Iterable[Rule]:
    """Returns the rules for serving, and for the loops that decide about it."""
    yield Rule(
        *("queue_growing", "Queue grows", Level.WARN, 20.0, 5.0, ""),
        for_s=60.0,
        resolve_s=120.0,
        step="See whether the scale loop has answered: the last decisions; else raise the pool's GPU budget",
    )
    yield Rule(
        *("epoch_failed", "Epoch failed", Level.BAD, 1.0, 1.0, ""),
        for_s=0.0,
        resolve_s=60.0,
        step="`greenserve logs epochs`; the last plan stays in force",
    )
    yield Rule(
        *("engine_drift", "Engines differ from predictions", Level.WARN, DRIFT, 0.8 * DRIFT, "share"),
        for_s=300.0,
        resolve_s=300.0,
        step="Measure the engine again: `greenserve node profile`; then publish the profile",
    )
    yield Rule(
        *("crash_loop", "Instance falls over again and again", Level.BAD, 3.0, 1.0, ""),
        for_s=0.0,
        resolve_s=300.0,
        step="Read its last words on the Health page, and its node's log",
    )


def _budgets() -> Iterable[Rule]:
    """Returns the rules for what tenants may cost and emit in a month."""
    yield Rule(
        *("budget_used", "Budget runs out", Level.WARN, 0.8, 0.78, "share"),
        for_s=0.0,  # a sum needs no waiting
        resolve_s=60.0,
        step="See on the tenant's page which service and site use it: nothing stops by itself",
    )
    yield Rule(
        *("budget_forecast", "Budget will not last", Level.WARN, 1.0, 0.97, "share"),
        for_s=0.0,  # a forecast changes with the hours that are settled
        resolve_s=600.0,
        step="See on the tenant's page what each day takes; agree on less use, or on another budget",
    )


def _upkeep() -> Iterable[Rule]:
    """Returns the rules for GreenServe's own processes, clock and data."""
    yield Rule(
        *("process_stalled", "Process made no progress", Level.WARN, 1.0, 1.0, ""),
        for_s=0.0,
        resolve_s=0.0,  # the source names it for an hour
        step="`greenserve logs {subject}`: the lines before its restart; `greenserve status` shows how often",
    )
    yield Rule(
        *("clock_set_back", "Clock was set back", Level.WARN, 1.0, 1.0, ""),
        for_s=0.0,
        resolve_s=0.0,  # the source names it for an hour
        step="Check the machine's time and its time service; the audit trail has what was set back",
    )
    yield Rule(
        *("rows_set_aside", "Rows were set aside", Level.WARN, 1.0, 1.0, ""),
        for_s=0.0,
        resolve_s=0.0,
        step="`greenserve dead list` for the reasons; then `greenserve dead replay`",
    )


def _disks() -> Iterable[Rule]:
    """Returns the rules for disks, and for what is kept elsewhere while they are full or fail."""
    yield Rule(
        *("records_in_memory", "Records are in memory alone", Level.WARN, 1.0, 1.0, ""),
        for_s=0.0,
        resolve_s=60.0,
        step="Make room in the spool folder, or mend its disk: what is in memory is lost if the process is killed",
    )
    yield Rule(
        *("records_lost", "Records are lost", Level.BAD, 1.0, 1.0, ""),
        for_s=0.0,  # what is lost needs no waiting
        resolve_s=60.0,
        step="Make room in the spool folder; are Redis and the ingester up? Reports lack these requests",
    )
    yield Rule(
        *("stream_filling", "Records wait to be stored", Level.WARN, 0.8, 0.5, "share"),
        for_s=60.0,
        resolve_s=60.0,
        step="`greenserve logs ingester`: is PostgreSQL up, and has its disk room?",
    )
    yield Rule(
        *("disk_filling", "Disk is nearly full", Level.WARN, 0.9, 0.88, "share"),
        for_s=0.0,
        resolve_s=60.0,
        step="Make room: old reports, logs and backups first; or move the folder to a larger disk",
    )
    yield Rule(
        *("report_not_written", "Report could not be written", Level.WARN, 1.0, 1.0, ""),
        for_s=0.0,
        resolve_s=0.0,
        step="Make room in the reports' folder, then ask for the report again",
    )
