"""carbon and forecast on the command line: what they show, store and refuse."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from django.db import connection

from greenserve.cli import cli
from greenserve.commands import carbon as commands
from pools.database_locks import Lock
from pools.models import Site
from telemetry.carbon import feeds
from telemetry.models import CarbonFeed, ForecastScore
from telemetry.providers.secrets import Secret

pytestmark = pytest.mark.django_db
HEAD = "zone,start_utc,end_utc,signal,value,unit,factor,source\n"


@pytest.fixture
def site(tmp_path, settings):
    settings.GREENSERVE_FEEDS_DIR = tmp_path / "feeds"
    settings.GREENSERVE_FEEDS_DIR.mkdir()
    return Site.objects.create(name="east", grid_zone="Z")


def run(*words):
    return CliRunner().invoke(cli, list(words), catch_exceptions=False)


def csv(tmp_path, hours, value="100", signal="average", unit="gCO2e/kWh", factor="direct"):
    """Hours up to the one under way, the newest last."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    starts = [hour - timedelta(hours=back) for back in range(hours - 1, -1, -1)]
    lines = [
        f"Z,{start:%Y-%m-%dT%H:%MZ},{start + timedelta(hours=1):%Y-%m-%dT%H:%MZ},{signal},{value},{unit},{factor},me"
        for start in starts
    ]
    path = tmp_path / "grid.csv"
    path.write_text(HEAD + "\n".join(lines) + "\n")
    return str(path)


def in_folder(tmp_path, hours):
    """The name of such a file where feeds read it."""
    return Path(csv(tmp_path / "feeds", hours)).name


def test_file_is_stored_once_when_it_is_imported_twice(site, tmp_path):
    file = csv(tmp_path, 30)
    assert "30 of 30 points were new (the feed is new, too)" in run("carbon", "import", file, "--site", "east").output
    assert "0 of 30 points were new" in run("carbon", "import", file, "--site", "east").output
    csv(tmp_path, 30, value="120")
    assert "30 of 30 points were new" in run("carbon", "import", file, "--site", "east").output
    feed = CarbonFeed.objects.get()
    assert feed.points.count() == 60
    assert feed.config == {"file": "east-average.csv", "zone": "Z"}
    feeds.refresh_feed(feed, datetime.now(UTC))
    assert CarbonFeed.objects.get().last_error == ""


def test_new_feed_takes_no_other_files_place_when_it_is_imported(site, tmp_path, settings):
    (settings.GREENSERVE_FEEDS_DIR / "east-average.csv").write_text("somebody else's")
    found = run("carbon", "import", csv(tmp_path, 3), "--site", "east")
    assert (found.exit_code, "another file stands" in found.output) == (1, True)
    assert not CarbonFeed.objects.exists()
    assert (settings.GREENSERVE_FEEDS_DIR / "east-average.csv").read_text() == "somebody else's"


def test_prices_are_stored_when_a_file_has_them(site, tmp_path):
    file = csv(tmp_path, 2, "-3.5", "price", "EUR/MWh", "")
    assert run("carbon", "import", file, "--site", "east", "--signal", "price").exit_code == 0
    point = CarbonFeed.objects.get(signal="price").points.first()
    assert (point.price_per_kwh, point.currency, point.factor) == (-0.0035, "EUR", "")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("carbon", "import", "{file}", "--site", "west"), 1, "there is no site 'west'; known are: east"),
        (("carbon", "import", "{file}", "--site", "east", "--signal", "marginal"), 1, "no marginal row of zone 'Z'"),
        (("carbon", "import", "{file}", "--site", "east", "--zone", "Q"), 1, "no average row of zone 'Q'"),
        (("carbon", "import", "/nowhere", "--site", "east"), 2, "does not exist"),
        (("carbon", "fetch"), 1, "there is no such feed"),
        (("carbon", "fetch", "--from", "2026-01-01T00:00Z"), 2, "--from and --to go together"),
        (("carbon", "fetch", "--from", "2026-01-01", "--to", "2026-01-02T00:00Z"), 2, "end it with Z"),
        (("carbon", "fetch", "--from", "x", "--to", "2026-01-02T00:00Z"), 2, "is no time"),
        (("carbon", "fetch", "--from", "2026-01-03T00:00Z", "--to", "2026-01-02T00:00Z"), 2, "must be after"),
        (("carbon", "set", "east", "--provider", "oracle"), 2, "unknown carbon provider 'oracle'; known are eia"),
        (("carbon", "set", "east", "--provider", "pjm"), 2, "signal 'average' is not to be had; it tells marginal"),
        (("carbon", "set", "east", "--provider", "eia"), 2, "set GREENSERVE_EIA_KEY in the environment or in"),
        (("carbon", "set", "east", "--provider", "gb_carbon_intensity", "x"), 2, "write KEY=VALUE"),
        (
            ("carbon", "set", "east", "--provider", "gb_carbon_intensity", "base_url=https://10.0.0.1"),
            2,
            "'10.0.0.1' is not allowed",
        ),
        (("carbon", "set", "west", "--provider", "pjm"), 1, "there is no site 'west'"),
        (("forecast", "--service", "nobody"), 2, "there is no service of that name"),
        (("forecast", "--site", "west"), 2, "there is no site with a feed of that name"),
    ],
)
def test_error_says_what_to_do_when_something_is_wrong(site, tmp_path, words, status, said):
    file = csv(tmp_path, 2)
    found = run(*(word.format(file=file) for word in words))
    assert found.exit_code == status
    assert said in found.output
    assert not CarbonFeed.objects.exists()


