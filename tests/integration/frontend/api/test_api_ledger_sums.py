"""Series of energy and carbon against the ledger: equal to the digit, whichever the step and whoever was silent."""

from __future__ import annotations

import csv
import io
import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from django.contrib.auth import get_user_model
from django.db.models import Sum
from django.test import Client

from pools.models import Gpu
from telemetry import selectors
from telemetry.models import EnergyEntry, MeterMark
from telemetry.selectors.frames import TimeRange
from telemetry.storage import time_partitions
from tests.fakes import energy_sums, seed

# From an hour before a day's border until three hours after it, over the hour in which Europe's clocks go forward.
START = datetime(2026, 3, 28, 23, 0, tzinfo=UTC)
END = START + timedelta(hours=4)
ADDED = START + timedelta(hours=1, minutes=17, seconds=20)  # when the third site's meter was opened
SILENT = START + timedelta(hours=2), START + timedelta(hours=2, minutes=30)  # one of the first site's two meters
GAP = START + timedelta(minutes=40), START + timedelta(minutes=45)  # the second site's only meter; a jump follows


@pytest.fixture(scope="module")
def seeded(shared_rows) -> seed.Seeded:
    found = seed.fleet(END)
    time_partitions.ensure([START.date(), END.date()])
    gpus = [Gpu.objects.filter(node__name=name).order_by("index") for name in ("n1", "n3", "n5")]
    metered = [*gpus[0][:2], gpus[1][0], gpus[2][0]]
    rng, entries = random.Random(7), []
    for gpu, opened in zip(metered, (START, START, START, ADDED), strict=True):
        entries += _entries(gpu, opened, metered, rng)
        MeterMark.objects.create(gpu=gpu, at=END, energy_uj=1, opened_at=opened, opened_energy_uj=0)
    EnergyEntry.objects.bulk_create(entries, batch_size=2_000)
    energy_sums.roll_up()
    return found


def _entries(gpu: Gpu, opened: datetime, metered: list[Gpu], rng: random.Random) -> list[EnergyEntry]:
    found, at = [], opened
    while at < END:
        if gpu == metered[1] and SILENT[0] <= at < SILENT[1]:
            at += timedelta(seconds=10)
            continue
        jumped = gpu == metered[2] and GAP[0] <= at < GAP[1]
        for kind, us in (("unattributed", 10_000_000),) if jumped else (("serving", 7_000_000), ("idle", 3_000_000)):
            found.append(
                EnergyEntry(
                    gpu=gpu,
                    site=gpu.node.cluster.site,
                    start_at=at,
                    end_at=at + timedelta(seconds=10),
                    kind=kind,
                    energy_uj=rng.randrange(1, 3_000_000_001),
                    gpu_us=us,
                    carbon_gco2e=None if rng.random() < 0.01 else rng.randrange(1_000_000) / 1e6,
                )
            )
        at += timedelta(seconds=10)
    return found


@pytest.fixture
def read(seeded, db, redis_client):
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="secret"))

    def ask(name: str, **query: object) -> dict:
        window = {"from": START.timestamp(), "to": END.timestamp()}
        answer = client.get(f"/api/v1/series/{name}/", {**window, **query})
        assert answer.status_code == 200, answer.content
        return json.loads(answer.content, parse_float=Decimal) if "format" not in query else answer

    return ask


def entered(body: dict, field: str) -> dict[tuple[str, str], Decimal]:
    """What the ledger's entries add up to over the buckets of an answer, by site and kind."""
    span = {"start_at__gte": body["start_at"], "start_at__lt": body["end_at"]}
    rows = EnergyEntry.objects.filter(**span).values_list("site__name", "kind", field)
    found: dict[tuple[str, str], Decimal] = {}
    for site, kind, value in rows:
        millionths = value if field == "energy_uj" else round((value or 0.0) * 1e6)
        found[site, kind] = found.get((site, kind), Decimal(0)) + Decimal(millionths).scaleb(-6)
    return found


def shown(body: dict) -> dict[tuple[str, str], Decimal]:
    sums = {}
    for line in body["series"]:
        values = [value for _, value in line["points"] if value is not None]
        if any(values):
            sums[line["labels"]["site"], line["labels"]["kind"]] = sum(values, Decimal(0))
    return sums


@pytest.mark.parametrize("step", [10, 20, 60, 900, 3_600, 7_200, 86_400])
def test_energy_adds_up_to_the_entries_of_the_same_range_at_every_step(read, step):
    more = {} if step > 10 else {"from": GAP[0].timestamp(), "to": SILENT[1].timestamp()}
    body = read("energy", step=step, **more)
    assert body["method"] == "sum"
    assert shown(body) == entered(body, "energy_uj")


@pytest.mark.parametrize("step", [60, 900, 3_600, 86_400])
def test_carbon_adds_up_to_the_entries_of_the_same_range_at_every_step(read, step):
    body = read("carbon", step=step)
    assert shown(body) == entered(body, "carbon_gco2e")


