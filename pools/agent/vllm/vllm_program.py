"""The program `vllm` of a node: its version, and whether it has the options that engines here are started with."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from core.engine.engine_launch import EngineLaunch
from core.ports import EngineLimits, InstanceSpec

from .launch import VllmOptions, cache_environment, command

KNOWN = frozenset({"0.32.0"})  # they have every option: tests/vllm runs them
ASK_WITHIN_S = 120.0  # it imports much, from a disk that may be slow
_AGAIN_S = 30.0  # after a fault
_SAMPLE = InstanceSpec(
    *("uid", "model", "vllm-v1", ("GPU",), 16), limits=EngineLimits(chunk_tokens=16), launch=EngineLaunch("weights")
)


@dataclass(frozen=True, slots=True)
class VllmFound:
    """The program as it answered. `fault`: why no engine can be started with it, and the remedy; empty: one can."""

    version: str = ""
    missing: tuple[str, ...] = ()
    fault: str = ""


def required(options: VllmOptions) -> tuple[str, ...]:
    """Returns the options that `vllm serve` must have for engines of this node, by their names."""
    words = command(_SAMPLE, options, 1)
    return tuple(dict.fromkeys(word.partition("=")[0].partition(".")[0] for word in words if word.startswith("--")))


def ask(options: VllmOptions, own: Mapping[str, str] | None = None, within_s: float = ASK_WITHIN_S) -> VllmFound:
    """Asks the program, for `within_s` at most for each question. `own`: this process's environment."""
    environment = {**cache_environment(options, os.environ if own is None else own), **options.environment}

    def said(*words: str) -> str:
        done = subprocess.run(
            [str(options.program), *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
            raise OSError(f"`{options.program} {' '.join(words)}` ended with {done.returncode}: {last[:200]}")
        return done.stdout

    try:
        version = re.findall(r"\d+\.\d+\S*", said("--version"))
        found = VllmFound(version[-1] if version else "")
        if found.version.partition("+")[0] in KNOWN:  # behind the + stands what it was built for, as cpu
            return found
        options_of_it = set(re.findall(r"--[a-z0-9][a-z0-9-]*", _help(said)))
    except subprocess.TimeoutExpired as error:
        return VllmFound(
            fault=f"{options.program} did not answer within {error.timeout:g} s; see whether it runs by hand"
        )
    except OSError as error:
        return VllmFound(fault=f"{error}; give the `vllm` of a complete installation by --vllm")
    missing = tuple(word for word in required(options) if word not in options_of_it)
    if not missing:
        return found
    what = f"vLLM {found.version or 'of a version that it does not tell'} ({options.program})"
    remedy = f"install a newer one, such as {max(KNOWN)}, or leave out the agent's options that ask for them"
    return replace(found, missing=missing, fault=f"{what} lacks {', '.join(missing)}: {remedy}")


def _help(said: Callable[..., str]) -> str:
    """Returns the text that names every option; versions before 0.10 name all of them by `--help` alone."""
    try:
        return said("serve", "--help=all")
    except OSError:
        return said("serve", "--help")


class VllmProgram:
    """Asks the program in a thread of its own, again when its file has changed, and soon after a fault."""

    def __init__(self, options: VllmOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._found: VllmFound | None = None
        self._of: tuple[int, int] | None = None  # the file that was asked
        self._asked_s = 0.0
        self._asking = False

    def found(self) -> VllmFound | None:
        """Returns what was found last; None: it is being asked. Returns at once."""
        with self._lock:
            stale = self._found is None or self._of != self._file()
            due = self._found is not None and self._found.fault and time.monotonic() - self._asked_s > _AGAIN_S
            if (stale or due) and not self._asking:
                self._asking, self._found = True, None
                threading.Thread(target=self._ask, name="asks vllm", daemon=True).start()
            return self._found

    def _ask(self) -> None:
        of = self._file()
        found = ask(self._options)
        with self._lock:
            self._found, self._of, self._asked_s, self._asking = found, of, time.monotonic(), False

    def _file(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._options.program)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
