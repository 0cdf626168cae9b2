"""A machine joins the fleet: the token, the address it goes to, and the command that does it over the NVML stand-in."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from click.testing import CliRunner
from cryptography import x509
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from core.engine.engine_model import engine_model
from core.engine.gpu_type_fields import values_of
from core.engine.gpu_types import SHIPPED
from greenserve.commands.node import node as node_command
from pools import release
from pools.access.audit import Actor
from pools.agent.redis_link import redis_url
from pools.models import AuditEntry, Cluster, Gpu, GpuType, JoinToken, Node, NodeIdentity, Site
from pools.registration import join_tokens
from pools.writes import hash_secret
from tests.fakes.certificate_request import REQUEST
from tests.fakes.nvml import Boards, machine
from tests.fakes.simnode import ROOT


def serial(certificate: str) -> int:
    return x509.load_pem_x509_certificate(certificate.encode()).serial_number


GPU = {
    **{"uuid": "GPU-a", "index": 0, "name": "NVIDIA A100-SXM4-80GB", "gpu_type": "A100-80GB"},
    **{"memory_bytes": 85_899_345_920, "min_mhz": 210.0, "max_mhz": 1410.0, "tdp_w": 400.0},
}


def cluster() -> Cluster:
    site = Site.objects.create(name="oslo", label="Oslo", grid_zone="NO1")
    return Cluster.objects.create(site=site, name="main")


def post(secret: str, name: str = "box-1", gpus: Any = (GPU,), request: str = REQUEST, **more: str) -> Any:
    body = {"token": secret, "name": name, "driver": "570.00.01", "gpus": list(gpus), "request": request, **more}
    return Client().post("/api/v1/nodes/join/", json.dumps(body), content_type="application/json")


def wrong(answer: Any) -> dict[str, str]:
    assert answer.status_code == 400, answer.content
    return {item["field"]: item["detail"] for item in answer.json()["errors"]}


@pytest.mark.django_db
def test_machine_is_a_metered_node_when_it_brings_a_token(redis_client) -> None:
    token, secret = join_tokens.issue(Actor(), cluster())
    assert secret not in str(vars(token))
    answer = post(secret)
    assert answer.status_code == 201, answer.content
    said = answer.json()
    assert (said["node"], said["cluster"], said["notes"]) == ("box-1", "oslo/main", [])
    assert "//node-box-1:" in said["broker_url"]
    assert NodeIdentity.objects.get().serial in f"{serial(said['certificate']):x}"
    assert x509.load_pem_x509_certificate(said["authority"].encode())
    assert said["redis_authority"] == ""
    assert answer.headers["Cache-Control"] == "no-store"
    node = Node.objects.get()
    assert (node.simulated, node.schedulable, str(node.cluster)) == (False, False, "oslo/main")
    gpu = Gpu.objects.get()
    assert (gpu.uuid, gpu.gpu_type, gpu.min_mhz, gpu.max_mhz, gpu.tdp_w) == ("GPU-a", "A100-80GB", 210, 1410, 400)
    assert AuditEntry.objects.filter(action="join", label="box-1").exists()
    assert secret not in str(list(AuditEntry.objects.values()))


@pytest.mark.django_db
def test_token_is_refused_when_it_was_used_has_expired_or_never_was(redis_client) -> None:
    where = cluster()
    _, secret = join_tokens.issue(Actor(), where)
    assert post(secret).status_code == 201
    assert "was used" in wrong(post(secret, "box-2"))["token"]
    late, expired = join_tokens.issue(Actor(), where)
    JoinToken.objects.filter(pk=late.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert "has expired" in wrong(post(expired, "box-2"))["token"]
    assert "by the control plane's clock it is" in wrong(post(expired, "box-2"))["token"]
    JoinToken.objects.filter(pk=late.pk).update(
        created_at=timezone.now() + timedelta(hours=1), expires_at=timezone.now() + timedelta(hours=2)
    )
    assert "is not valid before" in wrong(post(expired, "box-2"))["token"]
    assert "is not known" in wrong(post("gsj_guessed", "box-2"))["token"]
    assert Node.objects.count() == 1


@pytest.mark.django_db
def test_token_stays_good_when_what_it_came_with_was_wrong(redis_client) -> None:
    where = cluster()
    Node.objects.create(cluster=where, name="simulated", simulated=True)
    _, secret = join_tokens.issue(Actor(), where)
    assert "a simulated node" in wrong(post(secret, "simulated"))["name"]
    assert "power limit" in wrong(post(secret, gpus=[{**GPU, "tdp_w": None}]))["gpus"]
    assert "from 1 to 64" in wrong(post(secret, gpus=[]))["gpus"]
    assert "gpus.0.memory_bytes" in wrong(post(secret, gpus=[{**GPU, "memory_bytes": 0}]))
    assert not Gpu.objects.exists()
    assert post(secret).status_code == 201
    _, another = join_tokens.issue(Actor(), where)
    assert "belongs to node box-1" in wrong(post(another, "box-2"))["gpus"]
    assert not Node.objects.filter(name="box-2").exists()
    assert post(another, gpus=[GPU, {**GPU, "uuid": "GPU-b", "index": 1}]).status_code == 201  # joins again, with more
    assert Gpu.objects.filter(node__name="box-1").count() == 2


@pytest.mark.django_db
def test_machine_is_refused_when_another_goes_by_its_name_or_its_program_is_too_new(redis_client) -> None:
    where = cluster()
    assert post(join_tokens.issue(Actor(), where)[1]).status_code == 201
    _, secret = join_tokens.issue(Actor(), where)
    other = {**GPU, "uuid": "GPU-z", "index": 1}
    assert "another machine goes by its name" in wrong(post(secret, gpus=[other]))["name"]
    assert "upgrade the control plane first" in wrong(post(secret, "box-2", [other], release="999.0.0"))["release"]
    assert post(secret, "box-2", [other], release=release.version()).status_code == 201


SHEET = {
    **{"name": "A900-80GB", "peak_flops": 3.1e14, "hbm_bw": 2e12, "mem_gb": 85.9, "tdp_w": 400.0, "f_max": 1410.0},
    **{"f_min": 210.0, "link_bw": 6e11, "like": "A100-80GB", "source": "as the driver says, node box-1"},
    **{"nvml": ["NVIDIA A900"], "assumed": ["peak_flops", "hbm_bw", "link_bw", "idle_w"]},
}
UNKNOWN = {**GPU, "name": "NVIDIA A900", "gpu_type": "A900-80GB"}


@pytest.mark.django_db
def test_gpu_type_is_entered_as_the_driver_describes_it_when_nobody_knows_it(redis_client) -> None:
    _, secret = join_tokens.issue(Actor(), cluster())
    answer = post(secret, gpus=[{**UNKNOWN, "sheet": SHEET}, {**UNKNOWN, "uuid": "GPU-b", "index": 1, "sheet": SHEET}])
    assert answer.status_code == 201, answer.content
    (note,) = answer.json()["notes"]
    assert note.startswith("The GPU type A900-80GB is entered as the driver describes it.")
    row = GpuType.objects.get()
    assert (row.peak_tflops, row.memory_gb_per_s, row.source) == (310.0, 2000.0, "as the driver says, node box-1")
    assert row.assumed == ["peak_tflops", "memory_gb_per_s", "link_gb_per_s", "idle_w"]
    assert AuditEntry.objects.filter(action="created", label="A900-80GB").exists()
    assert set(Gpu.objects.values_list("gpu_type", flat=True)) == {"A900-80GB"}
    assert engine_model("Llama3-8B", "A900-80GB", 1).fits
    page = Client()
    page.force_login(get_user_model().objects.create_user("viewer"))
    assert "as the driver says, node box-1" in page.get("/gpu-types/A900-80GB/").content.decode()
    assert "planned by data sheet" in page.get("/nodes/box-1/").content.decode()


@pytest.mark.django_db
def test_gpu_type_is_an_operators_own_when_its_driver_names_say_so(redis_client) -> None:
    values = values_of(SHIPPED["A100-80GB"]) | {"driver_names": ["NVIDIA A900"], "tdp_w": 350.0}
    GpuType.objects.create(name="Ours", **values)
    _, secret = join_tokens.issue(Actor(), cluster())
    assert post(secret, gpus=[{**UNKNOWN, "sheet": SHEET}]).json()["notes"] == []
    assert (Gpu.objects.get().gpu_type, GpuType.objects.get().tdp_w) == ("Ours", 350.0)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "enter its data sheet under Configure, GPU types."),
        ({"lacking": ["memory bandwidth"]}, "GPU types: the driver does not tell its memory bandwidth."),
        ({"sheet": {**SHEET, "hbm_bw": 0.0}}, "what the driver says is not possible"),
    ],
)
def test_plans_leave_a_gpu_out_when_its_driver_does_not_tell_enough(redis_client, more: Any, words: str) -> None:
    _, secret = join_tokens.issue(Actor(), cluster())
    answer = post(secret, gpus=[{**UNKNOWN, **more}])
    assert answer.status_code == 201, answer.content
    (note,) = answer.json()["notes"]
    assert note.startswith("Plans leave GPUs of the type A900-80GB out")
    assert words in note
    assert not GpuType.objects.exists()


@pytest.mark.django_db
def test_token_command_names_the_cluster_when_there_are_several() -> None:
    where = cluster()
    made = CliRunner().invoke(node_command, ["token", "--hours", "2"])
    assert made.exit_code == 0, made.output
    token = JoinToken.objects.get(token_hash=hash_secret(made.stdout.split()[0]))
    assert token.cluster == where
    assert token.expires_at - timezone.now() < timedelta(hours=2)
    Cluster.objects.create(site=where.site, name="annexe")
    refused = CliRunner().invoke(node_command, ["token"])
    assert refused.exit_code == 2
    assert "there are: oslo/annexe, oslo/main" in refused.output


@pytest.fixture
def boards(nvml_library: Path, tmp_path: Path) -> Iterator[Boards]:
    with machine(nvml_library, tmp_path, count=2, seen=False) as found:
        yield found


def command(boards: Boards, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "greenserve", "node", *words],
        cwd=ROOT,
        env={**os.environ, **boards.environment},
        capture_output=True,
        text=True,
        timeout=90.0,
    )


def test_command_joins_and_says_what_to_run(live_server, redis_client, boards: Boards, tmp_path: Path) -> None:
    _, secret = join_tokens.issue(Actor(), cluster())
    boards[1].mig, boards[1].slices = 1, 2
    done = command(boards, "join", live_server.url, secret, "--name", "box-1", "--keep", str(tmp_path / "var"))
    assert done.returncode == 0, done.stderr
    assert "Driver 570.00.01, 2 GPUs:" in done.stdout
    assert "0  A100-80GB, 86 GB, 210 to 1410 MHz, 400 W, 12 NVLinks  GPU-00000000" in done.stdout
    assert "MIG, 2 instances" in done.stdout
    assert "Joined oslo/main as node box-1. It is metered; no plan counts on it yet." in done.stdout
    assert "But " not in done.stdout  # the tests' Redis is on this machine
    assert "# /etc/systemd/system/greenserve-agent.service" in done.stdout
    assert "--allow-uid" not in done.stdout, "what these tests run could be changed by others"
    assert "GreenServe is not installed in" in done.stdout
    assert "`/opt/greenserve/bin/greenserve units actuator --user USER` prints the service" in done.stdout
    kept = tmp_path / "var" / "node-box-1.env"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    broker = kept.read_text().partition("\n")[0].removeprefix("BROKER_URL=")
    password = urlsplit(broker).password
    assert password is not None
    assert password not in done.stdout + str(urlsplit(settings.CELERY_BROKER_URL).password)
    with redis.Redis.from_url(redis_url(broker)) as client:
        assert client.ping()
    identity = kept.parent / "identity" / "box-1"
    assert f"--identity {identity}" in done.stdout
    assert {path.name for path in identity.iterdir()} >= {"key.pem", "certificate.pem", "nodes-authority.pem"}
    assert sorted(Gpu.objects.values_list("uuid", flat=True)) == [boards.uuid(0), boards.uuid(1)]

    again = command(boards, "join", live_server.url, secret, "--name", "box-2", "--keep", str(tmp_path / "var"))
    assert again.returncode == 1
    assert "token: The join token was used, for node box-1; make one with `greenserve node token`" in again.stderr
