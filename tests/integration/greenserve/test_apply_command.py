"""`greenserve apply` as people and programs call it, against a web process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from greenserve.cli import cli
from greenserve.commands import apply as command
from pools.access import people
from pools.access.audit import Actor
from pools.access.rights import Right
from pools.models import AccessToken, AuditEntry, Site, Tenant

pytestmark = pytest.mark.django_db(transaction=True)
SITES = "sites:\n  oslo: {label: Oslo, grid_zone: NO1}\n  bergen: {label: Bergen, grid_zone: NO5}\n"
Run = Callable[..., Result]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(SITES)
    return path


@pytest.fixture
def token() -> str:
    user, _ = people.create(Actor(), "ada", "administrator", password="a long pass phrase")
    return people.new_token(Actor(), user, "files", [right.value for right in Right])[1]


@pytest.fixture
def run(live_server, token: str, redis_client, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("GREENSERVE_URL", live_server.url)
    monkeypatch.setenv("GREENSERVE_TOKEN", token)

    def call(*arguments: object, say: str | None = None) -> Result:
        return CliRunner().invoke(cli, ["apply", *map(str, arguments)], input=say)

    return call


def test_plan_tells_by_its_exit_status_whether_something_would_change(run: Run, fleet: Path) -> None:
    shown = run(fleet, "--plan")
    assert (shown.exit_code, Site.objects.count()) == (2, 0)
    assert "+ site oslo" in shown.output
    assert "Plan: 2 to make, 0 to change, 0 to delete, 0 unchanged." in shown.output
    done = run(fleet, "--yes")
    assert (done.exit_code, Site.objects.count()) == (0, 2)
    assert "made site bergen" in done.output
    again = run(fleet, "--plan")
    assert (again.exit_code, "Nothing would change" in again.output) == (0, True)
    assert run(fleet).exit_code == 0
    assert run("--no-such-option").exit_code == 1  # 2 is for plans that change something
    assert run().exit_code == 1


def test_nothing_is_changed_without_a_terminal_and_without_yes(run: Run, fleet: Path) -> None:
    refused = run(fleet)
    assert (refused.exit_code, Site.objects.count()) == (1, 0)
    assert "+ site oslo" in refused.output
    assert "nothing was changed" in refused.output
    assert "--yes" in refused.output


def test_people_are_asked_and_deletions_by_their_kind_and_count(
    run: Run, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "is_asked", lambda: True)
    assert run(fleet, say="n\n").exit_code == 1
    assert not Site.objects.exists()
    assert run(fleet, say="y\n").exit_code == 0
    fleet.write_text("sites: {}\n")
    assert run(fleet, "--prune", say="y\n").exit_code == 1
    assert run(fleet, "--prune", say="3 sites\n").exit_code == 1
    assert Site.objects.count() == 2
    assert run(fleet, "--prune", say="2 sites\n").exit_code == 0
    assert not Site.objects.exists()


def test_programs_read_json(run: Run, fleet: Path) -> None:
    plan = json.loads(run(fleet, "--plan", "--json").stdout)["plan"]
    assert (plan["create"], [row["key"] for row in plan["changes"]]) == (2, ["oslo", "bergen"])
    assert not Site.objects.exists()
    found = json.loads(run(fleet, "--yes", "--json").stdout)
    assert [row["key"] for row in found["outcome"]["done"]] == ["oslo", "bergen"]
    assert found["outcome"]["error"] is None
    fleet.write_text("sites:\n  oslo: {pue: high}\n")
    wrong = run(fleet, "--json")
    assert wrong.exit_code == 1
    (fault,) = json.loads(wrong.stdout)["faults"]
    assert (fault["file"], fault["line"], fault["column"], fault["where"]) == (str(fleet), 2, 15, "site oslo, pue")


def test_what_the_api_refuses_is_an_error_with_its_place_and_nothing_is_changed(run: Run, fleet: Path) -> None:
    line = "  bodo: {label: Bodo, grid_zone: NO4, time_zone: Europe/Bodo}\n"
    fleet.write_text(SITES + line)
    refused = run(fleet, "--yes")
    assert (refused.exit_code, Site.objects.count()) == (1, 0)
    assert f"{fleet}:4:{line.index('time_zone') + 1}: site bodo, time_zone: " in refused.output


def test_what_was_done_is_said_when_it_stops(run: Run, fleet: Path) -> None:
    fleet.write_text(f"{SITES}clusters:\n  - {{site: oslo, name: no slug}}\ntenants:\n  team: {{}}\n")
    stopped = run(fleet, "--yes")
    assert (stopped.exit_code, Site.objects.count(), Tenant.objects.count()) == (1, 2, 0)
    assert f"Stopped: clusters: {fleet}:5:18: cluster oslo/no slug, name: " in stopped.output
    assert "Done: 2 changes. Not done: 2 changes." in stopped.output
    assert "not made: tenant team" in stopped.output
    Site.objects.all().delete()
    found = json.loads(run(fleet, "--yes", "--json").stdout)["outcome"]
    assert ([row["kind"] for row in found["not_done"]], "no slug" in found["error"]) == (["clusters", "tenants"], True)
    (fault,) = json.loads(run(fleet, "--yes", "--json").stdout)[
        "faults"
    ]  # the site is there: the API says it beforehand
    assert (fault["line"], fault["where"]) == (5, "cluster oslo/no slug, name")


@pytest.mark.slow("exports are tested without the command")
def test_an_export_is_a_file_that_changes_nothing(run: Run, fleet: Path) -> None:
    run(fleet, "--yes")
    text = run("--export").stdout
    assert "name: oslo" in text
    fleet.write_text(text)
    assert run(fleet, "--plan", "--prune").exit_code == 0
    assert "tenants" not in run("--export", "--kind", "sites").stdout
    assert "did you mean sites?" in run("--export", "--kind", "site").output
    assert run(fleet, "--export").exit_code == 1


def test_a_person_on_the_machine_needs_no_token(
    run: Run, live_server, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GREENSERVE_URL")
    monkeypatch.delenv("GREENSERVE_TOKEN")
    address = urlsplit(live_server.url)
    monkeypatch.setenv("GREENSERVE_WEB_HOST", str(address.hostname))
    monkeypatch.setenv("GREENSERVE_WEB_PORT", str(address.port))
    assert run(fleet, "--yes").exit_code == 0
    assert set(AuditEntry.objects.filter(kind="site").values_list("who", flat=True)) == {"ada"}
    made = AccessToken.objects.get(label="greenserve apply")
    assert made.revoked_at is not None
    people.create(Actor(), "bob", "administrator", password="a long pass phrase")
    assert "administrators are: ada, bob" in run(fleet, "--plan").output
    assert run(fleet, "--plan", "--as", "bob").exit_code == 0
    assert "there is nobody called 'eve'" in run(fleet, "--plan", "--as", "eve").output


@pytest.mark.slow("processes of their own")
def test_an_address_and_a_token_that_do_not_fit_are_said_in_a_line(
    run: Run, fleet: Path, monkeypatch: pytest.MonkeyPatch, live_server, tmp_path: Path
) -> None:
    assert "leave one of both out" in run(fleet, "--as", "ada").output
    (wrong := tmp_path / "token").write_text("gs_wrong\n")
    assert "token" in run(fleet, "--token-file", str(wrong)).output
    assert "no answer" in (away := run(fleet, "--url", "http://127.0.0.1:9")).output
    assert away.exit_code == 1
    assert "is no address" in run(fleet, "--url", "nowhere").output
    monkeypatch.delenv("GREENSERVE_TOKEN")
    assert "give an access token for" in run(fleet).output
    fleet.write_bytes(b"\xff")
    assert "not UTF-8" in run(fleet).output
    assert not Site.objects.exists()
