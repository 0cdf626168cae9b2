"""An agent as it runs, with its node's credentials alone: all that it and Celery do in Redis is allowed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.conf import settings

from pools import wire
from pools.agent.node_identity import NodeIdentity
from pools.registration import node_users
from pools.registration.authority import CONTROL_PLANE, NODES, Authority
from tests.fakes.agent import NODE, Bench, desired
from tests.fakes.simnode import ROOT
from tests.ports import free_port
from tests.servers import redis_words

PASSWORD = "password-of-the-node"


def by_socket(_: Path) -> tuple[str, str]:
    """Returns the serial number of the node's certificate, and where it finds Redis."""
    socket = urlsplit(settings.REDIS_URL).path
    return "1f", f"redis+socket://{wire.node_user(NODE)}:{PASSWORD}@{socket}?virtual_host=0"


def by_tls(folder: Path) -> tuple[str, str]:
    now, identity = datetime.now(UTC), NodeIdentity.of(folder, NODE)
    nodes, ours = (Authority.open(folder / "secrets", name, now) for name in (NODES, CONTROL_PLANE))
    signed = nodes.sign_node(identity.request(NODE), NODE, frozenset(), now)
    identity.keep(signed.pem, nodes.certificate_pem, ours.certificate_pem)
    url = f"rediss://{wire.node_user(NODE)}:{PASSWORD}@127.0.0.1:{free_port()}/0"
    return signed.serial, identity.through_tls(url)


def relay(folder: Path, url: str) -> subprocess.Popen[bytes]:
    words = ["--redis-port", str(urlsplit(url).port), "--redis-socket", urlsplit(settings.REDIS_URL).path]
    words += ["--secrets", str(folder / "secrets"), *redis_words(folder, settings.REDIS_URL)]
    return subprocess.Popen([sys.executable, "-m", "greenserve.servers.node_relay", *words], cwd=ROOT)


@pytest.fixture(params=[by_socket, by_tls])
def bench(redis_client: redis.Redis, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    serial, url = request.param(tmp_path)
    node_users.admit(redis_client, NODE, sha256(PASSWORD.encode()).hexdigest(), serial)
    redis_client.acl_log_reset()
    relaying = relay(tmp_path, url) if request.param is by_tls else None
    made = Bench(tmp_path, redis_client, url)
    yield made
    made.close()
    if relaying is not None:
        relaying.terminate()
        assert relaying.wait(10) == 0
    node_users.bring_up_to_date(redis_client, node_users.Wanted({}, {}))


@pytest.mark.slow("an agent of its own")
def test_agent_serves_and_is_nudged_and_is_refused_nothing(bench: Bench) -> None:
    bench.want(desired("a", [0]))
    bench.ready("a")
    assert bench.batches()
    bench.wait(lambda: " ready." in bench.agent.log(), "worker that listens to its queue")
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        bench.broker = settings.CELERY_BROKER_URL  # the control plane's
        bench.nudge(42)
        bench.wait(lambda: "nudged by decision 42" in bench.agent.log(), "nudge")
        assert bench.agent.end() == 0
        refused: Any = client.acl_log()
    assert [(one["reason"], one["object"]) for one in refused if one["username"] == wire.node_user(NODE)] == []
    own = {key.decode() for key in bench.redis.keys("*") if key.startswith(b"greenserve:celery:")}
    assert all(key.startswith(wire.celery_prefix(NODE)) for key in own)
    assert not bench.redis.keys("_kombu*")
