"""The script that sets up a fleet through REST alone, run as people run it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from django.core.management import call_command
from django.utils import timezone

from greenserve.env import ROOT
from pools.access import people
from pools.access.audit import Actor
from pools.access.rights import Right
from pools.models import Gpu, Node, Pool, Service
from pools.writes import find_key

SCRIPT = ROOT / "scripts" / "fleet_by_rest.py"


@pytest.mark.parametrize("demo", [False, pytest.param(True, marks=pytest.mark.slow("beside a demo"))])
@pytest.mark.django_db(transaction=True)
def test_script_sets_up_a_fleet_and_changes_nothing_when_run_again(live_server, tmp_path, redis_client, demo):
    user, _ = people.create(Actor(), "setup", "administrator", password="a long pass phrase")
    _, secret = people.new_token(Actor(), user, "setup", [right.value for right in Right])
    token = tmp_path / "token"
    token.write_text(secret)

    def run() -> str:
        command = [sys.executable, str(SCRIPT), live_server.url, "--token-file", str(token)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    if demo:
        call_command("load_demo")
    before = {model: model.objects.count() for model in (Service, Node, Gpu, Pool)}
    printed = run()
    found = find_key(re.findall(r"gs-[\w-]+", printed)[-1], timezone.now())
    assert found is not None
    assert found.tenant.name == "ashburn-team"
    service = Service.objects.get(name="llama3-8b")
    assert service.slos.count() == 2
    assert set(service.pools.values_list("request_class__name", flat=True)) == {"S", "L"}
    added = {Service: 1, Node: 1, Gpu: 4, Pool: 2}
    assert {model: model.objects.count() - count for model, count in before.items()} == added
    assert "shown this once" not in (again := run())
    assert "All is there" in again
    assert "making" not in again
    assert {model: model.objects.count() - count for model, count in before.items()} == added
    token.write_text("gs_wrong")
    command = [sys.executable, str(SCRIPT), live_server.url, "--token-file", str(token)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "token" in refused.stderr
