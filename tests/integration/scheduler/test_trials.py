"""Trials: blocks in pairs, switches at their turn, what ends them, and what the settled ledger says of them."""

from __future__ import annotations

import csv
import io
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import openpyxl
import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from pools.access.audit import Actor
from pools.models import AuditEntry, Service
from scheduler.models import Trial, TrialState
from scheduler.operations import pauses
from scheduler.trials import outcome, turns
from telemetry.models import Alert, RequestRecord, Settlement, StatementLine
from tests.fakes import house, seed
from tests.fakes.people import person
from tests.fakes.report_texts import pdf_text

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def seeded(redis_client: Any) -> seed.Seeded:
    return seed.fleet()


def planned(service: Service, **more: Any) -> Trial:
    given = {"policy_a": "single_pool", "policy_b": "freesh", "block_h": 1, "pairs": 2, "warm_up_s": 900}
    given |= {"begins_at": timezone.now() + timedelta(minutes=1), "reason": "proof"}
    return turns.plan(Actor(), Trial(service=service, **{**given, **more}))


def policy_of(trial: Trial) -> str:
    return Service.objects.get(pk=trial.service_id).policy


def test_each_pair_has_both_policies_in_an_order_that_the_seed_draws():
    arms = turns.order(50, 7)
    assert all(set(arms[n : n + 2]) == {"A", "B"} for n in range(0, 100, 2))
    assert arms == turns.order(50, 7)
    assert 10 < sum(arm == "A" for arm in arms[::2]) < 40


def test_policies_take_turns_and_the_one_of_before_comes_back(seeded):
    trial = planned(seeded.service)
    former = policy_of(trial)
    assert turns.turn(timezone.now()) == 0
    arms = {"A": "single_pool", "B": "freesh"}
    for block in trial.blocks.all():
        assert turns.turn(block.starts_at + timedelta(seconds=20)) == 1
        assert turns.turn(block.starts_at + timedelta(seconds=50)) == 0
        assert policy_of(trial) == arms[block.arm]
    assert turns.turn(trial.begins_at + 4 * HOUR) == 1
    trial.refresh_from_db()
    assert (trial.state, policy_of(trial)) == (TrialState.DONE, former)
    assert AuditEntry.objects.filter(action="switched").count() == 4
    assert AuditEntry.objects.filter(action="done").exists()


def test_trial_ends_and_touches_nothing_when_somebody_configures_another_policy(seeded):
    trial = planned(seeded.service)
    turns.turn(trial.begins_at)
    Service.objects.filter(pk=seeded.service.pk).update(policy="dynamollm")
    turns.turn(trial.begins_at + HOUR)
    trial.refresh_from_db()
    assert (trial.state, trial.ended_why) == (TrialState.CANCELLED, "Somebody configured another policy.")
    assert policy_of(trial) == "dynamollm"


def test_cancelled_trial_gives_back_the_policy_of_before(seeded):
    trial = planned(seeded.service)
    former = policy_of(trial)
    turns.turn(trial.begins_at)
    turns.cancel(Actor(), trial, "enough seen")
    trial.refresh_from_db()
    assert (trial.state, trial.ended_why, policy_of(trial)) == (TrialState.CANCELLED, "enough seen", former)


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"policy_b": "single_pool"}, "policy_b", "nothing to compare"),
        ({"policy_b": "nonsense"}, "policy_b", "nonsense"),
        ({"knobs_a": {"alfa": 1}}, "policy_a", "alpha"),
        ({"warm_up_s": 3600}, "warm_up_s", "shorter than a block"),
        ({"pairs": 1}, "pairs", "greater than or equal to 2"),
    ],
)
def test_bad_plan_names_its_field(seeded, given, field, words):
    with pytest.raises(ValidationError) as caught:
        planned(seeded.service, **given)
    assert words in " ".join(caught.value.message_dict[field])
    assert not Trial.objects.exists()


