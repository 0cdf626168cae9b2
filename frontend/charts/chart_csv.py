"""The figures behind each chart as CSV: UTC times, units in the header, an empty cell for unknown. Pure.

Power and rates are means over what was heard of the meters; beside them stands what the ledger has of each whole
bucket, exactly, with the share of the meters that were heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from core.cells import csv_text
from telemetry.selectors.frames import CarbonFrame, JainFrame, PowerFrame, SiteCarbon, SitePower, SloFrame, TimeRange
from telemetry.selectors.ledger_frames import LedgerSums, SiteSums

Column = tuple[str, Sequence[float | int | Decimal | None]]


def power(frame: PowerFrame, sums: LedgerSums) -> str:
    columns: list[Column] = []
    for site in frame.sites:
        columns += [(f"{site.site}_in_use_w", site.in_use_w), (f"{site.site}_idle_w", site.idle_w)]
        of = _sites(site, frame.sites, sums)
        columns.append((f"{site.site}_energy_j", _exact([kind.energy_uj for one in of for kind in one.kinds.values()])))
        columns += [(f"{site.site}_heard_share", one.heard_share) for one in of if one.site == site.site]
    return _csv(frame.time_range, columns)


def carbon(frame: CarbonFrame, sums: LedgerSums) -> str:
    """Rates of each bucket, with the intensity that held at the bucket's start."""
    columns: list[Column] = []
    for site in frame.sites:
        steps = [
            next((s.g_per_kwh for s in site.actual if s.start_s <= at_s < s.end_s), None)
            for at_s in frame.time_range.starts_s
        ]
        columns += [(f"{site.site}_gco2e_per_h", site.rate_g_per_h), (f"{site.site}_g_per_kwh", steps)]
        kinds = [kind for one in _sites(site, frame.sites, sums) for kind in one.kinds.values()]
        columns += [
            (f"{site.site}_gco2e", _exact([kind.carbon_ug for kind in kinds])),
            (f"{site.site}_without_intensity_j", _exact([kind.unknown_uj for kind in kinds])),
        ]
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
    classes: list[Column] = [
        (f"{service}_class_{name}_jain", values) for (service, name), values in frame.classes.items()
    ]
    return _csv(frame.time_range, [("tenants_jain", frame.tenants), *classes])


def _sites(site: SitePower | SiteCarbon, drawn: Sequence[SitePower | SiteCarbon], sums: LedgerSums) -> list[SiteSums]:
    """Returns the site's sums; of those that are drawn together, each."""
    by_itself = {one.site for one in drawn if one.colour is not None}
    return [
        one for one in sums.sites if (one.site == site.site if site.colour is not None else one.site not in by_itself)
    ]


def _exact(millionths: Sequence[Sequence[int | None]]) -> list[Decimal | None]:
    """Adds up what is known in each bucket; None where nothing is."""
    known = ([one for one in column if one is not None] for column in zip(*millionths, strict=True))
    return [Decimal(sum(column)).scaleb(-6) if column else None for column in known]


def _csv(window: TimeRange, columns: Sequence[Column]) -> str:
    rows = (
        [_utc(start_s), _utc(min(end_s, window.end_s)), *(values[i] for _, values in columns)]
        for i, (start_s, end_s) in enumerate(zip(window.starts_s, window.ends_s, strict=True))
    )
    return csv_text(["start_utc", "end_utc", *(name for name, _ in columns)], rows)


def _utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
