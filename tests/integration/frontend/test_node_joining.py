"""A node's page until it serves: the line to paste, the token shown once, and what it waits for."""

from __future__ import annotations

import json
import re
import time

import pytest
from click.testing import CliRunner
from django.contrib.auth import get_user_model
from django.test import Client

from greenserve import env
from greenserve.commands import doctor
from greenserve.commands.node import node as node_command
from pools import wire
from pools.models import AuditEntry, Cluster, JoinToken, Membership, Node, Site
from pools.registration.web_address import WebAddress
from tests.fakes.certificate_request import REQUEST

GPU = {"uuid": "GPU-a", "index": 0, "name": "A100", "gpu_type": "A100-80GB", "memory_bytes": 80_000_000_000}


def client_of(role: str) -> Client:
    user = get_user_model().objects.create_user(role)
    Membership.objects.create(user=user, role=role)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def node(db, redis_client) -> Node:
    site = Site.objects.create(name="oslo", label="Oslo", grid_zone="NO1")
    cluster = Cluster.objects.create(site=site, name="main")
    return Node.objects.create(cluster=cluster, name="box-1", schedulable=False)


def test_page_rest_and_doctor_show_what_the_node_has_and_which_engines_gateways_lack(
    node, redis_client, monkeypatch
) -> None:
    finds = wire.NodeFinds("0.6.1", "vLLM 0.6.1 lacks --port", ["--port"], [wire.ModelOnDisk("org/model", 3 << 30)])
    state = wire.AgentState("box-1", "boot", time.time(), None, [], finds=finds)
    redis_client.set(wire.agent_key("box-1"), wire.encode(state), ex=30)
    uid, why = "5f0c2f4e-8a4e-4c1e-9d0b-0c6f6c2b7a11", "the connection is refused"
    lost = wire.UnreachableEngine(uid, "box-1", "http://10.0.0.5:18400", time.time(), why)
    beat = wire.Heartbeat("gateway", time.time(), 60.0, unreachable=[lost])
    redis_client.set(wire.alive_key("gateway"), wire.encode(beat), ex=30)
    client = client_of("viewer")
    for path in ("/nodes/box-1/", "/health/"):
        assert f"gateway does not reach http://10.0.0.5:18400: {why}" in words(client, path)
    assert "vLLM 0.6.1 lacks --port" in (page := words(client, "/nodes/box-1/"))
    assert "org/model" in page
    found = client.get("/api/v1/nodes/box-1/state/").json()
    assert (found["node"], found["state"], found["unreachable"][0]["uid"]) == ("box-1", "reporting", uid)
    models = [{"weights": "org/model", "size_bytes": 3 << 30}]
    assert found["finds"] == {"vllm": "0.6.1", "fault": finds.fault, "missing": ["--port"], "models": models}
    assert client.get("/api/v1/nodes/none/state/").status_code == 404

    monkeypatch.setattr(doctor, "_database_is_up", lambda _: True)
    (finding,) = doctor.engines(env.read())
    assert not finding.ok
    assert f"5f0c2f4e of node box-1: gateway does not reach http://10.0.0.5:18400: {why}" in finding.detail
    redis_client.set(wire.alive_key("gateway"), wire.encode(wire.Heartbeat("gateway", time.time(), 60.0)), ex=30)
    (finding,) = doctor.engines(env.read())
    assert finding.ok
    redis_client.delete(wire.alive_key("gateway"))
    (finding,) = doctor.engines(env.read())
    assert "no gateway is heard" in finding.detail


def words(client: Client, path: str = "/nodes/box-1/?part=joining") -> str:
    return client.get(path).content.decode()


def test_page_and_command_show_the_same_line_with_an_address_for_other_machines(node, settings) -> None:
    settings.GREENSERVE_WEB_ADDRESS = WebAddress(None, "127.0.0.1", 8000)
    client = client_of("operator")
    assert "GREENSERVE_WEB_HOST=0.0.0.0" in words(client, "/nodes/box-1/")
    assert "GREENSERVE_WEB_HOST=0.0.0.0" in client.post("/nodes/box-1/join-token/").content.decode()
    assert "works on this machine only" in CliRunner().invoke(node_command, ["token"]).stderr
    settings.GREENSERVE_WEB_ADDRESS = WebAddress("https://dash.example", "127.0.0.1", 8000)
    line = r"greenserve node join https://dash\.example (gsj_[\w-]+) --name box-1"
    assert re.search(line, client.post("/nodes/box-1/join-token/").content.decode())
    made = CliRunner().invoke(node_command, ["token", "--name", "box-1"])
    found = re.search(line, made.stderr)
    assert found is not None
    assert made.stdout == f"{found[1]}\n"
    assert "this machine only" not in made.stderr
    assert "GREENSERVE_RELAY_PORT" in made.stderr, "the tests' Redis is a socket"
    settings.GREENSERVE_RELAY_PORT = 6390
    settings.GREENSERVE_JOIN_PORT = 8443
    settings.GREENSERVE_WEB_ADDRESS = WebAddress(None, "127.0.0.1", 8000, ("dash",), False, 8443, "0.0.0.0")  # noqa: S104
    made = CliRunner().invoke(node_command, ["token"])
    assert re.search(r"greenserve node join https://dash:8443 gsj_[\w-]+\.[0-9a-f]{64}\n$", made.stderr), made.stderr


def test_page_goes_from_the_line_to_a_node_that_serves(node, redis_client, settings) -> None:
    settings.GREENSERVE_WEB_ADDRESS = WebAddress("http://control", "127.0.0.1", 8000)
    client = client_of("operator")
    assert "greenserve node join http://control TOKEN --name box-1 --plain-http" in words(client, "/nodes/box-1/")
    assert "others on the way can read the token" in words(client, "/nodes/box-1/")
    assert "waits for its machine" in words(client)
    shown = client.post("/nodes/box-1/join-token/")
    assert "no-store" in shown.headers["Cache-Control"]
    secret = re.search(r"node join http://control (gsj_[\w-]+) --name box-1", shown.content.decode())
    assert secret is not None
    assert secret[1] not in words(client, "/nodes/box-1/")
    assert AuditEntry.objects.filter(action="create", user_id=get_user_model().objects.get().pk).exists()

    clocks = {"min_mhz": 210.0, "max_mhz": 1410.0, "tdp_w": 400.0}
    body = {"token": secret[1], "name": "box-1", "driver": "570", "gpus": [GPU | clocks], "request": REQUEST}
    joined = Client().post("/api/v1/nodes/join/", json.dumps(body), content_type="application/json")
    assert joined.status_code == 201, joined.content
    assert "waits for its agent" in words(client)
    state = wire.AgentState("box-1", "boot", time.time(), None, [])
    redis_client.set(wire.agent_key("box-1"), wire.encode(state))
    assert "waits to be opened to planning" in (said := words(client))
    assert f"/configure/nodes/{node.pk}/" in said
    Node.objects.update(schedulable=True)
    assert "Joined at" in (said := words(client))
    assert "plans may place instances here" in said
    assert "node join" not in said


def test_viewer_makes_no_token(node) -> None:
    client = client_of("viewer")
    assert "<button" not in words(client)
    assert client.post("/nodes/box-1/join-token/").status_code == 403
    assert not JoinToken.objects.exists()


def test_simulated_node_waits_for_gpus_and_gets_no_token(node) -> None:
    Node.objects.update(simulated=True)
    client = client_of("operator")
    assert "waits for its GPUs" in words(client)
    assert client.post("/nodes/box-1/join-token/").status_code == 404