def settled(service: Service, at: datetime, energy_j: float) -> None:
    """Settles a window of five minutes at the service's sites: the first has its energy and a thousand tokens."""
    sites = list(dict.fromkeys(pool.site for pool in service.pools.select_related("site")))
    for n, site in enumerate(sites):
        own = Settlement.objects.create(
            site=site, start_at=at, end_at=at + timedelta(minutes=5), revision=1, cause="", sources={},
            currency=site.currency, energy_uj=0, unattributed_uj=0,
        )  # fmt: skip
        if n == 0:
            StatementLine.objects.create(
                settlement=own, entry="original", kind="serving", service=service.name, output_tokens=1_000,
                energy_uj=round(energy_j * 1e6), carbon_ug=round(energy_j * 1e6), cost_nano=round(energy_j * 1e9),
            )  # fmt: skip


def ran(seeded: seed.Seeded, ratios: tuple[float, ...], begins_at: datetime = NEW_YEAR) -> Trial:
    """Runs a trial of two pairs or more, whose B takes so many times A's energy in each; a warm-up takes ten times."""
    trial = planned(seeded.service, pairs=len(ratios), begins_at=begins_at)
    for block in trial.blocks.all():
        block.switched_at = block.starts_at
        block.save()
        base = 100.0 + 10 * block.pair
        for n in range(12):
            energy_j = base * (ratios[block.pair] if block.arm == "B" else 1.0) * (10 if n < 3 else 1)
            settled(seeded.service, block.starts_at + n * timedelta(minutes=5), energy_j)
    return trial


def test_difference_is_that_of_the_settled_lines_after_the_warm_up(seeded):
    trial = ran(seeded, (0.8, 0.9, 0.85))
    found = outcome.of(trial)
    assert not found.left_out
    first = next(block for block in found.blocks if block.arm == "A")
    assert (first.energy_j, first.output_tokens) == (pytest.approx(900.0), 9_000)
    rows = {row.key: row for row in found.differences}
    own = rows["j_per_1k_tokens"]
    assert own.difference is not None
    assert (own.mean_a, own.difference.pairs) == (pytest.approx(110.0), 3)
    assert own.difference.mean == pytest.approx((0.8 * 0.9 * 0.85) ** (1 / 3) - 1)
    assert own.difference.low is not None
    assert own.difference.high is not None
    assert own.difference.low < own.difference.mean < own.difference.high < 0.0
    assert rows["carbon_g"].difference is not None
    assert rows["slo_attainment"].difference is None, "no request was judged"


def test_block_that_was_disturbed_is_left_out_with_its_pair_and_named(seeded):
    trial = ran(seeded, (0.8, 0.9, 0.85))
    block = trial.blocks.first()
    assert block is not None
    pause = pauses.pause(Actor(), seeded.service, "carbon", "new racks")
    type(pause).objects.update(created_at=block.starts_at, expires_at=block.starts_at + HOUR / 2)
    last = trial.blocks.last()
    assert last is not None
    sites = Settlement.objects.filter(start_at__gte=last.ends_at - timedelta(minutes=5))
    StatementLine.objects.filter(settlement__in=sites).delete()
    sites.delete()
    found = outcome.of(trial)
    reasons = {row.index: row.left_out for row in found.left_out}
    assert reasons[0] == "the carbon loop was paused: new racks"
    assert reasons[5].startswith("provisional: ")
    (energy,) = [row for row in found.differences if row.key == "energy_j"]
    assert energy.difference is not None
    assert (energy.difference.pairs, energy.difference.low) == (1, None)


def silent(node: str, since: datetime, last_seen_at: datetime, resolved_at: datetime) -> None:
    Alert.objects.create(
        rule="node_silent", subject=node, level="bad", state="resolved", summary="silent", step="look", threshold=30.0,
        since=since, opened_at=since, last_seen_at=last_seen_at, resolved_at=resolved_at,
    )  # fmt: skip


def test_silence_counts_until_its_node_was_heard_again_and_not_until_its_alert_was_closed(seeded):
    trial = ran(seeded, (0.8, 0.9, 0.85))
    one, _, other, *_ = trial.blocks.all()
    counts_from = {block.index: block.starts_at + timedelta(seconds=trial.warm_up_s) for block in (one, other)}
    minute = timedelta(minutes=1)
    # heard again in the warm-up of the first block, and closed after it
    begun = one.starts_at - 5 * minute
    silent("n1", begun, counts_from[one.index] - minute, counts_from[one.index] + minute)
    # heard again after the warm-up of the third
    silent("n1", other.starts_at, counts_from[other.index] + minute, counts_from[other.index] + 2 * minute)
    assert {row.index: row.left_out for row in outcome.of(trial).left_out} == {2: "the meters of n1 were silent"}


