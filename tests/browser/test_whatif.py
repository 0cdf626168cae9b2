"""What-if as a person uses it: a form that is wrong, a study, its Pareto plot, a run, its policy applied."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from pools.models import Service
from scheduler.models import ServiceMode, Study
from scheduler.whatif import scenario_documents, study_requests, study_worker
from tests.fakes import lab, seed
from tests.fakes.studies import tiny

from .conftest import SignIn, person


def fill_in(page: Page, scenario: dict[str, Any]) -> None:
    page.get_by_text("The whole scenario as YAML").click()
    page.get_by_label("Scenario, YAML").fill(scenario_documents.text_of(scenario))


@pytest.fixture
def study(fleet: seed.Seeded) -> Study:
    """Made once for the module: of three runs, all done."""
    name = "Three policies"
    if not Study.objects.filter(name=name).exists():
        runs = ["single_pool", "threshold", "freesh {order: fcfs}"]
        made = study_requests.ask({"name": name, "scenario": tiny(), "runs": runs}, person("administrator"))
        assert study_worker.run(made.pk)
    return Study.objects.get(name=name)


@pytest.mark.slow("the form is filled in by who makes a study")
def test_the_form_of_todays_fleet_holds_up_when_it_is_looked_at(
    page: Page, accessible: Callable[[Page], None], picture: Callable[[Page, str], None]
) -> None:
    page.goto("/what-if/")
    accessible(page)
    page.get_by_role("link", name="New study").click()
    expect(page.get_by_role("heading", name="New study")).to_be_visible()
    expect(page.get_by_label("PUE").first).to_be_visible()
    picture(page, "whatif-fleet")
    accessible(page)


def test_a_study_is_made_when_its_form_is_put_right(page: Page, worker: list[threading.Thread]) -> None:
    page.clock.install()
    page.goto("/what-if/new/")
    page.get_by_role("link", name=re.compile("azure-conv-12xh100")).click()

    # a broken scenario says which field, and nothing that was typed is lost
    fill_in(page, tiny(workload={"generate": "poisson", "rate_rps": -3}))
    page.get_by_label("Name", exact=True).fill("Two policies")
    page.get_by_role("button", name="Start the study").click()
    expect(page.get_by_text("workload.rate_rps: must be above 0")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("Two policies")

    page.get_by_label("Scenario, YAML").fill(scenario_documents.text_of(tiny()))
    page.get_by_label("Times as many requests").fill("2")
    page.get_by_role("checkbox", name="threshold", exact=True).check()
    page.get_by_role("checkbox", name="freesh", exact=True).check()
    page.get_by_label("Knobs of freesh", exact=True).fill("order: fcfs")
    page.get_by_role("button", name="Start the study").click()
    expect(page.get_by_role("heading", name="Two policies")).to_be_visible()
    for thread in worker:
        thread.join(240)
    page.clock.fast_forward(3_000)  # the runs are asked for each two seconds
    expect(page.locator("#runs .state")).to_contain_text("done", timeout=30_000)
    expect(page.get_by_role("row", name=re.compile(r"freesh \{order: fcfs\}"))).to_contain_text("done")
    expect(page.get_by_role("row", name=re.compile("threshold"))).to_contain_text("x")  # of the first run's
    page.reload()
    expect(page.get_by_role("row", name=re.compile("^greenserve_epochs"))).to_contain_text("done")  # in force
    expect(page.locator('[data-chart="pareto"] .scatterlayer .points path')).to_have_count(4)


def test_runs_are_compared_when_a_study_is_done(
    study: Study, page: Page, accessible: Callable[[Page], None], picture: Callable[[Page, str], None]
) -> None:
    page.goto(f"/what-if/{study.pk}/")
    expect(page.locator('[data-chart="pareto"] .scatterlayer .points path')).to_have_count(3)
    picture(page, "whatif-study")
    accessible(page)
    page.get_by_role("link", name="Carbon", exact=True).click()
    expect(page.locator('[data-chart="pareto"] h2')).to_contain_text("carbon")
    with page.expect_download() as caught:
        page.get_by_role("link", name="CSV", exact=True).first.click()
    assert caught.value.suggested_filename.endswith(".csv")


@pytest.mark.slow("one click")
def test_a_dot_opens_its_run_when_it_is_clicked(study: Study, page: Page) -> None:
    page.goto(f"/what-if/{study.pk}/")
    dot = page.locator('[data-chart="pareto"] .scatterlayer .points path').first
    box = dot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_url(re.compile(r"/runs/\d+/$"))


@pytest.mark.slow("applying is tested without a browser")
def test_policy_of_a_run_is_applied_when_its_consequences_were_shown(
    fleet: seed.Seeded,
    study: Study,
    page: Page,
    accessible: Callable[[Page], None],
    picture: Callable[[Page, str], None],
) -> None:
    number = study.runs.get(policy="freesh").index
    page.goto(f"/what-if/{study.pk}/runs/{number}/")
    expect(page.locator('[data-chart="power"] .scatterlayer .lines path').first).to_be_attached()
    picture(page, "whatif-run")
    accessible(page)
    with page.expect_download() as caught:
        page.get_by_role("link", name="Scenario, YAML").click()
    assert "order: fcfs" in caught.value.path().read_text()

    page.get_by_label("Apply this policy to").select_option(fleet.service.name)
    page.get_by_role("button", name="Show the consequences").click()
    page.get_by_role("button", name="Apply the policy").wait_for()
    picture(page, "whatif-apply")
    page.get_by_role("button", name="Apply the policy").click()
    expect(page.get_by_text("Nothing that acts changes: greenserve_epochs stays in force.")).to_be_visible()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_text("has the policy freesh now")).to_be_visible()
    assert Service.objects.get(pk=fleet.service.pk).knobs == {"order": "fcfs"}
    assert ServiceMode.objects.get(service=fleet.service).mode == "advise"


@pytest.fixture
def laboratory(fleet: seed.Seeded, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.install(tmp_path, monkeypatch)
    settings.GREENSERVE_LAB_DIR = tmp_path / "lab"


@pytest.mark.slow("experiments are tested without a browser")
def test_an_experiment_says_what_it_lacks_when_it_is_started(
    laboratory: None, page: Page, accessible: Callable[[Page], None], picture: Callable[[Page, str], None]
) -> None:
    page.goto("/what-if/")
    page.get_by_role("link", name="Experiments").click()
    page.get_by_role("link", name="traced").wait_for()
    accessible(page)
    page.get_by_role("link", name="traced").click()
    page.get_by_role("button", name="Start the experiment").click()
    expect(page.get_by_text("missing: needed for these requests")).to_be_visible()
    expect(page.get_by_text("greenserve trace fetch azure-2023-conv")).to_be_visible()
    picture(page, "whatif-experiment")
    accessible(page)


@pytest.mark.slow("an experiment in a browser")
def test_an_experiment_has_figures_when_its_requests_are_generated(
    laboratory: None,
    page: Page,
    worker: list[threading.Thread],
    accessible: Callable[[Page], None],
    picture: Callable[[Page, str], None],
) -> None:
    page.clock.install()
    page.goto("/what-if/")
    page.get_by_role("link", name="Experiments").click()
    page.get_by_role("link", name="traced").click()
    page.get_by_label("those that the scenario generates, in its place").check()
    page.get_by_role("button", name="Start the experiment").click()
    expect(page.get_by_role("heading", name="Paper, fig. 3: on a trace")).to_be_visible()
    for thread in worker:
        thread.join(240)
    page.clock.fast_forward(3_000)  # the runs are asked for each two seconds
    expect(page.locator("#runs .state")).to_contain_text("done", timeout=30_000)
    expect(page.get_by_role("region", name="Published beside simulated")).to_contain_text("90 %")
    page.reload()
    expect(page.locator('[data-chart="energy"] .bars .point')).to_have_count(1)
    expect(page.locator('[data-chart="energy"] [data-source]')).to_contain_text("the bound")
    picture(page, "whatif-experiment-study")
    accessible(page)


@pytest.mark.slow("rights are tested without a browser")
def test_a_viewer_looks_and_starts_nothing(signed_in: SignIn) -> None:
    page = signed_in("viewer")
    page.goto("/what-if/")
    expect(page.get_by_role("heading", name="What-if")).to_be_visible()
    assert page.context.request.get("/what-if/new/").status == 403
