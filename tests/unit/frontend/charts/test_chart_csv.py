from __future__ import annotations

import csv
import io

from frontend.charts import chart_csv
from tests.unit.frontend import frames


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_units_in_its_header_and_empty_cells_for_unknown():
    table = rows(chart_csv.power(frames.power()))
    assert table[0]["start_utc"] == "1970-01-01T00:16:40Z"
    assert table[0]["east_in_use_w"] == "1000.0"
    assert table[2]["east_in_use_w"] == ""
    carbon = rows(chart_csv.carbon(frames.carbon()))
    assert [r["east_g_per_kwh"] for r in carbon] == ["400.0", "", "", "410.0"]
    assert rows(chart_csv.slo(frames.slo()))[1]["chat_ttft_share_within_2_s"] == "0.97"
    assert rows(chart_csv.jain(frames.jain()))[3]["class_SS_jain"] == "0.9"
