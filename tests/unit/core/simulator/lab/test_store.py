from __future__ import annotations

from dataclasses import replace

from core.simulator.lab.store import Store
from core.simulator.runs.simulation_jobs import SimulationJob


def test_run_is_found_again_until_what_it_depends_on_changes(tmp_path):
    scenario = tmp_path / "one.yaml"
    scenario.write_text("name: one\n")
    store, job = Store(tmp_path / "lab"), SimulationJob(str(scenario), (), "single_pool")
    assert store.find(job) is None
    store.keep(job, {"energy_wh": 1.5})
    assert store.find(job) == {"energy_wh": 1.5}
    assert store.find(replace(job, policy="greenserve")) is None
    assert store.find(replace(job, settings=("seed=2",))) is None
    scenario.write_text("name: two\n")
    assert store.find(job) is None


def test_half_written_run_is_done_again(tmp_path):
    scenario = tmp_path / "one.yaml"
    scenario.write_text("name: one\n")
    store, job = Store(tmp_path / "lab"), SimulationJob(str(scenario), (), "single_pool")
    store.keep(job, {"energy_wh": 1.5})
    for path in (tmp_path / "lab").glob("*.json"):
        path.write_text('{"energy')
    assert store.find(job) is None
