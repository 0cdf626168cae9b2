"""The agent's page: what it shows of a tick, and that it is a page of Prometheus'."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from core.ports import GpuReading, HostReading
from pools.agent.agent_metrics import Board, Picture, serve
from pools.wire import InstanceState

GPU = GpuReading("GPU-1", 0, "A100", 1.0, 5_000.0, 250.0, 1_410.0, 0.5, 1 << 30, 61.0, 210.0, 1_410.0)
UNKNOWN = GpuReading("GPU-2", 1, "A100", 1.0, None, None, None, None, None, None, 210.0, 1_410.0)

HOSTS = (HostReading("package-0", "zeusd", 1.0, 42.0), HostReading("dram-0", "zeusd", 1.0, None))


def scraped(board: Board) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    end = serve(board, "127.0.0.1", 0)
    try:
        assert board.url is not None
        with urllib.request.urlopen(board.url, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}
    finally:
        end()


def instance(uid: str, state: str) -> InstanceState:
    return InstanceState(
        uid=uid, pool_id=1, url=None, state=state, model="m", engine="vllm", gpu_type="A100", tp=1,
        sm_clock_mhz=900.0, min_mhz=210.0, max_mhz=1_410.0, power_w=250.0, running=3, waiting=None, kv_usage=0.25,
    )  # fmt: skip


def test_page_shows_the_last_tick_in_base_units():
    board = Board("n1")
    board.picture = Picture(
        at_s=100.0, took_s=0.02, ticks=7, gpus=(GPU, UNKNOWN), hosts=HOSTS,
        instances=[instance("a", "ready")],
        allocated={"GPU-1": "a"},
        dropped_batches=2,
    )  # fmt: skip
    found = scraped(board)

    def of(name: str, **labels: str) -> float | None:
        return found.get((f"greenserve_{name}", frozenset({"node": "n1", **labels}.items())))

    gpu = {"gpu": "GPU-1", "gpu_type": "A100"}
    assert of("gpu_energy_joules_total", **gpu) == 5_000.0
    assert of("gpu_power_watts", **gpu) == 250.0
    assert of("gpu_sm_clock_hertz", **gpu) == 1.41e9
    assert of("gpu_memory_used_bytes", **gpu) == float(1 << 30)
    assert of("host_energy_joules_total", domain="package-0", method="zeusd") == 42.0
    assert of("host_energy_joules_total", domain="dram-0", method="zeusd") is None
    assert of("gpu_held_info", gpu="GPU-1", instance_uid="a") == 1.0
    assert of("instance_state", instance_uid="a", state="ready") == 1.0
    assert of("instance_state", instance_uid="a", state="failed") == 0.0
    assert of("instance_running_requests", instance_uid="a", model="m") == 3.0
    assert of("agent_ticks_total") == 7.0
    assert of("agent_dropped_batches_total") == 2.0


def test_unknown_is_left_out_and_never_zero():
    board = Board("n1")
    board.picture = Picture(at_s=100.0, took_s=0.02, ticks=7, gpus=(UNKNOWN,), instances=[instance("a", "ready")])
    names = {name for name, labels in scraped(board) if ("gpu", "GPU-2") in labels or "waiting_requests" in name}
    assert names == set()


def test_page_answers_before_the_first_tick():
    assert scraped(Board("n1")) == {}
