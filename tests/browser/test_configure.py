"""Configuration and control by clicking, as an operator would: forms with their consequences, imports, overrides."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from pools.models import AuditEntry, Service, Site
from scheduler.control import pending_plans
from scheduler.models import Approval, ControllerState, Decision, Epoch, LoopPause, Override, ServiceMode
from tests.fakes import seed


@pytest.fixture
def operator(signed_in: Callable[..., Page]) -> Page:
    return signed_in("operator")


def test_site_is_made_when_the_form_is_put_right(operator: Page, picture: Callable[[Page, str], None]) -> None:
    operator.goto("/configure/")
    operator.locator("main").get_by_role("link", name="Sites").click()
    operator.get_by_role("link", name="New site").click()
    operator.get_by_label("Name").fill("oslo")
    operator.get_by_label("Label").fill("Oslo")
    operator.get_by_label("Grid zone").fill("NO-NO1")
    operator.get_by_label("Time zone").fill("Europe/Olso")
    operator.get_by_label("PUE").fill("0.5")
    # As long as people press. What the field's change brings meanwhile must not move the button away.
    operator.get_by_role("button", name="Save").click(delay=500.0)
    expect(operator.get_by_label("Label")).to_have_value("Oslo")  # nothing is lost
    expect(operator.locator(".field", has_text="PUE").locator(".error")).to_contain_text("1.0")
    picture(operator, "configure-form-error")
    operator.get_by_label("PUE").fill("1.2")
    operator.get_by_label("Time zone").press("Tab")
    expect(operator.locator("#consequences")).to_contain_text("Europe/Olso")
    operator.get_by_label("Time zone").fill("Europe/Oslo")
    operator.get_by_label("Time zone").press("Tab")
    expect(operator.locator("#consequences")).not_to_contain_text("Olso")
    operator.get_by_role("button", name="Save").click()
    expect(operator.locator(".messages")).to_contain_text("Oslo is stored")
    entry = AuditEntry.objects.get(action="created", kind="site")
    assert (entry.who, entry.channel) == ("operator", "page")
    operator.get_by_role("link", name=re.compile("^Delete Oslo")).click()
    operator.get_by_role("button", name="Delete").click()
    expect(operator.locator(".messages")).to_contain_text("deleted")


def test_the_consequence_is_shown_when_an_slo_cannot_be_met(operator: Page, fleet: seed.Seeded) -> None:
    fleet.service.slos.filter(kind="tpot").delete()
    operator.goto(f"/configure/slos/new/?service={fleet.service.pk}")
    operator.get_by_label("Kind").select_option("tpot")
    operator.get_by_label("Objective, s").fill("0.0001")
    operator.get_by_label("Objective, s").press("Tab")
    expect(operator.locator("#consequences")).to_contain_text("cannot be met by any profile of this model: best TPOT")
    operator.get_by_role("button", name="Save").click()
    expect(operator.locator(".messages")).to_contain_text("is stored")


@pytest.mark.slow("imports are tested without a browser")
def test_rows_are_tried_and_stored_when_they_are_imported(operator: Page) -> None:
    operator.goto("/configure/sites/import/")
    text = "name,label,grid_zone,pue\nbergen,Bergen,NO-NO5,1.1\ntromso,Tromso,NO-NO4,0.2\n"
    operator.get_by_label("Or text").fill(text)
    operator.get_by_role("button", name="Try it").click()
    expect(operator.locator("table")).to_contain_text("refused")
    assert not Site.objects.filter(name="bergen").exists()
    operator.get_by_label("Or text").fill(text.replace("0.2", "1.2"))
    operator.get_by_role("button", name="Try it").click()
    operator.get_by_role("button", name="Store 2 rows").click()
    expect(operator.locator(".messages")).to_contain_text("2 of 2 rows are stored")
    assert Site.objects.get(name="tromso").pue == 1.2


@pytest.mark.slow("the journeys of both, in one")
def test_loop_is_paused_and_site_drained_when_a_person_overrides(
    operator: Page, fleet: seed.Seeded, picture: Callable[[Page, str], None]
) -> None:
    operator.goto("/overrides/")
    pause = operator.get_by_role("form", name="Pause a loop")
    pause.get_by_label("because").fill("the grid operator rings")
    pause.get_by_role("button", name="Pause").click()
    expect(operator.get_by_text("Power then, predicted")).to_be_visible()
    assert not LoopPause.objects.exists()
    picture(operator, "confirm")
    operator.get_by_role("button", name="Confirm").click()
    expect(operator.locator("#loops + .scroll")).to_contain_text("paused")
    assert LoopPause.objects.get(ended_at=None).loop == "carbon"
    operator.get_by_text("New override").click()
    drain = operator.locator("form", has_text="Drain a site")
    drain.get_by_label("Because").fill("new transformer")
    drain.get_by_role("button", name="Override").click()
    expect(operator.locator("#overrides ~ .scroll")).to_contain_text("no new workers")
    picture(operator, "overrides")
    operator.get_by_role("button", name="End now").first.click()
    operator.get_by_role("button", name="Confirm").click()
    expect(operator.locator(".messages")).to_contain_text("Ended")
    operator.get_by_role("button", name="Resume the carbon loop").click()
    operator.get_by_role("button", name="Confirm").click()
    expect(operator.locator(".messages")).to_contain_text("runs again")
    assert Override.objects.filter(ended_at=None).count() == 0


@pytest.mark.slow("approval is tested without a browser")
def test_plan_is_answered_when_it_waits_for_approval(operator: Page, fleet: seed.Seeded) -> None:
    waiting(fleet.service)
    operator.goto("/overrides/")
    expect(operator.get_by_text("Partition a, workers: 3 at Location 1")).to_be_visible()
    operator.get_by_role("button", name="Approve").click()
    expect(operator.locator(".messages")).to_contain_text("approved and carried out")
    assert Approval.objects.get().status == "approved"


@pytest.mark.slow("floors are tested without a browser")
def test_clocks_only_advise_until_a_floor_is_approved(operator: Page, fleet: seed.Seeded) -> None:
    pool = fleet.instances[0].pool
    Decision.objects.create(
        kind="clock",
        at=timezone.now(),
        service=fleet.service,
        pool=pool,
        instance_uid=fleet.instances[0].uid,
        reason="slack",
        summary="Advice, not carried out: 1310 MHz; it stays at 1410 MHz. Nothing waits.",
        inputs={"advised_mhz": 1310.0},
    )
    operator.goto("/overrides/")
    expect(operator.get_by_text("Advice, not carried out")).to_have_count(0)  # it acts: there is nothing to approve
    ServiceMode.objects.create(service=fleet.service, mode="approve", gateways_only=True)
    operator.reload()
    floor = operator.get_by_role("form", name=re.compile("^Let clocks of"))
    expect(floor.get_by_label("Approve down to")).to_have_value("1310")
    floor.get_by_label("Approve down to").fill("5")
    floor.get_by_label("because").fill("a quiet night")
    floor.get_by_role("button", name="Approve").click()
    expect(operator.locator(".messages")).to_contain_text("floor_mhz: from 210 to 1410 MHz", timeout=30_000)
    floor.get_by_label("because").fill("a quiet night")
    floor.get_by_role("button", name="Approve").click()
    expect(operator.locator(".messages")).to_contain_text("may go down to 1310 MHz", timeout=30_000)
    assert Override.objects.get(ended_at=None).value == {"floor_mhz": 1310.0}


@pytest.mark.slow("undoing is tested without a browser")
def test_clock_stays_as_it_was_when_a_decision_is_undone(operator: Page, fleet: seed.Seeded) -> None:
    instance = fleet.instances[0]
    decision = Decision.objects.create(
        kind="clock",
        at=timezone.now(),
        service=fleet.service,
        pool=instance.pool,
        instance_uid=instance.uid,
        reason="slack",
        summary="Clock: 1410 MHz to 1210 MHz",
        inputs={"from_mhz": 1410.0},
        commands=[{"type": "SetSmClock", "instance": str(instance.uid), "mhz": 1210.0}],
    )
    operator.goto(f"/decisions/{decision.pk}/")
    undo = operator.get_by_role("region", name="Undo")
    expect(undo).to_contain_text("stays at 1410 MHz")
    undo.get_by_label("For").select_option("15 min")
    undo.get_by_label("Because").fill("answers were late")
    undo.get_by_role("button", name="Undo this decision").click()
    expect(operator.locator(".messages")).to_contain_text("In force")
    expect(undo).to_contain_text("Undone by operator")
    made = Override.objects.get(decision=decision)
    assert (made.value, made.reason) == ({"mhz": 1410.0}, "answers were late")
    undo.get_by_role("link", name="Overrides").click()
    operator.get_by_role("row", name=re.compile("answers were late")).get_by_role("button", name="End now").click()
    operator.get_by_role("button", name="Confirm").click()
    expect(operator.locator(".messages")).to_contain_text("Ended")
    made.refresh_from_db()
    assert made.ended_at is not None


@pytest.mark.slow("its page is tested without a browser")
def test_consequences_are_shown_for_each_when_several_are_changed(operator: Page, fleet: seed.Seeded) -> None:
    ids = "&".join(f"id={site.pk}" for site in fleet.sites)
    operator.goto(f"/configure/sites/bulk/?{ids}&field=power_cap_w")
    operator.get_by_label("Power cap, W").fill("5")
    operator.get_by_label("Power cap, W").press("Tab")
    expect(operator.locator("#consequences")).to_contain_text("when idle")
    expect(operator.locator("#consequences dt")).to_have_count(3)
    operator.get_by_role("button", name="Change all of them").click()
    expect(operator.locator(".messages")).to_contain_text("3 sites is changed")
    assert Site.objects.filter(power_cap_w=5.0).count() == 3


def waiting(service: Service) -> Approval:
    """A plan of the shard loop that changes nothing, and waits."""
    now = timezone.now()
    state, _ = ControllerState.objects.get_or_create(kind="shard", service=service)
    epoch = Epoch.objects.create(
        kind="shard",
        service=service,
        index=-1,
        period_s=20.0,
        due_at=now,
        started_at=now,
        finished_at=now,
        status="waiting",
    )
    text = "Partition a, workers: 3 at Location 1"
    Decision.objects.create(kind="shard", at=now, service=service, epoch=epoch, reason="optimal", summary=text)
    return Approval.objects.create(
        epoch=epoch,
        service=service,
        controller=state,
        loop="shard",
        basis=pending_plans.basis(service, state),
        created_at=now,
        expires_at=now + timedelta(minutes=10),
    )


OTHER_PAGES = pytest.mark.slow("pages like those that are looked at each time")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        pytest.param("configure", "/configure/", marks=OTHER_PAGES),
        pytest.param("configure-sites", "/configure/sites/", marks=OTHER_PAGES),
        pytest.param("configure-service", "/configure/services/{service}/", marks=OTHER_PAGES),
        ("configure-policy", "/configure/services/{service}/policy/?preset=dynamollm"),
        pytest.param("setup", "/setup/", marks=OTHER_PAGES),
        pytest.param("overrides", "/overrides/", marks=OTHER_PAGES),
    ],
)
def test_page_holds_up_when_it_is_looked_at(
    operator: Page,
    fleet: seed.Seeded,
    accessible: Callable[[Page], None],
    picture: Callable[[Page, str], None],
    name: str,
    path: str,
) -> None:
    operator.goto(path.format(service=fleet.service.pk))
    accessible(operator)
    picture(operator, name)


@pytest.mark.slow("rights are tested without a browser")
def test_nothing_can_be_changed_when_a_viewer_looks(signed_in: Callable[..., Page]) -> None:
    viewer = signed_in("viewer")
    viewer.goto("/configure/sites/")
    expect(viewer.get_by_role("link", name="New site")).to_have_count(0)
    viewer.goto("/overrides/")
    expect(viewer.get_by_role("button", name="Pause")).to_have_count(0)
