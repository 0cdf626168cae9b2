"""Builds what is run for an instance: vLLM's command line and environment."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from core.engine.engine_launch import memory_share
from core.ports import EngineLimits, InstanceSpec, PermanentError
from pools.agent.vllm import vllm_control
from pools.agent.vllm.engine_access import EngineTls
from pools.own_address import LOOPBACK, in_url, is_wildcard
from pools.vllm_scheduler import KEY_GUARD, SCHEDULER_CLS
from pools.vllm_scheduler.key_guard import KEY_VARIABLE

# Of the agent's own environment only this reaches an engine: the agent's has the broker's password in it.
_PASSED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_PASSED_PREFIXES = ("HF_", "VLLM_", "NCCL_", "CUDA_", "NVIDIA_", "UCX_", "TORCH_")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_UNITS = {"": 1, "k": 1000, "K": 1 << 10, "m": 1_000_000, "M": 1 << 20}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM can be started for


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """A node's settings of vLLM. They are its operator's, so nothing is checked against the card's allowances.

    Attributes:
        program: The `vllm` of the environment that it is installed in.
        folder: Of the agent: logs, records of what runs, weights (HF_HOME).
        host: Where engines listen.
        address: Where gateways reach them; empty: at `host`.
        tls: Files of the node's certificate; None: engines speak plain HTTP.
        ports: First and last of those that engines may listen at.
        arguments, environment: For every engine, after the card's.
        by_uuid: GPUs are chosen by CUDA_VISIBLE_DEVICES; False on a machine without them.
        offline: Weights must be on the node already; else they are fetched at the first start and kept.
        sleep: Engines can sleep: that opens vLLM's endpoints for development on the engine's port.
        plugin: Engines run GreenServe's scheduler, whose limits can be changed live.
        model_folders: Where weights are looked for, beside the engines' cache and Hugging Face's.
        kv_store: A folder, best in memory, through which engines of this node hand requests to each other; None: they
            do not.
        kv_ports: First and last of those by which engines take KV caches of engines anywhere, by NIXL. The first half
            is for side channels, the second for UCX. None: they take none. With neither no request is split here.
        kv_staging_bytes: Memory of the CPU in which each GPU's caches wait that go or come.
        start_within_s: Until the first token, the fetching of weights included.
        drain_within_s: For requests that run when an engine is to end; then they are cut off.
        stop_within_s: Between SIGTERM and SIGKILL.
        look_s, watch_s: How often an engine is looked at that starts or drains, and one that serves.
        keep_free_bytes: Of the disk, when weights are fetched ahead of need.
    """

    program: Path
    folder: Path
    host: str = LOOPBACK
    address: str = ""
    tls: EngineTls | None = None
    ports: tuple[int, int] = (18400, 18499)
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    by_uuid: bool = True
    offline: bool = False
    sleep: bool = False
    plugin: bool = False
    model_folders: tuple[Path, ...] = ()
    kv_store: Path | None = None
    kv_ports: tuple[int, int] | None = None
    kv_staging_bytes: int = 4 << 30
    start_within_s: float = 3600.0
    drain_within_s: float = 900.0
    stop_within_s: float = 20.0
    look_s: float = 0.25
    watch_s: float = 1.0
    keep_free_bytes: float = 50e9

    def advertised(self, host: str) -> str:
        """Returns where gateways reach an engine that listens at `host`, which may be that of an earlier start."""
        if host != self.host and not is_wildcard(host):
            return host
        return self.address or host

    @property
    def kv_connector(self) -> str:
        """Returns how engines hand over caches: `nixl`, `blocks`, or not at all."""
        return "nixl" if self.kv_ports else "blocks" if self.kv_store else ""

    def kv_port(self, port: int, rank: int = 0) -> int:
        """Returns where a worker of the engine at `port` takes caches: the ranks have ranges of their own.

        Raises PermanentError: there are no ports, or too few.
        """
        first, last = self.kv_ports or (0, -1)
        found = first + (port - self.ports[0]) + rank * self.engines_most
        if found >= first + (last - first + 1) // 2:
            most = self.engines_most
            raise PermanentError(
                f"--vllm-kv-ports {first}-{last} are too few: {rank + 1} GPUs of {most} engines (--engine-ports) take "
                f"{2 * most * (rank + 1)}"
            )
        return found

    def kv_address(self, host: str, port: int) -> str:
        """Returns where engines of other nodes reach the side channel; empty: there is none."""
        return f"{in_url(self.advertised(host))}:{self.kv_port(port)}" if self.kv_ports else ""

    @property
    def engines_most(self) -> int:
        """Returns how many engines the ports are for."""
        return self.ports[1] - self.ports[0] + 1

    def socket(self, uid: str) -> Path:
        """Returns the socket at which the plug-in of an engine listens."""
        return self.folder / "s" / quote(uid, safe="")[:36]

    @property
    def names(self) -> tuple[str, ...]:
        """Returns where gateways and the agent reach engines, as certificates name it."""
        return tuple(name for name in (self.advertised(self.host), self.host) if not is_wildcard(name))

    @property
    def certificate(self) -> Path:
        """Returns the file that engines have their certificate and its key from."""
        return self.folder / "certificate-and-key.pem"

    def log(self, uid: str) -> Path:
        return self.folder / "logs" / f"{quote(uid, safe='')}.log"


def command(spec: InstanceSpec, options: VllmOptions, port: int) -> list[str]:
    """Returns the `vllm serve` of an instance.

    Raises PermanentError: the card says too little, or asks for too much.
    """
    launch = spec.launch
    try:
        launch.check()
    except ValueError as error:
        raise PermanentError(f"the model card of {spec.model}: {error}") from None
    if not launch.weights:
        raise PermanentError(f"the model card of {spec.model} names no weights: set its Hugging Face id, or a folder")
    words = [str(options.program), "serve", launch.weights, "--host", options.host, "--port", str(port)]
    words += ["--served-model-name", spec.model, "--dtype", launch.dtype]
    words += ["--max-model-len", str(spec.max_model_len), "--tensor-parallel-size", str(spec.tp)]
    words += ["--scheduling-policy", spec.options.scheduling_policy]
    words += ["--max-num-batched-tokens", str(spec.limits.max_num_batched_tokens)]
    words += ["--max-num-seqs", str(spec.limits.max_num_seqs)]
    if spec.limits.chunk_tokens and not options.plugin:
        words += ["--long-prefill-token-threshold", str(spec.limits.chunk_tokens)]
    # Without a time-out of its own, an engine that has to end while a request runs never does.
    words += ["--shutdown-timeout", str(max(1, round(options.stop_within_s)))]
    if options.tls is not None:
        own = str(options.certificate)  # with its key; it is renewed while engines serve
        words += ["--ssl-certfile", own, "--ssl-keyfile", own, "--enable-ssl-refresh"]
    words += ["--middleware", KEY_GUARD]
    words.append("--disable-uvicorn-access-log")  # the agent asks each second; gateways keep the record of requests
    if options.sleep and options.by_uuid:
        words.append("--enable-sleep-mode")
    if launch.max_lora_rank:
        rank = next((own for own in _LORA_RANKS if own >= launch.max_lora_rank), launch.max_lora_rank)
        words += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", str(launch.max_loras)]
    if options.plugin:
        words += ["--scheduler-cls", SCHEDULER_CLS]
    if options.kv_connector:
        config = json.dumps(_kv_transfer(options, port, spec.tp))
        words += ["--disable-hybrid-kv-cache-manager", "--kv-transfer-config", config]
    words += [*launch.arguments, *options.arguments]
    if spec.gpu_slices > 1:
        words += ["--gpu-memory-utilization", f"{memory_share(words) / spec.gpu_slices:.4g}"]  # the last one counts
    return words


def _kv_transfer(options: VllmOptions, port: int, tp: int) -> dict[str, Any]:
    if options.kv_store is not None:
        return vllm_control.kv_store(options.kv_store)
    options.kv_port(port, tp - 1)  # there is one for each worker
    files = (options.certificate, options.tls.authority) if options.tls is not None else None
    return vllm_control.kv_network(
        options.host, options.kv_port(port), options.engines_most, files, options.kv_staging_bytes
    )


def started_with(spec: InstanceSpec, options: VllmOptions) -> EngineLimits:
    """Returns the limits that an engine of this start keeps: without the plug-in vLLM has arguments for some, and the
    node's own arguments come last (a model card cannot set these)."""
    limits = spec.limits if options.plugin else replace(spec.limits, itl_limit_s=None, preempts_s=0.0)
    tokens = _number(options.arguments, "--max-num-batched-tokens") or limits.max_num_batched_tokens
    seqs = _number(options.arguments, "--max-num-seqs") or limits.max_num_seqs
    return replace(limits, max_num_batched_tokens=tokens, max_num_seqs=seqs)