def test_feed_is_made_and_changed_when_it_is_set(site, settings):
    settings.GREENSERVE_CARBON_SECRETS = {"GREENSERVE_EIA_KEY": Secret("hush")}
    words = ("carbon", "set", "east", "--zone", "PJM", "--refresh", "900", "--factor", "direct")
    assert "each 60 min, no forecast of its own" in run(*words, "--provider", "eia").output
    feed = CarbonFeed.objects.get()
    assert (feed.provider, feed.zone, feed.refresh_s, feed.factor) == ("eia", "PJM", 900.0, "direct")
    found = run("carbon", "set", "east", "--provider", "gb_carbon_intensity", "--zone", "GB", "--source", "NESO")
    assert "each 30 min, forecasts 48 h ahead" in found.output
    feed.refresh_from_db()
    assert (feed.provider, feed.zone, feed.refresh_s, feed.source) == ("gb_carbon_intensity", "GB", None, "NESO")


def test_feeds_are_shown_when_asked(site, tmp_path):
    assert "There is no feed yet" in run("carbon", "feeds").output
    run("carbon", "import", csv(tmp_path, 4), "--site", "east")
    found = run("carbon", "feeds")
    assert found.exit_code == 1
    assert "east average: never; static_csv, zone Z" in found.output
    assert "1 points were new" not in run("carbon", "fetch", "--site", "east").output
    found = run("carbon", "feeds")
    assert found.exit_code == 0
    assert "east average: fresh" in found.output
    assert "gaps" not in found.output
    CarbonFeed.objects.get().points.order_by("start_at")[1].delete()
    assert "gaps of the last day, 60 min: " in run("carbon", "feeds").output
    (row,) = json.loads(run("carbon", "feeds", "--json").output)
    assert (row["state"], row["site"], row["last_error"]) == ("fresh", "east", "")
    assert row["gap_s"] == 3_600.0


def test_failure_is_shown_when_a_provider_refuses(site, tmp_path):
    CarbonFeed.objects.create(site=site, provider="eia")
    found = run("carbon", "fetch")
    assert found.exit_code == 1
    assert "no key: set GREENSERVE_EIA_KEY" in found.output
    found = run("carbon", "feeds")
    assert found.exit_code == 1
    assert "east average: cooling down" in found.output
    assert "left alone until" in found.output


def test_past_is_filled_when_it_is_fetched(site, tmp_path):
    CarbonFeed.objects.create(site=site, provider="static_csv", config={"file": in_folder(tmp_path, 50), "zone": "Z"})
    day = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=40)
    words = (
        "carbon",
        "fetch",
        "--from",
        f"{day:%Y-%m-%dT%H:%MZ}",
        "--to",
        f"{day + timedelta(hours=5):%Y-%m-%dT%H:%MZ}",
    )
    assert "5 points were new" in run(*words).output
    assert "0 points were new" in run(*words).output


def test_providers_are_left_alone_when_another_run_asks_them(site, tmp_path, monkeypatch):
    CarbonFeed.objects.create(site=site, provider="static_csv", config={"file": in_folder(tmp_path, 3), "zone": "Z"})
    monkeypatch.setattr(commands, "PATIENCE_S", 0.0)
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtext(%s))", [Lock.FEEDS])
        found = run("carbon", "fetch")
    other.close()
    assert found.exit_code == 1
    assert "asked by another run; try again" in found.output


def test_forecast_shows_its_record_when_it_was_scored(site, tmp_path):
    assert "There is nothing to forecast yet" in run("forecast").output
    run("carbon", "import", csv(tmp_path, 24 * 6), "--site", "east")
    assert "no record yet" in run("forecast").output
    found = run("forecast", "--site", "east", "--score")
    assert "average of east" in found.output
    assert "  * " in found.output
    assert "covers" not in found.output  # one step ahead is too few for it
    assert ForecastScore.objects.filter(chosen=True).count() == 1
    (row,) = json.loads(run("forecast", "--json").output)
    assert (row["of"], row["unit"], row["site"]) == ("carbon", "g/kWh", "east")
    assert {one["model"] for one in row["record"]} >= {"persistence", "day ago", "profile"}
    assert sum(one["chosen"] for one in row["record"]) == 1
    assert {(one["coverage"], one["regret"]) for one in row["record"]} == {(None, None)}
    ForecastScore.objects.update(coverage=0.78, regret=12.34)
    assert ", 10-90 % covers 78%, regret 12.3 g/kWh, " in run("forecast").output
