"""The ten journeys of docs/journeys.md, each from the Overview: as many clicks as are written there, and true figures.

A press of a link, a button or a box is a click, and so is a choice from a list. Typing is none. What a journey ends
with is compared with the database.
"""

from __future__ import annotations

import re
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import Sum
from django.utils import timezone
from playwright.sync_api import Locator, Page, expect

from frontend import formats
from frontend.reader_choices import midnight_s
from frontend.tenants.month import month_start
from greenserve.celery import app
from pools.models import Cluster, Gpu, Node, Pool, Service, Tenant
from scheduler.models import Decision, LoopPause, Override, Study
from telemetry.ledger import settlement
from telemetry.models import Alert, EnergyEntry, Report, Settlement, StatementLine
from telemetry.reports import report_jobs
from tests.fakes import metering, seed
from tests.fakes.house import moment, start_instance

DOCUMENT = Path(__file__).parents[2] / "docs" / "journeys.md"
ROW = re.compile(r"^\| ([^|]+) \|[^|]*\| (\d+) \|", re.MULTILINE)
CLICKS = {
    "State of the fleet": 0,
    "Carbon of a tenant": 1,
    "Why of a decision": 1,
    "Acknowledge an alert": 2,
    "Pause a loop": 3,
    "Make a report": 3,
    "Compare policies": 3,
    "Override a plan": 4,
    "Add a node": 4,
    "Switch a policy": 5,
}
DAY = f"{moment(metering.START):%Y-%m-%d}"


class Journey:
    """A page that begins at the Overview, and the clicks since."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0
        page.goto("/")

    def click(self, target: Locator) -> None:
        self.clicks += 1
        target.click()

    def choose(self, target: Locator, label: str) -> None:
        self.clicks += 1
        target.select_option(label)

    def rail(self, name: str) -> None:
        self.click(self.page.locator("#rail").get_by_role("link", name=name, exact=True))

    def button(self, name: str) -> None:
        self.click(self.page.get_by_role("button", name=name, exact=True))

    def ends(self, name: str) -> None:
        assert self.clicks == CLICKS[name]


@pytest.fixture
def journey(page: Page) -> Journey:
    return Journey(page)


@pytest.fixture(scope="module")
def settled(fleet: seed.Seeded, django_db_blocker: Any) -> seed.Seeded:
    """One node more, with a quarter of an hour metered and settled; and a tenant's window of this month."""
    with django_db_blocker.unblock():
        node = Node.objects.create(cluster=Cluster.objects.get(site=fleet.sites[2]), name="n6", simulated=True)
        limits = {"gpu_type": seed.A100, "memory_gb": 80.0, "min_mhz": 210.0, "max_mhz": 1410.0, "tdp_w": 400.0}
        Gpu.objects.bulk_create(Gpu(node=node, uuid=f"SIM-n6-{n}", index=n, **limits) for n in range(4))
        pool = Pool.objects.filter(site=fleet.sites[2]).first()
        assert pool is not None
        metering.quarter_hour(start_instance(pool, node, tp=4))
        settlement.settle(moment(metering.LATER))
        _window(pool, fleet.tenants[0], month_start(timezone.now()))
    return fleet


def _window(pool: Pool, tenant: Tenant, at: datetime) -> None:
    window = Settlement.objects.create(
        site=pool.site,
        start_at=at,
        end_at=at + timedelta(minutes=5),
        revision=0,
        cause="",
        sources={},
        currency="USD",
        energy_uj=3_600_000_000,
        unattributed_uj=0,
    )
    StatementLine.objects.create(
        settlement=window,
        entry="original",
        kind="serving",
        pool=pool,
        service=pool.service.name,
        tenant=tenant,
        energy_uj=3_600_000_000,
        facility_uj=4_320_000_000,
        gpu_us=1_000_000,
        carbon_ug=492_345_678,
        cost_nano=120_000_000,
        rental_nano=0,
        rental_unknown_us=1_000_000,
        output_tokens=100,
    )


def test_journeys_are_those_of_the_document_when_clicks_are_counted() -> None:
    assert {name.strip(): int(clicks) for name, clicks in ROW.findall(DOCUMENT.read_text())} == CLICKS


