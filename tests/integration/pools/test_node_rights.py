"""With a node's credentials nothing can be read or written but what is the node's own.

All of it holds on the embedded server, and on the oldest that GreenServe takes where the machine has one of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.utils import timezone

from pools import wire
from pools.access.audit import Actor
from pools.agent.join_messages import GpuOffer, NodeOffer
from pools.agent.node_identity import NodeIdentity
from pools.agent.redis_link import RedisLink
from pools.models import AuditEntry, Cluster, Node, Site
from pools.models import NodeIdentity as IdentityRow
from pools.registration import join_tokens, node_identities, node_users
from tests import servers
from tests.fakes.house import clean_redis

pytestmark = pytest.mark.django_db
GPU = GpuOffer("GPU-a", 0, "NVIDIA A100-SXM4-80GB", "A100-80GB", 85_899_345_920, 210.0, 1410.0, 400.0)
CLOCK = wire.ClockPolicy()


@pytest.fixture(scope="module", params=["embedded", "redis-7.0"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server."""
    if request.param == "embedded":
        yield django_settings.REDIS_URL
        return
    program = servers.redis_7_0()
    if program is None:  # also in CI: no machine has to have a second server
        pytest.skip("no redis-server of 7.0 is on the PATH (apt-get install redis-server on Debian 12)")
    folder = tmp_path_factory.mktemp("redis")
    try:
        with servers.redis_running(folder, program) as url:
            yield url
    finally:
        servers.remove(folder)


@pytest.fixture
def redis_client(server: str, settings: Any) -> Iterator[redis.Redis]:
    settings.REDIS_URL = server
    with clean_redis() as client:
        yield client


@pytest.fixture
def cluster(redis_client: redis.Redis) -> Iterator[Cluster]:
    yield Cluster.objects.create(site=Site.objects.create(name="oslo", label="Oslo", grid_zone="NO1"), name="main")
    node_users.bring_up_to_date(redis_client, node_users.Wanted({}, {}))


Join = Callable[..., node_identities.Admission]


@pytest.fixture
def join(cluster: Cluster, tmp_path: Path, settings: Any) -> Join:
    settings.GREENSERVE_SECRETS_DIR = tmp_path / "secrets"

    def joined(name: str = "n1", names: tuple[str, ...] = ()) -> node_identities.Admission:
        _, secret = join_tokens.issue(Actor(), cluster)
        gpu = GpuOffer(f"GPU-{name}", *[getattr(GPU, field) for field in GPU.__struct_fields__[1:]])
        request = NodeIdentity.of(tmp_path, name).request(name, names)
        return node_identities.join(NodeOffer(secret, name, "570", [gpu], request=request), "10.0.0.1", timezone.now())

    return joined


@pytest.fixture
def node(join: Join) -> Iterator[redis.Redis]:
    """A connection with the credentials of node n1 alone."""
    with redis.Redis.from_url(join().redis_url, socket_timeout=2) as client:
        yield client


def desired(node: str) -> bytes:
    return wire.encode(wire.DesiredNode(node, 1, 1.0, [], CLOCK))


def test_agent_reads_its_desired_state_and_says_how_it_is(redis_client: redis.Redis, join: Join) -> None:
    url = join().redis_url
    redis_client.set(wire.desired_key("n1"), desired("n1"))
    redis_client.acl_log_reset()
    link = RedisLink(url, "n1")
    found = link.desired()
    assert found is not None
    assert found.node == "n1"
    batch = wire.AgentBatch("n1", "boot", 1, 1.0)
    assert link.send(wire.AgentState("n1", "boot", 1.0, None, []), wire.Heartbeat("node.n1", 1.0, 1.0), [batch]) == 1
    assert redis_client.xlen(wire.batch_stream("n1")) == 1
    assert redis_client.exists(wire.agent_key("n1"), wire.alive_key("node.n1")) == 2
    link.close()
    assert redis_client.acl_log() == [], "it is refused nothing, nor is what redis-py says of itself"


