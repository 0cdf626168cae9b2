"""How long a month's FOCUS export of a million rows takes, and how much memory: lines to CSV, and to Parquet.

    python -m benchmarks.reports [--rows 1000000] [--json]

Lines are made up beforehand in a file and read back while the export runs, so that what is timed has no more of them in
memory than an export from the ledger has; what reading them takes is measured by itself, and is in the total.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from telemetry.reports.asked import Asked
from telemetry.reports.basis import Basis
from telemetry.reports.files import make_files
from telemetry.reports.lines import ReportLine
from tests.fakes import reports as fake

MONTH = "2026-10"
CHUNK_ROWS = 5_000
LIMIT_S = 30.0


def focus_export(rows: int, formats: tuple[str, ...] = ("focus-csv", "focus-parquet")) -> dict[str, Any]:
    """Times an export of about `rows` rows in a process of its own, so that its memory is its own."""
    with tempfile.TemporaryDirectory(prefix="greenserve-bench-") as folder:
        asked = Asked(MONTH, formats=formats)
        count, basis = _prepare(asked, rows, Path(folder) / "lines")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return {"rows": count, **pool.apply(_export, (asked, basis, Path(folder)))}


def _prepare(asked: Asked, rows: int, target: Path) -> tuple[int, Basis]:
    """A month of three sites with twelve pools, and as many tenants as it takes."""
    hours = 31 * 24
    tenants = [f"tenant-{n}" for n in range(max(1, rows // (hours * 12) - 2))]
    count, first = 0, []
    with target.open("wb") as file:
        chunk: list[ReportLine] = []
        for line in fake.lines(asked, tenants):
            chunk.append(line)
            if len(chunk) == CHUNK_ROWS:
                first = first or chunk
                count += len(chunk)
                pickle.dump(chunk, file, protocol=pickle.HIGHEST_PROTOCOL)
                chunk = []
        count += len(chunk)
        pickle.dump(chunk, file, protocol=pickle.HIGHEST_PROTOCOL)
    return count, fake.basis(asked, first or chunk)


def _stored(path: Path) -> Iterator[ReportLine]:
    with path.open("rb") as file:
        while True:
            try:
                yield from pickle.load(file)
            except EOFError:
                return


def _export(asked: Asked, basis: Basis, folder: Path) -> dict[str, Any]:
    before_mib = _peak_mib()
    began = time.perf_counter()
    for _ in _stored(folder / "lines"):
        pass
    read_s = time.perf_counter() - began
    out = folder / "out"
    out.mkdir()
    began, busy_s = time.perf_counter(), time.process_time()
    _, files = make_files(asked, basis, _stored(folder / "lines"), out)
    total_s, cpu_s = time.perf_counter() - began, time.process_time() - busy_s
    return {
        "total_s": round(total_s, 2),
        "cpu_s": round(cpu_s, 2),  # of all threads: what the wall shows where nobody else is on the machine
        "reading_lines_s": round(read_s, 2),
        "limit_s": LIMIT_S,
        "peak_mib": round(_peak_mib()),
        "peak_before_mib": round(before_mib),
        "files": {file.format: {"rows": file.rows, "mib": round(file.size_bytes / 2**20, 1)} for file in files},
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = focus_export(options.rows)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
