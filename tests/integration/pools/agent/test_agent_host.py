"""An agent as it runs, with a host that its options declare."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis
from django.conf import settings

from tests.fakes.agent import PERIOD_S, AgentProcess, Bench
from tests.representatives import first

WATTS = 450.0


def test_declared_host_is_in_the_batches_and_on_the_nodes_page_when_an_option_says_so(
    tmp_path: Path, redis_client: redis.Redis
) -> None:
    bench = Bench(
        tmp_path, redis_client, settings.CELERY_BROKER_URL, more=("--overhead", f"processors and fans:{WATTS:g}")
    )
    try:
        bench.want()
        bench.wait(lambda: sum(len(batch.hosts) for batch in bench.batches()) > 5, "samples of the host")
        rows = [row for batch in bench.batches() for row in batch.hosts]
        assert {(row.domain, row.method, row.power_w) for row in rows} == {("processors and fans", "declared", WATTS)}
        assert rows[0].energy_j == 0.0
        used_j, passed_s = (rows[-1].energy_j or 0.0), rows[-1].at_s - rows[0].at_s
        assert used_j == pytest.approx(WATTS * passed_s, rel=0.05)
        state = bench.state()
        assert state is not None
        assert state.notices == ["host energy of processors and fans is declared, not measured: 450 W"]
    finally:
        bench.close()


def test_simulated_node_has_no_host_unless_one_is_declared(tmp_path: Path, redis_client: redis.Redis) -> None:
    bench = Bench(tmp_path, redis_client, settings.CELERY_BROKER_URL)
    try:
        bench.want()
        bench.wait(lambda: len(bench.batches()) > 3, "batches")
        assert not any(batch.hosts for batch in bench.batches())
        state = bench.state()
        assert state is not None
        assert state.notices == []
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("options", "why"),
    first(
        1,
        [
            (("--host-meter", "zeusd", "--zeusd", ""), "zeusd listens at none of"),
            (("--overhead", "fans"), "NAME:WATTS"),
            (("--overhead", "https://bmc.example", "--bmc-login", "/nowhere"), "/nowhere cannot be read"),
        ],
        "refused as others are",
    ),
)
def test_agent_does_not_start_when_its_host_cannot_be_metered_as_asked(
    tmp_path: Path, redis_client: redis.Redis, options: tuple[str, ...], why: str
) -> None:
    process = AgentProcess("http://127.0.0.1:9", settings.CELERY_BROKER_URL, tmp_path, PERIOD_S, *options).start()
    began_s = time.monotonic()
    assert process.process is not None
    while process.process.poll() is None and time.monotonic() - began_s < 30.0:
        time.sleep(0.05)
    code = process.end()
    assert why in process.log()
    assert code != 0