OTHERS: dict[str, tuple[str | bytes | int, ...]] = {
    "fleet index": ("GET", wire.FLEET_INDEX_KEY),
    "fleet of 0.1.0": ("SET", wire.FLEET_KEY, "forged"),
    "services": ("HMGET", wire.FLEET_SERVICES_KEY, "svc"),
    "keys": ("HMGET", wire.FLEET_KEYS_KEY, "0" * 64),
    "a forged key": ("HSET", wire.FLEET_KEYS_KEY, "0" * 64, "{}"),
    "all profiles": ("HMGET", wire.PROFILES_KEY, "1"),
    "a forged profile of its own": ("HSET", wire.profiles_key("n1"), "1", "{}"),
    "another's desired state": ("GET", wire.desired_key("n2")),
    "a forged desired state": ("SET", wire.desired_key("n2"), "{}"),
    "its own desired state": ("SET", wire.desired_key("n1"), "{}"),
    "another's state": ("SET", wire.agent_key("n2"), "{}"),
    "reading another's state": ("GET", wire.agent_key("n2")),
    "another whose name begins alike": ("GET", wire.desired_key("n10")),
    "another's sign of life": ("SET", wire.alive_key("gateway"), "{}"),
    "another's batches": ("XADD", wire.batch_stream("n2"), "*", "b", "x"),
    "the shared stream": ("XADD", wire.BATCH_STREAM, "*", "b", "x"),
    "request records": ("XADD", wire.REQUEST_STREAM, "*", "b", "x"),
    "what gateways have served": ("SET", wire.gateway_use_key("gateway"), "{}"),
    "tables of processes": ("SET", wire.processes_key(""), "{}"),
    "tables of a further control plane": ("GET", wire.processes_key("b")),
    "counts of runs": ("SET", wire.runs_key(""), 0),
    "the scheduler's queue": ("LPUSH", "epochs", "{}"),
    "another's queue": ("LPUSH", f"{wire.celery_prefix('n2')}node.n2", "{}"),
    "another's queue, read": ("BRPOP", f"{wire.celery_prefix('n2')}node.n2", 1),
    "Celery's bindings": ("SADD", "_kombu.binding.epochs", "x"),
    "certificates": ("HSET", wire.CERTIFICATES_KEY, "1", "n1"),
    "another's request": ("SET", wire.certificate_asked_key("n2"), "x"),
    "its own answer": ("SET", wire.certificate_answer_key("n1"), "x"),
    "another's clocks": ("SUBSCRIBE", wire.clock_channel("n2")),
    "a forged clock": ("PUBLISH", wire.clock_channel("n1"), "{}"),
    "announcements": ("SUBSCRIBE", wire.FLEET_CHANNEL),
    "users": ("ACL", "LIST"),
    "a user": ("ACL", "SETUSER", "node-n1", "allkeys"),
    "settings of the server": ("CONFIG", "GET", "*"),
    "all keys": ("KEYS", "*"),
    "a scan": ("SCAN", "0"),
    "what others do": ("MONITOR",),
    "connections": ("CLIENT", "LIST"),
    "all of it": ("FLUSHALL",),
    "a function": ("FUNCTION", "LIST"),
    "copying": ("COPY", wire.desired_key("n1"), f"{wire.celery_prefix('n1')}x"),
    "a script that reads": ("EVAL", "return redis.call('GET', KEYS[1])", 1, wire.FLEET_INDEX_KEY),
    "a script that hides its keys": ("EVAL", f"return redis.call('HSET', '{wire.FLEET_KEYS_KEY}', 'a', 'b')", 0),
}


def test_nothing_of_others_can_be_used(redis_client: redis.Redis, node: redis.Redis) -> None:
    before = _contents(redis_client)
    said = {what: _said(node, command) for what, command in OTHERS.items()}
    refusals = r"(?i)permission|noperm|acl fail|can't access"
    assert {what: words for what, words in said.items() if not re.search(refusals, words)} == {}
    assert _contents(redis_client) == before


def _contents(client: redis.Redis) -> dict[bytes, Any]:
    keys: Any = client.keys("*")
    return {key: client.dump(key) for key in keys}


def _said(node: redis.Redis, command: tuple[Any, ...]) -> str:
    try:
        return f"done: {node.execute_command(*command)}"
    except redis.RedisError as error:
        return str(error)


def test_node_becomes_nobody_else(node: redis.Redis) -> None:
    with node.client() as one:
        one.ping()
        connection = one.connection
        assert connection is not None
        for words in (("AUTH", "default", ""), ("AUTH", "default", "guess"), ("AUTH", "node-n2", "guess")):
            connection.send_command(*words)
            with pytest.raises(redis.RedisError, match=r"(?i)invalid|wrong"):
                connection.read_response()
        connection.send_command("RESET")
        assert connection.read_response() in (b"RESET", "RESET")
        connection.send_command("GET", wire.FLEET_INDEX_KEY)
        with pytest.raises(redis.AuthenticationError):
            connection.read_response()


