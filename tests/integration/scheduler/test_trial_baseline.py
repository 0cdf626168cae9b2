"""The modelled baseline of a trial: what it takes for the same requests, what is not known, its job and its places."""

from __future__ import annotations

import csv
import io
from datetime import timedelta

import openpyxl
import pytest
from django.db.models import F
from django.test import Client

from core.engine.engine_model import engine_model
from pools.models import Gpu, Job, JobState, Node, Service
from scheduler import jobs
from scheduler.models import Trial, TrialBlock, TrialState
from scheduler.trials import modelled, outcome
from scheduler.trials.modelled import ModelledBlock, savings
from telemetry.ledger import settlement
from telemetry.models import MeterMark, RequestRecord
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import LATER, START
from tests.fakes.people import person
from tests.fakes.report_texts import pdf_text

pytestmark = pytest.mark.django_db
FIVE = timedelta(minutes=5)


@pytest.fixture
def trial(demo_rows, redis_client) -> Trial:
    """Two pairs of blocks; the first of each arm is five minutes that were metered, the rest has not begun."""
    service = Service.objects.get()
    instance = start_instance(service.pools.first(), Node.objects.get(name="loc1-a100"), tp=4)
    metering.quarter_hour(instance)
    assert settlement.settle(moment(LATER)) == 3
    service.pools.exclude(site=instance.node.cluster.site).delete()
    found = Trial.objects.create(
        service=service, policy_a="throttllem", policy_b="freesh", block_h=1, pairs=2, warm_up_s=0, reason="proof",
        begins_at=moment(START), seed=1, state=TrialState.RUNNING,
    )  # fmt: skip
    for n, arm in enumerate("ABAB"):
        start = moment(START) + n * FIVE
        begun = start if n < 2 else None
        TrialBlock.objects.create(
            trial=found, service=service, index=n, arm=arm, starts_at=start, ends_at=start + FIVE, switched_at=begun
        )
    return found


def run(trial: Trial) -> Job:
    job = modelled.ask(trial, None)
    modelled.run(job.pk)
    job.refresh_from_db()
    return job


def shown(trial: Trial) -> modelled.Modelled:
    return modelled.modelled(trial, outcome.of(trial))


def test_baseline_is_of_the_same_requests_and_a_fleet_that_is_always_on(trial):
    job = run(trial)
    assert (job.state, job.error, job.progress) == (JobState.DONE, "", 1.0)
    found = shown(trial)
    assert [block.index for block in found.blocks] == [0, 1]
    asked = [RequestRecord.objects.filter(started_at__gte=b.starts_at, started_at__lt=b.ends_at).count()
             for b in trial.blocks.all()[:2]]  # fmt: skip
    assert [block.requests for block in found.blocks] == asked
    assert min(asked) > 10
    model = engine_model("Llama3-70B", "A100-80GB", 4)
    for block in found.blocks:
        assert block.energy_j is not None
        assert block.energy_j > model.idle_watts(model.gpu_params.f_max) * 300
        assert block.carbon_g is not None
    a, b = found.savings
    metered = outcome.of(trial).blocks
    assert (a.arm, a.blocks, a.of, a.metered_j, a.modelled_j) == (
        "A",
        1,
        1,
        metered[0].energy_j,
        found.blocks[0].energy_j,
    )
    assert a.saved_energy == pytest.approx(1 - metered[0].energy_j / found.blocks[0].energy_j)
    assert b.saved_carbon == pytest.approx(1 - metered[1].carbon_g / found.blocks[1].carbon_g)
    assert found.missing == 0


def test_baseline_is_not_known_where_requests_lack_tokens(trial):
    first = trial.blocks.all()[0]
    one = RequestRecord.objects.filter(started_at__gte=first.starts_at, started_at__lt=first.ends_at).first()
    RequestRecord.objects.filter(request_id=one.request_id, started_at=one.started_at).update(output_tokens=None)
    run(trial)
    found = shown(trial)
    assert (found.blocks[0].energy_j, found.blocks[0].why) == (
        None,
        "1 requests were served without a count of their tokens",
    )
    assert found.blocks[1].energy_j is not None
    a, b = found.savings
    assert (a.blocks, a.of, a.modelled_j, a.saved_energy) == (0, 1, None, None)
    assert b.blocks == 1
    client = Client()
    client.force_login(person("operator"))
    page = client.get(f"/trials/{trial.pk}/").content.decode()
    assert "Block 1: not known, 1 requests were served without a count of their tokens." in page
    assert page.count("not known") >= 3
    assert client.get(f"/api/v1/trials/{trial.pk}/").json()["baseline"]["blocks"][0]["energy_j"] is None
    assert "not known of block 1" in " ".join(pdf_text(client.get(f"/trials/{trial.pk}.pdf").content).split())