def test_state_of_the_fleet_is_seen_when_the_overview_opens(journey: Journey, fleet: seed.Seeded) -> None:
    now = timezone.now()
    today = EnergyEntry.objects.filter(start_at__gte=moment(midnight_s(now.timestamp())))
    sums = today.aggregate(energy_uj=Sum("energy_uj"), carbon_g=Sum("carbon_gco2e"))
    summary = journey.page.locator("#summary")
    energy = formats.si((sums["energy_uj"] or 0) / 3.6e9, "Wh")
    expect(summary.locator(".number-card", has_text="Power now")).to_contain_text(f"{energy} today")
    carbon = summary.locator(".number-card", has_text="Carbon today").locator(".figure")
    expect(carbon).to_have_text(formats.si(sums["carbon_g"] or 0.0, "gCO₂e"))
    nodes, sites = Node.objects.count(), len(fleet.sites)
    expect(summary.locator(".state")).to_contain_text(f"{sites} sites, {nodes} nodes")
    journey.ends("State of the fleet")


@pytest.mark.slow("one of the journeys that only read")
def test_carbon_of_a_tenant_is_seen_when_its_name_is_clicked(journey: Journey, settled: seed.Seeded) -> None:
    tenant = settled.tenants[0]
    journey.click(journey.page.get_by_role("link", name=tenant.label, exact=True))
    month = StatementLine.objects.filter(tenant=tenant, settlement__start_at__gte=month_start(timezone.now()))
    carbon_ug = month.aggregate(sum=Sum("carbon_ug"))["sum"]
    row = journey.page.get_by_role("region", name="The month").get_by_role("row", name=re.compile("^Carbon"))
    expect(row.locator("strong")).to_have_text(formats.si(carbon_ug / 1e6, "gCO₂e"))
    journey.ends("Carbon of a tenant")


@pytest.mark.slow("one of the journeys that only read")
def test_why_of_a_decision_is_seen_when_its_sentence_is_clicked(journey: Journey, fleet: seed.Seeded) -> None:
    decision = Decision.objects.filter(kind="carbon", reason="optimal").order_by("-at")[0]
    journey.click(journey.page.locator(f"#decision-link-{decision.pk}"))
    page, (chosen, refused) = journey.page, decision.alternatives
    expect(page.get_by_role("heading", level=1)).to_have_text(decision.summary)
    alternatives = page.get_by_role("region", name="Alternatives")
    expect(alternatives.locator("tr.chosen")).to_contain_text(chosen["label"])
    expect(alternatives.locator("tr", has_text=refused["label"])).to_contain_text(refused["failed"])
    journey.ends("Why of a decision")


def test_alert_is_acknowledged_when_it_needs_attention(journey: Journey, fleet: seed.Seeded) -> None:
    alert = Alert.objects.get(rule="power_cap")
    journey.click(journey.page.locator(f"#attention-alert-{alert.pk}"))
    journey.click(journey.page.locator(f"#alert-{alert.pk}").get_by_role("button", name="Acknowledge"))
    expect(journey.page.locator(f"#alert-{alert.pk}")).to_contain_text("acknowledged by administrator")
    alert.refresh_from_db()
    assert (alert.state, str(alert.acknowledged_by)) == ("acknowledged", "administrator")
    journey.ends("Acknowledge an alert")


@pytest.mark.slow("pausing is tested without a browser")
def test_loop_is_paused_when_the_change_of_power_is_confirmed(journey: Journey, fleet: seed.Seeded) -> None:
    journey.rail("Overrides")
    journey.page.get_by_role("form", name="Pause a loop").get_by_label("because").fill("the grid operator rings")
    journey.button("Pause")
    expect(journey.page.get_by_text("Change, predicted")).to_be_visible()
    journey.button("Confirm")
    expect(journey.page.locator("#loops + .scroll")).to_contain_text("administrator: the grid operator rings")
    pause = LoopPause.objects.get(ended_at=None)
    assert (pause.loop, pause.service, str(pause.created_by)) == ("carbon", fleet.service, "administrator")
    journey.ends("Pause a loop")


