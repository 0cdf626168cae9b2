from __future__ import annotations

import csv
import io

from frontend.charts import chart_csv
from telemetry.selectors import largest_sites
from tests.unit.frontend import frames


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_units_in_its_header_and_empty_cells_for_unknown():
    table = rows(chart_csv.power(frames.power(), frames.sums()))
    assert table[0]["start_utc"] == "1970-01-01T00:16:40Z"
    assert table[0]["east_in_use_w"] == "1000.0"
    assert table[2]["east_in_use_w"] == ""
    carbon = rows(chart_csv.carbon(frames.carbon(), frames.sums()))
    assert [r["east_g_per_kwh"] for r in carbon] == ["400.0", "", "", "410.0"]
    assert rows(chart_csv.slo(frames.slo()))[1]["chat_ttft_share_within_2_s"] == "0.97"
    assert rows(chart_csv.jain(frames.jain()))[3]["chat_class_SS_jain"] == "0.9"


def test_csv_has_the_ledgers_exact_sums_beside_means():
    table = rows(chart_csv.power(frames.power(), frames.sums()))
    assert [row["east_energy_j"] for row in table] == ["15.000001", "20.000000", "", "15.000000"]
    assert [row["east_heard_share"] for row in table] == ["1.0", "0.5", "", "1.0"]
    carbon = rows(chart_csv.carbon(frames.carbon(), frames.sums()))
    assert [row["east_gco2e"] for row in carbon] == ["0.000008", "0.000000", "", "0.000009"]
    assert [row["east_without_intensity_j"] for row in carbon] == ["0.000000", "20.000000", "", "0.000000"]


def test_csv_adds_up_the_sites_that_are_drawn_together():
    drawn = frames.power()
    together = largest_sites.powers(drawn.sites, {"west"})
    table = rows(chart_csv.power(frames.power(sites=together), frames.sums()))
    assert table[0]["others_energy_j"] == "15.000001"
    assert table[0]["west_energy_j"] == "30.000000"
