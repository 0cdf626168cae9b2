"""Prompts and the lengths of their answers, from a file; and which of them train, stop and test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars
from numpy.typing import NDArray

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".jsonl", ".ndjson")
STOP_SHARE, TEST_SHARE = 0.15, 0.15  # of distinct prompts
LEAST_ROWS = 100

Ints = NDArray[np.int64]


class BadData(ValueError):
    """Data that nothing can be trained on: what is wrong with it, and the remedy."""


@dataclass(frozen=True, slots=True)
class LengthData:
    """Holds (n,) prompts, each with the tokens of its answer."""

    prompts: tuple[str, ...]
    tokens: Ints
    sha256: str = ""  # of the file

    def take(self, rows: Ints) -> LengthData:
        return LengthData(tuple(self.prompts[row] for row in rows), self.tokens[rows], self.sha256)


@dataclass(frozen=True, slots=True)
class Parts:
    """Data for gradients, for early stopping, and for the scores. No prompt is in two of them."""

    train: LengthData
    stop: LengthData
    test: LengthData


def read(path: Path, text: str, length: str) -> LengthData:
    """Reads two columns of a CSV (.csv, .csv.gz), Parquet or JSONL file; rows that lack one are left out.

    Raises BadData where there is no such file or column, or too few rows.
    """
    columns = _columns(path)
    for option, name in (("--text", text), ("--length", length)):
        if name not in columns:
            shown = ", ".join(columns[:8]) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
            raise BadData(f"{option}: {path} has no column {name!r}; it has {shown}")
    try:
        frame = _frame(path, [text, length]).select(
            polars.col(text).cast(polars.String).alias("prompt"), polars.col(length).cast(polars.Int64).alias("tokens")
        )
    except polars.exceptions.PolarsError as error:
        raise BadData(f"{path} cannot be read as text and whole numbers: {str(error).splitlines()[0]}") from None
    frame = frame.drop_nulls().filter((polars.col("tokens") >= 1) & (polars.col("prompt") != ""))
    if len(frame) < LEAST_ROWS:
        raise BadData(f"{path} has {len(frame)} rows with a prompt and a length of at least 1; {LEAST_ROWS} are needed")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return LengthData(tuple(frame["prompt"].to_list()), frame["tokens"].to_numpy().astype(np.int64), digest)


def split(data: LengthData, seed: int) -> Parts:
    """Splits by prompt, so that rows with the same prompt are in one part. The same seed gives the same parts."""
    numbers: dict[str, int] = {}
    prompt_of = np.asarray([numbers.setdefault(prompt, len(numbers)) for prompt in data.prompts])
    place = np.random.default_rng(seed).permutation(len(numbers))[prompt_of] / len(numbers)
    test, stop = place < TEST_SHARE, (place >= TEST_SHARE) & (place < TEST_SHARE + STOP_SHARE)
    train = ~(test | stop)
    parts = [data.take(np.flatnonzero(part)) for part in (train, stop, test)]
    if not all(part.prompts for part in parts):
        raise BadData(f"{len(numbers)} distinct prompts are too few to train, to stop and to test on")
    return Parts(*parts)


def _columns(path: Path) -> list[str]:
    if not path.is_file():
        raise BadData(f"--data: there is no file {path}")
    if not path.name.endswith(SUFFIXES):
        raise BadData(f"--data: {path} ends in none of {', '.join(SUFFIXES)}")
    try:
        return _scan(path).collect_schema().names()
    except (polars.exceptions.PolarsError, OSError) as error:
        raise BadData(f"--data: {path} cannot be read: {str(error).splitlines()[0]}") from None


def _scan(path: Path) -> polars.LazyFrame:
    if path.name.endswith(".parquet"):
        return polars.scan_parquet(path)
    if path.name.endswith((".jsonl", ".ndjson")):
        return polars.scan_ndjson(path)
    return polars.scan_csv(path, infer_schema=False)


def _frame(path: Path, columns: list[str]) -> polars.DataFrame:
    frame = _scan(path).select(list(dict.fromkeys(columns))).collect()
    blank = [polars.when(polars.col(name) != "").then(polars.col(name)).alias(name) for name in columns]
    return frame.select(blank) if path.name.endswith((".csv", ".csv.gz")) else frame
