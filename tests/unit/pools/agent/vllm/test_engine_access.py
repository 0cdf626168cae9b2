"""Engines show the node's certificate and ask for a key of their own, which stands on no command line and in no log."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from core.engine.engine_launch import EngineLaunch
from core.ports import InstanceSpec, InstanceStatus, PermanentError
from pools.agent.vllm.engine_access import EngineCertificate, EngineTls, new_key
from pools.agent.vllm.launch import VllmOptions, command, environment
from pools.agent.vllm.runtime import VllmRuntime
from pools.agent.vllm.vllm_metrics import VllmMetrics
from pools.agent.vllm.vllm_options import vllm_options
from pools.masking import masked
from tests.fakes.certificates import Authority
from tests.fakes.simnode import eventually
from tests.fakes.vllm_program import program
from tests.fakes.vllm_runtime import end_all

SPEC = InstanceSpec("engine", "Llama3-8B", "vllm-v1", ("G0",), 4096, launch=EngineLaunch("fake/good"))


@pytest.fixture
def options(tmp_path: Path) -> VllmOptions:
    tls = Authority(tmp_path / "pem").node("127.0.0.1")
    ports = (22_000, 23_999)
    return VllmOptions(program(tmp_path), tmp_path / "engines", tls=tls, ports=ports, look_s=0.02, watch_s=0.05)


@pytest.fixture
def runtime(options: VllmOptions) -> Iterator[VllmRuntime]:
    made = VllmRuntime(options, lambda: ("G0",))
    yield made
    end_all(made, 15.0)


def ready(runtime: VllmRuntime) -> InstanceStatus:
    def found() -> InstanceStatus | None:
        return next((one for one in runtime.list() if one.state == "ready"), None)

    status = eventually(found, 30.0, "a ready engine")
    assert isinstance(status, InstanceStatus)
    return status


def complete(status: InstanceStatus, options: VllmOptions, **headers: str) -> int:
    body = json.dumps({"model": SPEC.model, "prompt": "a", "max_tokens": 1}).encode()
    assert options.tls is not None
    request = urllib.request.Request(
        f"{status.url}/v1/completions", body, {"Content-Type": "application/json", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=5, context=options.tls.trust("127.0.0.1")) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_engine_speaks_tls_and_asks_for_its_key_which_no_command_line_or_log_has(
    runtime: VllmRuntime, options: VllmOptions
) -> None:
    runtime.start(SPEC)
    status = ready(runtime)
    assert status.url is not None
    assert status.url.startswith("https://127.0.0.1:")
    assert len(status.key) > 40
    assert complete(status, options) == 401
    assert complete(status, options, Authorization=f"Bearer {new_key()}") == 401
    assert complete(status, options, Authorization=f"Bearer {status.key}") == 200
    with Metrics(runtime) as metrics:
        assert metrics.scrape("engine", status.url).running == 0
    (record,) = (options.folder / "engines").glob("*.json")
    assert record.stat().st_mode & 0o777 == 0o600
    words = Path(f"/proc/{json.loads(record.read_bytes())['pid']}/cmdline").read_bytes()
    assert b"--ssl-certfile" in words
    assert status.key.encode() not in words
    assert status.key not in options.log("engine").read_text()
    assert status.key not in repr(status)
    assert runtime.access("another").headers == {}

    again = VllmRuntime(options, lambda: ("G0",))  # the agent's next life takes the engine over
    assert ready(again).key == status.key
    end_all(again, 15.0)


class Metrics:
    def __init__(self, runtime: VllmRuntime) -> None:
        self.metrics = VllmMetrics(access=runtime.access, timeout_s=5.0)

    def __enter__(self) -> VllmMetrics:
        return self.metrics

    def __exit__(self, *_: object) -> None:
        self.metrics.close()


def test_keys_are_one_of_a_kind_and_masked_wherever_one_is_logged() -> None:
    key = new_key()
    assert key != new_key()
    assert key not in masked(f"refused with {key} by the engine")


def test_key_goes_before_what_card_and_node_set_and_the_agents_own_does_not_reach_engines(
    options: VllmOptions,
) -> None:
    own = {"VLLM_API_KEY": "the agent's", "VLLM_LOGGING_LEVEL": "INFO"}
    assert environment(SPEC, options, own, "made")["VLLM_API_KEY"] == "made"
    assert "VLLM_API_KEY" not in environment(SPEC, options, own)


def test_engine_finds_the_guard_of_its_key_before_what_the_node_has_it_import(options: VllmOptions) -> None:
    words = command(SPEC, options, 1)
    assert words[words.index("--middleware") + 1] == "pools.vllm_scheduler.key_guard.KeyGuard"
    ours = environment(SPEC, options, {})["PYTHONPATH"]
    assert (Path(ours) / "pools" / "vllm_scheduler" / "key_guard.py").exists()
    given = replace(options, environment={"PYTHONPATH": "/opt/operators"})
    assert environment(SPEC, given, {})["PYTHONPATH"] == f"{ours}:/opt/operators"


def test_engines_get_a_renewed_certificate_in_the_same_file_since_vllm_watches_that(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pem")
    files, path = authority.node("127.0.0.1"), tmp_path / "own.pem"
    served = EngineCertificate(files, path, "127.0.0.1")
    before, inode = path.read_bytes(), path.stat().st_ino
    assert path.stat().st_mode & 0o777 == 0o600
    served.renew()
    assert path.read_bytes() == before
    authority.node("127.0.0.1", "a-much-longer-name-than-before.example.org")
    served.renew()
    assert path.read_bytes() == files.read() != before
    authority.node("127.0.0.1")
    served.renew()
    assert path.read_bytes() == files.read()
    assert path.stat().st_ino == inode
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, path)


def test_half_a_renewal_leaves_engines_with_the_pair_that_they_have(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pem")
    files, path = authority.node("127.0.0.1"), tmp_path / "own.pem"
    served = EngineCertificate(files, path, "127.0.0.1")
    before = path.read_bytes()
    files.key.write_bytes(authority.node("127.0.0.1", name="another").key.read_bytes())
    with pytest.raises(PermanentError, match="--tls-key"):
        served.renew()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": "10.0.0.7"}, "is of 127.0.0.1: gateways would refuse engines at 10.0.0.7; give an --engine-address"),
        ({"authority": "none.pem"}, "--tls-authority .*none.pem: it is to hold certificates in PEM"),
        ({"authority": "empty.pem"}, "--tls-authority .*empty.pem: it is to hold certificates in PEM"),
        ({"certificate": "none.pem"}, "--tls-certificate .*none.pem.*No such file"),
    ],
)
def test_agent_refuses_files_that_gateways_would_not_take(tmp_path: Path, change: dict[str, str], words: str) -> None:
    files = Authority(tmp_path / "pem").node("127.0.0.1")
    (tmp_path / "empty.pem").touch()
    host = change.pop("host", "127.0.0.1")
    changed = EngineTls(
        **{
            **{"certificate": files.certificate, "key": files.key, "authority": files.authority},
            **{name: tmp_path / value for name, value in change.items()},
        }
    )
    with pytest.raises(PermanentError, match=words):
        EngineCertificate(changed, tmp_path / "own.pem", host)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_certificate": "a.pem"}, "give all three, or none"),
        ({"vllm_env": ("VLLM_API_KEY=hush",)}, "each engine gets a key of its own"),
        ({"vllm_argument": ("--api-key=hush",)}, "each engine gets a key of its own"),
        ({"vllm_argument": ("--api_key", "hush")}, "each engine gets a key of its own"),
        ({"vllm_argument": ("--scheduling-policy", "fcfs")}, "each engine schedules by priority"),
        ({"vllm_argument": ("--scheduling_policy=fcfs",)}, "engine_priority=false"),
    ],
)
def test_agent_refuses_options_that_would_show_a_key_or_lack_a_file(given: dict[str, Any], words: str) -> None:
    with pytest.raises(click.UsageError, match=words) as refused:
        vllm_options({"vllm": "vllm", **given}, by_uuid=True)
    assert "hush" not in str(refused.value)
