"""PUE, carbon and prices as options say them: a section of a scenario, which values an observation too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.simulator.fields import Section
from core.simulator.site_series import Site, read_site
from telemetry.providers.gb_carbon_intensity import GbCarbonIntensityProvider
from telemetry.providers.provider_http import Outside

_FEED_ZONE = re.compile(r"GB(-\d+)?")
_HALF_HOUR_S = 1_800.0


@dataclass(frozen=True, slots=True)
class SiteTerms:
    """Values as options give them. `carbon`: g/kWh, a CSV file, or a zone of Great Britain's feed."""

    pue: float = 1.0
    carbon: str | None = None
    price_per_kwh: float | None = None
    gpu_hour: float | None = None

    def section(self, folder: Path, from_s: float, to_s: float, outside: Outside) -> dict[str, Any]:
        """Returns the section of a scenario's site. A feed's values between two moments are put into `folder`.

        Raises:
            AdapterError: The feed does not answer, or does not have the zone.
        """
        given = {"pue": self.pue, "usd_per_kwh": self.price_per_kwh, "usd_per_gpu_hour": self.gpu_hour}
        section: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if self.carbon is not None:
            section["carbon_g_per_kwh"] = self._carbon(folder, from_s, to_s, outside)
        return section

    def _carbon(self, folder: Path, from_s: float, to_s: float, outside: Outside) -> Any:
        carbon = self.carbon or ""
        with suppress(ValueError):
            return float(carbon)
        if not _FEED_ZONE.fullmatch(carbon):
            return {"csv": str(Path(carbon).resolve())}
        path = folder / "carbon.csv"
        path.write_text("start,value\n" + "".join(_rows(carbon, from_s, to_s, outside)), encoding="utf-8")
        return {"csv": str(path)}


def _rows(zone: str, from_s: float, to_s: float, outside: Outside) -> Iterator[str]:
    """Yields the lines of a CSV file of the feed's half hours."""
    begin_s = from_s // _HALF_HOUR_S * _HALF_HOUR_S
    points = GbCarbonIntensityProvider({}, outside).forecast(zone, begin_s, to_s - begin_s + _HALF_HOUR_S)
    for point in points:
        yield f"{datetime.fromtimestamp(point.start_s, UTC).isoformat()},{point.value_g_per_kwh}\n"


def site_of(section: Mapping[str, Any], start: datetime) -> Site:
    """Returns the site of a section. Raises ScenarioError: a value or a CSV is wrong."""
    return read_site(Section("site", dict(section)), Path(), start, name="observed")
