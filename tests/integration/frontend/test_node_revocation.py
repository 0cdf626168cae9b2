"""A node's identity is revoked by page, REST and command, by who may operate at its site."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from greenserve.commands.node import node as node_command
from pools import wire
from pools.access.audit import Actor
from pools.models import AuditEntry, Cluster, Node, NodeIdentity, Site
from pools.registration import node_identities, node_users
from scheduler.control.apply import fleet_messages
from tests.fakes.people import person

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(redis_client: redis.Redis) -> Node:
    cluster = Cluster.objects.create(site=Site.objects.create(name="oslo", label="Oslo", grid_zone="NO1"), name="main")
    made, now = Node.objects.create(cluster=cluster, name="n1"), timezone.now()
    NodeIdentity.objects.create(
        node=made,
        **{"serial": "1f", "fingerprint": "0" * 64, "names": ["n1"], "password_hash": "a" * 64},
        **{"issued_at": now, "expires_at": now + timedelta(days=30)},
    )
    node_users.admit(redis_client, "n1", "a" * 64, "1f")
    return made


def client(role: str, *sites: Site) -> Client:
    made = Client()
    made.force_login(person(role, sites=sites))
    return made


def is_in(redis_client: redis.Redis) -> bool:
    user: Any = redis_client.acl_getuser("node-n1")
    return bool(user) and bool(redis_client.hexists(wire.CERTIFICATES_KEY, "1f"))


def test_rest_revokes_once_for_who_may_operate_there(redis_client: redis.Redis, node: Node) -> None:
    path = "/api/v1/nodes/n1/revoke/"
    elsewhere = Site.objects.create(name="elsewhere", label="Elsewhere", grid_zone="DE")
    for caller, status in ((Client(), 401), (client("viewer"), 403), (client("operator", elsewhere), 404)):
        assert caller.post(path).status_code == status
    assert is_in(redis_client)
    operator = client("administrator")
    answers = [operator.post(path) for _ in range(2)]
    assert [(one.status_code, one.json()) for one in answers] == [(200, {"certificates": n}) for n in (1, 0)]
    assert not is_in(redis_client)
    entry = AuditEntry.objects.get(action="revoke")
    assert (entry.label, entry.channel) == ("n1", "api")


def test_page_shows_how_long_the_certificate_holds_and_revokes_it(redis_client: redis.Redis, node: Node) -> None:
    operator = client("operator")
    assert "Its certificate holds until" in operator.get(reverse("node", args=["n1"])).content.decode()
    viewer = client("viewer")
    assert "Revoke it" not in viewer.get(reverse("node", args=["n1"])).content.decode()
    assert viewer.post(reverse("node-revoke", args=["n1"])).status_code == 403
    answer = operator.post(reverse("node-revoke", args=["n1"]), follow=True).content.decode()
    assert "Node n1 is let in no more." in answer
    assert "Its certificate holds until" not in answer
    assert not is_in(redis_client)


def test_command_revokes_and_says_when_there_is_nothing(redis_client: redis.Redis, node: Node) -> None:
    first, second, third = (CliRunner().invoke(node_command, ["revoke", name]) for name in ("n1", "n1", "n2"))
    assert (first.exit_code, second.exit_code, third.exit_code) == (0, 1, 2)
    assert "Node n1 is let in no more." in first.output
    assert "there is nothing to revoke" in second.output
    assert "there is no node 'n2'" in third.output
    assert not is_in(redis_client)


def test_fleet_snapshot_leaves_a_revoked_node_out(redis_client: redis.Redis, node: Node) -> None:
    """Nodes without an identity, such as simulated ones, stay; one that is let in again comes back."""
    Node.objects.create(cluster=node.cluster, name="simulated", simulated=True)

    def known() -> set[str]:
        return set(fleet_messages.fleet_snapshot(timezone.now(), 1).nodes)

    assert known() == {"n1", "simulated"}
    node_identities.revoke(Actor(channel="command"), node, timezone.now())
    assert known() == {"simulated"}
    now = timezone.now()
    NodeIdentity.objects.create(
        node=node,
        **{"serial": "2f", "fingerprint": "1" * 64, "names": ["n1"], "password_hash": "b" * 64},
        **{"issued_at": now, "expires_at": now + timedelta(days=30)},
    )
    assert known() == {"n1", "simulated"}
