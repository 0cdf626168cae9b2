"""The profiler against a simulated node, whose truth is known: the engine model itself."""

from __future__ import annotations

import asyncio
import csv
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from core.engine.profiles import load_profiles
from core.policy.dynamo_classes import request_classes
from greenserve.commands.node_profile import write_pictures
from pools.agent.devices.sim import SimFrequencyActuator, SimGpuMeter, SimInstanceRuntime
from pools.agent.http_client import HttpClient
from pools.model_files.hugging_face import shape_of_document
from pools.profiler.measurements import Effort
from pools.profiler.plan_runner import Progress
from pools.profiler.session import Found, Order, ProfiledNode, profile
from tests.fakes.hub import LLAMA
from tests.fakes.simnode import ROOT, SimnodeProcess, eventually

QUICK = Effort(repeats=1, window_s=0.8, bisections=0, prefills_s=0.2, idle_s=0.3)
MODEL, GPU = "Llama3-8B", "A100-80GB"


@pytest.fixture(scope="module")
def simnode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimnodeProcess]:
    """Of all tests here; each leaves it as it was."""
    node = SimnodeProcess(tmp_path_factory.mktemp("node"), "profiled", (f"{GPU}:2",)).start()
    yield node
    node.stop()


def quick(out: Path, **changes: object) -> Order:
    fields = {"batches": (8,), "prompts": (16, 128), "output_tokens": 128, "clocks_mhz": (1410.0,), "with_loads": False}
    return Order(MODEL, out, effort=QUICK, **{**fields, **changes})  # type: ignore[arg-type]


def run(order: Order, simnode: SimnodeProcess) -> tuple[list[Found], list[Progress]]:
    client = HttpClient(simnode.url, 5.0)
    progress: list[Progress] = []
    node = ProfiledNode(SimGpuMeter(client), SimFrequencyActuator(client), SimInstanceRuntime(client))
    try:
        return asyncio.run(profile(order, node, progress.append)), progress
    finally:
        client.close()


@pytest.fixture(scope="module")
def profiled(simnode: SimnodeProcess, tmp_path_factory: pytest.TempPathFactory) -> tuple[Order, Found, list[Progress]]:
    order = quick(tmp_path_factory.mktemp("profile") / "p.csv")
    ((found,), progress) = run(order, simnode)
    return order, found, progress


@pytest.mark.slow("a whole profile")
def test_the_profile_is_the_engine_model_when_the_engine_is_simulated(
    simnode: SimnodeProcess, profiled: tuple[Order, Found, list[Progress]]
) -> None:
    order, found, progress = profiled
    assert not found.missed
    # Spans of half a second, on a machine that may do other things: they are within 1 % where it does not. Prompts
    # take 15 ms, less than a busy client may need to send the next one.
    for kind, bar in (("decode", 0.2), ("prefill", 0.5)):
        errors = found.outcome.against[kind]
        assert errors.time_mape < bar
        assert errors.watts_mape is not None
        assert errors.watts_mape < bar
    assert (progress[0].done, progress[-1].done, progress[-1].total) == (0, 5, 5)
    assert load_profiles(order.out) == (found.outcome.profile,)
    assert found.outcome.profile.origin.endswith("watts by the GPUs' counters")
    assert simnode.get("/instances") == [], "the engine it started is gone"
    write_pictures(order, [found])
    assert "watts by the GPUs&#x27; counters" in order.beside(".html").read_text()


def test_the_same_profile_comes_of_its_runs_when_they_are_imported(
    profiled: tuple[Order, Found, list[Progress]], tmp_path: Path
) -> None:
    order, found, _ = profiled
    imports, again = [sys.executable, "-m", "greenserve", "engine", "import", "run"], tmp_path / "again.csv"
    imported = subprocess.run(
        [*imports, str(order.beside(".run.csv")), "--model", MODEL, "--gpu", GPU, "--tp", "1", "--out", str(again)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert imported.returncode == 0, imported.stderr
    (read,) = load_profiles(again)
    assert read.points == found.outcome.profile.points


def test_nothing_is_measured_again_when_all_of_it_is_in_the_journal(
    simnode: SimnodeProcess, profiled: tuple[Order, Found, list[Progress]]
) -> None:
    order, found, _ = profiled
    done = order.beside(".journal").read_text()
    ((again,), progress) = run(order, simnode)
    assert len(progress) == 1, "all of it is in the journal"
    assert again.outcome.profile == found.outcome.profile
    assert order.beside(".journal").read_text() == done


@pytest.mark.slow("starts an engine and sweeps it")
def test_a_model_that_no_catalogue_has_is_profiled_by_its_shape(simnode: SimnodeProcess, tmp_path: Path) -> None:
    shape = shape_of_document(LLAMA).key
    order = replace(
        quick(tmp_path / "p.csv", batches=(2,), prompts=(16, 64), output_tokens=32, shape=shape), model="our-tuned"
    )
    ((found,), _) = run(order, simnode)
    assert found.outcome.profile.model == shape
    assert found.outcome.against["decode"].time_mape < 0.5
    assert load_profiles(order.out) == (found.outcome.profile,)


@pytest.fixture
def profiling(simnode: SimnodeProcess, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, while it holds the lower clock."""
    command = [sys.executable, "-m", "greenserve", "node", "profile", "--model", MODEL, "--control", simnode.url]
    command += ["--mhz", "900", "--batches", "1", "--no-loads", "--out", str(tmp_path / "p.csv")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: simnode.get("/gpus")[0]["sm_clock_mhz"] == 900.0, 60.0, "lower clock")
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_clocks_are_given_back_when_it_is_interrupted(
    simnode: SimnodeProcess, profiling: subprocess.Popen[str]
) -> None:
    profiling.send_signal(signal.SIGINT)
    _, said = profiling.communicate(timeout=60)
    assert profiling.returncode == 130, said
    assert "the same command goes on from there" in said
    assert simnode.get("/gpus")[0]["sm_clock_mhz"] == 1410.0
    assert simnode.get("/instances") == []


@pytest.mark.slow("loads at two clocks until saturation")
def test_rates_rise_until_saturation_when_classes_are_loaded(simnode: SimnodeProcess, tmp_path: Path) -> None:
    order = quick(
        tmp_path / "p.csv",
        tps=(1, 2),
        clocks_mhz=(900.0, 1410.0),
        batches=(1, 32),
        with_loads=True,
        classes=request_classes()[:1],
    )
    found, _ = run(order, simnode)
    assert [one.outcome.profile.tp for one in found] == [1, 2]
    for one in found:
        assert not one.missed
        assert {point.mhz for point in one.outcome.profile.points} == {900.0, 1410.0}
        for mhz in (900.0, 1410.0):
            rows = [row for row in one.loads if row["mhz"] == mhz]
            rates = [row["rate_rps"] for row in rows]
            assert rates == sorted(rates)
            assert [bool(row["saturated"]) for row in rows] == [False] * (len(rows) - 1) + [True]
            # A machine that stalls makes any one of them longer.
            assert min(row["e2e_s_p50"] for row in rows[:-1]) < rows[-1]["e2e_s_p50"]
            assert rows[1]["watts"] < max(row["watts"] for row in rows)
    assert {profile.tp for profile in load_profiles(order.out)} == {1, 2}
    with order.beside(".loads.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == sum(len(one.loads) for one in found)
