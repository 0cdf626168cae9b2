"""Recorded traces, streamed: Azure's format (2023 and 2024), BurstGPT's and a plain one, also compressed with gzip."""

from __future__ import annotations

import contextlib
import csv
import gzip
import logging
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, cast

import numpy as np

from core.simulator.kernel.arrivals import BLOCK_REQUESTS, Arrivals, Stream
from core.simulator.workload import parse
from core.simulator.workload.columns import Ints, block_of, recut

CHUNK_BYTES = 4 << 20
LINE_BYTES = 1 << 20  # no line of a trace is longer
MOST_TOKENS = 10**15 - 1  # of one request
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_log = logging.getLogger(__name__)


class TraceError(ValueError):
    """A trace that cannot be used; the message names the file and, for a bad row, the line."""


@dataclass(slots=True)
class Tally:
    """Counts what became of a trace's rows, filled as they are read.

    `failed`: rows left out, see `Format.drops_failed`.
    """

    failed: int = 0


@dataclass(frozen=True, slots=True)
class Format:
    """A known layout of columns, recognised by their names; their order does not matter, and there may be more.

    `drops_failed`: rows without output tokens are requests that failed when they were recorded. They are left out.
    `predicted`: a column that there may be: output tokens as they were predicted then; empty: nothing was.
    """

    name: str
    columns: tuple[str, ...]
    time: str
    prompt: str
    output: str
    predicted: str = ""
    in_seconds: bool = False
    drops_failed: bool = False

    @property
    def needed(self) -> tuple[str, str, str]:
        return self.time, self.prompt, self.output


AZURE = Format(
    name="Azure",
    columns=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    time="TIMESTAMP",
    prompt="ContextTokens",
    output="GeneratedTokens",
    predicted="PredictedTokens",
)
# HPMLL/BurstGPT, releases 1 and 2 (the second adds Session ID and Elapsed time): times are seconds since the first day.
BURSTGPT = Format(
    name="BurstGPT",
    columns=("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"),
    time="Timestamp",
    prompt="Request tokens",
    output="Response tokens",
    in_seconds=True,
    drops_failed=True,
)
# What one writes oneself: seconds since the first request, or since any other instant.
PLAIN = Format(
    name="plain",
    columns=("arrival_s", "prompt_tokens", "output_tokens"),
    time="arrival_s",
    prompt="prompt_tokens",
    output="output_tokens",
    predicted="predicted_tokens",
    in_seconds=True,
)
FORMATS = (AZURE, BURSTGPT, PLAIN)


def read_trace(path: str | Path, tally: Tally | None = None, chunk_bytes: int = CHUNK_BYTES) -> Stream:
    """Reads the requests of a trace in blocks; arrival_s counts from the first one.

    A few chunks of the file are in memory.

    Times are kept to the microsecond, further digits are cut off.

    Args:
        path: `.csv` or `.csv.gz`; the header tells the format.
        tally: filled while the stream is read. Rows that are left out are logged as a warning as well.
        chunk_bytes: read at once; the result does not depend on it.

    Raises:
        TraceError: The file cannot be read, is empty, has an unknown header, or has a bad row (named by its line). The
            header is looked at now; rows are when the stream comes to them.
    """
    path = Path(path)
    with _translated(path), _open(path) as file:
        lines = _Lines(path, file.readline(LINE_BYTES))
    return recut(_blocks(path, lines, tally if tally is not None else Tally(), chunk_bytes), BLOCK_REQUESTS)


def _blocks(path: Path, lines: _Lines, tally: Tally, chunk_bytes: int) -> Stream:
    first_us: int | None = None
    rest = b""
    with _translated(path), _open(path) as file:
        file.readline(LINE_BYTES)
        try:
            while chunk := file.read(chunk_bytes):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if len(rest) > LINE_BYTES:
                    raise TraceError(f"{path}: has a line of more than {LINE_BYTES >> 20} MiB; is it a CSV file?")
                if (found := lines.parse(whole + newline))[0].size:
                    first_us = int(found[0][0]) if first_us is None else first_us
                    yield _block(first_us, *found)
            if (found := lines.parse(rest + b"\n" if rest else b""))[0].size:
                first_us = int(found[0][0]) if first_us is None else first_us
                yield _block(first_us, *found)
        finally:
            tally.failed += lines.failed
            if lines.failed:
                _log.warning("%s: left out %d requests without output tokens (they had failed)", path, lines.failed)
    if first_us is None:
        failed = f": all of its {lines.failed} requests had failed" if lines.failed else ""
        raise TraceError(f"{path}: the trace is empty{failed}")


