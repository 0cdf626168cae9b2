"""Real engines for tests: `make test-vllm` runs them, with what `scripts/install vllm` made.

Without that environment the tests are skipped with a word, but fail where CI is "true": there it must be supplied.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import skip_or_fail
from tests.fakes.simnode import ROOT
from tests.netns.namespaces import lacking

from .server import PYTHON, VLLM, VllmServer

FOLDER = Path(__file__).parent
MODELS = ROOT / "build" / "vllm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def vllm() -> Path:
    """The program `vllm` of the CPU environment."""
    if not VLLM.exists():
        why = "no vLLM for CPUs: `scripts/install vllm` makes .venv-vllm, and says what it lacks"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return VLLM


@pytest.fixture(scope="session")
def with_torch() -> Callable[..., str]:
    """Runs a script, or `greenserve ...`, by the product's Python with the packages of .venv-vllm: PyTorch, ONNX and
    ONNX Runtime among them. Returns what it prints; `surroundings` go to its environment."""
    needed = "torch, onnx, onnxruntime"
    if not PYTHON.exists():
        skip_or_fail("no .venv-vllm: `scripts/install vllm` makes it, and says what it lacks")
    (site,) = (PYTHON.parent.parent / "lib").glob("python3*/site-packages")
    if subprocess.run([PYTHON, "-c", f"import {needed}"], capture_output=True, timeout=120).returncode:
        skip_or_fail(f"no {needed} in .venv-vllm: `scripts/install vllm` installs them")

    def run(*words: object, **surroundings: str) -> str:
        command = [sys.executable, "-m", "tests.vllm.with_torch", str(site), *map(str, words)]
        env = {**os.environ, "HF_HUB_OFFLINE": "1", **surroundings}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def far_apart(vllm: Path) -> None:
    """Skips where there can be no network namespaces, and where vLLM's environment has no NIXL; in CI it fails then."""
    if lack := lacking():
        pytest.skip(f"this machine lacks {lack}")
    paths = {**os.environ, "PYTHONPATH": os.environ.get("GREENSERVE_VLLM_PATH", "")}
    found = subprocess.run([str(PYTHON), "-c", "import nixl._api"], env=paths, capture_output=True, timeout=60)
    if found.returncode:
        why = "no NIXL in vLLM's environment: `scripts/install vllm` installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture(scope="session")
def tiny_model(vllm: Path) -> Path:
    """A folder with a model of 1.6 MB: made once, in ten seconds, and kept in build/."""
    return _made("tiny")


@pytest.fixture(scope="session")
def small_model(vllm: Path) -> Path:
    """A folder with another model, of 50 MB."""
    return _made("small")


def _made(size: str) -> Path:
    script = FOLDER / "tiny_model.py"
    folder = MODELS / size
    made_by = folder / "made_by"  # the script that made it: another one makes it again
    if made_by.exists() and made_by.read_bytes() == script.read_bytes():
        return folder
    draft = MODELS / f"draft-{os.getpid()}"
    subprocess.run(
        [str(PYTHON), str(script), str(draft), size],
        check=True,
        timeout=180,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    shutil.copy(script, draft / made_by.name)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    return folder


@pytest.fixture(scope="module")
def vllm_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., VllmServer]]:
    """Makes servers of the tiny model, which end with the module: `vllm_server(max_model_len=512).start()`."""
    made: list[VllmServer] = []

    def make(**arguments: object) -> VllmServer:
        made.append(VllmServer(tiny_model, tmp_path_factory.mktemp("vllm"), **arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for server in made:
        server.stop()