def test_every_place_has_the_same_figures_with_the_word_modelled(trial):
    client = Client()
    client.force_login(person("operator"))
    where = f"/api/v1/trials/{trial.pk}/"
    assert client.get(where).json()["baseline"] is None
    assert client.get(f"/trials/{trial.pk}.baseline.csv").status_code == 404
    answer = client.post(f"{where}baseline/")
    job = Job.objects.get(kind=modelled.JOB_KIND)
    assert (answer.status_code, f"/api/v1/jobs/{job.uid}/" in answer.headers["Link"]) == (202, True)
    assert "waits for a worker" in client.get(f"/trials/{trial.pk}/").content.decode()
    assert modelled.run(job.pk)
    found = shown(trial).savings
    body = client.get(where).json()["baseline"]
    assert [one["saved_energy_modelled"] for one in body["savings"]] == [one.saved_energy for one in found]
    rows = list(csv.DictReader(io.StringIO(client.get(f"/trials/{trial.pk}.baseline.csv").content.decode())))
    assert [float(row["saved_energy_modelled"]) for row in rows] == [one.saved_energy for one in found]
    blocks = list(csv.DictReader(io.StringIO(client.get(f"/trials/{trial.pk}.blocks.csv").content.decode())))
    assert [float(row["baseline_energy_j"]) for row in blocks] == [block.energy_j for block in shown(trial).blocks]
    sheet = openpyxl.load_workbook(io.BytesIO(client.get(f"/trials/{trial.pk}.xlsx").content))["Baseline (modelled)"]
    assert [cell.value for cell in sheet["F"][1:]] == pytest.approx([one.saved_energy for one in found])
    assert "(modelled)" in pdf_text(client.get(f"/trials/{trial.pk}.pdf").content)
    page = client.get(f"/trials/{trial.pk}/").content.decode()
    assert page.count("(modelled)") >= 5
    assert f"{found[0].saved_energy * 100:.1f}" in page


def test_one_job_is_made_while_one_is_under_way_and_it_can_be_cancelled(trial):
    job = modelled.ask(trial, None)
    assert modelled.ask(trial, None) == job
    assert jobs.cancel(job)
    assert not modelled.run(job.pk), "a cancelled job is not taken up"
    other = modelled.ask(trial, None)
    assert other != job
    Job.objects.filter(pk=other.pk).update(cancel_requested=True)
    assert not modelled.run(other.pk)
    other.refresh_from_db()
    assert (other.state, other.result) == (JobState.CANCELLED, None)
    assert shown(trial).blocks == ()


def test_blocks_that_count_later_are_named_as_missing(trial):
    second = trial.blocks.all()[1]
    trial.blocks.filter(pk=second.pk).update(switched_at=None)
    run(trial)
    trial.blocks.filter(pk=second.pk).update(switched_at=F("starts_at"))
    found = shown(trial)
    assert (found.missing, found.savings[1].blocks, found.savings[1].of) == (1, 0, 1)
    client = Client()
    client.force_login(person("operator"))
    assert "Model it anew" in client.get(f"/trials/{trial.pk}/").content.decode()
    job = modelled.ask(trial, None)
    assert client.post(f"/trials/{trial.pk}/baseline/").status_code == 302
    assert Job.objects.filter(kind=modelled.JOB_KIND).count() == 2
    assert shown(trial).blocks, "the figures of before stay until the new ones are there"
    assert modelled.run(job.pk)
    assert shown(trial).missing == 0


def test_viewer_may_not_ask_for_it(trial):
    client = Client()
    client.force_login(person("viewer"))
    assert client.post(f"/trials/{trial.pk}/baseline/").status_code == 403
    assert "Model the baseline" not in client.get(f"/trials/{trial.pk}/").content.decode()


def test_service_that_shares_its_sites_has_its_part_of_the_gpus_by_output_tokens(trial):
    service = trial.service
    for gpu in Gpu.objects.filter(node__cluster__site__pools__service=service, meter_mark=None).distinct():
        MeterMark.objects.create(
            gpu=gpu, at=moment(LATER), energy_uj=1, opened_at=moment(START), opened_energy_uj=0
        )  # fmt: skip
    alone = run(trial)
    Service.objects.create(name="other", model_card=service.model_card, partition=service.partition)
    for record in RequestRecord.objects.filter(started_at__lt=moment(START) + 2 * FIVE):
        record.request_id, record.service = f"o{record.request_id}", "other"
        record.save(force_insert=True)
    shared = run(trial)
    for one, half in zip(alone.result["blocks"], shared.result["blocks"], strict=True):
        assert one["requests"] == half["requests"], "the other service's requests are not this one's"
        assert half["energy_j"] < 0.8 * one["energy_j"]


def test_savings_leave_out_blocks_that_do_not_count():
    assert [one.of for one in savings((), (ModelledBlock(0, 1.0, 1.0, 1),))] == [0, 0]
