"""Engines of a node, with a program in vLLM's place: what the agent does, in seconds. tests/vllm has the real one."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.engine.engine_launch import EngineLaunch
from core.ports import EngineLimits, InstanceSpec, InstanceStatus, PermanentError, RetryableError
from pools.agent.vllm import engine as engine_module
from pools.agent.vllm.engine_processes import EngineProcess, began_ticks, last_lines, rotate, runs
from pools.agent.vllm.engine_records import Records
from pools.agent.vllm.launch import VllmOptions, command, environment, started_with
from pools.agent.vllm.runtime import VllmRuntime
from tests.fakes.simnode import eventually
from tests.fakes.vllm_program import program
from tests.fakes.vllm_runtime import end_all

WITHIN_S = 30.0  # on a machine that does much else
GPUS = ("G0", "G1")
PORTS = (20_000, 21_999)  # below those that connections take


def spec(uid: str = "engine", weights: str = "fake/good", gpus: tuple[str, ...] = ("G0",)) -> InstanceSpec:
    return InstanceSpec(uid, "Llama3-8B", "vllm-v1", gpus, 4096, launch=EngineLaunch(weights))


class Node:
    def __init__(self, folder: Path) -> None:
        self.options = VllmOptions(
            program(folder), folder / "engines", ports=PORTS, stop_within_s=5.0, look_s=0.02, watch_s=0.05
        )
        self.runtimes: list[VllmRuntime] = []

    def agent(self, **changes: Any) -> VllmRuntime:
        """Another agent's view of the same folder: as after its end and a new start."""
        self.runtimes.append(VllmRuntime(replace(self.options, **changes), lambda: GPUS))
        return self.runtimes[-1]

    @property
    def pid(self) -> int:
        (record,) = Records(self.options.folder / "engines").all()
        return record.pid


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for runtime in made.runtimes:
        end_all(runtime, 15.0)


def status(runtime: VllmRuntime, uid: str = "engine") -> InstanceStatus | None:
    return next((found for found in runtime.list() if found.uid == uid), None)


def wait_until(runtime: VllmRuntime, state: str, uid: str = "engine") -> InstanceStatus:
    found = eventually(lambda: (s := status(runtime, uid)) and s.state == state and s, WITHIN_S, f"{uid} {state}")
    assert isinstance(found, InstanceStatus)
    return found


def gone(runtime: VllmRuntime, uid: str = "engine") -> None:
    eventually(lambda: status(runtime, uid) is None, WITHIN_S, f"end of {uid}")


def fetch(url: str, body: object = None, key: str = "") -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, data, headers if body is not None else {})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())


def test_engine_is_ready_when_it_has_answered_a_real_request(node: Node) -> None:
    runtime = node.agent()
    runtime.start(spec())
    assert status(runtime).state == "starting"  # type: ignore[union-attr]
    found = wait_until(runtime, "ready")
    assert found.url is not None
    assert "POST /v1/completions" in node.options.log("engine").read_text()
    assert runtime.versions() == ("9.9.9",)


@pytest.mark.parametrize(
    ("weights", "arguments", "paths"),
    [
        ("fake/good", (), ("/v1/completions", "/v1/chat/completions")),
        ("fake/embeds", (), ("/v1/embeddings", "/score")),
        ("fake/good", ("--disable-fastapi-docs",), None),
    ],
)
def test_engine_tells_its_paths_and_is_tried_at_one_that_it_has(
    node: Node, weights: str, arguments: tuple[str, ...], paths: tuple[str, ...] | None
) -> None:
    runtime = node.agent(arguments=arguments)
    runtime.start(spec(weights=weights))
    assert wait_until(runtime, "ready").paths == paths
    tried = paths[0] if paths else "/v1/completions"
    assert f"POST {tried}" in node.options.log("engine").read_text()


