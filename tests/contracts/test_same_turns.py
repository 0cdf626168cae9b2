"""The contract of both worlds on loops that look each few seconds: turn after turn they see the same load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db import transaction

from core.observations import asking
from core.observations.recording import recall
from core.simulator.policies import build, read_policy
from core.types import Loop
from scheduler.control import epochs
from scheduler.control.steps import recent_load
from tests.fakes import minute as minutes
from tests.fakes.house import moment
from tests.fakes.minute import MINUTE, Came, Minute

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("usual_periods")]

GAPS_S = (10.0, 14.0, 6.0, 200.0)  # between turns
CAME = (
    Came(0.5, 40, 30),  # the service is no new one
    *(Came(5.0 * k + 0.1 + 0.05 * n, 60 + 13 * n, 20 + k % 25) for k in range(1_480, 1_552) for n in range(7 * k % 31)),
)


def turns() -> list[Minute]:
    """Returns each turn with all that came before it."""
    times_s = [7_503.5]
    for gap_s in GAPS_S:
        times_s.append(times_s[-1] + gap_s)
    return [
        replace(MINUTE, now_s=now_s, came=tuple(own for own in CAME if own.at_s + 3.0 < now_s)) for now_s in times_s
    ]


def live(client) -> list[tuple[float, ...]]:
    found, written = [], 0
    with transaction.atomic():
        service = minutes.rows(MINUTE, "greenserve", {})
        for now in (MINUTE.before_anything(), *turns()):
            minutes.write_requests(replace(now, came=now.came[written:]))
            written = len(now.came)
            minutes.report_nodes(client, now)
            with asking.noting() as notes:
                for loop in (Loop.CARBON, Loop.SCALE):
                    epoch = epochs.run(service, loop, moment(now.now_s))
                    assert epoch is None or not epoch.error, epoch.error
            found.append(_rates(notes))
        transaction.set_rollback(True)
    return found


def simulated() -> list[tuple[float, ...]]:
    plan = build(read_policy({"name": "greenserve"}), minutes.world(MINUTE))
    (scale,) = [own for own in plan.controls if own.name == Loop.SCALE]
    found = []
    for now in (MINUTE.before_anything(), *turns()):
        with asking.noting() as notes:
            scale.step(minutes.view(now, plan))
        found.append(_rates(notes))
    return found


def _rates(notes) -> tuple[float, ...]:
    return recall(notes[-1]["given"])[1].rates_rps


def test_load_is_the_same_turn_after_turn(redis_client):
    ours, theirs = live(redis_client), simulated()
    assert len({len(rates) for rates in ours}) == 2, "the declared load, then stretches"
    assert [pytest.approx(rates) for rates in ours] == theirs


def test_load_differs_when_turns_end_a_stretch_too_early(redis_client, monkeypatch):
    known_until_s = recent_load.known_until_s
    monkeypatch.setattr(recent_load, "known_until_s", lambda turn: known_until_s(turn) - 5.0)
    assert [pytest.approx(rates) for rates in live(redis_client)] != simulated()