def _number(words: Sequence[str], name: str) -> int | None:
    """Returns the last value that an argument is given, read as vLLM reads it (8192, 8k, 8K); None: it is not given,
    or is no number: vLLM does not start with that."""
    found = None
    for n, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key == name:
            found = value if equals else "".join(words[n + 1 : n + 2])
    read = None if found is None else _NUMBER.fullmatch(found)
    return None if read is None else int(float(read[1]) * _UNITS[read[2]])


def environment(spec: InstanceSpec, options: VllmOptions, own: Mapping[str, str], key: str = "") -> dict[str, str]:
    """Returns the engine's environment.

    Args:
        own: The agent's, of which the engine gets what it needs.
        key: What it is to ask its clients for; empty: nothing. By a variable: unlike an option it is in no log.
    """
    root = str(vllm_control.import_root(options.folder))
    set_here = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
    if options.offline:
        set_here["HF_HUB_OFFLINE"] = "1"
    if options.by_uuid:
        set_here["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpu_uuids)
    if spec.mps:
        set_here["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{100.0 / spec.gpu_slices:.4g}"
    if options.sleep:
        set_here["VLLM_SERVER_DEV_MODE"] = "1"
    if spec.launch.max_lora_rank:
        set_here["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # gateways ask for it, with the engine's key
    if options.plugin:
        by_laxity = spec.options.preempt_for_waiting
        set_here |= vllm_control.environment(options.folder, options.socket(spec.uid), by_laxity, spec.limits)
    if options.kv_ports:
        first, last = options.kv_ports
        set_here["UCX_TCP_PORT_RANGE"] = f"{first + (last - first + 1) // 2}-{last}"
    asked = {KEY_VARIABLE: key} if key else {}
    set_for_it = {**set_here, **spec.launch.environment, **options.environment, **asked}
    paths = filter(None, (root, options.environment.get("PYTHONPATH")))
    return {**cache_environment(options, own), **set_for_it, "PYTHONPATH": os.pathsep.join(paths)}


def cache_environment(options: VllmOptions, own: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of programs that use the node's weights: what they need of the agent's, and where."""
    passed = {
        name: value
        for name, value in own.items()
        if (name in _PASSED or name.lower() in _PROXIES or name.startswith(_PASSED_PREFIXES)) and name != KEY_VARIABLE
    }
    return {**passed, "HF_HOME": str(options.folder / "weights")}