def test_engine_tells_its_adapters_when_an_operator_has_loaded_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_HEALTH_S", 0.05)
    runtime = node.agent()
    runtime.start(spec())
    found = wait_until(runtime, "ready")
    assert found.adapters == ()
    loading = json.dumps({"lora_name": "legal", "lora_path": "/adapters/legal"}).encode()
    key = {"Authorization": f"Bearer {found.key}"}
    request = urllib.request.Request(f"{found.url}/v1/load_lora_adapter", loading, key)
    urllib.request.urlopen(request, timeout=30).close()
    eventually(lambda: (s := status(runtime)) and s.adapters == ("legal",), WITHIN_S, "the adapter")


@pytest.mark.parametrize(("there", "start"), [(False, "cold"), (True, "warm")])
def test_start_is_cold_when_the_weights_are_not_on_the_node(node: Node, there: bool, start: str) -> None:
    if there:
        (node.options.folder / "weights/hub/models--fake--good/snapshots/main").mkdir(parents=True)
    runtime = node.agent()
    runtime.start(spec())
    assert wait_until(runtime, "ready").start == start
    node.runtimes.clear()
    if not there:
        (node.options.folder / "weights/hub/models--fake--good/snapshots/main").mkdir(parents=True)
    assert wait_until(node.agent(), "ready").start == start, "an agent that takes it over knows how it began"


