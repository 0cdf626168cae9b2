"""The attention list, worst item first, each with the next step. The functions are pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from telemetry.selectors.frames import SloFrame

from . import formats
from .health import Health

LAG_S = 15.0
BACKLOG = 500
STEPS = {
    "late": "It lives, but its loop does not turn: `greenserve logs {name}`",
    "dead": "It is not running: `greenserve logs {name}`, then `greenserve up` again",
    "restarting": "The supervisor is starting it again; if it goes on: `greenserve logs {name}`",
}
OF_SHORT = {
    "ceiling": "Raise its `max_gpus`",
    "others": "Raise its `weight` or `min_gpus`, or add GPUs",
    "none_fit": "Add GPUs that it can run on",
}


@dataclass(frozen=True, slots=True)
class Item:
    """level: bad (something does not work) | warn (it works, not as it should). `step` is what to do next.

    `service`: whose page says more; empty: none does.
    """

    level: str
    text: str
    step: str
    decision_id: int | None = None
    alert_id: int | None = None
    acknowledged: bool = False
    service: str = ""


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """An alert that has not ended. `place`: what the site in its subject is called; empty: there is none."""

    pk: int
    rule: str
    subject: str
    place: str
    level: str
    text: str
    step: str
    decision_id: int | None = None
    acknowledged: bool = False


def items(health: Health, slo: SloFrame, alerts: Sequence[OpenAlert] = ()) -> tuple[Item, ...]:
    """Returns everything that an operator should look at; empty when all is well.

    What an alert says already is not repeated by an item about the same subject.
    """
    said = {_about(alert) for alert in alerts}
    raised = (Item(a.level, a.text, a.step, a.decision_id, a.pk, a.acknowledged) for a in alerts)
    found = (
        *raised,
        *_plumbing(health),
        *_loops(health, said),
        *_nodes(health, said),
        *_splits(health),
        *_short(health),
        *_feeds(health, said),
        *_slo(slo, said),
    )
    return tuple(sorted(found, key=lambda item: (item.acknowledged, item.level != "bad")))


def _about(alert: OpenAlert) -> tuple[str, str]:
    """Returns kind and name of an alert's subject, so that no other item repeats the alert."""
    if alert.rule == "feed_stale":
        return "feed", f"{alert.place}/{alert.subject.rpartition('/')[2]}"
    if alert.rule.startswith("slo_burn_"):
        return "slo", alert.subject
    return alert.rule, alert.subject


def _plumbing(health: Health) -> Iterator[Item]:
    if health.redis_error:
        yield Item(
            "bad", f"Redis does not answer ({health.redis_error})", "`greenserve status`, `greenserve logs redis`"
        )
    elif health.table_missing:
        yield Item("warn", "No supervisor reports its processes", "Start the product with `greenserve up`")
    for process in health.processes:
        if process.state in STEPS:
            level = "warn" if process.state == "restarting" else "bad"
            yield Item(level, f"{process.name} is {process.state}", STEPS[process.state].format(name=process.name))
    ingest = health.ingest
    behind = (ingest.waiting_batches or 0) + (ingest.waiting_requests or 0)
    if behind >= BACKLOG or (ingest.newest_sample_age_s or 0.0) > LAG_S:
        age = formats.seconds(ingest.newest_sample_age_s)
        yield Item(
            "warn",
            f"Samples arrive late: {behind} batches wait, the newest sample is {age} old",
            "`greenserve logs ingester`",
        )


def _loops(health: Health, said: Set[tuple[str, str]]) -> Iterator[Item]:
    never = list(dict.fromkeys(loop.kind for loop in health.loops if loop.state == "never ran"))
    if never:
        text = f"No decision yet of: {', '.join(never)}"
        yield Item("warn", text, "They come soon after the start; if not, `greenserve logs epochs`")
    for loop in health.loops:
        name = f"The {loop.kind} loop" + (f" of {loop.service}" if loop.kind != "clock" else "")
        where = (
            "`greenserve logs epochs`" if loop.kind != "clock" else "the log of a node: `greenserve logs node.<name>`"
        )
        if loop.state in ("infeasible", "failed") and ("epoch_failed", f"{loop.service}/{loop.kind}") in said:
            continue
        if loop.state == "infeasible":
            text = f"{name} found no plan that meets all constraints, and does what it can. {loop.error}".strip()
            yield Item("bad", text, "Look at the decision: it names what cannot be met", loop.decision_id)
        elif loop.state == "failed":
            yield Item("bad", f"{name} failed; the last plan stays. {loop.error}".strip(), where, loop.decision_id)
        elif loop.state == "late":
            yield Item("bad", f"{name} is late: it runs each {formats.seconds(loop.period_s)}", where)


def _nodes(health: Health, said: Set[tuple[str, str]]) -> Iterator[Item]:
    if health.redis_error:
        return  # Redis carries the agents' reports: without it nothing is known of any node
    silent = [n.name for n in health.nodes if n.state == "silent" and ("node_silent", n.name) not in said]
    if silent:
        text = (
            f"Node {silent[0]} is silent"
            if len(silent) == 1
            else f"{len(silent)} nodes are silent: {formats.few(silent)}"
        )
        yield Item("bad", text, f"`greenserve logs node.{silent[0]}`")
    for node in health.nodes:
        if node.error:
            yield Item("warn", f"Node {node.name}: {node.error}", f"`greenserve logs node.{node.name}`")
        for failed in node.failed:
            yield Item("bad", f"An instance failed on {node.name}: {failed}", f"`greenserve logs simnode.{node.name}`")


def _splits(health: Health) -> Iterator[Item]:
    for service, why in health.unsplit.items():
        yield Item(
            "warn", f"Requests of {service} are served whole, and its policy splits them: {why}", health.unsplit_remedy
        )


def _short(health: Health) -> Iterator[Item]:
    for service, short in health.short.items():
        yield Item("warn", short.text(service).rstrip("."), OF_SHORT[short.reason], service=service)


def _feeds(health: Health, said: Set[tuple[str, str]]) -> Iterator[Item]:
    words = {
        "stale": "has not answered for {age}",
        "failing": "fails: {error}",
        "no value": "answers, but has no value for now",
        "never": "has never answered",
    }
    for row in health.feeds:
        feed = row.feed
        if row.state in words and ("feed", f"{feed.site_label}/{feed.signal}") not in said:
            age = formats.seconds(health.at_s - feed.last_ok_s if feed.last_ok_s is not None else None)
            text = words[row.state].format(age=age, error=feed.last_error)
            yield Item("warn", f"The carbon feed of {feed.site_label} {text}", "`greenserve logs epochs`")


def _slo(slo: SloFrame, said: Set[tuple[str, str]]) -> Iterator[Item]:
    for series in slo.series:
        if ("slo", f"{series.service}/{series.kind}") in said:
            continue
        if series.overall is not None and series.overall < series.target:
            yield Item(
                "warn",
                f"{series.kind.upper()} of {series.service}: {formats.percent(series.overall)} within "
                f"{formats.seconds(series.objective_s)}, objective {formats.percent(series.target)}",
                "See which pool waits, in the table of pools",
            )
