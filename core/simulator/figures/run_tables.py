"""A run as Parquet tables, written while it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import polars
from numpy.typing import ArrayLike

from core.simulator.kernel import kernel
from core.simulator.kernel.objectives import Judge, Labels, Rows
from core.simulator.kernel.outcome import Outcome, Sink

PART_ROWS = 131_072  # about 30 MB in memory

_STATES = {kernel.AHEAD: "ahead", kernel.IN_FLIGHT: "in_flight", kernel.DONE: "finished", kernel.REJECTED: "rejected"}


class Tee:
    """A Sink that gives the same rows to several."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = tuple(sinks)

    def take(self, rows: Rows) -> None:
        for sink in self._sinks:
            sink.take(rows)


class ParquetSink:
    """Writes `requests.parquet/part-00000.parquet` and so on, a part for every 131,072 requests.

    Polars and others read the folder as one table. Each part is there whole or not at all, so that a run that is cut
    off leaves what can be read. Rows come in no particular order: sort by `number`.
    """

    def __init__(self, folder: Path, labels: Labels) -> None:
        """Makes the folder, and removes the tables of an earlier run from it.

        Raises:
            OSError: The folder cannot be made or written to.
        """
        self._folder, self._labels = folder, labels
        self._judge = Judge(labels.slos)
        self._parts = folder / "requests.parquet"
        self._waiting: list[Rows] = []
        self._rows, self._written = 0, 0
        if self._parts.is_file():
            self._parts.unlink()
        self._parts.mkdir(parents=True, exist_ok=True)
        for old in self._parts.glob("part-*.parquet"):
            old.unlink()

    def take(self, rows: Rows) -> None:
        self._waiting.append(rows)
        self._rows += len(rows)
        if self._rows >= PART_ROWS:
            self._write_waiting()

    def close(self, outcome: Outcome) -> None:
        """Writes the rest of the requests, and energy, instances and decisions."""
        if self._rows or not self._written:
            self._write_waiting()
        self._write(self._energy(outcome), "energy.parquet")
        self._write(_instances(outcome), "instances.parquet")
        columns = {"at_s": polars.Float64, "loop": polars.String, "reason": polars.String}
        schema = columns | {"summary": polars.String, "commands": polars.Int64}
        rows = [(d.at_s, d.loop, d.reason, d.summary, d.commands) for d in outcome.decisions]
        self._write(polars.DataFrame(rows, schema=schema, orient="row"), "decisions.parquet")

    def _write_waiting(self) -> None:
        rows = np.concatenate([np.zeros(0, kernel.REQUEST), *self._waiting])
        self._waiting, self._rows = [], 0
        for first in range(0, max(1, len(rows)), PART_ROWS):
            table = self._requests(rows[first : first + PART_ROWS])
            self._write(table, f"requests.parquet/part-{self._written:05}.parquet")
            self._written += 1

    def _write(self, table: polars.DataFrame, name: str) -> None:
        unfinished = self._folder / ".unfinished"  # not among the parts: readers take all that is there
        table.write_parquet(unfinished)
        unfinished.replace(self._folder / name)

    def _requests(self, rows: Rows) -> polars.DataFrame:
        """Builds one row a request; null: there is none (not finished, or a single token has neither TPOT nor ITL)."""
        found, labels = self._judge(rows), self._labels
        itl_p50_s = np.where(np.isnan(found.itl_p99_s), np.nan, rows["itl_p50_s"])
        ended = found.done | found.rejected
        columns: dict[str, ArrayLike | polars.Series] = {
            "number": rows["number"],
            "arrival_s": rows["arrival_s"],
            "service": _named(labels.services, rows["service"]),
            "tenant": _named(labels.tenants, rows["tenant"]),
            "prompt_tokens": rows["prompt"],
            "cached_tokens": rows["cached"],
            "output_tokens": rows["output"],
            "predicted_tokens": rows["predicted"],
            "request_class": _named(labels.classes, rows["request_class"]),
            "predicted_class": _named(labels.classes if labels.cells is None else labels.cells, rows["cell"]),
            "pool": _named(labels.pools, rows["pool"]),
            "instance": polars.Series(rows["instance"]).replace(kernel.NONE, None),
            "status": _named([_STATES[n] for n in range(len(_STATES))], rows["status"]),
            "generated_tokens": rows["generated"],
            "ttft_s": found.ttft_s,
            "tpot_s": found.tpot_s,
            "itl_p50_s": itl_p50_s,
            "itl_p99_s": found.itl_p99_s,
            "itl_max_s": found.itl_max_s,
            "e2e_s": found.e2e_s,
            "longest_wait_s": found.longest_wait_s,
            "alone_s": rows["lat_s"],
            "preemptions": rows["preemptions"],
            "retries": rows["retries"],
            "timely_tokens": rows["timely"],
            "slo_met": polars.Series(found.met).set(polars.Series(~ended), None),
            "energy_j": rows["energy_j"],
        }
        return polars.DataFrame(columns, nan_to_null=True)

    def _energy(self, outcome: Outcome) -> polars.DataFrame:
        """Builds a row for each instance and stretch of time."""
        series = outcome.series_j
        width_s = outcome.bin_s if np.isfinite(outcome.bin_s) else outcome.end_s
        columns = {
            "instance": np.repeat([spec.name for spec in outcome.instances], series.shape[1]),
            "site": np.repeat([spec.site for spec in outcome.instances], series.shape[1]),
            "from_s": np.tile(np.arange(series.shape[1]) * width_s, len(outcome.instances)),
            "energy_j": series.ravel(),
        }
        return polars.DataFrame(columns)


def _instances(outcome: Outcome) -> polars.DataFrame:
    """Lists the instances that requests name by number, and what their energy went into."""
    specs = outcome.instances
    columns = {
        "instance": np.arange(len(specs)),
        "name": [spec.name for spec in specs],
        "model": [spec.model for spec in specs],
        "gpu": [spec.gpu for spec in specs],
        "tp": [spec.tp for spec in specs],
        "engine": [spec.engine for spec in specs],
        "site": [spec.site for spec in specs],
        "on_s": outcome.on_s,
    }
    return polars.DataFrame(columns | {f"{kind}_j": spent for kind, spent in outcome.spent_j.items()})


def _named(names: Sequence[str], numbers: ArrayLike) -> polars.Series:
    """Names for numbers; null for kernel.NONE."""
    places = polars.Series(np.where(np.asarray(numbers) == kernel.NONE, len(names), numbers))
    return polars.Series([*names, None], dtype=polars.String).gather(places)
