"""What pages and REST say of servers that are switched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.test import Client
from django.utils import timezone

from pools.models import Node, PowerCycle
from scheduler.models import Decision

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(demo_rows: None, redis_client: redis.Redis) -> Node:
    found = Node.objects.get(name="loc1-a100")
    found.power_port, found.boot_s = "simulated", 300.0
    found.save()
    PowerCycle.objects.create(node=found, off_asked_at=timezone.now() - timedelta(hours=1), off_at=timezone.now())
    return found


def test_node_that_is_off_by_plan_says_so_and_when_it_could_be_there(admin_client: Client, node: Node) -> None:
    for path in ("/nodes/", f"/nodes/{node.name}/"):
        text = admin_client.get(path).content.decode()
        assert "off (by plan), boots in 5 min" in text
    assert "Its server: off (by plan)" in text
    state = admin_client.get(f"/api/v1/nodes/{node.name}/state/").json()
    assert (state["state"], state["server"]) == ("off", "off (by plan), boots in 5 min")
    power = state["power"]
    assert (power["phase"], power["boot_s"], power["boot_source"], power["fault"]) == ("off", 300.0, "declared", "")
    other = admin_client.get("/api/v1/nodes/loc1-h100/state/").json()
    assert (other["state"], other["server"], other["power"]) == ("silent", "", None)


def test_decision_on_a_server_is_shown_though_it_is_of_no_service(admin_client: Client, node: Node) -> None:
    decision = Decision.objects.create(
        kind="scale",
        at=datetime.now(UTC),
        reason="slack",
        summary="loc1-a100 is switched off: no instance for 400 s.",
        inputs={"servers": {}},
        commands=[{"type": "SwitchServer", "server": "loc1-a100", "on": False}],
    )
    for path in ("/decisions/", f"/decisions/{decision.pk}/"):
        assert "loc1-a100 is switched off" in admin_client.get(path).content.decode()
    found = admin_client.get(f"/api/v1/decisions/{decision.pk}/").json()
    assert found["commands"][0]["server"] == "loc1-a100"
