"""The laboratory's experiments as studies, run as `greenserve lab` runs them; the worker is called, not sent to."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from django.core.files.uploadedfile import SimpleUploadedFile

from core.simulator.runs.simulation_jobs import SimulationJob
from greenserve.commands.lab import lab as command
from pools.models import Job, JobState, Membership
from scheduler.models import Study
from scheduler.whatif import experiment_studies, study_requests, study_worker, tasks
from scheduler.whatif.errors import BadStudy
from tests.fakes import lab, seed

pytestmark = pytest.mark.django_db
TRACE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"".join(
    b"2023-11-16 18:00:%02d.000000,300,30\n" % second for second in range(20)
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Path:
    settings.GREENSERVE_LAB_DIR = tmp_path / "var" / "lab"
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path / "var"))
    lab.install(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture
def operator(django_user_model: Any) -> Any:
    user = django_user_model.objects.create(username="operator")
    Membership.objects.create(user=user, role=Membership.Role.OPERATOR)
    return user


def test_an_experiment_has_its_published_figures_beside_its_own_when_it_has_run(operator: Any) -> None:
    study = study_requests.ask({"base": "lab:tiny"}, operator)
    assert study.name == "Paper, fig. 1 and table 2: two instances"
    assert study.notes == ["All is ours."]
    assert [(run.label, run.changes) for run in study.runs.all()][2] == ("fewer", ["fleet.count=1"])
    before = experiment_studies.result(study)
    assert before is not None
    assert [row["simulated"] for row in before["published"]] == [None, None, None]

    assert study_worker.run(study.pk), list(study.runs.values_list("error", flat=True))

    study.job.refresh_from_db()
    found = experiment_studies.result(study)
    assert found is not None
    one, another, _ = found["published"]
    assert (one["published"], one["place"], one["unit"]) == (40.0, "fig. 1", "%")
    assert one["ratio"] == pytest.approx(one["simulated"] / 40.0)
    assert another["why"] == "not known."
    runs = {run.label: (run.figures or {})["slo_attainment"] for run in study.runs.all()}
    assert (one["attainment"], one["baseline_attainment"]) == (runs["fewer"], runs["before"])
    assert one["short"] == (runs["fewer"] < max(0.99, runs["before"]))
    assert found["bound"] is None
    assert (found["published"][-1]["simulated"], found["published"][-1]["calculated"]) == (9.0, True)


def test_the_command_line_knows_a_run_when_a_study_has_run_it_and_the_other_way_round(
    operator: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = folder / "given.csv"
    trace.write_bytes(TRACE)
    traced = {"base": "lab:traced", "traffic": {"kind": "trace"}}
    study = study_requests.ask(traced, operator, TRACE)
    assert study_worker.run(study.pk), list(study.runs.values_list("error", flat=True))

    out = str(folder / "docs" / "results.md")
    shown = CliRunner().invoke(command, ["--trace", str(trace), "--out", out, "--workers", "1"])
    assert shown.exit_code == 0, shown.output
    assert "2 runs are known, 3 to do." in shown.output

    monkeypatch.setattr(SimulationJob, "run", lambda *given: pytest.fail("it is known"))
    for given, upload in (({"base": "lab:tiny"}, None), (traced, TRACE)):
        again = study_requests.ask(given, operator, upload)
        assert study_worker.run(again.pk)
    again.job.refresh_from_db()
    assert (again.job.result or {})["bound"]["energy_wh"] > 0
    figures = again.runs.get(label="after").figures or {}
    assert f"| after | {figures['energy_wh']:,.0f} |" in Path(out).read_text()


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"base": "lab:none"}, "base", "there is no experiment 'none'; there are: tiny, traced"),
        ({"base": "lab:tiny", "runs": ["freesh"]}, "runs", "has its own; leave it out"),
        ({"base": "lab:tiny", "changes": {"rate_scale": 2}}, "changes", "study of the scenario tiny"),
        ({"base": "lab:tiny", "traffic": {"kind": "generated"}}, "traffic.kind", "leave traffic out"),
        ({"base": "lab:traced"}, "traffic.kind", r"the Azure conversation hour of 2023, .* \(https://.*kind trace"),
        ({"base": "lab:traced", "traffic": {"kind": "trace"}}, "traffic.trace", "choose a trace"),
        ({"base": "lab:traced", "traffic": {"kind": "generated", "rate_rps": 3}}, "traffic.rate_rps", "known: kind"),
    ],
)
def test_what_an_experiment_does_not_take_names_its_field(
    operator: Any, given: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(BadStudy, match=words) as caught:
        study_requests.ask(given, operator)
    assert caught.value.field == field


def test_other_requests_are_said_to_be_others_when_they_take_the_traces_place(operator: Any) -> None:
    seeded = seed.everything(minutes=6)
    past = {"kind": "past", "from": seeded.now - timedelta(minutes=5), "to": seeded.now - timedelta(minutes=4)}
    for traffic, words in (
        (past, "are left out. In the place of the Azure conversation hour of 2023: what is published is not of"),
        ({"kind": "generated"}, "those that the scenario generates, in the place of"),
    ):
        study = study_requests.ask({"base": "lab:traced", "traffic": traffic}, operator)
        assert words in study.notes[-1]
        assert "They come 1.5 times as fast" in study.notes[-1]
        assert study.scenario["workload"]["rate_scale"] == 1.5  # the experiment's own, kept
    study = study_requests.ask({"base": "lab:traced", "traffic": {"kind": "trace"}}, operator, TRACE)
    assert "a trace in the place of" in study.notes[-1]


def test_pages_start_an_experiment_and_show_its_figures(
    operator: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "send", lambda study: None)
    client.force_login(operator)
    page = client.get("/what-if/experiments/")
    assert "Paper, fig. 1 and table 2" in page.content.decode()
    assert client.get("/what-if/experiments/none/").status_code == 404

    untouched = client.post("/what-if/experiments/traced/", {"kind": "trace"})
    assert untouched.context["form"].errors == {"trace": ["missing: needed for these requests"]}
    other = client.post("/what-if/experiments/traced/", {"kind": "trace", "trace": SimpleUploadedFile("t.csv", b"a,b")})
    assert "trace" in other.context["form"].errors
    made = client.post("/what-if/experiments/traced/", {"kind": "trace", "trace": SimpleUploadedFile("t.csv", TRACE)})
    study = Study.objects.get()
    assert made["Location"] == f"/what-if/{study.pk}/"
    assert study_worker.run(study.pk)

    shown = client.get(made["Location"])
    assert [row["run"].label for row in shown.context["rows"]] == ["after"]  # the one that is listed
    assert "not known." in shown.content.decode()
    assert shown.context["table"].head == ("run", "prefill", "decode", "idle", "transition")
    assert "What the energy went into" in shown.content.decode()
    figures = client.get(f"{made['Location']}figures.json").json()["figures"]
    assert figures["energy"]["data"][0]["y"] == ["after"]
    assert "the bound" in figures["energy"]["meta"]["source"]
    assert client.get(f"{made['Location']}figures.json?csv=energy").content.count(b"\n") == 3
    assert client.get(f"{made['Location']}runs/0/").status_code == 200
    assert client.get("/what-if/experiments/").context["rows"][1]["latest"] == study

    viewer = Membership.objects.get(user=operator)
    viewer.role = Membership.Role.VIEWER
    viewer.save()
    assert client.get("/what-if/experiments/").status_code == 200
    assert client.get("/what-if/experiments/tiny/").status_code == 403


def test_rest_tells_of_experiments_and_starts_one(operator: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "send", lambda study: None)
    client.force_login(operator)
    listed = client.get("/api/v1/experiments/").json()["results"]
    assert [(own["name"], own["trace"] is None) for own in listed] == [("tiny", True), ("traced", False)]
    own = client.get("/api/v1/experiments/tiny/").json()
    assert own["runs"][2] == {"label": "fewer", "policy": "single_pool", "set": ["fleet.count=1"]}
    assert client.get("/api/v1/experiments/none/").status_code == 404

    without = client.post("/api/v1/studies/", {"base": "lab:traced"}, content_type="application/json")
    assert without.status_code == 400
    assert without.json()["errors"][0]["field"] == "traffic.kind"
    asked = client.post("/api/v1/studies/", {"base": own["base"]}, content_type="application/json")
    assert asked.status_code == 202
    assert asked.json()["experiment"]["published"][0]["simulated"] is None
    assert study_worker.run(asked.json()["id"])
    done = client.get(asked["Location"]).json()
    assert done["experiment"]["published"][0]["ratio"] == pytest.approx(
        done["experiment"]["published"][0]["simulated"] / 40.0
    )
    sent = {"study": '{"base": "lab:traced"}', "trace": SimpleUploadedFile("t.csv", TRACE)}
    assert client.post("/api/v1/studies/", sent).status_code == 202


def test_an_experiment_keeps_the_runs_that_are_done_when_it_is_stopped(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_requests.ask({"base": "lab:tiny"}, operator)
    whole = SimulationJob.run

    def stopped(job: SimulationJob, tell: Any) -> Any:
        if job.settings:
            Job.objects.filter(pk=study.job_id).update(cancel_requested=True)
            tell(0.5, 10.0)
        return whole(job, tell)

    monkeypatch.setattr(SimulationJob, "run", stopped)
    monkeypatch.setattr(study_worker, "REPORT_EVERY_S", 0.0)
    assert not study_worker.run(study.pk)
    study.job.refresh_from_db()
    assert study.job.state == JobState.CANCELLED
    assert list(study.runs.values_list("state", flat=True)) == ["done", "done", "cancelled"]
    found = experiment_studies.result(study)
    assert found is not None
    assert [row["simulated"] is None for row in found["published"]] == [True, False, True]