def test_users_are_set_again_when_the_server_has_lost_or_changed_them(redis_client: redis.Redis, join: Join) -> None:
    url, now = join().redis_url, timezone.now()
    node_identities.follow(redis_client, now)
    user = wire.node_user("n1")
    before = redis_client.acl_list()
    redis_client.acl_deluser(user)
    redis_client.delete(wire.CERTIFICATES_KEY)
    node_identities.follow(redis_client, now)
    assert redis_client.acl_list() == before
    assert redis_client.hlen(wire.CERTIFICATES_KEY) == 1
    redis_client.execute_command("ACL SETUSER", user, "allkeys", "+@all")
    redis_client.execute_command("ACL SETUSER", "node-ghost", "on", "nopass", "+@all")
    node_identities.follow(redis_client, now)
    assert redis_client.acl_list() == before
    with redis.Redis.from_url(url) as client:
        assert client.ping()


def test_nothing_is_set_when_nothing_differs(redis_client: redis.Redis, join: Join) -> None:
    join()
    now = timezone.now()
    node_identities.follow(redis_client, now)
    redis_client.config_resetstat()
    node_identities.follow(redis_client, now)
    assert not {"cmdstat_acl|setuser", "cmdstat_acl|deluser", "cmdstat_hset"} & redis_client.info("commandstats").keys()


def test_revoked_node_is_disconnected_at_once_and_may_join_again(
    redis_client: redis.Redis, node: redis.Redis, join: Join
) -> None:
    assert node.ping()
    row = Node.objects.get(name="n1")
    assert node_identities.revoke(Actor(channel="command"), row, timezone.now()) == 1
    with pytest.raises(redis.RedisError):
        node.ping()
    assert redis_client.hlen(wire.CERTIFICATES_KEY) == 0
    assert node_identities.revoke(Actor(), row, timezone.now()) == 0
    assert AuditEntry.objects.filter(action="revoke", label="n1").count() == 1
    node_identities.follow(redis_client, timezone.now())
    with pytest.raises(redis.RedisError):
        node.ping()
    with redis.Redis.from_url(join().redis_url) as again:
        assert again.ping()


def test_identity_before_holds_no_more_when_the_machine_joins_again(node: redis.Redis, join: Join) -> None:
    assert node.ping()
    join()
    with pytest.raises(redis.RedisError):
        node.ping()
    assert [row.revoked_at is None for row in IdentityRow.objects.order_by("pk")] == [False, True]


def test_deleted_node_is_let_in_no_more(redis_client: redis.Redis, node: redis.Redis) -> None:
    assert node.ping()
    IdentityRow.objects.all().delete()
    node_identities.follow(redis_client, timezone.now())
    with pytest.raises(redis.RedisError):
        node.ping()


def test_password_is_kept_as_a_digest_alone(join: Join) -> None:
    password = urlsplit(join().redis_url).password
    assert password is not None
    assert len(password) >= 32
    row = IdentityRow.objects.get()
    assert password not in json.dumps([str(value) for value in vars(row).values()])
    assert password not in str(list(AuditEntry.objects.values()))


def test_names_of_another_node_are_not_given(join: Join) -> None:
    join("n2", ("10.0.0.2", "127.0.0.1"))
    join("n1", ("n2", "10.0.0.2", "10.0.0.1", "127.0.0.1"))
    assert IdentityRow.objects.get(node__name="n1").names == ["n1", "10.0.0.1", "127.0.0.1"]


def test_machine_is_refused_without_a_request(cluster: Cluster) -> None:
    _, secret = join_tokens.issue(Actor(), cluster)
    with pytest.raises(ValidationError, match="a certificate of its own"):
        node_identities.join(NodeOffer(secret, "n1", "570", [GPU]), "10.0.0.1", timezone.now())
    assert not Node.objects.exists()


def test_machine_is_refused_with_the_remedy_when_the_server_knows_no_such_users(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "rights_of_node", lambda node, digest: ["reset", "%Q~not-known-there"])
    with pytest.raises(ValidationError, match=r"Redis 7.0 or later, or Valkey"):
        join()
    assert not Node.objects.exists()


def test_server_of_ones_own_is_named_with_the_nodes_user(join: Join, settings: Any, tmp_path: Path) -> None:
    settings.REDIS_URL = "rediss://:secret@redis.example:6390/2?ssl_ca_certs=/x"
    assert node_identities.redis_url("n1", "pw", "10.0.0.1") == "rediss://node-n1:pw@redis.example:6390/2"
    settings.REDIS_URL = "sentinel://all:secret@c1:26379,[fd00::1]:1/cache?db=1&password=x&sentinel_password=ask"
    assert (
        node_identities.redis_url("n1", "p/w", "10.0.0.1")
        == "sentinel://node-n1:p%2Fw@c1:26379,[fd00::1]:1/cache?db=1&sentinel_password=ask"
    )
    settings.GREENSERVE_RELAY_PORT = 6391
    assert node_identities.redis_url("n1", "pw", "fd00::1") == "rediss://node-n1:pw@[fd00::1]:6391/0"
