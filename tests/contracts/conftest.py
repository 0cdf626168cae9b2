"""Nodes that the adapters under contract talk to, and the tests' Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from core.policy.knobs import USUAL_S
from greenserve.celery import app
from tests.fakes.actuator import ActuatorProcess
from tests.fakes.house import clean_redis
from tests.fakes.nvml import Boards, machine
from tests.fakes.simnode import SimnodeProcess


@pytest.fixture(scope="module")
def simnode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimnodeProcess]:
    """A simulated node of four GPUs; cold starts take a tenth of a second."""
    folder: Path = tmp_path_factory.mktemp("simnode")
    node = SimnodeProcess(folder, "contract", ("A100-80GB:3", "H100-SXM-80GB:1"), speedup=330.0).start()
    yield node
    assert node.stop() == 0, node.log()


@pytest.fixture(scope="module")
def boards(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boards]:
    """Four GPUs behind the NVML stand-in, which this process sees."""
    with machine(nvml_library, tmp_path_factory.mktemp("boards")) as found:
        yield found


@pytest.fixture(scope="module")
def actuator(tmp_path_factory: pytest.TempPathFactory, boards: Boards) -> Iterator[ActuatorProcess]:
    process = ActuatorProcess(tmp_path_factory.mktemp("actuator"), boards).start()
    yield process
    assert process.stop() == 0, process.log()


@pytest.fixture
def redis_client() -> Iterator[redis.Redis]:
    app.set_current()  # tasks that are sent go there as well
    with clean_redis() as client:
        yield client


@pytest.fixture
def usual_periods(settings):
    """The tests' installation is the demo, whose time runs faster."""
    usual = {loop.value: {"period_s": period_s} for loop, period_s in USUAL_S.items()}
    settings.GREENSERVE_LOOPS = {name: own | usual[name] for name, own in settings.GREENSERVE_LOOPS.items()}
    settings.GREENSERVE_TRANSITION_SPEEDUP = 1.0
