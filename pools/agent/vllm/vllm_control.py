"""Has a vLLM find GreenServe's scheduler, and speaks to it while it runs (docs/plugin.md)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pools.vllm_scheduler as plugin
from core.algorithms.split import step_times
from core.ports import EngineLimits, PermanentError, RetryableError

TIMEOUT_S = 1.0
LONGEST_ANSWER = 65_536
# Settings that no argument of vLLM's is for.
_OWN = ("itl_limit_s", "chunk_tokens", "preempts_s", "margin_s", "window_factor")


def import_root(folder: Path) -> Path:
    """Makes, in `folder`, a place to import from in which there is the plug-in, the one module of core that it needs,
    and nothing else.

    It is for vLLM's PYTHONPATH: what GreenServe itself needs has other versions than what vLLM needs, and is not to
    come before that.
    """
    root = folder / "import"
    _link(root, "pools/vllm_scheduler", Path(plugin.__file__).resolve().parent)
    _link(root, "core/algorithms/split/step_times.py", Path(step_times.__file__).resolve())
    return root


def _link(root: Path, name: str, target: Path) -> None:
    """Links a module or package, and makes the packages that it is in."""
    link = root / name
    package = link.parent
    package.mkdir(parents=True, exist_ok=True)
    for folder in (package, *package.parents):
        if folder == root:
            break
        (folder / "__init__.py").touch()
    if not link.is_symlink() or link.readlink() != target:  # an older GreenServe may have made it
        draft = package / f"draft-{threading.get_ident()}"  # engines start at once, each in a thread of its own
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        draft.symlink_to(target, target_is_directory=target.is_dir())
        draft.replace(link)


def environment(folder: Path, socket: Path, by_laxity: bool, limits: EngineLimits | None = None) -> dict[str, str]:
    """Returns variables for a vLLM that is started with `--scheduler-cls` and SCHEDULER_CLS.

    Args:
        folder: For `import_root`; it may be that of all a node's instances.
        socket: Where the scheduler is to listen; at most 107 bytes.
        by_laxity: Least laxity first from the start: for engines with `preempt_for_waiting`.
        limits: Of these what vLLM has no arguments for; the others are given to it when it starts.
    """
    first: dict[str, Any] = {"order": "llf" if by_laxity else "vllm"}
    if limits is not None:
        first |= _fields(limits)
    return {
        "PYTHONPATH": str(import_root(folder)),
        plugin.SOCKET_VARIABLE: str(socket),
        plugin.SETTINGS_VARIABLE: json.dumps(first),
    }


def kv_store(store: Path) -> dict[str, Any]:
    """Returns the `--kv-transfer-config` of engines that hand requests to each other through the folder `store`.

    Such an instance's `kv_connector` is `blocks`.
    """
    return _kv_transfer("BlockStoreConnector", "block_store", folder=str(store))


def kv_network(
    host: str, port: int, port_step: int, tls: tuple[Path, Path] | None, staging_bytes: int
) -> dict[str, Any]:
    """Returns the `--kv-transfer-config` of an engine that sends caches by NIXL, and takes those of other engines.

    Such an instance's `kv_connector` is `nixl`.

    Args:
        host, port: Of its side channel. The worker of rank r listens `r * port_step` ports higher.
        tls: The node's certificate with its key, and the authority's; None: `host` is the loopback.
        staging_bytes: Memory of the CPU for caches that go or come, of each worker.
    """
    files = {} if tls is None else {"certificate": str(tls[0]), "authority": str(tls[1])}
    extra = {"host": host, "port": port, "port_step": port_step, "staging_bytes": staging_bytes, **files}
    return _kv_transfer("TransferConnector", "transfer.connector", **extra)


def _kv_transfer(connector: str, module: str, **extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": connector,
        "kv_connector_module_path": f"pools.vllm_scheduler.{module}",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


class VllmScheduler:
    """A running engine's scheduler. Each call blocks for at most `timeout_s`, and raises AdapterError."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        """Speaks to the socket at `path`, which `environment` had it listen at."""
        self._path = path
        self._timeout_s = timeout_s

    def tune(self, limits: EngineLimits) -> EngineLimits:
        """Sets limits; returns those in force from its next step on: none is above what the engine was started with."""
        most = self._call({"op": "get"})["most"]
        fields: dict[str, Any] = {name: min(getattr(limits, name), int(most[name])) for name in most}
        return _limits(self._call({"op": "set", **_fields(limits), **fields}))

    def limits(self) -> EngineLimits:
        """Returns the limits in force."""
        return _limits(self._call({"op": "get"}))

    def order(self, by_laxity: bool) -> None:
        """Sets the order: least laxity first, or vLLM's own scheduling policy."""
        self._call({"op": "set", "order": "llf" if by_laxity else "vllm"})

    def stats(self) -> dict[str, Any]:
        """Returns figures of the engine's last step; empty before the first."""
        found: dict[str, Any] = self._call({"op": "stats"})["stats"]
        return found

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = json.loads(self._exchange(json.dumps(message).encode() + b"\n"))
        except OSError as error:
            raise RetryableError(f"the scheduler at {self._path} does not answer: {error}") from error
        except ValueError as error:
            raise RetryableError(f"the scheduler at {self._path} gave an answer that cannot be read") from error
        if not isinstance(answer, dict) or not answer.get("ok"):
            said = answer.get("error") if isinstance(answer, dict) else answer
            raise PermanentError(f"the scheduler at {self._path} refused: {said}")
        return answer

    def _exchange(self, line: bytes) -> bytes:
        until_s = time.monotonic() + self._timeout_s
        data = b""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(self._timeout_s)
            client.connect(os.fspath(self._path))
            client.sendall(line)
            while b"\n" not in data and len(data) < LONGEST_ANSWER:
                client.settimeout(max(0.001, until_s - time.monotonic()))
                received = client.recv(4096)
                if not received:
                    break
                data += received
        return data


def _limits(answer: dict[str, Any]) -> EngineLimits:
    most, own = answer["most"], answer["settings"]
    return EngineLimits(
        max_num_batched_tokens=own["max_num_batched_tokens"] or most["max_num_batched_tokens"],
        max_num_seqs=own["max_num_seqs"] or most["max_num_seqs"],
        **{name: own[name] for name in _OWN},
    )


def _fields(limits: EngineLimits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in _OWN}
