"""Learns output lengths beside the gateway: in a process of its own, so that neither its work nor its memory is ours.

A thread starts the process, feeds it records and waits for trees; the event loop only ever copies records (a
millisecond each time) and later finds new trees in force. This module, run with a quantile and a niceness, is that
process: records in on stdin, as LengthRecords.to_bytes, and JSON out.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from core.predictors.boosted_lengths import BoostedLengthPredictor, LengthTrees

log = logging.getLogger(__name__)

TIMEOUT_S = 120.0
NICENESS = 15
PAUSE_RATIO = 100.0  # of what learning took in processor time: it may have a hundredth of a core


@dataclass(frozen=True, slots=True)
class Lesson:
    """The outcome of learning: mean absolute errors in tokens on the newest records, and whether trees are in force."""

    service: str
    kept: bool
    boosted_mae_tokens: float
    history_mae_tokens: float
    tested_on: int


class LengthTrainer:
    """Learns for one service at a time. Failures are logged, and tried again when as many records have come anew.

    `niceness` of the process: requests come first.
    """

    def __init__(
        self, predictor: BoostedLengthPredictor, timeout_s: float = TIMEOUT_S, niceness: int = NICENESS
    ) -> None:
        self.lessons: dict[str, Lesson] = {}
        self.failures = 0
        self._predictor = predictor
        self._timeout_s = timeout_s
        self._niceness = niceness
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._paused_until_s = 0.0  # monotonic

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def consider(self, service: str, quantile: float) -> None:
        """Begins to learn when that is due and nothing is being learned. Returns at once."""
        if self._closed or time.monotonic() < self._paused_until_s or not self._predictor.due(service) or self.busy:
            return
        records = self._predictor.records(service)
        self._thread = threading.Thread(
            target=self._learn, args=(service, quantile, records), name="length-trainer", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Waits for what is being learned."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Ends what is being learned."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        self.join(1.0)

    def _learn(self, service: str, quantile: float, records: bytes) -> None:
        before_s = _children_s()
        try:
            self._install(service, self._run(quantile, records))
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            self.failures += 1
            if not self._closed:
                log.warning("output lengths of %s could not be learned: %s", service, error)
        finally:
            self._paused_until_s = time.monotonic() + PAUSE_RATIO * (_children_s() - before_s)

    def _run(self, quantile: float, records: bytes) -> dict[str, Any]:
        command = [sys.executable, "-m", __name__, repr(quantile), str(self._niceness)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            self._process = process
            try:
                if self._closed:  # while it was being started
                    process.kill()
                out, err = process.communicate(records, self._timeout_s)
            finally:
                self._process = None
                process.kill()
        if process.returncode != 0:
            raise ValueError(err.decode(errors="replace").strip()[-500:] or f"exit status {process.returncode}")
        answer: dict[str, Any] = json.loads(out)
        return answer

    def _install(self, service: str, answer: dict[str, Any]) -> None:
        trees = None if answer["trees"] is None else LengthTrees.from_json(answer["trees"])
        boosted, history = answer["boosted"], answer["history"]
        lesson = Lesson(service, trees is not None, boosted["mae_tokens"], history["mae_tokens"], boosted["tested_on"])
        self._predictor.install(service, trees)
        self.lessons[service] = lesson
        log.info(
            "output lengths of %s: boosting is off by %.0f tokens, history by %.0f; %s is used",
            service,
            lesson.boosted_mae_tokens,
            lesson.history_mae_tokens,
            "boosting" if lesson.kept else "history",
        )


def _children_s() -> float:
    """Returns the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """The process: learns from what stdin brings."""
    os.nice(int(sys.argv[2]))
    from core.predictors import length_training

    records = length_training.records_from_bytes(sys.stdin.buffer.read())
    learned = length_training.learn(records, float(sys.argv[1]))
    answer = {
        "trees": None if learned.trees is None else learned.trees.to_json(),
        "boosted": asdict(learned.boosted),
        "history": asdict(learned.history),
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
