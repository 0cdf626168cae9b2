"""Holds what the ledger entered in buckets of time, as whole numbers that add up. No Django here."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.selectors.frames import TimeRange, Values


@dataclass(frozen=True, slots=True)
class KindSums:
    """Energy of one kind as the ledger has it of each bucket, in whole microjoules and micrograms.

    None: nothing is entered of the site. The energy without an intensity (`unknown_uj`) is not in the carbon; where it
    is all of it the carbon is None.
    """

    energy_uj: tuple[int | None, ...]
    carbon_ug: tuple[int | None, ...]
    unknown_uj: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class SiteSums:
    """A site by kind of energy. `heard_share`: of the time of all its meters, how much they were heard; None: no meter.

    `silent` marks buckets of which less than nine tenths are entered, or most as a counter's jump across a gap.
    """

    site: str
    kinds: dict[str, KindSums]
    heard_share: Values
    silent: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class LedgerSums:
    """Holds what the ledger entered in the whole buckets of `time_range`."""

    time_range: TimeRange
    sites: tuple[SiteSums, ...]
