"""Parquet written while a run goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars
import pytest

from core.simulator.figures import run_tables
from core.simulator.figures.run_tables import ParquetSink, Tee
from core.simulator.kernel import kernel
from core.simulator.kernel.commands import Decision
from core.simulator.kernel.outcome import Kept
from tests.unit.core.simulator.figures.rows import LABELS, outcome, rows

OLD_COLUMNS = {
    *("arrival_s", "prompt_tokens", "output_tokens", "request_class", "instance", "status", "generated_tokens"),
    *("ttft_s", "tpot_s", "itl_p50_s", "itl_p99_s", "itl_max_s", "e2e_s", "preemptions", "retries", "timely_tokens"),
    *("slo_met", "energy_j"),
}


def test_requests_are_one_table_when_they_came_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tables, "PART_ROWS", 40)
    made = rows(1, 250, in_flight=True)
    sink, kept = ParquetSink(tmp_path, LABELS), Kept()
    tee = Tee([sink, kept])
    for first, last in ((0, 10), (10, 15), (15, 200), (200, 250)):
        tee.take(made[first:last])
    sink.close(outcome([[1.0, 2.0], [3.0, 4.0]]))
    assert len(list((tmp_path / "requests.parquet").iterdir())) >= 6
    found = polars.read_parquet(tmp_path / "requests.parquet").sort("number")
    assert set(found.columns) >= OLD_COLUMNS | {
        "number",
        "service",
        "tenant",
        "predicted_class",
        "longest_wait_s",
        "pool",
    }
    expected = kept.rows()
    assert found["number"].to_list() == list(range(250))
    assert found["prompt_tokens"].to_list() == expected["prompt"].tolist()
    assert found["service"].to_list() == [LABELS.services[n] for n in expected["service"]]
    assert found["request_class"].to_list() == [LABELS.classes[n] for n in expected["request_class"]]
    assert found["predicted_class"].to_list() == ["sml"[n] for n in expected["cell"]]
    assert found["pool"].to_list() == [None if n < 0 else LABELS.pools[n] for n in expected["pool"]]
    assert found["instance"].to_list() == [None if n < 0 else n for n in expected["instance"]]
    states = {kernel.DONE: "finished", kernel.REJECTED: "rejected", kernel.IN_FLIGHT: "in_flight"}
    assert found["status"].to_list() == [states[n] for n in expected["status"]]
    done = expected["status"] == kernel.DONE
    assert found["e2e_s"].is_null().to_numpy().tolist() == (~done).tolist()
    assert found["itl_max_s"].is_null().to_numpy().tolist() == (~done | (expected["output"] == 1)).tolist()
    assert found["slo_met"].is_null().to_numpy().tolist() == (expected["status"] == kernel.IN_FLIGHT).tolist()
    e2e_s = expected["finish_s"] - expected["arrival_s"]
    assert found["e2e_s"].drop_nulls().to_list() == pytest.approx(e2e_s[done].tolist())
    assert not any(found.select(polars.selectors.float().is_nan().any()).row(0))


def test_energy_instances_and_decisions_are_written_when_a_run_ends(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, LABELS)
    sink.close(outcome([[1.0, 2.0], [3.0, 4.0]], bin_s=900.0, decisions=(Decision(5.0, "scale", "up", "2 to 3", 1),)))
    energy = polars.read_parquet(tmp_path / "energy.parquet")
    assert energy.rows() == [
        ("i0", "site", 0.0, 1.0),
        ("i0", "site", 900.0, 2.0),
        ("i1", "site", 0.0, 3.0),
        ("i1", "site", 900.0, 4.0),
    ]
    instances = polars.read_parquet(tmp_path / "instances.parquet")
    assert instances["name"].to_list() == ["i0", "i1"]
    assert instances["transition_j"].to_list() == pytest.approx([0.3, 0.7])
    assert polars.read_parquet(tmp_path / "decisions.parquet").rows() == [(5.0, "scale", "up", "2 to 3", 1)]
    assert polars.read_parquet(tmp_path / "requests.parquet").height == 0


def test_parts_can_be_read_when_a_run_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tables, "PART_ROWS", 40)
    sink = ParquetSink(tmp_path, LABELS)
    sink.take(rows(1, 100))
    sink.take(rows(2, 10))
    assert polars.read_parquet(tmp_path / "requests.parquet").height == 100


def test_tables_of_an_earlier_run_are_gone_when_another_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tables, "PART_ROWS", 40)
    for count in (200, 7):
        sink = ParquetSink(tmp_path, LABELS)
        sink.take(rows(1, count))
        sink.close(outcome([[1.0]]))
    assert polars.read_parquet(tmp_path / "requests.parquet").height == 7
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "requests.parquet").write_bytes(b"")
    ParquetSink(tmp_path / "old", LABELS).close(outcome([[1.0]]))
    assert polars.read_parquet(tmp_path / "old" / "requests.parquet").height == 0


def test_numbers_survive_when_there_are_no_pools(tmp_path: Path) -> None:
    made = rows(1, 5)
    made["pool"] = kernel.NONE
    sink = ParquetSink(tmp_path, LABELS)
    sink.take(made)
    sink.close(outcome([[1.0]]))
    found = polars.read_parquet(tmp_path / "requests.parquet")
    assert found["pool"].null_count() == 5
    assert np.isclose(found["energy_j"].sum(), made["energy_j"].sum())