def _block(first_us: int, at_us: Ints, prompt: Ints, output: Ints, predicted: Ints | None) -> Arrivals:
    return block_of((at_us - first_us) / 1e6, prompt, output, predicted)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turns what a file can do wrong into a TraceError."""
    try:
        yield
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb"))


class _Lines:
    """Parses lines in order: the well-formed ones compiled, the others (quoted, spaced, wrong) one by one."""

    def __init__(self, path: Path, header: bytes) -> None:
        self._path = path
        names = [name.strip() for name in _fields(header.decode("utf-8-sig"))]
        self._format = _recognised(path, names)
        places = [names.index(name) for name in self._format.needed]
        guess = self._format.predicted
        self._columns = np.array([*places, names.index(guess) if guess in names else -1], np.int64)
        self._state = np.zeros(parse.SLOTS, np.int64)
        self._state[parse.LINES], self._state[parse.LAST_US] = 1, parse.NEVER_US

    @property
    def failed(self) -> int:
        return int(self._state[parse.FAILED])

    def parse(self, text: bytes) -> tuple[Ints, Ints, Ints, Ints | None]:
        """Parses whole lines into times in microseconds, prompt, output and predicted tokens, one entry a row each."""
        room = text.count(b"\n")
        columns = [np.empty(room, np.int64) for _ in range(4)]
        state, form = self._state, self._format
        state[parse.POSITION] = state[parse.ROWS] = 0
        array = np.frombuffer(text, np.uint8) if text else np.empty(0, np.uint8)
        while not parse.parse(array, self._columns, form.in_seconds, form.drops_failed, state, *columns):
            row = self._unusual(text)
            if row is not None:
                for column, value in zip(columns, row, strict=True):
                    column[state[parse.ROWS]] = value
                state[parse.ROWS] += 1
        at_us, prompt, output, predicted = (column[: int(state[parse.ROWS])] for column in columns)
        return at_us, prompt, output, predicted if self._columns[3] >= 0 else None

    def _unusual(self, text: bytes) -> tuple[int, int, int, int] | None:
        """Reads the line where the compiled reader stopped: its row (None: it failed when recorded), or what
        is wrong."""
        state, form = self._state, self._format
        begin = int(state[parse.POSITION])
        end = text.index(b"\n", begin)
        where = f"{self._path}, line {int(state[parse.LINES]) + 1}"
        fields = _fields(text[begin:end].decode())
        values = [fields[c].strip() if 0 <= c < len(fields) else "" for c in self._columns.tolist()]
        time, prompt, output, guess = values
        at_us, zone = _seconds(where, form.time, time) if form.in_seconds else _date(where, form.time, time)
        if state[parse.ZONE] not in (parse.UNKNOWN, zone):
            raise TraceError(f"{where}: some timestamps name a time zone and some do not")
        if at_us < state[parse.LAST_US]:
            raise TraceError(f"{where}: {form.time} '{time}' is earlier than the row before; sort the trace by it")
        row = None
        if form.drops_failed and output == "0":
            state[parse.FAILED] += 1
        else:
            tokens = _tokens(where, form.prompt, prompt), _tokens(where, form.output, output)
            row = at_us, *tokens, _tokens(where, form.predicted, guess) if guess else 0
        state[parse.LAST_US], state[parse.ZONE] = at_us, zone
        state[parse.LINES] += 1
        state[parse.POSITION] = end + 1
        return row


def _fields(line: str) -> list[str]:
    return next(csv.reader([line]), [])


def _recognised(path: Path, names: list[str]) -> Format:
    if not names:
        raise TraceError(f"{path}: the trace is empty")
    found = max(FORMATS, key=lambda form: sum(name in names for name in form.columns))
    if not any(name in names for name in found.columns):
        known = "; ".join(f"{form.name}: {', '.join(form.columns)}" for form in FORMATS)
        raise TraceError(f"{path}, line 1: unknown header '{','.join(names)[:200]}'; known are {known}")
    if missing := [name for name in found.needed if name not in names]:
        raise TraceError(f"{path}, line 1: column {missing[0]} is missing; expected {', '.join(found.columns)}")
    return found


def _date(where: str, column: str, text: str) -> tuple[int, int]:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(f"{where}: {column} '{text}' is not a time like 2023-11-16 18:15:46.680590") from None
    zone = parse.LOCAL if found.tzinfo is None else parse.ZONED
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND, zone


def _seconds(where: str, column: str, text: str) -> tuple[int, int]:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < 1e12:
        raise TraceError(f"{where}: {column} '{text}' is not a number of seconds")
    return round(1e6 * seconds), parse.LOCAL


def _tokens(where: str, column: str, text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        raise TraceError(f"{where}: {column} '{text}' is not a whole number") from None
    if tokens < 1:
        raise TraceError(f"{where}: {column} must be at least 1, not {tokens}")
    if tokens > MOST_TOKENS:
        raise TraceError(f"{where}: {column} must be at most {MOST_TOKENS}, not {tokens}")
    return tokens


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: seconds after the first one (or after the start), and its lengths."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def rows(stream: Stream) -> Iterator[TraceRequest]:
    """Yields a stream's requests one by one, for those who send them."""
    for block in stream:
        columns = block.arrival_s.tolist(), block.prompt_tokens.tolist(), block.output_tokens.tolist()
        for at_s, prompt, output in zip(*columns, strict=True):
            yield TraceRequest(at_s, prompt, output)


def read_azure_trace(path: str | Path) -> list[TraceRequest]:
    """Reads a whole trace into memory, in either format: see `read_trace`, which streams it.

    Raises:
        TraceError: The file cannot be read, is empty, lacks a column, or has a bad row (named by its line).
    """
    return list(rows(read_trace(path)))
