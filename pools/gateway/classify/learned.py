"""What a gateway has learned, kept over restarts: bytes a token, output lengths and the trees over them.

A file of JSON lines for each process, written every minute and at the end, and read before it serves. A process that
has none begins with the newest of the others. Nothing of it is needed: a file that cannot be read is left aside, and
what it had is learned anew. Prompts that were seen are not kept: their digests hold within one process only.

Nothing here stops the event loop: what is to be kept is copied in small steps, and a thread writes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from core.predictors.boosted_lengths import FEATURES, LengthTrees

from .classifier import Classifier
from .prompt_tokens import TokenFitState

log = logging.getLogger(__name__)

VERSION = 1
PERIOD_S = 60.0
_STEP_S = 0.0005  # of copying, before the loop has its turn
_PART_BYTES = 128 << 10
_SUFFIX = ".learned.jsonl"


class _Part(msgspec.Struct, frozen=True, tag_field="kind"):
    """A line of the file."""


class _Head(_Part, frozen=True, tag="head"):
    """`features`: what records and trees are over; others cannot be read."""

    version: int
    features: tuple[str, ...]


class _Prompts(_Part, frozen=True, tag="prompts"):
    service: str
    chat: bool
    line: TokenFitState


class _Outputs(_Part, frozen=True, tag="outputs"):
    service: str
    tenant: int | None
    octave: int | None
    tokens: list[int]


class _Records(_Part, frozen=True, tag="records"):
    """A piece of a service's records, in order. `since`: those that came since trees were learned; None: never."""

    service: str
    since: int | None
    rows: bytes


class _Trees(_Part, frozen=True, tag="trees"):
    service: str
    trees: LengthTrees


_LINE = msgspec.json.Decoder(_Head | _Prompts | _Outputs | _Records | _Trees)
_ENCODER = msgspec.json.Encoder()


class Learned:
    """The file of one process. `recall` before it serves; `keep` as a task; `save` when it is over."""

    def __init__(self, folder: Path, name: str, classifier: Classifier) -> None:
        """Makes the folder. Raises OSError when it cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}{_SUFFIX}"
        self._classifier = classifier
        self._written: int | None = None  # checksum

    def recall(self) -> bool:
        """Takes in what was learned before; whether there was anything. Blocks, for a third of a second at most."""
        path = self._path if self._path.exists() else _newest(self._path.parent)
        if path is None:
            return False
        try:
            parts = [_LINE.decode(line) for line in path.read_bytes().splitlines()]
            _check(parts)
            for part in parts:
                self._take(part)
            self._take_records([part for part in parts if isinstance(part, _Records)])
        except Exception as error:  # whatever is wrong with the file, the gateway is to start
            log.warning("what was learned before is left aside, and learned anew: %s: %s", path, error)
            return False
        log.info("%s holds what was learned before", path)
        return True

    async def keep(self) -> None:
        """Writes the file now and then."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.save()
            except Exception:
                log.exception("what was learned cannot be kept")

    async def save(self) -> None:
        """Writes the file if there is anything new. A disk that fails is logged, no more."""
        lines = await self._copied()
        checksum = 0
        for line in lines:
            checksum = zlib.crc32(line, checksum)
        if len(lines) == 1 or checksum == self._written:
            return
        try:
            await asyncio.to_thread(_write, self._path, lines)
        except OSError as error:
            log.warning("what was learned cannot be kept: %s", error)
        else:
            self._written = checksum

    async def _copied(self) -> list[bytes]:
        found, begun_s = [], time.perf_counter()
        for part in self._parts():
            found.append(_ENCODER.encode(part) + b"\n")
            if time.perf_counter() - begun_s > _STEP_S:
                await asyncio.sleep(0)
                begun_s = time.perf_counter()
        return found

    def _parts(self) -> Iterator[_Part]:
        """Yields parts in steps of a millisecond at most; what is learned between two of them may or may not be in."""
        classifier = self._classifier
        yield _Head(VERSION, FEATURES)
        for (service, chat), fit in classifier.estimator.fits().items():
            if fit.count:
                yield _Prompts(service, chat, fit)
        history = classifier.history
        for bucket in history.buckets():
            yield _Outputs(*bucket, history.outputs(bucket))
        boosted = classifier.boosted
        for service in boosted.services():
            rows, since = boosted.kept(service)
            for start in range(0, len(rows), _PART_BYTES):
                yield _Records(service, since, rows[start : start + _PART_BYTES])
            trees = boosted.trees(service)
            if trees is not None:
                yield _Trees(service, trees)

    def _take(self, part: _Part) -> None:
        """Raises ValueError."""
        classifier = self._classifier
        if isinstance(part, _Prompts):
            classifier.estimator.restore(part.service, part.chat, part.line)
        elif isinstance(part, _Outputs):
            classifier.history.restore((part.service, part.tenant, part.octave), part.tokens)
        elif isinstance(part, _Trees):
            part.trees.check()
            classifier.boosted.install(part.service, part.trees)

    def _take_records(self, parts: list[_Records]) -> None:
        """Raises ValueError."""
        for service, since in {part.service: part.since for part in parts}.items():
            rows = b"".join(part.rows for part in parts if part.service == service)
            self._classifier.boosted.restore(service, rows, since)


def _check(parts: list[_Part]) -> None:
    """Raises ValueError when the file is of another version of this, or over other features."""
    head = parts[0] if parts else None
    if not isinstance(head, _Head):
        raise ValueError("it has no head")
    if head.version != VERSION:
        raise ValueError(f"it is of version {head.version}, not {VERSION}")
    if head.features != FEATURES:
        raise ValueError("it is over other features of requests")


def _newest(folder: Path) -> Path | None:
    with contextlib.suppress(OSError):
        return max(folder.glob("*" + _SUFFIX), key=lambda path: path.stat().st_mtime, default=None)
    return None


def _write(path: Path, lines: list[bytes]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as file:
        file.writelines(lines)
    draft.replace(path)
