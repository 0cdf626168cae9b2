"""The models' tokenizers, each in a process of its own: read and asked beside the gateway, never by its event loop.

To read a large vocabulary takes a second, all of it with Python's lock held: in the gateway's own process nobody would
be served meanwhile, and model cards name tokenizers while it serves. This module, run with a file, is that
process: lists of texts in as JSON lines, numbers of tokens out.
"""

from __future__ import annotations

import logging
import select
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from core.ports import AdapterError, PermanentError, RetryableError

from .prompt_tokens import HuggingFaceTokenizer, TokenizerThread

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 60.0
COUNT_TIMEOUT_S = 2.0  # nobody waits that long (TokenizerThread.deadline_s): a process that does not answer is ended


class _Answer(msgspec.Struct):
    tokens: int = 0
    error: str = ""


class TokenizerProcess:
    """A `tokenizer.json` in a process of its own. Fills the port TextTokenizer; of one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Starts the process, and waits until it has read the file: a second or two, without Python's lock.

        Raises AdapterError when the package or the file is missing, or the file is no tokenizer.
        """
        if not path.is_file():
            raise PermanentError(f"there is no file {path}")
        pipe = subprocess.PIPE
        command = (sys.executable, "-m", __name__, str(path))
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0)
        try:
            self._read(LOAD_TIMEOUT_S)
        except AdapterError:
            self.close()
            raise

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def count(self, texts: Sequence[str]) -> int:
        """Raises AdapterError. One that does not answer is dead from then on."""
        try:
            _pipe(self._process.stdin).write(msgspec.json.encode(list(texts)) + b"\n")
        except OSError as error:
            raise RetryableError(f"the tokenizer's process has ended: {error}") from error
        return self._read(COUNT_TIMEOUT_S).tokens

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            _pipe(pipe).close()

    def _read(self, timeout_s: float) -> _Answer:
        """Reads the next line; an answer is far smaller than what a pipe takes at once."""
        stdout = _pipe(self._process.stdout)
        line = stdout.readline() if select.select([stdout], [], [], timeout_s)[0] else b""
        if not line.endswith(b"\n"):
            self._process.kill()
            raise RetryableError(f"the tokenizer's process does not answer within {timeout_s:g} s, or has ended")
        answer = msgspec.json.decode(line, type=_Answer)
        if answer.error:
            raise PermanentError(answer.error)
        return answer


class ModelTokenizers:
    """Sees to it that each service has the tokenizer that its model card names, or the command line.

    Args:
        given: Of the command line, by service: they go before the cards'.
        thread: That asks them.
    """

    def __init__(self, given: Mapping[str, Path], thread: TokenizerThread) -> None:
        self._given = dict(given)
        self._thread = thread
        self._files: dict[str, Path] = {}  # by service: loaded, or being loaded, or not to be had
        self._loaded: dict[str, TokenizerProcess] = {}
        self._lock = threading.Lock()
        self._closed = False

    def keep(self, named: Mapping[str, str]) -> None:
        """Keeps up with the files that model cards name, by service; empty: none.

        Called now and then; returns at once.
        """
        wanted = {service: Path(file) for service, file in named.items() if file} | self._given
        for service in [service for service, tokenizer in self._loaded.items() if tokenizer.dead]:
            log.warning("the tokenizer of %s has ended and is started again", service)
            self._forget(service)
        for service, known in list(self._files.items()):
            if wanted.get(service) != known:
                self._forget(service)
        for service, path in wanted.items():
            if service not in self._files:
                self._files[service] = path
                # A daemon: a gateway that ends does not wait for it.
                threading.Thread(target=self._load, args=(service, path), name="tokenizers", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for service in list(self._files):
            self._forget(service)

    def _forget(self, service: str) -> None:
        with self._lock:
            self._files.pop(service, None)
            tokenizer = self._loaded.pop(service, None)
        self._thread.serve(service, None)
        if tokenizer is not None:
            tokenizer.close()

    def _load(self, service: str, path: Path) -> None:
        """Reads a tokenizer, in a thread of its own."""
        try:
            tokenizer = TokenizerProcess(path)
        except (AdapterError, OSError, msgspec.DecodeError) as error:
            log.warning("prompts of %s are estimated, and not counted near a border of classes: %s", service, error)
            return
        with self._lock:
            wanted = not self._closed and self._files.get(service) == path
            if wanted:
                self._loaded[service] = tokenizer
                self._thread.serve(service, tokenizer)
        if wanted:
            log.info("prompts of %s near a border of classes are counted by %s", service, path)
        else:
            tokenizer.close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "it was started with pipes"
    return pipe


def main() -> None:
    """The process: lives until its input ends, as it does when the gateway ends, however it ends."""
    out = sys.stdout.buffer
    try:
        tokenizer = HuggingFaceTokenizer(Path(sys.argv[1]))
    except PermanentError as error:
        out.write(msgspec.json.encode(_Answer(error=str(error))) + b"\n")
        return
    out.write(msgspec.json.encode(_Answer()) + b"\n")
    out.flush()
    for line in sys.stdin.buffer:
        try:
            answer = _Answer(tokenizer.count(msgspec.json.decode(line, type=list[str])))
        except (PermanentError, msgspec.DecodeError) as error:
            answer = _Answer(error=str(error))
        out.write(msgspec.json.encode(answer) + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
