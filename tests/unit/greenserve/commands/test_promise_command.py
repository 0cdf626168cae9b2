from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from core.simulator import shipped_scenarios
from core.simulator.lab import promise
from greenserve.commands.promise import promise as command

SCENARIO = """
fleet: {name: node, count: 1, model: Llama2-70B, gpu: H100-SXM-80GB, tp: 8}
workload: {generate: poisson, lengths: azure-conv, rate_rps: 2, duration_s: 20}
slo: {ttft_s: 1.0, tpot_s: 0.1}
"""
SMALL_HOUR = SCENARIO.replace("rate_rps: 2, duration_s: 20", "rate_rps: 0.2, requests: 9")
PAGE = f"# Policies\n\n{promise.BEGIN}\n{promise.END}\n\nMore.\n"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two scenarios of seconds and a minute for an hour, three policies, and a page with a place for the table."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "night.yaml").write_text(SCENARIO)
    (tmp_path / "scenarios" / "azure-conv-12xh100.yaml").write_text(SMALL_HOUR)
    (tmp_path / "policies.md").write_text(PAGE)
    monkeypatch.setattr(shipped_scenarios, "folder", lambda: tmp_path / "scenarios")
    monkeypatch.setattr(promise, "POLICIES", ("single_pool", "multi_pool", "greenserve"))
    monkeypatch.setattr(promise, "WITHOUT", {"the order": "order: fcfs"})
    monkeypatch.setattr(promise, "MOST_WITHOUT", 60)
    monkeypatch.setattr(promise, "_FIRST_HOUR", ("workload.requests=null", "workload.duration_s=60"))
    monkeypatch.setattr(promise, "bounds_of", cache(promise.bounds_of))  # the same when the command is given again
    monkeypatch.setattr(promise.cases, "__defaults__", ((), ("night",)))
    monkeypatch.setenv("GREENSERVE_VAR", str(tmp_path / "var"))
    return tmp_path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, ["--workers", "1", *(str(argument) for argument in arguments)])


def test_table_is_written_into_the_page_and_checked_against_its_kept_figures(tiny: Path) -> None:
    page = tiny / "policies.md"
    result = invoke("--write", "--page", page)
    assert result.exit_code == 0, result.output
    assert "0 runs are known, 11 to do." in result.output
    text = page.read_text()
    assert text.startswith("# Policies\n")
    assert text.endswith("\n\nMore.\n")
    night, less, bounds = [line for line in text.splitlines() if line.startswith("| night |")]
    assert "(100.00)" in night
    assert less.count("(100.00)") == 2, "greenserve, and without the order of its queues"
    assert float(bounds.split("|")[4]) > 1.0, "greenserve takes more than the bound"
    assert "- `multi_pool` (night; azure-conv-12xh100, generated; azure-conv-12xh100, generated, 17 times): " in text
    assert "multi_pool needs at least two request classes" in text
    assert "| azure-conv-12xh100, generated, 17 times |" in text
    assert invoke("--check", "--page", page).exit_code == 0

    again = invoke("--write", "--page", page)
    assert "8 runs are known, 3 to do." in again.output  # what could not be done is tried again
    assert page.read_text() == text
    page.write_text(text.replace("(100.00)", "(99.99)"))
    edited = invoke("--check", "--page", page)
    assert edited.exit_code == 1
    assert "does not have the table of" in edited.output


def test_named_scenarios_are_printed_and_nothing_is_written(tiny: Path) -> None:
    result = invoke("night", "--page", tiny / "policies.md")
    assert result.exit_code == 0, result.output
    assert "| night |" in result.output
    assert "azure-conv" not in result.output
    assert (tiny / "policies.md").read_text() == PAGE
    assert not (tiny / "promise.json").exists()


def test_error_says_what_there_is_when_it_cannot_be_done(tiny: Path) -> None:
    assert "there is no scenario 'day' here; there are: night" in invoke("day").output
    assert "goes without --check, and without names" in invoke("night", "--write").output
    none_kept = invoke("--check", "--page", tiny / "policies.md")
    assert (none_kept.exit_code, "promise.json: there is none" in none_kept.output) == (2, True)
    (tiny / "policies.md").write_text("# Policies\n")
    no_place = invoke("--write", "--page", tiny / "policies.md")
    assert no_place.exit_code == 2
    assert "the page has no place for the table" in no_place.output
    assert "runs are known" not in no_place.output
