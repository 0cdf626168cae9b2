"""What an agent finds on its machine: vLLM's version, the options that it lacks, and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from core.engine.engine_launch import EngineLaunch
from core.ports import InstanceSpec
from pools.agent.vllm import models_on_disk, vllm_program
from pools.agent.vllm.launch import VllmOptions
from pools.agent.vllm.node_finder import NodeFinder
from pools.agent.vllm.runtime import VllmRuntime
from pools.agent.vllm.vllm_program import VllmFound, VllmProgram, ask, required
from tests.fakes.simnode import eventually
from tests.fakes.vllm_program import program


def options(folder: Path, version: str, help_text: str = "") -> VllmOptions:
    return VllmOptions(program(folder, version, help_text), folder / "engines", ports=(24_000, 25_999), look_s=0.02)


def listed(given: VllmOptions, *lacking: str) -> str:
    return "\n".join(f"  {word} VALUE" for word in required(given) if word not in lacking)


def test_options_are_those_of_the_command_line_of_an_engine(tmp_path: Path) -> None:
    plain = options(tmp_path, "0.32.0")
    assert {"--host", "--max-num-seqs", "--long-prefill-token-threshold", "--shutdown-timeout"} <= set(required(plain))
    more = replace(plain, plugin=True, sleep=True, kv_store=tmp_path, arguments=("--seed=1", "--config.x", "7"))
    assert {"--scheduler-cls", "--enable-sleep-mode", "--kv-transfer-config", "--seed", "--config"} <= set(
        required(more)
    )


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu"])
def test_known_version_is_not_asked_for_its_options(tmp_path: Path, version: str) -> None:
    assert ask(options(tmp_path, version)) == VllmFound(version)


def test_unknown_version_is_accepted_when_it_has_every_option(tmp_path: Path) -> None:
    given = options(tmp_path, "0.99.0")
    assert ask(options(tmp_path, "0.99.0", listed(given))) == VllmFound("0.99.0")


@pytest.mark.parametrize("whole_help", [True, False])
def test_missing_options_are_named_with_the_remedy(tmp_path: Path, whole_help: bool) -> None:
    given = options(tmp_path, "0.6.1")
    lacking = ("--shutdown-timeout", "--scheduling-policy")
    found = ask(options(tmp_path, "0.6.1", listed(given, *lacking) if whole_help else ""))
    assert found.version == "0.6.1"
    assert set(lacking) <= set(found.missing)
    assert (len(found.missing) == 2) is whole_help  # an old one has no --help=all, and its --help names --host alone
    assert "vLLM 0.6.1" in found.fault
    assert "--scheduling-policy" in found.fault
    assert "install a newer one, such as 0.32.0" in found.fault


def test_program_that_fails_or_hangs_is_named(tmp_path: Path) -> None:
    given = options(tmp_path, "0.32.0")
    given.program.write_text("#!/bin/sh\necho 'No module named torch' >&2\nexit 1\n")
    assert "ended with 1: No module named torch; give the `vllm`" in ask(given).fault
    given.program.write_text("#!/bin/sh\nexec sleep 60\n")
    assert "did not answer within 0.05 s" in ask(given, within_s=0.05).fault


def answer(program: VllmProgram) -> VllmFound:
    found = eventually(program.found, 30.0, "the program's answer")
    assert isinstance(found, VllmFound)
    return found


def test_program_is_asked_again_when_its_file_has_changed_or_some_time_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = VllmProgram(options(tmp_path, "0.6.1"))
    assert answer(one).missing
    assert one.found() is not None, "a fault is not asked for again and again"
    (tmp_path / "vllm").unlink()
    program(tmp_path, "0.32.0")
    assert answer(one) == VllmFound("0.32.0")
    other = VllmProgram(options(tmp_path, "0.6.1"))
    assert answer(other).missing
    monkeypatch.setattr(vllm_program, "_AGAIN_S", 0.0)
    (tmp_path / "help.txt").write_text(listed(options(tmp_path, "0.6.1")))
    eventually(lambda: answer(other).fault == "", 30.0, "another answer")


def test_engine_is_refused_with_the_missing_options_when_vllm_lacks_them(tmp_path: Path) -> None:
    runtime = VllmRuntime(options(tmp_path, "0.6.1"), lambda: ("G0",))
    runtime.start(InstanceSpec("engine", "Llama3-8B", "vllm-v1", ("G0",), 4096, launch=EngineLaunch("fake/good")))
    eventually(lambda: runtime.list()[0].state == "failed", 30.0, "a refusal")
    assert "vLLM 0.6.1" in runtime.list()[0].detail
    assert "lacks --port" in runtime.list()[0].detail


def test_start_waits_for_the_programs_answer_and_can_be_ended_meanwhile(tmp_path: Path) -> None:
    given = options(tmp_path, "0.32.0")
    given.program.write_text("#!/bin/sh\nexec sleep 2\n")
    runtime = VllmRuntime(given, lambda: ("G0",))
    runtime.start(InstanceSpec("engine", "Llama3-8B", "vllm-v1", ("G0",), 4096, launch=EngineLaunch("fake/good")))
    eventually(lambda: "asked for its version" in runtime.list()[0].detail, 30.0, "what it waits for")
    runtime.stop("engine")
    eventually(lambda: not runtime.list(), 30.0, "its end")


# -- weights ---------------------------------------------------------------------------------------

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def make(folder: str, size_bytes: int, config: bool = True) -> Path:
        found = tmp_path / folder
        found.mkdir(parents=True)
        if config:
            (found / "config.json").write_bytes(b"{}")
        (found / "model.safetensors").write_bytes(b"x" * size_bytes)
        return found

    return make


def test_weights_are_named_as_a_model_card_names_them(tmp_path: Path, put: Put) -> None:
    put("engines/hub/models--org--small/snapshots/a", 10)
    put("engines/hub/models--org--partly/snapshots/a", 10)
    partly = tmp_path / "engines/hub/models--org--partly/blobs"
    partly.mkdir()
    (partly / "1.incomplete").touch()
    cached = put("home/.cache/huggingface/hub/models--org--large/snapshots/b", 1000)
    given = put("srv/own", 100)
    put("srv/other", 100, config=False)
    own = {"HOME": str(tmp_path / "home")}
    found = models_on_disk.find(tmp_path / "engines", [tmp_path / "srv", tmp_path / "nothing"], own)
    assert [(one.weights, one.size_bytes) for one in found] == [
        (str(cached), 1002),
        (str(given), 102),
        ("org/small", 12),
    ]
    own["HF_HOME"] = str(tmp_path / "engines")
    assert "org/small" in {one.weights for one in models_on_disk.find(tmp_path / "engines", [], own)}


def test_finder_reports_what_it_found_once_it_has_looked(tmp_path: Path, put: Put) -> None:
    put("engines/weights/hub/models--org--small/snapshots/a", 10)
    given = options(tmp_path, "0.32.0")
    finder = NodeFinder(given, VllmProgram(given), {})
    try:
        found = eventually(finder.finds, 30.0, "its finds")
    finally:
        finder.close()
    assert (found.vllm, found.missing, [one.weights for one in found.models]) == ("0.32.0", [], ["org/small"])
