"""Weights of models that engines here may need, fetched before they do: one model at a time, by `hf` beside `vllm`.

They go where engines look for them (HF_HOME), so that an engine's start finds them there. A folder of the node needs no
fetching. What has been fetched stays; a part of the disk is kept free.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from core.engine.engine_launch import EngineLaunch

from .engine_processes import EngineProcess, last_lines
from .launch import VllmOptions, cache_environment

logger = logging.getLogger(__name__)

# Copies of the same weights in other formats, which vLLM does not read.
_UNREAD = ("original/*", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "*.tflite")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3600.0
_COUNTED_EVERY_S = 5.0
GB = 1e9


class WeightCache:
    """Call `want` about once a second, from one thread; it returns at once. `environment`: the agent's own."""

    def __init__(self, options: VllmOptions, environment: Mapping[str, str] = os.environ) -> None:
        self._options = options
        self._program = options.program.parent / "hf"
        self._home = options.folder / "weights"
        self._environment = cache_environment(options, environment)
        self._wanted: list[EngineLaunch] = []
        self._here: set[str] = set()
        self._fetching: str | None = None
        self._process: EngineProcess | None = None
        self._troubles: dict[str, tuple[str, float, float]] = {}  # why not, until when, the pause before that
        self._counted = (0.0, 0)  # when, and bytes of what is being fetched

    def want(self, wanted: Sequence[EngineLaunch]) -> None:
        """Takes what engines of this node may be started with, the most urgent first, and begins to fetch it."""
        self._wanted = [one for one in wanted if one.weights and not one.weights.startswith("/")]
        if self._options.offline or not os.access(self._program, os.X_OK):
            return
        self._look()
        if self._process is None:
            self._begin()

    def notices(self) -> Iterator[str]:
        names = {one.weights for one in self._wanted}
        if self._fetching is not None:
            yield f"weights of {self._fetching} are being fetched: {self._bytes() / GB:.1f} GB are here"
        for name, (why, _, _) in self._troubles.items():
            if name in names and name != self._fetching:
                yield f"weights of {name} are not fetched: {why}"

    def close(self) -> None:
        """Ends what is under way; what has come is kept, and gone on with later."""
        if self._process is not None:
            self._process.kill()
            self._process = self._fetching = None

    # ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """At the fetching that is under way: has it ended, does it fill the disk, is it wanted still?"""
        if self._process is None or self._fetching is None:
            return
        name, code = self._fetching, self._process.exit_code()
        if code is None:
            if full := self._full():
                self.close()
                self._trouble(name, full)
            elif name not in {one.weights for one in self._wanted}:
                self.close()
            return
        self._process = self._fetching = None
        if code == 0:
            self._here.add(name)
            self._troubles.pop(name, None)
            logger.info("weights of %s are here", name)
        else:
            self._trouble(name, last_lines(self._log(name), 2) or f"hf ended with {code}")

    def _begin(self) -> None:
        now_s = time.monotonic()
        for one in self._wanted:
            name = one.weights
            if name in self._here or now_s < self._troubles.get(name, ("", 0.0, 0.0))[1]:
                continue
            if full := self._full():
                self._trouble(name, full)
                continue
            self._start(one)
            return

    def _start(self, launch: EngineLaunch) -> None:
        words = [str(self._program), "download", launch.weights]
        if (revision := _revision(launch.arguments)) is not None:
            words += ["--revision", revision]
        for pattern in _UNREAD:
            words += ["--exclude", pattern]
        self._home.mkdir(parents=True, exist_ok=True)
        try:
            started = EngineProcess.start(words, self._environment, self._home, self._log(launch.weights))
        except OSError as error:
            self._trouble(launch.weights, f"{self._program} cannot be run: {error}")
            return
        self._process, self._fetching, self._counted = started, launch.weights, (0.0, 0)
        logger.info("weights of %s are being fetched", launch.weights)

    def _trouble(self, name: str, why: str) -> None:
        before_s = self._troubles.get(name, ("", 0.0, 0.0))[2]
        pause_s = min(_LONGEST_PAUSE_S, 2.0 * before_s or _FIRST_PAUSE_S)
        self._troubles[name] = why[:280], time.monotonic() + pause_s, pause_s
        logger.warning("weights of %s are not fetched, next try in %g s: %s", name, pause_s, why)

    def _full(self) -> str:
        """Returns why there is no room; empty: there is."""
        there = next(folder for folder in (self._home, *self._home.parents) if folder.exists())
        free, keep = shutil.disk_usage(there).free, self._options.keep_free_bytes
        return (
            "" if free >= keep else f"{free / GB:.0f} GB of the disk are free, and {keep / GB:.0f} are to be kept free"
        )

    def _bytes(self) -> int:
        """Returns the bytes fetched so far of the current model, counted now and then, since it is many files."""
        at_s, found = self._counted
        if self._fetching is not None and time.monotonic() - at_s > _COUNTED_EVERY_S:
            folder = self._home / "hub" / f"models--{self._fetching.replace('/', '--')}"
            found = sum(_size(path) for path in (folder / "blobs").glob("*"))
            self._counted = time.monotonic(), found
        return found

    def _log(self, name: str) -> Path:
        return self._options.log(f"weights of {name}")


def weights_are_here(launch: EngineLaunch, environment: Mapping[str, str]) -> bool:
    """Says whether an engine that starts now finds its weights on the node, all of them.

    `environment`: the engine's own, as Hugging Face's hub reads it.
    """
    if launch.weights.startswith("/"):
        return True
    hub = Path(environment.get("HF_HUB_CACHE") or Path(environment["HF_HOME"]) / "hub")
    folder = hub / f"models--{launch.weights.replace('/', '--')}"
    revision = _revision(launch.arguments) or "main"
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    return (folder / "snapshots" / commit).is_dir() and not any((folder / "blobs").glob("*.incomplete"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # renamed meanwhile, as it was whole


def _revision(arguments: Sequence[str]) -> str | None:
    """Returns the revision that the model card asks for: `--revision X` or `--revision=X` (`check_arguments`)."""
    words = iter(arguments)
    for word in words:
        name, joined, value = word.partition("=")
        if name == "--revision":
            return value if joined else next(words, None)
    return None
