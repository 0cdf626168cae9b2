"""Energy of GPUs from the exporter's pages."""

from __future__ import annotations

import pytest

from core.accounting.counters import IDLE, SERVING, UNATTRIBUTED
from pools.metric_names import DCGM_BUSY, DCGM_ENERGY, DCGM_MEMORY, DCGM_POWER
from telemetry.observing.gpu_energy import GpuEnergy, declared_energy, gpu_energies
from telemetry.observing.observation import FigureSource
from telemetry.observing.scrapes import Scrape, Target, TargetKind, sample_key, samples_of
from tests.fakes.observed_fleet import page

LABELS = {"UUID": "GPU-1", "gpu": "0", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "gpu1"}
MAX_GAP_S = 25.0


def energies(*samples: dict[str, float] | None, every_s: float = 10.0) -> list[GpuEnergy]:
    read = (None if own is None else {sample_key(name, LABELS): v for name, v in own.items()} for own in samples)
    scrapes = tuple(Scrape(1000.0 + every_s * k, own) for k, own in enumerate(read))
    return gpu_energies([Target("dcgm", TargetKind.GPUS, scrapes)], MAX_GAP_S)


def joules(gpu: GpuEnergy, kind: int) -> float:
    return float(gpu.slices.energy_uj[gpu.slices.kind == kind].sum()) / 1e6


def test_counter_is_exact_and_divided_by_what_the_gpu_did() -> None:
    (gpu,) = energies(
        {DCGM_ENERGY: 1_000.0, DCGM_BUSY: 50.0, DCGM_MEMORY: 70_000.0},
        {DCGM_ENERGY: 4_500.0, DCGM_BUSY: 50.0, DCGM_MEMORY: 70_000.0},
        {DCGM_ENERGY: 5_700.0, DCGM_BUSY: 0.0, DCGM_MEMORY: 70_000.0},
    )
    assert (gpu.source, gpu.gpu_type, gpu.host, gpu.engine) == (FigureSource.METER, "H100-SXM-80GB", "gpu1", True)
    assert gpu.energy_uj == 4_700_000
    assert (joules(gpu, SERVING), joules(gpu, IDLE)) == (3.5, 1.2)


def test_energy_over_a_gap_is_counted_and_unattributed() -> None:
    (gpu,) = energies({DCGM_ENERGY: 0.0, DCGM_BUSY: 9.0}, None, None, {DCGM_ENERGY: 9_000.0, DCGM_BUSY: 9.0})
    assert joules(gpu, UNATTRIBUTED) == 9.0


def test_counter_that_began_anew_counts_from_zero() -> None:
    (gpu,) = energies({DCGM_ENERGY: 5_000.0, DCGM_BUSY: 9.0}, {DCGM_ENERGY: 700.0, DCGM_BUSY: 9.0})
    assert gpu.energy_uj == 700_000
    assert gpu.resets == 1


def test_power_is_summed_over_time_but_not_over_gaps() -> None:
    (gpu,) = energies({DCGM_POWER: 100.0}, {DCGM_POWER: 300.0}, None, None, {DCGM_POWER: 300.0})
    assert gpu.source is FigureSource.POWER
    assert gpu.energy_uj == 2_000_000_000, "200 W over 10 s"
    assert gpu.unmetered_s == 30.0
    assert gpu.engine is None


def test_gpu_without_the_memory_of_an_engine_has_none() -> None:
    scrapes = tuple(Scrape(300.0 * k, samples_of(page("dcgm", float(k)))) for k in (0, 1))
    found = gpu_energies([Target("dcgm", TargetKind.GPUS, scrapes)], 400.0)
    assert [gpu.engine for gpu in found] == [True, True, True, False]
    assert sum(gpu.energy_uj for gpu in found[:3]) == 360_000 * 10**6
    assert joules(found[3], IDLE) == 21_450.0


def test_one_reading_is_no_energy() -> None:
    assert energies({DCGM_ENERGY: 5_000.0, DCGM_POWER: 100.0}) == []


def test_declared_watts_are_energy_by_what_engines_did() -> None:
    running = [(1000.0, 1.0), (1010.0, 2.0), (1020.0, 0.0), (1030.0, None)]
    gpu = declared_energy(250.0, 2, "unknown", running, MAX_GAP_S)
    assert gpu.source is FigureSource.DECLARED
    assert [joules(gpu, kind) for kind in (SERVING, IDLE, UNATTRIBUTED)] == pytest.approx([5000.0, 5000.0, 5000.0])