def test_arm_below_the_strictest_objective_is_marked(seeded):
    trial = ran(seeded, (0.8, 0.9))
    for block in trial.blocks.all():
        house.requests_came(block.ends_at, 10, over_s=600.0, service=seeded.service.name)
    RequestRecord.objects.update(slo_met=True)
    for block in trial.blocks.filter(arm="B"):
        one = RequestRecord.objects.filter(started_at__gte=block.starts_at, started_at__lt=block.ends_at).first()
        assert one is not None
        RequestRecord.objects.filter(started_at=one.started_at).update(slo_met=False)
    found = outcome.of(trial)
    (row,) = [row for row in found.differences if row.key == outcome.ATTAINMENT]
    assert (row.mean_a, row.mean_b, found.objective) == (1.0, pytest.approx(0.9), 0.99)
    assert (found.is_below(row, row.mean_a), found.is_below(row, row.mean_b)) == (False, True)


def test_outcome_takes_as_many_queries_for_many_blocks_as_for_few(seeded, django_assert_num_queries):
    few = ran(seeded, (0.8, 0.9))
    Trial.objects.update(state=TrialState.DONE)
    many = ran(seeded, (0.8,) * 5, NEW_YEAR + 24 * HOUR)
    for trial in (few, many):
        found = Trial.objects.select_related("service").get(pk=trial.pk)
        with django_assert_num_queries(10):
            outcome.of(found)


def test_rest_plans_shows_and_cancels_and_the_page_has_the_result(seeded, redis_client):
    client = Client()
    client.force_login(person("administrator"))
    body = {
        "service": seeded.service.name, "policy_a": "single_pool", "policy_b": "freesh", "block_h": 1, "pairs": 2,
        "warm_up_s": 900, "begins_at": (timezone.now() + HOUR).isoformat(), "reason": "proof",
    }  # fmt: skip
    made = client.post("/api/v1/trials/", body, content_type="application/json")
    assert made.status_code == 201, made.content
    wrong = client.post("/api/v1/trials/", body | {"policy_b": "nonsense"}, content_type="application/json")
    assert (wrong.status_code, "policy_b" in str(wrong.json()["errors"])) == (400, True)
    where = made.headers["Location"]
    detail = client.get(where).json()
    assert [block["arm"] for block in detail["blocks"]] == [b.arm for b in Trial.objects.get().blocks.all()]
    stopped = client.post(f"{where}cancel/", {"reason": "enough"}, content_type="application/json")
    assert stopped.json()["state"] == "cancelled"
    trial = ran(seeded, (0.8, 0.9))
    page = client.get(f"/trials/{trial.pk}/").content.decode()
    assert "Energy per 1,000 output tokens" in page
    assert "\u221215.1\u00a0%" in page
    rows = client.get(f"/trials/{trial.pk}.csv").content.decode().splitlines()
    assert rows[0].startswith("figure,unit,pairs,mean_a,mean_b,difference")
    assert client.get(f"{where}").status_code == 200
    blocks = client.get(f"/trials/{trial.pk}.blocks.csv").content.decode().splitlines()
    assert len(blocks) == 1 + 4
    sheet = openpyxl.load_workbook(io.BytesIO(client.get(f"/trials/{trial.pk}.xlsx").content))["Differences"]
    in_csv = [float(row["difference"] or "nan") for row in csv.DictReader(rows)]
    in_sheet = [cell.value if cell.value is not None else math.nan for cell in sheet["F"][1:]]
    assert in_sheet == pytest.approx(in_csv, nan_ok=True)
    text = pdf_text(client.get(f"/trials/{trial.pk}.pdf").content)
    assert "-0.15" in text
    assert "CONTAINS SYNTHETIC DATA" in text
    assert client.get(f"/trials/{trial.pk}.doc").status_code == 404
