"""Studies from being asked for to their figures, on a real database; the worker is called, not sent to."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from core.simulator.runs.runner import requests_of
from pools.access.audit import Actor
from pools.models import AuditEntry, JobState, Membership, Service
from scheduler.models import ControlMode, RunState, Study, StudyRun
from scheduler.whatif import (
    applying,
    comparing,
    scenario_documents,
    scenario_traffic,
    studies,
    study_requests,
    study_worker,
    tasks,
)
from scheduler.whatif.errors import BadStudy
from telemetry.models import RequestRecord
from tests.fakes import seed
from tests.fakes.studies import tiny

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(django_user_model: Any) -> Any:
    user = django_user_model.objects.create(username="operator")
    Membership.objects.create(user=user, role=Membership.Role.OPERATOR)
    return user


def asked(operator: Any, **more: Any) -> Study:
    return study_requests.ask({"scenario": tiny(), "runs": ["single_pool", "least_loaded"]} | more, operator)


def sent(given: list[int]) -> Any:
    return lambda study: given.append(study.pk)


def test_a_study_has_figures_and_series_of_each_run_when_a_worker_has_run_it(operator: Any) -> None:
    study = asked(
        operator, runs=["single_pool", "single_pool {}", "least_loaded"][::2] + ["least_loaded {loops: 3}"][:0]
    )

    assert study_worker.run(study.pk)

    study.job.refresh_from_db()
    assert (study.job.state, study.job.progress) == (JobState.DONE, 1.0)
    first, second = study.runs.all()
    assert first.figures["requests"] == second.figures["requests"] > 50
    own = first.series["sites"]["site"]
    energy_wh = sum(own["power_w"]) * first.series["step_s"] / 3600
    assert energy_wh == pytest.approx(first.figures["energy_wh"], rel=0.05)  # the last step is not a whole one
    assert sum(own["carbon_g_per_h"]) * first.series["step_s"] / 3600 == pytest.approx(
        first.figures["carbon_g"], rel=0.05
    )
    table = comparing.as_json([(run.index, run.label, run.figures) for run in study.runs.all()], "USD", 0.99)
    assert table["ratios_to"] == "single_pool"
    assert table["runs"][0]["ratios"]["energy_wh"] == 1.0
    rows = list(csv.reader(io.StringIO(comparing.as_csv([(0, "=cmd", first.figures)], "EUR", 0.99))))
    assert rows[0][4] == "cost (EUR)"
    assert rows[1][0] == "'=cmd"


def test_todays_fleet_becomes_a_scenario_that_simulates(operator: Any) -> None:
    seeded = seed.everything(minutes=6)
    study = study_requests.ask(
        {
            "base": "fleet",
            "changes": {"duration_s": 20, "gpus": {"location-2": {seed.A100: 8}}},
            "runs": ["least_loaded"],
        },
        operator,
    )

    assert study_worker.run(study.pk), list(study.runs.values_list("error", flat=True))

    own = study.scenario["services"][seeded.service.name]
    assert own["slo"] == {"ttft_s": 2.0, "tpot_s": 0.15, "e2e_s": 60.0}
    assert [cell["name"] for cell in next(iter(own["partitions"].values()))] == ["SS", "SL", "LS", "LL"]
    assert study.scenario["sites"]["location-2"]["gpus"] == {seed.A100: 8}
    assert study.scenario["sites"]["location-1"]["pue"] == 1.2
    counts = {group["name"].removeprefix("llama3-70b-"): group["count"] for group in study.scenario["fleet"]}
    assert counts["location-2-a100-80gb-tp8"] == 1
    assert study.runs.get().figures["carbon_g"] > 0
    assert study.runs.get().figures["cost_usd"] is None  # no tariff is known, and none is made up
    assert any("tariff" in note for note in study.notes)


def test_dynamollm_is_studied_on_the_whole_fleet_and_on_small_nodes(operator: Any) -> None:
    seed.everything(minutes=6)
    few = {"location-1": {seed.A100: 2, seed.H100: 0}, "location-2": {seed.A100: 2}, "location-3": {seed.A100: 2}}
    everything = {site: dict.fromkeys(own, 0) for site, own in few.items()}
    with pytest.raises(BadStudy, match="no site has GPUs left"):
        study_requests.ask({"base": "fleet", "changes": {"gpus": everything}, "runs": ["single_pool"]}, operator)
    assert not Study.objects.exists()
    for changes in ({}, {"gpus": few}):
        study = study_requests.ask(
            {"base": "fleet", "changes": {"duration_s": 20, **changes}, "runs": ["dynamollm"]}, operator
        )

        assert study_worker.run(study.pk), list(study.runs.values_list("error", flat=True))
        assert len(study.scenario["sites"]) == 3
        figures = study.runs.get().figures
        assert figures["finished"] == figures["requests"]
        assert set(figures["decisions"]) <= {"scale", "shard", "clock", "emergency"}


def test_a_past_periods_requests_come_as_they_came(operator: Any) -> None:
    seeded = seed.everything(minutes=6)
    start, end = seeded.now - timedelta(minutes=5), seeded.now - timedelta(minutes=4)
    study = study_requests.ask(
        {"base": "fleet", "traffic": {"kind": "past", "from": start, "to": end}, "runs": ["single_pool"]}, operator
    )

    with scenario_documents.opened(study.scenario, studies.files_of(study)) as scenario:
        requests = requests_of(scenario)
    [block] = requests.first
    records = RequestRecord.objects.filter(started_at__gte=start, started_at__lt=end, status="ok")
    rows = list(
        records.order_by("started_at", "request_id").values_list("prompt_tokens", "output_tokens", "started_at")
    )
    assert list(zip(block.prompt_tokens.tolist(), block.output_tokens.tolist(), strict=True)) == [r[:2] for r in rows]
    begins = datetime.fromisoformat(study.scenario["start"])
    assert timedelta() <= rows[0][2] - begins < timedelta(minutes=1)
    assert block.arrival_s.tolist() == pytest.approx([(row[2] - begins).total_seconds() for row in rows], abs=1e-5)
    carbon = list(csv.DictReader(io.StringIO(studies.files_of(study)["carbon-location-2.csv"].decode())))
    assert len(carbon) >= 24  # five-minute steps, two hours beyond the period
    assert float(carbon[1]["value"]) > 0


def test_an_empty_period_says_what_there_is_when_nothing_came_then(operator: Any) -> None:
    seeded = seed.everything(minutes=3)
    wanted = {"kind": "past", "from": seeded.now - timedelta(days=3), "to": seeded.now - timedelta(days=2)}

    with pytest.raises(BadStudy, match="there are records from") as caught:
        study_requests.ask({"base": "fleet", "traffic": wanted, "runs": ["single_pool"]}, operator)

    assert caught.value.field == "traffic.from"
    assert scenario_traffic.recorded_period() is not None


# Each line names the one before ten times: 100 million values.
SWELLING = "a0: &a0 [1]\n" + "\n".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 10}]" for n in range(1, 9))


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"scenario": tiny(workload={"generate": "poisson", "rate_rps": -1})}, "workload.rate_rps", "above 0"),
        ({"scenario": tiny(fleet={"count": 0})}, "fleet[0].count", "from 1"),
        ({"scenario": tiny(workload={"trace": "/etc/passwd"})}, "workload.trace", "no file"),
        ({"scenario": tiny(sites={"site": {"carbon_g_per_kwh": {"csv": "../x.csv"}}})}, "sites.site", "no file"),
        ({"scenario": SWELLING}, "scenario", "aliases written out"),
        ({"scenario": tiny(), "runs": ["freesh {alfa: 1}"]}, "runs", "did you mean alpha"),
        ({"scenario": tiny(), "runs": ["nonesuch"]}, "runs", "unknown policy"),
        ({"scenario": tiny(), "runs": []}, "runs", "at least one"),
        ({"scenario": tiny(), "changes": {"rate_scale": "2"}}, "changes.rate_scale", "number"),
        ({"scenario": tiny(), "changes": {"gpus": {"nowhere": {"A100-80GB": 1}}}}, "sites.nowhere", "no such site"),
        ({"scenario": {"services": {"a": {"classes": 3}}}}, "services.a.classes", "mapping"),
        ({"base": "no-such-preset"}, "base", "there is no preset"),
        ({"scenario": tiny(), "traffic": {"kind": "trace"}}, "traffic.trace", "choose a trace"),
    ],
)
def test_a_broken_scenario_names_its_field(operator: Any, given: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(BadStudy) as caught:
        study_requests.ask({"runs": ["single_pool"]} | given, operator)

    assert caught.value.field.startswith(field), str(caught.value)
    assert words in caught.value.message
    assert not Study.objects.exists()


def test_an_uploaded_trace_takes_the_place_of_the_requests(operator: Any) -> None:
    trace = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00,100,10\n2026-01-01 00:00:01.5,200,20\n"
    given = {
        "scenario": tiny(),
        "traffic": {"kind": "trace"},
        "changes": {"slo": {"ttft_s": 9}},
        "runs": ["single_pool"],
    }
    study = study_requests.ask(given, operator, trace)

    assert study_worker.run(study.pk)

    assert study.runs.get().figures["requests"] == 2
    assert study.scenario["slo"] == {"ttft_s": 9.0, "tpot_s": 0.03}
    with pytest.raises(BadStudy, match="trace"):
        study_requests.ask(given, operator, b"one,two\n1,2\n")


def test_a_study_stops_when_it_is_cancelled(operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queued, begun = asked(operator), asked(operator)
    assert studies.cancel(queued)
    assert not study_worker.run(queued.pk)
    assert set(queued.runs.values_list("state", flat=True)) == {RunState.CANCELLED}

    def report(turn: study_worker.StudyTurn, run: StudyRun, share: float | None, at_s: float) -> None:
        studies.cancel(begun)
        turn.check()

    monkeypatch.setattr(study_worker.StudyTurn, "report", report)
    assert not study_worker.run(begun.pk)
    begun.job.refresh_from_db()
    assert begun.job.state == JobState.CANCELLED
    assert set(begun.runs.values_list("state", flat=True)) == {RunState.CANCELLED}
    assert not studies.cancel(begun)


def test_a_lost_worker_leaves_no_study_running_for_ever(operator: Any) -> None:
    study, given = asked(operator), []
    now = timezone.now()
    turn = study_worker._take(study.pk)
    assert turn is not None
    study.runs.filter(index=0).update(state=RunState.RUNNING, progress=0.5)
    assert study_worker.mind(now, sent(given)) == 0  # it is heard of

    assert study_worker.mind(now + timedelta(minutes=5), sent(given)) == 1
    study.job.refresh_from_db()
    assert (study.job.state, given) == (JobState.QUEUED, [study.pk])
    with pytest.raises(study_worker.Stopped):
        turn.check()  # the one that was thought lost
    assert study_worker._take(study.pk) is not None
    assert study_worker.mind(now + timedelta(minutes=15), sent(given)) == 1
    study.job.refresh_from_db()
    assert study.job.state == JobState.FAILED
    assert "lost 2 times" in study.job.error
    assert set(study.runs.values_list("state", flat=True)) == {RunState.FAILED}


def test_a_queued_study_is_sent_again_when_nobody_took_it(operator: Any) -> None:
    study, given = asked(operator), []

    study_worker.mind(timezone.now() + timedelta(minutes=11), sent(given))

    assert given == [study.pk]


def test_one_run_fails_by_itself_when_the_scenario_is_not_for_its_policy(operator: Any) -> None:
    study = asked(operator, runs=["single_pool", "dynaserve"])

    study_worker.run(study.pk)

    states = dict(study.runs.values_list("policy", "state"))
    assert states["single_pool"] == RunState.DONE
    failed = study.runs.get(policy="dynaserve")
    if failed.state == RunState.FAILED:
        assert failed.error
    study.job.refresh_from_db()
    assert study.job.state == JobState.DONE


def test_a_runs_policy_is_the_services_when_it_is_applied(operator: Any) -> None:
    seeded = seed.fleet()
    own = {"policy": {"name": "freesh", "alpha": 1.3, "routing": "least_loaded"}}
    study = asked(operator, scenario={**tiny(), **own}, runs=["freesh {order: fcfs, margin_s: 2}"])
    run = study.runs.get()

    found = applying.apply(Actor(operator, None, "page"), run, seeded.service)

    service = Service.objects.get(pk=seeded.service.pk)
    own = {"order": "fcfs", "alpha": 1.3, "route": "least_loaded", "tuning": {"queue": {"margin_s": 2}}}
    assert (service.policy, service.knobs) == ("freesh", own)
    assert found.without_effect == ()
    assert service.mode.mode == ControlMode.ADVISE
    assert AuditEntry.objects.filter(action="applied", user_id=operator.pk).exists()


def test_the_form_puts_errors_at_their_fields_and_loses_nothing(
    operator: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded = seed.everything(minutes=6)
    monkeypatch.setattr(tasks, "send", lambda study: None)
    client.force_login(operator)
    given = {"base": "fleet", "kind": "past", "run.single_pool": "on", "knobs.single_pool": "", "rate_scale": "1.5"}

    missing = client.post("/what-if/new/", given)
    form = missing.context["form"]
    assert set(form.errors) == {"past_from", "past_to"}
    assert form["rate_scale"].value() == "1.5"
    moments = {"past_from": seeded.now - timedelta(minutes=5), "past_to": seeded.now - timedelta(minutes=3)}
    texts = {name: at.strftime("%Y-%m-%dT%H:%M:%S") for name, at in moments.items()}
    wrong = client.post("/what-if/new/", given | texts | {"run.freesh": "on", "knobs.freesh": "alfa: 2"})
    assert "did you mean alpha" in str(wrong.context["form"].errors["more_runs"])
    early = client.post("/what-if/new/", given | {"past_from": "2020-01-01T00:00", "past_to": "2020-01-01T01:00"})
    assert set(early.context["form"].errors) == {"past_from"}

    made = client.post("/what-if/new/", given | texts | {"gpus.location-2.A100-80GB": "8"})

    assert made.status_code == 302
    study = Study.objects.get()
    assert study.scenario["sites"]["location-2"]["gpus"] == {seed.A100: 8}
    workload = study.scenario["services"]["llama3-70b"]["workload"]
    assert (workload["trace"], workload["rate_scale"]) == ("0.csv", 1.5)
    assert client.get(made.url).status_code == 200
    assert client.get(f"{made.url}files/0.csv").content.startswith(b"TIMESTAMP")
    assert client.get(f"/what-if/new/?base=study:{study.pk}").status_code == 200


def test_policy_in_force_is_ticked_with_its_knobs_and_runs_first_and_its_objective_is_the_studys(
    operator: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = seed.everything(minutes=6).service
    Service.objects.filter(pk=service.pk).update(policy="greenserve_epochs", knobs={"alpha": 1.3})
    service.slos.filter(kind="ttft").update(percentile=99.5)
    monkeypatch.setattr(tasks, "send", lambda study: None)
    client.force_login(operator)
    for base in ("fleet", "conversation-week"):
        form = client.get(f"/what-if/new/?base={base}").context["form"]
        assert (form["run.greenserve_epochs"].value(), form["knobs.greenserve_epochs"].value()) == (True, "alpha: 1.3")
        assert form["run.greenserve_epochs"].label == f"greenserve_epochs, in force at {service.name}"
        assert form["run.single_pool"].value()
        assert not form["run.dynamollm"].value()

    given = {"base": "fleet", "kind": "keep", "run.dynamollm": "on", "run.greenserve_epochs": "on"}
    made = client.post("/what-if/new/", given | {"knobs.greenserve_epochs": "alpha: 1.3"})

    assert made.status_code == 302, made.context["form"].errors
    study = Study.objects.get()
    assert [run.label for run in study.runs.all()] == ["greenserve_epochs {alpha: 1.3}", "dynamollm"]
    assert study.target == pytest.approx(0.995)
    study.runs.update(state="done", figures={"slo_attainment": 0.9, "by_service": {}})
    assert "misses 99.5 %" in client.get(made.url).content.decode()


def test_rest_starts_shows_and_stops_a_study(operator: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(tasks, "send", sent(given))
    client.force_login(operator)
    body = {"name": "by program", "scenario": tiny(), "runs": ["single_pool", {"policy": "freesh", "knobs": {}}]}

    made = client.post("/api/v1/studies/", body, content_type="application/json")

    assert made.status_code == 202, made.content
    assert given == [made.json()["id"]]
    assert study_worker.run(given[0])
    found = client.get(made.headers["Location"]).json()
    assert (found["state"], found["progress"]) == ("done", 1.0)
    assert found["comparison"]["runs"][1]["ratios"]["energy_wh"] == pytest.approx(
        found["runs"][1]["figures"]["energy_wh"] / found["runs"][0]["figures"]["energy_wh"]
    )
    assert client.post(f"{made.headers['Location']}cancel/").status_code == 409
    wrong = client.post("/api/v1/studies/", body | {"scenario": {"fleet": 1}}, content_type="application/json")
    assert wrong.status_code == 400
    assert "fleet" in wrong.content.decode()
    assert [row["name"] for row in client.get("/api/v1/studies/").json()["results"]] == ["by program"]


def test_rest_takes_a_trace_and_names_its_line(operator: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "send", lambda study: None)
    client.force_login(operator)
    head = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.680590,374,44\n"
    study = json.dumps({"scenario": tiny(), "runs": ["single_pool"]})

    def send(trace: bytes, study: str = study, **headers: str) -> Any:
        form = {"study": study, "trace": SimpleUploadedFile("t.csv", trace)}
        return client.post("/api/v1/studies/", form, headers=headers)

    (error,) = send(head + b"2023-11-16 18:15:50,many,17\n").json()["errors"]
    assert error == {
        "field": "traffic.trace",
        "detail": "trace.csv, line 3: ContextTokens 'many' is not a whole number",
    }
    for wrong in ("{", "[]", '{"traffic": {"kind": "past"}}', "[" * 100_000):
        assert send(head, wrong).json()["errors"][0]["field"] == "study"
    assert send(b"").json()["errors"][0]["field"] == "trace"
    monkeypatch.setattr("frontend.api.resources.studies.MOST_FORM_BYTES", 100)
    assert "gzip" in send(head).json()["detail"]
    monkeypatch.undo()
    monkeypatch.setattr(tasks, "send", lambda study: None)
    assert not Study.objects.exists()

    key = {"Idempotency-Key": "one"}
    made, again = send(head, **key), send(head, **key)
    assert (made.status_code, again.status_code) == (202, 202)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert send(head + b"2023-11-16 18:15:50,10,17\n", **key).status_code == 422
    assert Study.objects.get().scenario["workload"] == {"trace": "trace.csv"}


def test_somebody_bound_to_a_site_sees_own_studies_and_own_sites_alone(operator: Any, django_user_model: Any) -> None:
    seeded = seed.everything(minutes=3)
    asked(operator)
    bound = django_user_model.objects.create(username="bound")
    Membership.objects.create(user=bound, role="operator").sites.add(seeded.sites[1])

    study = study_requests.ask({"base": "fleet", "runs": ["single_pool"]}, bound)

    assert list(study.scenario["sites"]) == ["location-2"]
    assert list(studies.visible(bound)) == [study]
    assert studies.visible(operator).count() == 2
