"""Trials by sites: two services with one policy each that swap, so that what differs between their sites cancels."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from pools.access.audit import Actor
from pools.models import AuditEntry, ModelCard, Pool, Service
from scheduler.models import Trial, TrialState
from scheduler.operations import pauses
from scheduler.trials import outcome, turns
from telemetry.models import Alert, Settlement, StatementLine
from tests.fakes import seed
from tests.fakes.people import person
from tests.fakes.report_texts import pdf_text

pytestmark = pytest.mark.django_db
HOUR, FIVE = timedelta(hours=1), timedelta(minutes=5)
NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)
SITE_FACTOR = 3.0  # the second site takes three times as much for the same
POLICIES = {"A": "single_pool", "B": "freesh"}


@pytest.fixture
def seeded(redis_client: Any) -> seed.Seeded:
    """The first service is at the first site alone, `other` at the second."""
    found = seed.fleet()
    for name, site, policy in (("other", found.sites[1], "dynamollm"), ("bystander", found.sites[2], "throttllem")):
        own = {"model_card": found.service.model_card, "partition": found.service.partition}
        Pool.objects.filter(site=site).update(service=Service.objects.create(name=name, policy=policy, **own))
    return found


def other() -> Service:
    return Service.objects.get(name="other")


def planned(seeded: seed.Seeded, **more: Any) -> Trial:
    given = {"policy_a": "single_pool", "policy_b": "freesh", "block_h": 1, "pairs": 2, "warm_up_s": 0}
    given |= {"begins_at": timezone.now() + timedelta(minutes=1), "reason": "proof", "other": other()}
    return turns.plan(Actor(), Trial(service=seeded.service, **{**given, **more}))


def settled(service: Service, at: datetime, energy_j: float) -> None:
    site = service.pools.select_related("site")[0].site
    own = Settlement.objects.create(
        site=site, start_at=at, end_at=at + HOUR, revision=1, cause="", sources={}, currency=site.currency,
        energy_uj=0, unattributed_uj=0,
    )  # fmt: skip
    StatementLine.objects.create(
        settlement=own, entry="original", kind="serving", service=service.name, output_tokens=1_000,
        energy_uj=round(energy_j * 1e6), carbon_ug=round(energy_j * 1e6), cost_nano=round(energy_j * 1e9),
    )  # fmt: skip


def ran(seeded: seed.Seeded, ratio: float = 0.8, pairs: int = 3) -> Trial:
    """B takes `ratio` of A; the second site a multiple of the first; and each turn more than the one before."""
    trial = planned(seeded, pairs=pairs, begins_at=NEW_YEAR)
    for block in trial.blocks.select_related("service"):
        block.switched_at = block.starts_at
        block.save()
        turn = block.index // 2
        site = SITE_FACTOR if block.service.name == "other" else 1.0
        settled(block.service, block.starts_at, 1_000.0 * site * 1.17**turn * (ratio if block.arm == "B" else 1.0))
    return trial


def test_each_turn_has_both_policies_at_once_and_each_pair_both_at_each_service(seeded):
    trial = planned(seeded, pairs=3)
    blocks = list(trial.blocks.select_related("service"))
    assert len(blocks) == 3 * 2 * 2
    for one, two in zip(blocks[::2], blocks[1::2], strict=True):
        assert (one.starts_at, {one.arm, two.arm}) == (two.starts_at, {"A", "B"})
        assert [one.service.name, two.service.name] == [seeded.service.name, "other"]
    for pair in range(3):
        own = [block for block in blocks if block.pair == pair]
        assert len({(block.service_id, block.arm) for block in own}) == len(own) == 4


def test_services_swap_policies_and_have_those_of_before_in_the_end(seeded):
    trial = planned(seeded)
    former = dict(Service.objects.values_list("pk", "policy"))
    assert len(set(former.values())) == 3
    for n in range(4):
        at = trial.begins_at + n * HOUR + timedelta(seconds=20)
        assert turns.turn(at) == 2
        assert turns.turn(at + timedelta(seconds=30)) == 0
        now = {block.service_id: POLICIES[block.arm] for block in trial.blocks.filter(index__in=(2 * n, 2 * n + 1))}
        assert dict(Service.objects.values_list("pk", "policy")) == former | now, "the bystander keeps its own"
    assert turns.turn(trial.begins_at + 4 * HOUR) == 2
    trial.refresh_from_db()
    assert trial.state == TrialState.DONE
    assert dict(Service.objects.values_list("pk", "policy")) == former
    assert AuditEntry.objects.filter(action="switched").count() == 8


def test_what_differs_between_sites_and_with_time_cancels(seeded):
    found = outcome.of(ran(seeded, ratio=0.8))
    assert not found.left_out
    for key in ("j_per_1k_tokens", "energy_j", "carbon_g"):
        (row,) = [row for row in found.differences if row.key == key]
        own = row.difference
        assert own is not None
        assert (own.pairs, own.mean) == (3, pytest.approx(-0.2))
        assert (own.low, own.high) == (pytest.approx(-0.2), pytest.approx(-0.2)), "nothing else is in it"
    (energy,) = [row for row in found.differences if row.key == "energy_j"]
    a = [1_000.0 * SITE_FACTOR**0.5 * 1.17 ** (2 * pair + 0.5) for pair in range(3)]
    assert energy.mean_a == pytest.approx(sum(a) / 3)


def test_pair_counts_only_if_all_four_blocks_do_and_each_block_by_its_own_service(seeded):
    trial = ran(seeded)
    at = trial.begins_at
    name = "n3"  # at the second site
    Alert.objects.create(
        rule="node_silent", subject=name, level="bad", state="resolved", summary="silent", step="look", threshold=30.0,
        since=at, opened_at=at, last_seen_at=at + FIVE, resolved_at=at + FIVE,
    )  # fmt: skip
    pause = pauses.pause(Actor(), seeded.service, "carbon", "new racks")
    late = at + 4 * HOUR
    type(pause).objects.update(created_at=late, expires_at=late + FIVE)
    found = outcome.of(trial)
    assert {(row.index, row.service): row.left_out for row in found.left_out} == {
        (1, "other"): f"the meters of {name} were silent",
        (8, seeded.service.name): "the carbon loop was paused: new racks",
    }
    (energy,) = [row for row in found.differences if row.key == "energy_j"]
    assert energy.difference is not None
    assert energy.difference.pairs == 1


def test_service_that_somebody_configured_keeps_that_and_the_other_gets_its_own_back(seeded):
    trial = planned(seeded)
    former = other().policy
    turns.turn(trial.begins_at)
    Service.objects.filter(pk=seeded.service.pk).update(policy="throttllem")
    turns.turn(trial.begins_at + HOUR)
    trial.refresh_from_db()
    assert (trial.state, trial.ended_why) == (TrialState.CANCELLED, "Somebody configured another policy.")
    assert Service.objects.get(pk=seeded.service.pk).policy == "throttllem"
    assert other().policy == former


def test_cancelled_trial_gives_both_services_their_policies_back(seeded):
    trial = planned(seeded)
    former = dict(Service.objects.values_list("pk", "policy"))
    turns.turn(trial.begins_at)
    turns.cancel(Actor(), trial, "enough seen")
    assert dict(Service.objects.values_list("pk", "policy")) == former


def refused(seeded: seed.Seeded, field: str, words: str, **given: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        planned(seeded, **given)
    assert words in " ".join(caught.value.message_dict[field])


def test_second_service_that_cannot_be_compared_is_refused_by_field(seeded):
    refused(seeded, "other", "another service", other=seeded.service)
    pool = seeded.service.pools.all()[0]
    Pool.objects.filter(pk=pool.pk).update(service=other())
    refused(seeded, "other", f"runs at {pool.site.name} too")
    Pool.objects.filter(pk=pool.pk).update(service=seeded.service)
    Pool.objects.filter(service=other()).update(service=Service.objects.get(name="bystander"))
    refused(seeded, "other", "has no pool")
    Service.objects.filter(name="other").update(
        model_card=ModelCard.objects.create(name="Llama2-13B", max_model_len=4_096, engine="vllm-v1")
    )
    refused(seeded, "other", "offers another model")


def test_service_is_in_one_trial_at_a_time_whichever_its_place(seeded):
    planned(seeded)
    given = {"policy_a": "single_pool", "policy_b": "freesh", "begins_at": NEW_YEAR, "reason": "again"}
    for service in (other(), seeded.service):
        with pytest.raises(ValidationError, match="has a trial already"):
            turns.plan(Actor(), Trial(service=service, **given))


def test_rest_page_and_files_name_both_services(seeded):
    client = Client()
    client.force_login(person("administrator"))
    body = {
        "service": seeded.service.name, "other": "other", "policy_a": "single_pool", "policy_b": "freesh", "block_h": 1,
        "pairs": 2, "warm_up_s": 0, "begins_at": (timezone.now() + HOUR).isoformat(), "reason": "proof",
    }  # fmt: skip
    made = client.post("/api/v1/trials/", body, content_type="application/json")
    assert (made.status_code, made.json()["other"]) == (201, "other")
    assert [block["service"] for block in made.json()["blocks"][:2]] == [seeded.service.name, "other"]
    again = client.post("/api/v1/trials/", body, content_type="application/json")
    assert (again.status_code, again.json()["errors"][0]["field"]) == (400, "service")
    Trial.objects.update(state=TrialState.DONE)
    trial = ran(seeded)
    page = client.get(f"/trials/{trial.pk}/").content.decode()
    assert f"freesh against single_pool, {seeded.service.name} and other" in page
    assert "what differs between the sites cancels" in page
    assert "\u221220.0\u00a0%" in page
    rows = list(csv.DictReader(io.StringIO(client.get(f"/trials/{trial.pk}.blocks.csv").content.decode())))
    assert [row["service"] for row in rows[:2]] == [seeded.service.name, "other"]
    assert "a crossover" in " ".join(pdf_text(client.get(f"/trials/{trial.pk}.pdf").content).split())
    assert "other" in client.get("/trials/").content.decode()


def test_form_plans_one_by_sites(seeded):
    client = Client()
    client.force_login(person("operator"))
    form = {
        "service": seeded.service.pk, "other": other().pk, "policy_a": "single_pool", "policy_b": "freesh",
        "block_h": 1, "pairs": 2, "warm_up_s": 0, "begins_at": "2031-01-01T00:00", "reason": "proof",
    }  # fmt: skip
    assert client.post("/trials/new/", form).status_code == 302
    assert Trial.objects.get().other == other()


def test_only_who_may_see_both_services_whole_sees_it(seeded):
    trial = planned(seeded)
    own = Client()
    own.force_login(person("viewer", "first-site", sites=[seeded.sites[0]]))
    assert own.get(f"/trials/{trial.pk}/").status_code == 404
    assert own.get(f"/api/v1/trials/{trial.pk}/").status_code == 404
    both = Client()
    both.force_login(person("viewer", "both-sites", sites=seeded.sites[:2]))
    assert both.get(f"/trials/{trial.pk}/").status_code == 200