def test_engine_sees_only_its_gpus_and_no_secret_when_it_is_started(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_URL", "redis://:secret@host")
    runtime = node.agent(arguments=("--seed", "3"), environment={"MINE": "yes"})
    runtime.start(spec(gpus=GPUS))
    url = wait_until(runtime, "ready").url
    variables, words = fetch(f"{url}/environment"), fetch(f"{url}/arguments")
    assert variables["CUDA_VISIBLE_DEVICES"] == "G0,G1"
    assert variables["HF_HOME"] == str(node.options.folder / "weights")
    assert variables["MINE"] == "yes"
    assert "BROKER_URL" not in variables
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert words[-2:] == ["--seed", "3"]


def test_last_error_is_reported_and_the_instance_can_be_tried_again_when_it_crashes_at_its_start(node: Node) -> None:
    runtime = node.agent()
    runtime.start(spec(weights="fake/crash"))
    detail = wait_until(runtime, "failed").detail
    assert "ended with 3" in detail
    assert "no room for the KV cache" in detail
    runtime.stop("engine")
    assert runtime.list() == ()
    runtime.start(spec())
    wait_until(runtime, "ready")


def test_instance_fails_and_leaves_no_worker_when_a_serving_engine_dies(node: Node) -> None:
    runtime = node.agent()
    runtime.start(spec())
    url, pid = wait_until(runtime, "ready").url, node.pid
    with pytest.raises(OSError, match="Remote end closed"):
        fetch(f"{url}/crash", {})
    assert "the engine core has died" in wait_until(runtime, "failed").detail
    eventually(lambda: not runs(pid), WITHIN_S, "end of its workers")


def test_start_is_given_up_when_it_takes_too_long(node: Node) -> None:
    runtime = node.agent(start_within_s=0.1)
    runtime.start(spec(weights="fake/mute"))
    assert "not up within 0.1 s" in wait_until(runtime, "failed").detail


def test_running_request_is_finished_when_the_engine_drains(node: Node) -> None:
    runtime = node.agent()
    runtime.start(spec())
    found = wait_until(runtime, "ready")
    url = found.url
    answers: list[Any] = []
    body = {"model": "Llama3-8B", "prompt": "x", "max_tokens": 150}
    request = threading.Thread(target=lambda: answers.append(fetch(f"{url}/v1/completions", body, found.key)))
    request.start()
    eventually(lambda: b"running 1" in urllib.request.urlopen(f"{url}/metrics", timeout=5).read(), WITHIN_S, "request")
    runtime.drain("engine")
    assert wait_until(runtime, "draining").url == url
    request.join(WITHIN_S)
    assert answers[0]["usage"]["completion_tokens"] == 150
    gone(runtime)


def test_requests_are_cut_off_when_the_drain_takes_too_long(node: Node) -> None:
    runtime = node.agent(drain_within_s=0.3)
    runtime.start(spec())
    found = wait_until(runtime, "ready")
    url = found.url
    body = {"model": "Llama3-8B", "prompt": "x", "max_tokens": 3000}
    failed = threading.Event()

    def ask() -> None:
        try:
            fetch(f"{url}/v1/completions", body, found.key)
        except OSError:
            failed.set()

    request = threading.Thread(target=ask)
    request.start()
    eventually(lambda: b"running 1" in urllib.request.urlopen(f"{url}/metrics", timeout=5).read(), WITHIN_S, "request")
    runtime.drain("engine")
    gone(runtime)
    request.join(WITHIN_S)
    assert failed.is_set()


def test_engine_is_killed_when_it_does_not_heed(node: Node) -> None:
    runtime = node.agent(stop_within_s=0.3)
    runtime.start(spec(weights="fake/stubborn"))
    wait_until(runtime, "ready")
    pid = node.pid
    runtime.stop("engine")
    gone(runtime)
    assert not runs(pid)


def test_engine_is_taken_over_when_the_agent_starts_again(node: Node) -> None:
    before = node.agent()
    before.start(spec())
    url, pid = wait_until(before, "ready").url, node.pid
    node.runtimes.clear()  # the first agent is gone, its threads do nothing any more for the engine
    after = node.agent()
    assert wait_until(after, "ready").url == url
    assert node.pid == pid
    after.start(spec())  # what is wanted is there
    assert len(after.list()) == 1
    after.stop("engine")
    gone(after)
    assert not runs(pid)


def test_instance_is_failed_and_its_workers_end_when_the_engine_died_meanwhile(node: Node) -> None:
    before = node.agent()
    before.start(spec())
    wait_until(before, "ready")
    pid = node.pid
    (record,) = Records(node.options.folder / "engines").all()
    os.kill(pid, signal.SIGKILL)
    wait_until(before, "failed")
    Records(node.options.folder / "engines").write(record)  # as an agent that was killed first would have left it
    after = node.agent()
    assert "while no agent ran" in wait_until(after, "failed").detail
    assert not runs(pid)


def test_another_process_is_left_alone_when_it_has_the_pid_of_a_record(node: Node) -> None:
    before = node.agent()
    before.start(spec())
    wait_until(before, "ready")
    (record,) = Records(node.options.folder / "engines").all()
    before.stop("engine")
    gone(before)
    mine = os.getpid()
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    Records(node.options.folder / "engines").write(type(record)(**{**values, "pid": mine}))
    after = node.agent()
    wait_until(after, "failed")
    assert began_ticks(mine) is not None


def test_shadow_may_stand_on_the_gpu_of_the_one_that_it_replaces(node: Node) -> None:
    runtime = node.agent()
    runtime.start(spec())
    runtime.start(replace(spec("shadow"), shadow_of="engine"))
    assert {wait_until(runtime, "ready", uid).gpu_uuids for uid in ("engine", "shadow")} == {("G0",)}


def test_start_is_refused_when_it_cannot_be_done(node: Node) -> None:
    runtime = node.agent()
    runtime.start(spec())
    with pytest.raises(RetryableError, match="G0 is allocated to instance engine"):
        runtime.start(spec("other"))
    with pytest.raises(PermanentError, match="no GPU nowhere"):
        runtime.start(spec("other", gpus=("nowhere",)))
    with pytest.raises(PermanentError, match="names no weights"):
        runtime.start(spec("other", weights="", gpus=("G1",)))
    asked = replace(spec("other", gpus=("G1",)), launch=EngineLaunch("a/b", arguments=("--port", "1")))
    with pytest.raises(PermanentError, match="--port cannot be set"):
        runtime.start(asked)


def test_engine_sleeps_and_wakes_when_it_may(node: Node) -> None:
    runtime = node.agent(sleep=True)
    runtime.start(spec())
    wait_until(runtime, "ready")
    for _ in range(2):
        runtime.sleep("engine")
    wait_until(runtime, "sleeping")
    runtime.wake("engine")
    wait_until(runtime, "ready")
    with pytest.raises(PermanentError, match="only level 1"):
        runtime.sleep("engine", 2)
    with pytest.raises(PermanentError, match="fixed when it starts"):
        runtime.tune("engine", spec().limits)
    assert "fixed when it starts" in wait_until(runtime, "ready").detail


def test_another_engine_has_the_gpu_while_one_sleeps_which_then_cannot_wake(node: Node) -> None:
    runtime = node.agent(sleep=True)
    runtime.start(spec())
    wait_until(runtime, "ready")
    runtime.sleep("engine")
    wait_until(runtime, "sleeping")
    runtime.start(spec("other"))
    wait_until(runtime, "ready", "other")
    with pytest.raises(RetryableError, match="G0 is allocated to instance other"):
        runtime.wake("engine")
    runtime.sleep("other")
    wait_until(runtime, "sleeping", "other")
    runtime.wake("engine")
    wait_until(runtime, "ready")


def test_chunk_is_an_argument_of_the_start_when_there_is_no_plug_in(node: Node) -> None:
    asked = replace(spec(), limits=EngineLimits(chunk_tokens=512, preempts_s=1.0, itl_limit_s=0.1))
    runtime = node.agent()
    runtime.start(asked)
    found = wait_until(runtime, "ready")
    assert found.limits == EngineLimits(chunk_tokens=512)  # it keeps no more than it has arguments for
    words = fetch(f"{found.url}/arguments")
    assert words[words.index("--long-prefill-token-threshold") + 1] == "512"
    live = command(asked, VllmOptions(node.options.program, node.options.folder, plugin=True), 1234)
    assert "--long-prefill-token-threshold" not in live  # it can be changed while it runs
    variables = environment(asked, VllmOptions(node.options.program, node.options.folder, plugin=True), {})
    assert json.loads(variables["GREENSERVE_SCHEDULER"])["chunk_tokens"] == 512


def test_sleep_is_refused_when_the_node_does_not_offer_it(node: Node) -> None:
    runtime = node.agent()
    runtime.start(spec())
    wait_until(runtime, "ready")
    with pytest.raises(PermanentError, match="--vllm-sleep"):
        runtime.sleep("engine")


def test_options_are_refused_when_there_is_no_such_program(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="no such program"):
        VllmRuntime(VllmOptions(tmp_path / "none", tmp_path), lambda: GPUS)


def test_log_is_copied_and_cut_off_when_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("x" * 100)
    rotate(log, 50)
    assert log.read_text() == ""
    assert (tmp_path / "engine.log.1").read_text() == "x" * 100


def test_errors_come_first_when_the_last_lines_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    warned, raised = "(APIServer pid=7) WARNING it may end in an OSError", "(EngineCore pid=8) ERROR no space"
    log.write_text(
        f"\n--- then vllm serve\nTypeError: old\n\n--- now vllm serve\n{warned}\n{raised}\nOSError: x\nINFO b\n"
    )
    assert last_lines(log) == f"{raised} | OSError: x"
    assert last_lines(tmp_path / "none") == ""


def test_names_of_files_stay_in_the_folder_when_a_uid_is_odd(tmp_path: Path) -> None:
    options = VllmOptions(tmp_path / "vllm", tmp_path)
    assert options.log("../../etc/x").parent == tmp_path / "logs"
    assert options.socket("../x").parent == tmp_path / "s"


def test_engine_is_started_for_the_adapters_of_its_service_and_else_for_none(tmp_path: Path) -> None:
    options = VllmOptions(tmp_path / "vllm", tmp_path)
    launch = EngineLaunch("fake/good", max_lora_rank=24, max_loras=3)
    asked = replace(spec(), launch=launch)
    words = command(asked, options, 1234)
    at = words.index("--enable-lora")
    assert words[at : at + 5] == ["--enable-lora", "--max-lora-rank", "32", "--max-loras", "3"]
    assert environment(asked, options, {})["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "--enable-lora" not in command(spec(), options, 1234)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(spec(), options, {})


def test_plugin_and_sleep_are_on_the_command_line_when_the_node_offers_them(tmp_path: Path) -> None:
    options = VllmOptions(tmp_path / "vllm", tmp_path, sleep=True, plugin=True)
    words = command(spec(), options, 1234)
    assert "--enable-sleep-mode" in words
    assert words[words.index("--scheduler-cls") + 1] == "pools.vllm_scheduler.GreenServeScheduler"
    variables = environment(spec(), options, {"PATH": "/bin", "HF_TOKEN": "t", "OTHER": "x"})
    assert variables["VLLM_SERVER_DEV_MODE"] == "1"
    assert variables["HF_TOKEN"] == "t"
    assert "OTHER" not in variables


def test_engines_hand_requests_to_each_other_when_the_node_has_a_store(node: Node) -> None:
    store = node.options.folder / "kv"
    runtime = node.agent(kv_store=store)
    runtime.start(spec())
    found = wait_until(runtime, "ready")
    assert (found.kv_connector, found.laxity) == ("blocks", False)
    words = fetch(f"{found.url}/arguments")
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert config["kv_connector_extra_config"] == {"folder": str(store)}
    root = Path(fetch(f"{found.url}/environment")["PYTHONPATH"])
    assert (root / "pools" / "vllm_scheduler" / "block_store.py").exists()


def test_engines_take_caches_of_other_nodes_when_the_node_has_ports_for_that(node: Node) -> None:
    runtime = node.agent(kv_ports=(40_000, 43_999), kv_staging_bytes=1 << 20)
    runtime.start(spec())
    found = wait_until(runtime, "ready")
    port = int(found.url.rpartition(":")[2])
    own = 40_000 + port - node.options.ports[0]
    assert (found.kv_connector, found.kv_address) == ("nixl", f"127.0.0.1:{own}")
    words = fetch(f"{found.url}/arguments")
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert config["kv_load_failure_policy"] == "recompute"
    most = node.options.ports[1] - node.options.ports[0] + 1
    assert config["kv_connector_extra_config"] == {
        "host": "127.0.0.1",
        "port": own,
        "port_step": most,
        "staging_bytes": 1 << 20,
    }
    variables = fetch(f"{found.url}/environment")
    assert variables["UCX_TCP_PORT_RANGE"] == "42000-43999"
    connector = config["kv_connector_module_path"].replace(".", "/") + ".py"
    assert (Path(variables["PYTHONPATH"]) / connector).exists()


def test_ports_for_caches_have_to_do_for_all_engines(tmp_path: Path) -> None:
    options = VllmOptions(tmp_path / "vllm", tmp_path, ports=(100, 107), kv_ports=(200, 231))
    assert [options.kv_port(port, rank) for port, rank in ((100, 0), (107, 0), (107, 1))] == [200, 207, 215]
    with pytest.raises(PermanentError, match=r"--vllm-kv-ports 200-231 are too few: 3 GPUs of 8 engines .* take 48"):
        options.kv_port(100, 2)


@pytest.fixture
def late_init() -> Iterator[None]:
    """This process inherits what is orphaned, as a container's first process does, and does not reap it."""
    inherits = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
    libc = ctypes.CDLL(None)
    assert libc.prctl(inherits, 1, 0, 0, 0) == 0
    yield
    libc.prctl(inherits, 0, 0, 0, 0)


def test_end_is_not_waited_for_when_init_is_late_to_reap(late_init: None, tmp_path: Path) -> None:
    words = ["sh", "-c", "sleep 600 & echo worker $!; wait"]
    leader = EngineProcess.start(words, {"PATH": "/usr/bin:/bin"}, tmp_path, log := tmp_path / "log")
    found = eventually(lambda: re.search(r"^worker (\d+)\n", log.read_text(), re.M), WITHIN_S, "worker")
    assert runs(leader.pid)
    leader.kill()
    assert not runs(leader.pid)
    os.killpg(leader.pid, 0)  # a member is left, which would have been waited for
    assert os.waitpid(int(found[1]), 0)[1] == signal.SIGKILL


def test_process_is_known_again_when_pid_and_beginning_agree() -> None:
    me = os.getpid()
    began = began_ticks(me)
    assert began is not None
    found = EngineProcess.known_again(me, began)
    assert found is not None
    assert found.alive
    assert EngineProcess.known_again(me, began - 1) is None


def test_launch_is_checked_when_it_comes_from_a_card() -> None:
    def refused(match: str) -> Callable[..., None]:
        def check(**fields: Any) -> None:
            with pytest.raises(ValueError, match=match):
                EngineLaunch(**fields).check()

        return check

    EngineLaunch(
        "meta-llama/Llama-3.1-8B", "bfloat16", ("--kv-cache-dtype", "fp8", "--no-enable-prefix-caching")
    ).check()
    EngineLaunch("/models/mine", environment={"NCCL_DEBUG": "INFO"}).check()
    refused("neither owner/name nor")(weights="--help")
    refused("neither owner/name nor")(weights="/models/../etc")
    refused("dtype")(dtype="int3")
    refused("cannot be set on a model card")(arguments=("--trust-remote-code",))
    refused("needs a value")(arguments=("--seed", "--enforce-eager"))
    refused("takes no value")(arguments=("--enforce-eager=yes",))
    refused("stands where a name")(arguments=("fp8",))
    refused("LD_PRELOAD cannot be set")(environment={"LD_PRELOAD": "/x.so"})


def full(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_engine_starts_serves_and_is_on_record_later_when_the_disk_is_full_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "_HOUSEKEEPING_S", 0.0)
    runtime = node.agent()
    with monkeypatch.context() as disk:
        disk.setattr(Records, "write", full)
        runtime.start(spec())
        wait_until(runtime, "ready")
        assert "would not know it: [Errno 28] No space left on device" in caplog.text
    eventually(lambda: Records(node.options.folder / "engines").all(), WITHIN_S, "its record")
    found = status(runtime)
    assert found is not None
    assert found.state == "ready"


def test_log_that_is_too_long_is_cut_off_when_there_is_no_room_for_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"words " * 100)
    monkeypatch.setattr(Path, "write_bytes", full)
    rotate(log, longest_bytes=10)
    assert log.stat().st_size == 0
    rotate(tmp_path / "none.log")


def test_engine_runs_without_a_log_when_none_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = tmp_path / "done"
    process = EngineProcess.start(["touch", str(done)], os.environ, tmp_path, tmp_path / "file" / "engine.log")
    assert process.child is not None
    assert process.child.wait(10) == 0
    assert done.exists()


@pytest.mark.parametrize(
    ("arguments", "tokens", "seqs"),
    [
        ((), 2048, 256),
        (("--max-num-batched-tokens", "8192"), 8192, 256),
        (("--max-num-batched-tokens=8k", "--max-num-seqs", "64"), 8000, 64),
        (("--max-num-batched-tokens=512", "--max-num-batched-tokens=8K"), 8192, 256),
        (("--max-num-batched-tokens",), 2048, 256),
    ],
)
def test_limits_of_the_start_are_those_of_the_last_argument(
    tmp_path: Path, arguments: tuple[str, ...], tokens: int, seqs: int
) -> None:
    options = VllmOptions(tmp_path / "vllm", tmp_path, arguments=arguments)
    words = command(spec(), options, 1234)
    assert words[len(words) - len(arguments) :] == list(arguments)
    found = started_with(spec(), options)
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (tokens, seqs)


# -- slices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "share"),
    [((), "0.45"), (("--gpu-memory-utilization", "0.8"), "0.4"), (("--gpu-memory-utilization=0.6",), "0.3")],
)
def test_engine_on_a_slice_has_its_part_of_the_memory_and_of_the_threads(
    tmp_path: Path, own: tuple[str, ...], share: str
) -> None:
    options = VllmOptions(program(tmp_path), tmp_path, arguments=own)
    half = replace(spec(), gpu_slices=2)
    assert command(half, options, 1234)[-2:] == ["--gpu-memory-utilization", share]
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in environment(half, options, {})
    assert environment(replace(half, mps=True), options, {})["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert command(spec(), options, 1234)[-len(own) :] == list(own) or not own


def test_gpu_has_as_many_engines_as_slices(node: Node) -> None:
    runtime = node.agent()
    for uid in ("a", "b"):
        runtime.start(replace(spec(uid), gpu_slices=2))
    with pytest.raises(RetryableError, match="allocated to instance a, b"):
        runtime.start(replace(spec("c"), gpu_slices=2))
