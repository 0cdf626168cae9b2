"""Finds what is on a node for engines: the version of vLLM, the options that it lacks, and weights on the disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from pools.wire import ModelOnDisk, NodeFinds

from . import models_on_disk
from .launch import VllmOptions
from .vllm_program import VllmProgram

LOOK_EVERY_S = 300.0


class NodeFinder:
    """Looks for weights in a thread of its own, now and then: a large disk takes a while. `own`: the agent's
    environment.
    """

    def __init__(
        self,
        options: VllmOptions,
        program: VllmProgram,
        own: Mapping[str, str] = os.environ,
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._options, self._program, self._own, self._every_s = options, program, own, every_s
        self._models: list[ModelOnDisk] | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="finds weights", daemon=True).start()

    def finds(self) -> NodeFinds | None:
        """Returns what was found last; None: it is still looked for. Returns at once."""
        program, models = self._program.found(), self._models
        if program is None or models is None:
            return None
        return NodeFinds(program.version, program.fault, list(program.missing), models)

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        while True:
            self._models = models_on_disk.find(self._options.folder / "weights", self._options.model_folders, self._own)
            if self._closed.wait(self._every_s):
                return