@pytest.mark.slow("draining is tested without a browser")
def test_site_is_drained_when_a_plan_is_overridden(journey: Journey, fleet: seed.Seeded) -> None:
    site = fleet.sites[1]
    journey.rail("Overrides")
    journey.click(journey.page.get_by_text("New override"))
    drain = journey.page.locator("form", has_text="Drain a site")
    journey.choose(drain.get_by_label("Site", exact=True), site.label)
    drain.get_by_label("Because").fill("new transformer")
    journey.click(drain.get_by_role("button", name="Override"))
    in_force = journey.page.locator(".scroll[aria-label='Overrides in force']")
    expect(in_force).to_contain_text(f"{site.label} gets no new workers")
    made = Override.objects.get(ended_at=None)
    assert (made.kind, made.site, made.reason) == ("drain", site, "new transformer")
    journey.ends("Override a plan")


@pytest.mark.slow("a report is made and read in test_reports.py")
def test_report_is_read_when_finance_asks_for_a_day(
    journey: Journey, settled: seed.Seeded, settings: Any, tmp_path: Path
) -> None:
    app.set_default()  # for the server's threads
    settings.GREENSERVE_REPORTS_DIR = tmp_path
    page = journey.page
    journey.rail("Reports")
    page.get_by_label("Period").fill(DAY)
    journey.button("Make the report")
    page.locator("td", has_text="queued").wait_for()
    report = Report.objects.latest("pk")
    assert report_jobs.make(report.pk)
    journey.click(page.get_by_role("link", name=DAY))
    metered_uj = EnergyEntry.objects.filter(start_at__lt=moment(metering.LATER)).aggregate(sum=Sum("energy_uj"))["sum"]
    energy = page.locator(".facts > div", has_text="Energy at the GPUs").locator("dd")
    expect(energy).to_have_text(formats.si(metered_uj / 3.6e9, "Wh"))
    expect(page.get_by_text("All of it adds up to the meters")).to_be_visible()
    journey.ends("Make a report")


@pytest.mark.slow("a study is made in test_whatif.py")
def test_policies_are_compared_when_a_study_of_todays_fleet_is_started(
    journey: Journey, fleet: seed.Seeded, worker: list[threading.Thread]
) -> None:
    page = journey.page
    journey.rail("What-if")
    journey.click(page.get_by_role("link", name="New study"))
    page.get_by_label("Only the first, requests").fill("100")
    journey.button("Start the study")
    page.get_by_role("heading", level=1, name=re.compile("fleet")).wait_for()
    for thread in worker:
        thread.join(300)
    runs = list(Study.objects.latest("pk").runs.all())
    assert [run.policy for run in runs] == [fleet.service.policy, "freesh", "single_pool"], "the one in force first"
    for run in runs:
        row = page.get_by_role("row", name=re.compile(f"^{run.label}"))
        expect(row).to_contain_text("done")
        assert run.figures is not None
        expect(row).to_contain_text(formats.si(run.figures["energy_wh"], "Wh"))
    ratio = runs[1].figures["energy_wh"] / runs[0].figures["energy_wh"]
    expect(page.get_by_role("row", name=re.compile(f"^{runs[1].label}"))).to_contain_text(f"{ratio:.2f}\u00a0x")
    journey.ends("Compare policies")


@pytest.mark.slow("joining is tested without a browser")
def test_node_says_what_to_paste_when_it_is_added(journey: Journey, fleet: seed.Seeded) -> None:
    page = journey.page
    journey.rail("Nodes")
    journey.click(page.get_by_role("link", name="New node"))
    journey.choose(page.get_by_label("Cluster"), "location-2/main")
    page.get_by_label("Name").fill("rack-7")
    journey.button("Save")
    expect(page.get_by_label("The line to paste")).to_contain_text("--name rack-7")
    assert Node.objects.get(name="rack-7").cluster.site == fleet.sites[1]
    journey.ends("Add a node")


def test_policy_is_switched_when_its_power_is_confirmed(journey: Journey, fleet: seed.Seeded) -> None:
    page = journey.page
    journey.rail("Services")
    journey.click(page.get_by_role("link", name=f"Policy of {fleet.service}"))
    journey.choose(page.get_by_label("Preset"), "freesh")
    journey.button(f"Give {fleet.service} this policy")
    expect(page.get_by_text("Change, predicted")).to_be_visible()
    journey.button("Confirm")
    expect(page.locator(".messages")).to_contain_text(f"{fleet.service} has the policy freesh now")
    assert Service.objects.get(pk=fleet.service.pk).policy == "freesh"
    journey.ends("Switch a policy")
