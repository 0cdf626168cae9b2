"""The figures behind each chart as CSV: UTC times, units in the header, an empty cell for unknown. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime

from telemetry.selectors.frames import CarbonFrame, JainFrame, PowerFrame, SloFrame, TimeRange

Column = tuple[str, Sequence[float | int | None]]


def power(frame: PowerFrame) -> str:
    columns: list[Column] = []
    for site in frame.sites:
        columns += [(f"{site.site}_in_use_w", site.in_use_w), (f"{site.site}_idle_w", site.idle_w)]
    return _csv(frame.time_range, columns)


def carbon(frame: CarbonFrame) -> str:
    """Rates of each bucket, with the intensity that held at the bucket's start."""
    columns: list[Column] = []
    for site in frame.sites:
        steps = [
            next((s.g_per_kwh for s in site.actual if s.start_s <= at_s < s.end_s), None)
            for at_s in frame.time_range.starts_s
        ]
        columns += [(f"{site.site}_gco2e_per_h", site.rate_g_per_h), (f"{site.site}_g_per_kwh", steps)]
    return _csv(frame.time_range, columns)


def slo(frame: SloFrame) -> str:
    columns: list[Column] = []
    for series in frame.series:
        name = f"{series.service}_{series.kind}"
        columns += [
            (f"{name}_share_within_{series.objective_s:g}_s", series.attained),
            (f"{name}_judged", series.judged),
        ]
    return _csv(frame.time_range, columns)


def jain(frame: JainFrame) -> str:
    classes: list[Column] = [(f"class_{name}_jain", values) for name, values in frame.classes.items()]
    return _csv(frame.time_range, [("tenants_jain", frame.tenants), *classes])


def _csv(window: TimeRange, columns: Sequence[Column]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["start_utc", "end_utc", *(name for name, _ in columns)])
    for i, (start_s, end_s) in enumerate(zip(window.starts_s, window.ends_s, strict=True)):
        cells = ["" if values[i] is None else values[i] for _, values in columns]
        writer.writerow([_utc(start_s), _utc(min(end_s, window.end_s)), *cells])
    return out.getvalue()


def _utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
