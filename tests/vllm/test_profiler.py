"""The profiler against a real vLLM: it starts the engine, measures it, and what comes of it can be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from core.engine.profiles import load_profiles
from tests.fakes.simnode import ROOT

from .server import ARGUMENTS, ENVIRONMENT

TRIES = 2


def test_a_profile_comes_of_a_real_engine_when_the_machine_has_no_gpu(
    vllm: Path, tiny_model: Path, tmp_path: Path
) -> None:
    for number in range(TRIES):  # on a machine that stalls a batch may not come in at once, and is then left out
        out = tmp_path / f"tiny{number}.csv"
        done = _profile(vllm, tiny_model, out)
        assert done.returncode == 0, done.stderr
        (profile,) = load_profiles(out)
        if {point.batch for point in profile.points} == {0, 1, 2}:
            break
    assert {point.batch for point in profile.points} == {0, 1, 2}, done.stdout
    assert profile.metered
    assert profile.origin == (
        "greenserve node profile, watts by declared power: 10 W idle, 40 W with all processors busy"
    )
    assert "fixed_costs: {base_s: " in done.stdout
    assert "The default clock is profiled: this machine has no GPU whose clock could be set" in done.stderr
    assert "iteration, ms" in out.with_suffix(".html").read_text()
    with out.with_suffix(".journal").open() as file:
        assert sum(1 for _ in file) > len(profile.points)
    assert list((tmp_path / "engines").rglob("profile-tp1*.log")), "the engine's log stays"
    assert not list((tmp_path / "engines").rglob("*.json")), "the engine is gone, and with it the record of it"


def _profile(vllm: Path, model: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "greenserve", "node", "profile", "--model", "tiny", "--out", str(out)]
    command += ["--declare", "10:40", "--vllm", str(vllm), "--weights", str(model), "--vllm-offline"]
    command += ["--engines", str(out.parent / "engines")]
    command += ["--max-model-len", "512", "--batches", "1,2", "--repeats", "1", "--minutes", "0.1", "--window", "2"]
    command += [f"--vllm-env={name}={value}" for name, value in ENVIRONMENT.items()]
    words = ["--enforce-eager", f"--kv-cache-memory-bytes={ARGUMENTS['kv-cache-memory-bytes']}"]
    command += [f"--vllm-argument={word}" for word in words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
