"""kill -9 of each process in turn, and of the supervisor, while a trace is replayed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.product import BACK_WITHIN_S, GREENSERVE, ROOT, Product, alive, kill, running, wait_for

pytestmark = pytest.mark.slow("each process is killed in turn")


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with running(tmp_path_factory.mktemp("kill"), traffic_rps=1.0) as product:
        yield product


@pytest.fixture(scope="module")
def replay(product: Product, test_data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A long replay in the background; it goes on when requests fail."""
    process = subprocess.Popen(
        [str(GREENSERVE), "replay", str(test_data / "azure_llm_2023_conv.csv.gz"), "--limit", "5000"],
        env=product.env,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def finished(product: Product) -> set[str]:
    return {row[0] for row in product.sql("SELECT request_id FROM telemetry_requestrecord WHERE status = 'ok'")}


def test_each_process_is_back_and_nothing_finished_is_lost_when_killed(
    product: Product, replay: subprocess.Popen[bytes]
) -> None:
    wait_for("first records", lambda: finished(product), timeout_s=60)
    names = [name for name in product.processes() if name != "supervisor"]
    assert {"postgres", "redis", "web", "gateway", "beat", "epochs", "ingester", "traffic"} <= set(names)
    took: dict[str, float] = {}
    for name in names:
        before = finished(product)
        old = product.processes()[name]
        kill(old["pid"])
        start = time.monotonic()

        def back(name: str = name, old_pid: int = old["pid"]) -> bool:
            row = product.processes()[name]
            return row["state"] == "running" and row["pid"] not in (None, old_pid) and alive(row["pid"])

        wait_for(f"{name} back", back, timeout_s=BACK_WITHIN_S, every_s=0.1)
        took[name] = time.monotonic() - start
        wait_for(f"database answering after {name}", lambda before=before: before <= _try(product), timeout_s=30)
    print("seconds until back:", {name: round(seconds, 1) for name, seconds in took.items()})
    assert replay.poll() is None, "the replay goes on"

    at = len(finished(product))
    wait_for("requests served after all the kills", lambda: len(finished(product)) > at + 20, timeout_s=120)
    doubles = product.sql(
        "SELECT kind, service_id, index, count(*) FROM scheduler_epoch GROUP BY 1, 2, 3 HAVING count(*) > 1"
    )
    assert doubles == []
    twice = product.sql("SELECT request_id FROM telemetry_requestrecord GROUP BY 1 HAVING count(*) > 1")
    assert twice == []


def _try(product: Product) -> set[str]:
    import psycopg

    try:
        return finished(product)
    except psycopg.OperationalError:
        return set()


def test_children_die_with_the_supervisor_and_up_works_again_when_it_is_killed(product: Product) -> None:
    before = finished(product)
    pids = [row["pid"] for row in product.processes().values() if row["pid"]]
    kill(product.supervisor_pid())
    wait_for("all children gone", lambda: not [pid for pid in pids if alive(pid)], timeout_s=BACK_WITHIN_S)
    product.up()
    product.wait_until_serving()
    assert before <= finished(product)
    marks = product.sql(
        "SELECT m.gpu_id, m.energy_j - m.opened_energy_j - sum(e.energy_j) FROM telemetry_metermark m "
        "JOIN telemetry_energyentry e USING (gpu_id) GROUP BY 1, m.energy_j, m.opened_energy_j"
    )
    assert max(abs(difference) for _, difference in marks) < 1e-3
    assert json.loads(product.cli("status", "--json").stdout)["running"] is True