def test_days_of_a_zone_add_up_when_its_clocks_go_forward(read):
    zone = ZoneInfo("Europe/Berlin")
    start, end = (datetime(2026, 3, day, tzinfo=zone).isoformat() for day in (29, 30))
    body = read("energy", step=3_600, **{"from": start, "to": end})
    assert len(body["series"][0]["points"]) == 23
    assert shown(body) == entered(body, "energy_uj")


def test_last_bucket_is_whole_when_the_range_ends_within_it(read):
    end = START + timedelta(minutes=70, seconds=33)
    body = read("energy", step=900, to=end.timestamp())
    assert body["end_at"] == (START + timedelta(minutes=75)).isoformat()
    assert shown(body) == entered(body, "energy_uj")


def test_silent_meter_is_shown_and_what_others_metered_stays(read):
    body = read("energy", step=900, site="location-1")
    line = next(line for line in body["series"] if line["labels"]["kind"] == "serving")
    i = next(i for i, (at_s, _) in enumerate(line["points"]) if at_s == SILENT[0].timestamp())
    assert line["silent"][i - 1 : i + 3] == [False, True, True, False]
    assert [float(share) for share in line["heard_share"][i - 1 : i + 3]] == [1.0, 0.5, 0.5, 1.0]
    assert all(value > 0 for _, value in line["points"])
    powers = read("power", step=900, site="location-1")["series"][0]["points"]
    assert powers[i][1] is None, "a mean of half the meters is none of the site"


def test_jump_across_a_gap_counts_as_silent_and_its_energy_as_unattributed(read):
    body = read("energy", step=300, site="location-2")
    lines = {line["labels"]["kind"]: line for line in body["series"]}
    i = next(i for i, (at_s, _) in enumerate(lines["idle"]["points"]) if at_s == GAP[0].timestamp())
    assert (lines["unattributed"]["points"][i][1] > 0, lines["serving"]["points"][i][1]) == (True, 0)
    assert (lines["idle"]["silent"][i], lines["idle"]["heard_share"][i]) == (True, 0)


def test_site_added_in_the_middle_is_heard_from_then_on(read):
    body = read("energy", step=900, site="location-3")
    line = next(line for line in body["series"] if line["labels"]["kind"] == "serving")
    begun = next(i for i, (_, value) in enumerate(line["points"]) if value is not None)
    assert line["points"][begun][0] == (START + timedelta(hours=1, minutes=15)).timestamp()
    assert set(line["heard_share"][:begun]) == {None}
    assert set(map(float, line["heard_share"][begun:])) == {1.0}
    assert not any(line["silent"])


def test_meters_that_all_fell_silent_are_not_still_to_come(seeded, db):
    window = TimeRange(END.timestamp() - 600, END.timestamp() + 600, 60.0)
    soon, later = (selectors.ledger_sums(window, END.timestamp() + late_s).sites[0] for late_s in (30, 400))
    assert not any(soon.silent)
    assert later.silent == (False,) * 10 + (True,) * 5 + (False,) * 5
    assert later.heard_share[10:14] == (0.0,) * 4
    assert later.heard_share[-1] is None, "nobody knows yet"


def test_energy_without_intensity_is_said_beside_the_carbon(read):
    body = read("carbon", step=86_400, site="location-1")
    line = next(line for line in body["series"] if line["labels"]["kind"] == "idle")
    day = datetime(2026, 3, 29, tzinfo=UTC)
    entries = EnergyEntry.objects.filter(site__name="location-1", kind="idle", start_at__gte=day)
    total = entries.aggregate(uj=Sum("energy_uj"))["uj"]
    unknown = entries.filter(carbon_gco2e=None).aggregate(uj=Sum("energy_uj"))["uj"]
    assert float(line["unknown_share"][1]) == pytest.approx(unknown / total)


def test_csv_and_arrow_have_the_same_digits(read):
    query = {"step": 900, "site": "location-1"}
    body = read("energy", **query)
    rows = list(csv.DictReader(io.StringIO(read("energy", **query, format="csv").content.decode())))
    frame = pl.read_ipc_stream(io.BytesIO(read("energy", **query, format="arrow").content))
    expected = sum((value for line in body["series"] for _, value in line["points"]), Decimal(0))
    assert sum((Decimal(row["value"]) for row in rows), Decimal(0)) == expected
    assert frame["value"].sum() == expected
    assert {row["silent"] for row in rows} == {"true", "false"}


def test_question_that_would_lose_sums_is_refused(seeded, db, redis_client):
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("admin", password="secret"))
    for name, query, field in (
        *(("energy", "method=lttb", "method"), ("carbon", "method=mean", "method"), ("carbon", "step=10", "step")),
        ("power", "method=sum", "method"),
    ):
        answer = client.get(f"/api/v1/series/{name}/?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)
