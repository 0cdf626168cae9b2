"""`greenserve observe` against servers of recorded pages, and against a Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from greenserve import lab_runs
from greenserve.cli import cli
from telemetry.observing import recording
from tests.fakes.certificates import Authority
from tests.fakes.observed_fleet import BEGIN_S, HandedClock, ServedFleet, served

PAGES = {
    "/vllm/metrics": "vllm",
    "/sglang/metrics": "sglang",
    "/prometheus/metrics": "trtllm",
    "/dcgm/metrics": "dcgm",
}
FIVE_MINUTES = ("--minutes", "5", "--every", "60")


class Observed:
    """A served fleet and the command that observes it, by one handed-in clock."""

    def __init__(self, fleet: ServedFleet, clock: HandedClock, folder: Path) -> None:
        self.fleet, self.clock = fleet, clock
        self._json = folder / "observed.json"

    def run(self, *options: str, engines: tuple[str, ...] = ("/vllm/metrics",), dcgm: bool = True) -> Result:
        pages = [("--metrics", self.fleet.url(path)) for path in engines]
        pages += [("--dcgm", self.fleet.url("/dcgm/metrics"))] if dcgm else []
        given = [word for page in pages for word in page]
        return CliRunner().invoke(cli, ["observe", *given, *FIVE_MINUTES, "--json", str(self._json), *options])

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._json.read_text(encoding="utf-8"))
        return found


@pytest.fixture
def observed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    clock = HandedClock()
    monkeypatch.setattr(recording, "SystemClock", lambda: clock)
    with served(PAGES, clock) as fleet:
        yield Observed(fleet, clock, tmp_path)


def test_fleet_of_three_engines_is_observed_and_its_policies_compared(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telemetry.observing.savings.POLICIES", ("single_pool", "threshold"))
    in_this_process = lab_runs.here
    monkeypatch.setattr(lab_runs, "here", lambda jobs, workers, timeout_s: in_this_process(jobs, 1))
    engines = ("/vllm/metrics", "/sglang/metrics", "/prometheus/metrics")
    options = (
        "--carbon",
        "300",
        "--model",
        "Qwen2.5-14B",
        "--tenant-label",
        "tenant",
        "--tpot-s",
        "0.05",
        "--seed",
        "3",
    )
    result = observed.run(*options, engines=engines)
    assert result.exit_code == 0, result.output
    found = observed.document()
    assert [target["engine"] for target in found["targets"]] == ["vLLM", "SGLang", "TensorRT-LLM", None]
    assert found["figures"]["requests"]["value"] == pytest.approx(690.0)
    assert found["figures"]["energy_wh"] == {"value": pytest.approx(100.0), "unit": "Wh", "source": "meter", "note": ""}
    assert found["figures"]["carbon_g"]["value"] == pytest.approx(30.0)
    assert {share["tenant"] for share in found["tenants"]} == {"(not labelled)", "product", "research"}
    savings = found["savings"]
    assert (savings["why_not"], savings["seed"]) == ("", 3)
    assert savings["requests"] == pytest.approx(690, rel=0.15)
    assert savings["baseline_wh"] == pytest.approx(100.0, rel=0.3), "the simulator and the meter are of one size"
    (threshold,) = savings["policies"]
    assert threshold["energy_saved"] > 0.2
    assert "the fleet as it is" in result.output


def test_page_that_fails_for_a_while_is_a_gap_and_its_counts_go_on(observed: Observed) -> None:
    wait = observed.clock.wait

    def with_a_failure(seconds: float) -> None:
        wait(seconds)
        observed.fleet.down = {"/vllm/metrics"} if observed.clock.at_s == BEGIN_S + 120.0 else set()

    observed.clock.wait = with_a_failure  # type: ignore[method-assign]
    result = observed.run("--no-savings")
    assert result.exit_code == 0, result.output
    engine, _ = observed.document()["targets"]
    assert (engine["scrapes"], engine["failed"]) == (6, 1)
    (gap,) = engine["gaps"]
    assert (gap["from_s"] - BEGIN_S, gap["to_s"] - BEGIN_S, gap["counted"]) == (60.0, 180.0, True)
    assert gap["reason"].startswith("answered 503; vLLM serves /metrics")
    assert observed.document()["figures"]["requests"]["value"] == pytest.approx(300.0)


def test_ctrl_c_reports_what_was_seen(observed: Observed) -> None:
    wait = observed.clock.wait

    def until_interrupted(seconds: float) -> None:
        if observed.clock.at_s >= BEGIN_S + 120.0:
            raise KeyboardInterrupt
        wait(seconds)

    observed.clock.wait = until_interrupted  # type: ignore[method-assign]
    result = observed.run("--no-savings")
    assert result.exit_code == 130
    span = observed.document()["span"]
    assert (span["to_s"] - span["from_s"], span["ended_early"]) == (120.0, True)
    assert observed.document()["figures"]["requests"]["value"] == pytest.approx(120.0)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "not done within 7 s: raise --savings-s"),
        (KeyboardInterrupt(), "stopped by Ctrl-C"),
        (ValueError("no such thing"), "the simulation failed: no such thing"),
    ],
)
def test_savings_that_do_not_end_leave_all_else(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str
) -> None:
    def stopped(jobs: object, workers: int, timeout_s: float) -> Iterator[Any]:
        assert timeout_s == 7.0
        raise error
        yield

    monkeypatch.setattr(lab_runs, "here", stopped)
    assert observed.run("--savings-s", "7", "--model", "Qwen2.5-14B", "--tp", "1").exit_code == 0
    found = observed.document()
    assert found["savings"]["left_out"]["greenserve"] == words
    assert found["savings"]["baseline_wh"] is None
    assert found["figures"]["energy_wh"]["value"] == pytest.approx(100.0)


def test_unknown_model_leaves_everything_but_the_savings(observed: Observed) -> None:
    result = observed.run()
    assert result.exit_code == 0, result.output
    found = observed.document()
    assert found["figures"]["energy_wh"]["value"] == pytest.approx(100.0)
    assert "does not know the model 'Qwen/Qwen2.5-14B-Instruct': give --model" in found["savings"]["why_not"]


def test_fleet_of_which_nothing_can_be_read_ends_at_once(observed: Observed) -> None:
    observed.fleet.down = {"/vllm/metrics"}
    result = observed.run(engines=("/vllm/metrics", "/dcgm/metrics"), dcgm=False)
    assert result.exit_code == 1
    assert "answered 503" in result.output
    assert "no metrics of vLLM, SGLang or TensorRT-LLM are on this page" in result.output
    assert observed.clock.at_s == BEGIN_S


def test_key_is_shown_to_engines_and_not_to_the_exporter_or_where_a_page_sends_on_to(
    observed: Observed, tmp_path: Path
) -> None:
    observed.fleet.key = "sk-pages"
    refused = observed.run("--no-savings", dcgm=False)
    assert refused.exit_code == 1
    assert "answered 401, give its key with --key-file" in refused.output
    file = tmp_path / "key"
    file.write_text("sk-pages\n")
    assert observed.run("--no-savings", "--key-file", str(file)).exit_code == 0
    assert observed.fleet.shown == {"/vllm/metrics": "Bearer sk-pages", "/dcgm/metrics": None}
    assert "sk-pages" not in observed.run("--no-savings", "--key-file", str(file)).output
    observed.fleet.moved = {"/vllm/metrics": "/sglang/metrics"}
    assert "answered 401" in observed.run("--no-savings", "--key-file", str(file), dcgm=False).output
    assert observed.fleet.shown["/sglang/metrics"] is None


def test_page_by_tls_is_read_when_its_authority_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandedClock()
    monkeypatch.setattr(recording, "SystemClock", lambda: clock)
    authority, other = Authority(tmp_path), Authority(tmp_path, "another")
    document = tmp_path / "observed.json"
    with served(PAGES, clock, authority.node("127.0.0.1")) as fleet:
        page = (
            "observe",
            "--metrics",
            fleet.url("/vllm/metrics"),
            *FIVE_MINUTES,
            "--no-savings",
            "--json",
            str(document),
        )
        assert fleet.address.startswith("https://")
        for unfit in ((), ("--authority", str(other.path))):
            refused = CliRunner().invoke(cli, [*page, *unfit])
            assert refused.exit_code == 1
            assert "its certificate is not accepted" in refused.output
            assert "--authority names who may sign it" in refused.output
        found = CliRunner().invoke(cli, [*page, "--authority", str(authority.path)])
    assert found.exit_code == 0, found.output
    assert json.loads(document.read_text())["figures"]["requests"]["value"] == pytest.approx(300.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--metrics, or a Prometheus"),
        (("--metrics", "https://a/metrics", "--authority", "/etc/hostname"), "it is to hold certificates in PEM"),
        (("--metrics", "https://a/metrics", "--key-file", "/none"), "/none cannot be read"),
        (("--metrics", "file:///etc/passwd"), "is no address"),
        (("--metrics", "http://a/metrics", "--metrics", "http://a/metrics"), "named twice"),
        (("--metrics", "http://a/metrics", "--price", "0.2"), "--currency"),
        (("--metrics", "http://a/metrics", "--gpus", "8"), "--declared-w and --gpus go together"),
        (("--prometheus", "http://a:9090", "--dcgm", "http://a/metrics"), "--dcgm goes with --metrics"),
        (("--metrics", "http://a/metrics", "--model", "x=No-Such-Model"), "--model x=No-Such-Model"),
        (("--metrics", "http://a/metrics", "--carbon", "nowhere.csv"), "--carbon is a number"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(cli, ["observe", *options])
    assert result.exit_code == 2
    assert words in result.output


def test_page_of_html_and_schema_are_written(observed: Observed, tmp_path: Path) -> None:
    page = tmp_path / "observed.html"
    assert observed.run("--no-savings", "--html", str(page)).exit_code == 0
    assert "energy per output token" in page.read_text(encoding="utf-8")
    schema = json.loads(CliRunner().invoke(cli, ["observe", "--schema"]).output)
    assert schema["$ref"] == "#/$defs/Observation"
