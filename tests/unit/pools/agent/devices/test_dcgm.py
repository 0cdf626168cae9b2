"""The DCGM exporter as a meter, against pages as it writes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from core.ports import RetryableError
from pools.agent.devices.dcgm import DcgmGpuMeter
from tests.ports import free_port

A, B = "GPU-aaaa", "GPU-bbbb"


def row(
    name: str, value: object, uuid: str = A, gpu: int = 0, more: str = "", model: str = "NVIDIA A100-SXM4-80GB"
) -> str:
    labels = f'gpu="{gpu}",UUID="{uuid}",device="nvidia{gpu}",modelName="{model}",Hostname="box"{more}'
    return f"DCGM_FI_DEV_{name}{{{labels}}} {value}\n"


def whole(uuid: str = A, gpu: int = 0, energy_mj: int = 5_000_000) -> str:
    return (
        row("TOTAL_ENERGY_CONSUMPTION", energy_mj, uuid, gpu)
        + row("POWER_USAGE", 312.5, uuid, gpu)
        + row("SM_CLOCK", 1275, uuid, gpu)
        + row("MEM_CLOCK", 1593, uuid, gpu)
        + row("GPU_UTIL", 87, uuid, gpu)
        + row("GPU_TEMP", 61, uuid, gpu)
        + row("FB_USED", 1024, uuid, gpu)
    )


class Exporter:
    def __init__(self) -> None:
        self.page = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = outer.page.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join(5)


@pytest.fixture
def meter(exporter: Exporter) -> Iterator[DcgmGpuMeter]:
    made = DcgmGpuMeter(f"http://127.0.0.1:{exporter.server.server_port}")
    yield made
    made.close()


def test_figures_have_our_units_when_all_are_exported(exporter: Exporter, meter: DcgmGpuMeter) -> None:
    exporter.page = "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n" + whole(B, 1) + whole(A, 0)
    first, second = meter.read()
    assert (first.uuid, first.index, second.uuid) == (A, 0, B)
    assert (first.gpu_type, first.energy_j, first.power_w) == ("A100-80GB", 5000.0, 312.5)
    assert (first.sm_clock_mhz, first.min_mhz, first.max_mhz) == (1275.0, 210.0, 1410.0)
    assert (first.utilisation, first.memory_used_bytes, first.temperature_c) == (0.87, 2**30, 61.0)
    assert meter.notices() == ("GPUs are metered through the DCGM exporter",)


def test_figure_is_unknown_and_named_when_it_is_missing(exporter: Exporter, meter: DcgmGpuMeter) -> None:
    exporter.page = row("POWER_USAGE", 90.0) + row("SM_CLOCK", "not-a-number")
    (found,) = meter.read()
    assert (found.energy_j, found.sm_clock_mhz, found.power_w) == (None, None, 90.0)
    assert any("does not tell of GPU-aaaa: energy counter, SM clock" in note for note in meter.notices())


def test_board_is_counted_once_when_mig_divides_it(exporter: Exporter, meter: DcgmGpuMeter) -> None:
    slices = [f',GPU_I_PROFILE="1g.10gb",GPU_I_ID="{n}"' for n in (7, 8)]
    exporter.page = "".join(
        row("TOTAL_ENERGY_CONSUMPTION", 9000, more=part)
        + row("POWER_USAGE", 300, more=part)
        + row("GPU_UTIL", 9, more=part)
        for part in slices
    )
    (found,) = meter.read()
    assert (found.energy_j, found.power_w, found.utilisation) == (9.0, 300.0, None)
    assert any("divided by MIG into 2 instances" in note for note in meter.notices())


def test_type_is_said_to_be_unknown_when_the_catalogue_lacks_it(exporter: Exporter, meter: DcgmGpuMeter) -> None:
    exporter.page = row("POWER_USAGE", 50, model="NVIDIA T4") + row("SM_CLOCK", 2040, model="NVIDIA T4")
    (found,) = meter.read()
    assert (found.gpu_type, found.max_mhz) == ("T4", 2040.0)
    assert any("no GPU type of the catalogue" in note for note in meter.notices())


def test_reading_is_retryable_when_there_is_nothing_to_read(exporter: Exporter, meter: DcgmGpuMeter) -> None:
    exporter.page = "up 1\n"
    with pytest.raises(RetryableError, match="tells of no GPU"):
        meter.read()
    silent = DcgmGpuMeter(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RetryableError):
        silent.read()
    silent.close()
