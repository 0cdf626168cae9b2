"""The attention list: alerts first, and nothing said twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.algorithms.fleet.sharing import Shortage
from frontend.attention import OpenAlert, items
from frontend.health import FeedHealth, Health, NodeHealth
from frontend.loop_health import LoopHealth
from telemetry.selectors.frames import FeedState, SloFrame, SloSeries, TimeRange

NOW_S = 1_800_000_000.0
SLO = SloFrame(
    TimeRange.last(300.0, NOW_S),
    120.0,
    (SloSeries("llama", "ttft", 2.0, 0.99, (), (), total_judged=10, total_within=5),),
)
HEALTH = Health(
    NOW_S,
    "",
    False,
    loops=(LoopHealth("carbon", "llama", "failed", 60.0, NOW_S, "failed", "it died", None),),
    nodes=(NodeHealth("n1", "silent", None, {}, (), ""), NodeHealth("n2", "silent", None, {}, (), "")),
    feeds=(FeedHealth(FeedState("Ashburn", "average", "p", "", NOW_S - 900, "", None, None), "stale"),),
)


def alert(pk: int, rule: str, subject: str, *, place: str = "", level: str = "bad", seen: bool = False) -> OpenAlert:
    return OpenAlert(pk, rule, subject, place, level, f"{rule} of {subject}", "do something", None, seen)


def test_what_an_alert_says_is_not_said_again():
    alerts = (
        alert(1, "node_silent", "n1"),
        alert(2, "feed_stale", "ashburn/average", place="Ashburn", level="warn"),
        alert(3, "slo_burn_slow", "llama/ttft"),
        alert(4, "epoch_failed", "llama/carbon"),
    )
    found = [item.text for item in items(HEALTH, SLO, alerts) if item.alert_id is None]
    assert found == ["Node n2 is silent"]


def test_everything_is_said_when_no_alert_is_open():
    texts = " ".join(item.text for item in items(HEALTH, SLO))
    for part in ("2 nodes are silent", "carbon feed of Ashburn", "TTFT of llama", "carbon loop of llama failed"):
        assert part in texts


@pytest.mark.parametrize(
    ("short", "why", "step"),
    [
        (Shortage(8, 4, 7.5, max_gpus=4), "its ceiling is 4", "`max_gpus`"),
        (Shortage(12, 4, 8.0, others={"code": 4}), "code has 4", "`weight`"),
        (Shortage(12, 4, 8.0), "there are no more", "Add GPUs"),
    ],
)
def test_service_that_is_short_is_named_with_why_and_what_to_do(short: Shortage, why: str, step: str) -> None:
    (item,) = [item for item in items(replace(HEALTH, short={"chat": short}), SLO) if item.service]
    assert item.text.startswith("chat gets 4 of the ")
    assert why in item.text
    assert step in item.step
    assert (item.level, item.service) == ("warn", "chat")


def test_what_somebody_looks_after_comes_last():
    alerts = (alert(1, "node_silent", "n1", seen=True), alert(2, "queue_growing", "x", level="warn"))
    found = items(HEALTH, SLO, alerts)
    assert found[-1].alert_id == 1
    assert found[0].level == "bad"
