from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from click.testing import CliRunner

from core.simulator.runs.runner import requests_of
from core.simulator.scenario.scenario import read_scenario
from core.simulator.workload.rate_table import read_rates, settings_of
from core.simulator.workload.trace import TraceError
from greenserve.commands.simulate import simulate

RATES = "start_s,requests_s\n0,100\n600,300\n"
SCENARIO = """
fleet: {name: node, count: 1, model: Llama2-13B, gpu: A100-80GB, tp: 1}
workload: {trace: gone.csv, rate_scale: 17}
"""


@pytest.fixture
def scenario(tmp_path):
    (tmp_path / "one.yaml").write_text(SCENARIO)
    return tmp_path / "one.yaml"


def arrivals(path, settings):
    blocks = list(requests_of(read_scenario(path, settings)).blocks())
    return (np.concatenate([getattr(block, name) for block in blocks]) for name in ("arrival_s", "prompt_tokens"))


def test_requests_come_at_the_rates_times_the_scale_with_lengths_like_the_templates(tmp_path, scenario):
    (tmp_path / "rates.csv.gz").write_bytes(gzip.compress(RATES.encode()))
    (tmp_path / "template.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,700,9\n1,700,9\n")
    table = read_rates(tmp_path / "rates.csv.gz")
    assert table.mean_rps == 200.0
    workload = read_scenario(scenario).services[0].workload
    at_s, prompt = arrivals(scenario, settings_of(table, 0.05, workload, tmp_path / "template.csv"))
    assert at_s.max() <= 1200.0  # one round of the table
    assert (at_s < 600.0).sum() == pytest.approx(3000, rel=0.1)
    assert (at_s > 600.0).sum() == pytest.approx(9000, rel=0.1)
    assert set(prompt.tolist()) == {700}
    _, prompt = arrivals(scenario, settings_of(table, 0.05, workload, None))
    assert np.median(prompt) == pytest.approx(1020, rel=0.1)  # the Azure hour's: the workload has none of its own


def test_a_table_takes_the_place_of_rates_that_the_scenario_has(tmp_path, scenario):
    (tmp_path / "rates.csv").write_text(RATES)
    scenario.write_text(SCENARIO.replace("trace: gone.csv", "generate: poisson, rates: [{for_s: 60, rps: 9}]"))
    workload = read_scenario(scenario).services[0].workload
    at_s, _ = arrivals(scenario, settings_of(read_rates(tmp_path / "rates.csv"), 0.05, workload, None))
    assert (at_s > 600.0).sum() == pytest.approx(9000, rel=0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("start_s,rate\n0,1\n600,2\n", "has the columns start_s, requests_s"),
        ("start_s,requests_s\n0,1\n", "at least two steps"),
        ("start_s,requests_s\n0,1\n600,-2\n", "line 3: requests_s '-2' is not a number from 0 up"),
        ("start_s,requests_s\n0,1\n600,2\n900,3\n", "line 4: start_s '900' must be 600 s after the one before"),
        ("start_s,requests_s\n0,0\n600,0\n", "one of the rates must be above 0"),
    ],
)
def test_error_names_line_and_column_when_the_table_is_wrong(tmp_path, text, words):
    (tmp_path / "rates.csv").write_text(text)
    with pytest.raises(TraceError, match=words):
        read_rates(tmp_path / "rates.csv")


def test_a_scenario_runs_at_the_rates_when_the_command_is_given_them(tmp_path, scenario):
    (tmp_path / "rates.csv").write_text(RATES.replace("600", "10"))
    asked = [str(scenario), "--rates", str(tmp_path / "rates.csv"), "--scale", "0.01", "--json", "-"]
    found = CliRunner().invoke(simulate, [*asked, "--policy", "single_pool"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["requests"] == pytest.approx(40, rel=0.5)
