"""Workloads: recorded traces, and synthetic traffic with the statistics of a published one."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

import numpy as np

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

# Quantiles of the lengths in AzureLLMInferenceTrace_conv (19,366 requests of one hour in November 2023;
# AzurePublicDataset, CC-BY; cite Splitwise, ISCA 2024). Computed from the trace; linear in between.
QUANTILE_SHARES = (0.0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
PROMPT_QUANTILES = (2, 29, 181, 207, 396, 1020, 1189, 2735, 4083, 4142, 14050)
OUTPUT_QUANTILES = (7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1000)
_BLOCK = 1024  # requests drawn at once


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: seconds after the first one (or after the start), and its lengths."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class TraceError(ValueError):
    """A trace that cannot be used; the message names the file and, for a bad row, the line."""


def read_azure_trace(path: str | Path) -> list[TraceRequest]:
    """Reads a trace in the Azure format: TIMESTAMP, ContextTokens, GeneratedTokens; `.csv` or `.csv.gz`.

    Raises:
        TraceError: The file cannot be read, is empty, lacks a column, or has a bad row (named by its line).
    """
    path = Path(path)
    try:
        with _open(path) as lines:
            requests = list(_rows(path, lines))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not requests:
        raise TraceError(f"{path}: the trace is empty")
    return requests


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _rows(path: Path, lines: IO[str]) -> Iterator[TraceRequest]:
    reader = csv.DictReader(lines)
    if reader.fieldnames is None:
        raise TraceError(f"{path}: the trace is empty")
    if missing := [column for column in COLUMNS if column not in reader.fieldnames]:
        raise TraceError(f"{path}, line 1: column {missing[0]} is missing; expected {', '.join(COLUMNS)}")
    first: datetime | None = None
    previous: datetime | None = None
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        at = _timestamp(where, row["TIMESTAMP"])
        if previous is not None and _comparable(where, at, previous) and at < previous:
            raise TraceError(f"{where}: TIMESTAMP '{row['TIMESTAMP']}' is earlier than the row before")
        previous = at
        first = first or at
        prompt, output = (_tokens(where, column, row[column]) for column in COLUMNS[1:])
        yield TraceRequest((at - first).total_seconds(), prompt, output)


def _comparable(where: str, at: datetime, previous: datetime) -> bool:
    if (at.tzinfo is None) != (previous.tzinfo is None):
        raise TraceError(f"{where}: some timestamps name a time zone and some do not")
    return True


def _timestamp(where: str, text: str | None) -> datetime:
    try:
        return datetime.fromisoformat((text or "").strip())
    except ValueError:
        raise TraceError(f"{where}: TIMESTAMP '{text or ''}' is not a time like 2023-11-16 18:15:46.680590") from None


def _tokens(where: str, column: str, text: str | None) -> int:
    try:
        tokens = int((text or "").strip())
    except ValueError:
        raise TraceError(f"{where}: {column} '{text or ''}' is not a whole number") from None
    if tokens <= 0:
        raise TraceError(f"{where}: {column} must be at least 1, not {tokens}")
    return tokens


def azure_conv_like(seed: int, rate_rps: float, max_prompt: int = PROMPT_QUANTILES[-1]) -> Iterator[TraceRequest]:
    """Endless traffic like the Azure conversation trace: Poisson arrivals, lengths from its published quantiles.

    Prompt and output are drawn independently (the trace's correlation of the two is not modelled). The same seed gives
    the same requests.

    Args:
        rate_rps: Mean arrivals a second.
        max_prompt: Longer prompts are cut to this many tokens.
    """
    if rate_rps <= 0.0:
        raise ValueError(f"the rate must be above 0, not {rate_rps}")
    if max_prompt < 1:
        raise ValueError(f"max_prompt must be at least 1, not {max_prompt}")
    return _azure_conv_like(np.random.default_rng(seed), rate_rps, max_prompt)


def _azure_conv_like(rng: np.random.Generator, rate_rps: float, max_prompt: int) -> Iterator[TraceRequest]:
    now_s = 0.0
    while True:
        gaps_s = rng.exponential(1.0 / rate_rps, _BLOCK).tolist()
        prompts = np.interp(rng.random(_BLOCK), QUANTILE_SHARES, PROMPT_QUANTILES).round().astype(int).tolist()
        outputs = np.interp(rng.random(_BLOCK), QUANTILE_SHARES, OUTPUT_QUANTILES).round().astype(int).tolist()
        for gap_s, prompt, output in zip(gaps_s, prompts, outputs, strict=True):
            now_s += gap_s
            yield TraceRequest(now_s, min(prompt, max_prompt), output)
