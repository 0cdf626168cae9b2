"""The observation of a recording: figures with their sources, objectives, tenants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from pools.metric_names import DCGM_BUSY, DCGM_ENERGY
from telemetry.observing.observation import FigureSource, Observation, as_json, json_schema
from telemetry.observing.recording import Recording
from telemetry.observing.report import Findings, Terms, find, simulated_objectives
from telemetry.observing.scrapes import SampleKey, Scrape, Target, TargetKind, samples_of
from telemetry.observing.site_terms import SiteTerms, site_of
from telemetry.providers.provider_http import Outside
from tests.fakes.observed_fleet import BEGIN_S, LENGTH_S, page

START = datetime.fromtimestamp(BEGIN_S, UTC)
NO_OBJECTIVES = {"ttft": None, "tpot": None, "e2e": None}


def recording(*names: str, points: int = 3) -> Recording:
    def target(name: str) -> Target:
        shares = [k / (points - 1) for k in range(points)]
        scrapes = tuple(Scrape(BEGIN_S + share * LENGTH_S, samples_of(page(name, share))) for share in shares)
        return Target(name, TargetKind.GPUS if name == "dcgm" else TargetKind.ENGINE, scrapes)

    return Recording(tuple(map(target, names)), LENGTH_S / (points - 1), LENGTH_S, "scrapes")


def terms(given: SiteTerms = SiteTerms(), **others: object) -> Terms:  # noqa: B008
    site = site_of(given.section(Path(), BEGIN_S, BEGIN_S + LENGTH_S, Outside()), START)
    return replace(Terms(site, START, NO_OBJECTIVES), **others)  # type: ignore[arg-type]


def observed(names: Sequence[str], own: Terms) -> Findings:
    return find(recording(*names), own)


def value(found: Findings, name: str) -> float | None:
    return found.observation.figures[name].value


def test_figures_say_where_they_are_from() -> None:
    given = SiteTerms(pue=1.5, carbon="400", price_per_kwh=0.2, gpu_hour=2.0)
    found = observed(("vllm", "dcgm"), terms(given, currency="EUR"))
    figures = found.observation.figures
    assert value(found, "energy_wh") == pytest.approx(100.0)
    assert figures["energy_wh"].source is FigureSource.METER
    assert figures["requests"].source is FigureSource.COUNTER
    assert value(found, "carbon_g") == pytest.approx(0.1 * 1.5 * 400.0)
    assert value(found, "cost_energy") == pytest.approx(0.1 * 1.5 * 0.2)
    assert value(found, "cost_gpu_hours") == pytest.approx(3 * LENGTH_S / 3600.0 * 2.0)
    assert value(found, "energy_per_output_token_j") == pytest.approx(360_000.0 / 56_073.0)
    assert value(found, "energy_other_gpus_wh") == pytest.approx(21_450.0 / 3600.0)


def test_carbon_that_nobody_gave_is_missing_and_not_zero() -> None:
    figures = observed(("vllm", "dcgm"), terms()).observation.figures
    for name, remedy in (("carbon_g", "--carbon"), ("cost_energy", "--price"), ("cost_gpu_hours", "--gpu-hour")):
        assert (figures[name].value, figures[name].source) == (None, FigureSource.MISSING)
        assert remedy in figures[name].note
    assert "--carbon" in figures["carbon_per_1000_output_tokens_g"].note


def test_carbon_is_missing_where_its_file_ends_before_the_observation(tmp_path: Path) -> None:
    hours = tmp_path / "hours.csv"
    rows = [f"{datetime.fromtimestamp(BEGIN_S - 3600 * k, UTC).isoformat()},300" for k in (3, 2)]
    hours.write_text("\n".join(["start,value", *rows]), encoding="utf-8")
    figure = observed(("vllm", "dcgm"), terms(SiteTerms(carbon=str(hours)))).observation.figures["carbon_g"]
    assert figure.value is None
    assert "all of the time" in figure.note


def test_energy_without_a_meter_is_missing_and_declared_watts_stand_in() -> None:
    assert observed(("vllm",), terms()).observation.figures["energy_wh"].source is FigureSource.MISSING
    declared = observed(("vllm",), terms(declared_w=300.0, declared_gpus=2)).observation.figures["energy_wh"]
    assert (declared.value, declared.source) == (pytest.approx(50.0), FigureSource.DECLARED)


def test_objectives_are_those_given_or_what_the_fleet_keeps_now() -> None:
    found = observed(("vllm",), terms(objectives={"ttft": 0.25, "tpot": 0.03, "e2e": None})).observation.attainment
    ttft, tpot, e2e = found
    assert ttft.least == ttft.most == pytest.approx(291 / 300, abs=0.02)
    assert tpot.least is not None
    assert tpot.most is not None
    assert tpot.least < tpot.most
    assert (tpot.counts, ttft.derived, e2e.derived) == ("requests", False, True)
    assert e2e.least is not None
    assert e2e.least >= 0.99
    assert simulated_objectives(found) == {"ttft_s": 0.25, "tpot_s": 0.03}, "an E2E limit that nobody gave is none"


def test_gaps_between_tokens_stand_in_for_tpot_and_are_named() -> None:
    _, tpot, _ = observed(("sglang",), terms(objectives={"ttft": 1.0, "tpot": 0.03, "e2e": 1.0})).observation.attainment
    assert tpot.counts == "gaps between tokens"
    assert "not a request's mean" in tpot.note
    assert tpot.least == tpot.most, "0.03 is the end of a bucket of SGLang's"


def test_tenants_share_serving_energy_by_the_time_of_their_tokens() -> None:
    found = observed(("sglang", "dcgm"), terms(SiteTerms(carbon="500"), tenant_label="tenant")).observation
    product, research = found.tenants
    assert (product.tenant, research.tenant) == ("product", "research")
    assert product.requests + research.requests == 240
    assert product.energy_j + research.energy_j == pytest.approx(360_000.0, abs=1e-6)
    weights = [own.prompt_tokens + 10.0 * own.output_tokens for own in found.tenants]
    assert product.energy_j / 360_000.0 == pytest.approx(weights[0] / sum(weights))
    assert product.carbon_g == pytest.approx(50.0 * product.energy_j / 360_000.0)


def test_what_no_label_names_keeps_its_part() -> None:
    shares = observed(("vllm", "sglang", "dcgm"), terms(tenant_label="tenant")).observation.tenants
    assert [own.tenant for own in shares] == ["(not labelled)", "product", "research"]
    assert shares[0].output_tokens == 56_073


def test_tenants_that_cannot_be_distinguished_are_not_made_up() -> None:
    for own in (terms(), terms(tenant_label="customer")):
        found = observed(("vllm", "dcgm"), own).observation
        assert found.tenants == ()
        assert "gateway" in found.tenants_note


def without(uuid: str, *metrics: str) -> Recording:
    """Returns a recording whose exporter lacks these metrics, of one GPU or (empty) of all."""
    whole = recording("vllm", "sglang", "dcgm")
    targets = [
        replace(target, scrapes=tuple(replace(own, samples=_less(own, uuid, metrics)) for own in target.scrapes))
        for target in whole.targets
    ]
    return replace(whole, targets=tuple(targets))


def _less(scrape: Scrape, uuid: str, metrics: Sequence[str]) -> dict[SampleKey, float]:
    return {
        key: value
        for key, value in (scrape.samples or {}).items()
        if key.name not in metrics or uuid not in ("", key.label("UUID"))
    }


def test_gpu_without_an_energy_counter_is_metered_by_its_power_and_named() -> None:
    figure = find(without("GPU-0000", DCGM_ENERGY), terms()).observation.figures["energy_wh"]
    assert figure.source is FigureSource.POWER
    assert figure.note == "1 of 3 GPUs have no energy counter, but power alone"
    assert figure.value == pytest.approx((412.5 * LENGTH_S + 237_000.0) / 3600.0)


def test_tenants_have_no_energy_where_nobody_saw_gpus_at_work() -> None:
    found = find(without("", DCGM_BUSY), terms(tenant_label="tenant")).observation
    assert found.figures["energy_unattributed_wh"].value == pytest.approx(100.0)
    assert found.tenants == ()
    assert "DCGM_FI_DEV_GPU_UTIL" in found.tenants_note


def test_objective_of_which_nothing_was_counted_is_missing() -> None:
    (ttft, *_) = find(replace(recording("vllm"), targets=recording("dcgm").targets), terms()).observation.attainment
    assert (ttft.limit_s, ttft.least, ttft.source) == (None, None, FigureSource.MISSING)


def test_document_goes_with_its_schema() -> None:
    found = observed(("vllm", "dcgm"), terms()).observation
    again = msgspec.json.decode(as_json(found), type=Observation)
    assert again == found
    assert set(json_schema()["$defs"]) >= {"Observation", "Figure", "Savings"}
