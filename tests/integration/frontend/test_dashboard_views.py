"""Pages over HTTP: who may see them, and what they answer to bad input."""

from __future__ import annotations

import csv
import gzip
import html
import io
import json
import re
import time
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.contrib.staticfiles import finders
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from pools import wire
from pools.access.audit import Actor
from pools.models import Service
from scheduler.models import Decision, Epoch
from scheduler.operations import pauses
from telemetry.models import RequestRecord
from tests.fakes import seed

pytestmark = pytest.mark.django_db
PAGES = [
    "/",
    "/overview/summary/",
    "/overview/pools/",
    "/overview/decisions/",
    "/overview/figures.json",
    "/overview/power.csv",
    "/decisions/",
    "/health/",
    "/health/?part=1",
    "/health.json",
]


@pytest.fixture(autouse=True)
def _clean_slate(redis_client) -> None:
    """Nothing is known of any process, and no sum of another test's day."""
    cache.clear()


@pytest.fixture
def operator() -> Client:
    client = Client()
    client.force_login(get_user_model().objects.create_user("operator", password="secret"))
    return client


@pytest.fixture(scope="module")
def seeded(shared_rows) -> seed.Seeded:
    return seed.everything(minutes=6, rps=1.0)


@pytest.mark.parametrize("path", [*PAGES, "/decisions/1/"])
def test_page_leads_to_the_sign_in_when_nobody_is_signed_in(client, path):
    answer = client.get(path)
    assert answer.status_code == 302
    assert answer.url.startswith(reverse("login"))


@pytest.mark.parametrize("path", PAGES)
def test_page_answers_when_there_is_history(operator, seeded, path):
    assert operator.get(path).status_code == 200


def test_healthz_says_ok_without_details_and_without_a_session(client):
    answer = client.get("/healthz")
    assert (answer.status_code, answer.content) == (200, b"ok\n")


def test_healthz_is_503_without_details_when_redis_is_gone(client, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    answer = client.get("/healthz")
    assert (answer.status_code, answer.content) == (503, b"unavailable\n")


def test_pages_say_so_when_redis_is_gone(operator, seeded, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert "Redis does not answer" in operator.get("/health/").content.decode()
    overview = operator.get("/").content.decode()
    assert "Redis does not answer" in overview
    assert "is silent" not in overview


def test_health_shows_processes_and_how_to_see_their_logs(operator, seeded):
    seed.well()
    page = operator.get("/health/").content.decode()
    assert "greenserve logs gateway" in page
    assert "No supervisor" not in page
    state = operator.get("/health.json").json()
    assert {p["name"]: p["state"] for p in state["processes"]}["gateway"] == "running"
    assert {n["state"] for n in state["nodes"]} == {"reporting"}
    assert {loop["kind"]: loop["state"] for loop in state["loops"]}["carbon"] == "on time"


def test_health_shows_how_far_off_what_predicts_lengths_was(operator, seeded):
    newest = RequestRecord.objects.filter(status="ok", output_tokens__gt=0).latest("started_at")
    RequestRecord.objects.filter(request_id=newest.request_id).update(
        **{
            "prediction_source": "memory",
            "tokens_source": "usage",
            "predicted_output_tokens": newest.output_tokens + 7,
        },
        **{"request_class": "SL", "actual_class": "SL", "class_probability": 0.75},
    )
    page = operator.get("/health/").content.decode()
    for cell in ("memory", "7 tokens", "100.0\u00a0%", "75.0\u00a0%"):
        assert f">{cell}<" in page, cell
    (row,) = operator.get("/health.json").json()["lengths"]
    assert (row["source"], row["requests"], row["error_tokens"], row["said"]) == ("memory", 1, 7.0, 0.75)


def test_process_is_shown_dead_and_needs_attention_when_the_supervisor_says_so(operator, seeded, redis_client):
    now_s = time.time() + 60
    seed.well(now_s)
    row = wire.ProcessRow("gateway", None, "stopped", now_s - 90, 4, "g.log", "killed by signal 9")
    redis_client.set(wire.PROCESSES_KEY, wire.encode(wire.ProcessTable(now_s, [row])), ex=30)
    assert "gateway is dead" in operator.get("/overview/summary/").content.decode()


def test_message_that_cannot_be_read_counts_as_missing(operator, seeded, redis_client):
    redis_client.set(wire.PROCESSES_KEY, b'{"at_s": "yesterday"}', ex=30)
    assert operator.get("/health.json").json()["table_missing"] is True


def test_infeasible_epoch_is_shown_with_its_decision(operator, seeded):
    epoch = Epoch.objects.filter(kind="carbon").latest()
    Epoch.objects.filter(pk=epoch.pk).update(status="infeasible", error="class LL lacks capacity")
    page = operator.get("/overview/summary/").content.decode()
    assert "class LL lacks capacity" in page
    assert reverse("decision", args=[Decision.objects.get(epoch=epoch).pk]) in page


def test_figures_carry_four_charts_with_data_and_decisions(operator, seeded):
    body = operator.get("/overview/figures.json?range=1h&theme=dark").json()
    assert body["range"] == "1h"
    assert set(body["figures"]) == {"power", "carbon", "slo", "jain"}
    for name, figure in body["figures"].items():
        assert not figure["meta"]["empty"], name
        assert any(v is not None for t in figure["data"] for v in t["y"]), name
    assert body["decisions"]["customdata"][0].startswith("/decisions/")


def test_figures_are_those_that_are_asked_for_and_compressed(operator, seeded):
    answer = operator.get("/overview/figures.json?charts=power,slo", headers={"accept-encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert set(json.loads(gzip.decompress(answer.content))["figures"]) == {"power", "slo"}


def test_rows_alone_come_when_a_live_list_asks(operator, seeded):
    for path in ("/nodes/", "/sites/", "/pools/", "/feeds/", "/decisions/"):
        answer = operator.get(path, headers={"HX-Request": "true", "accept-encoding": "gzip"})
        body = gzip.decompress(answer.content).decode()
        assert "data-merge" in body, path
        assert "<main" not in body, path
        assert len(answer.content) < 50_000, path


@pytest.mark.parametrize(("chart", "steps"), [("power", 90), ("carbon", 15), ("slo", 90), ("jain", 90)])
def test_csv_downloads(operator, seeded, chart, steps):
    """Those of carbon are whole minutes, of which the carbon is restated."""
    answer = operator.get(f"/overview/{chart}.csv?range=15m")
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert f"greenserve-{chart}-" in answer.headers["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert steps <= len(rows) <= steps + 2
    assert any(value for row in rows for name, value in row.items() if not name.endswith("_utc"))


def test_unknown_chart_is_not_found(operator):
    assert operator.get("/overview/gdp.csv").status_code == 404


@pytest.mark.parametrize("query", ["range=1y", "range=%00", "theme=neon", "pools=none"])
def test_bad_choice_is_the_default(operator, query):
    assert operator.get(f"/?{query}").status_code == 200
    assert operator.get(f"/overview/figures.json?{query}").status_code == 200


def tables(page: str, head: str) -> list[tuple[list[str], list[list[str]]]]:
    """The words of the heads and of each row's cells, of the tables that have a column of this name."""
    found = []
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        heads, *rows = [
            [
                re.sub(r"<[^>]*>", "", cell).strip()
                for cell in re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", row, re.DOTALL)
            ]
            for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        ]
        if head in heads:
            found.append((heads, rows))
    return found


@pytest.mark.parametrize(("path", "count"), [("/", 2), ("/decisions/", 1), ("/sites/location-1/", 1)])
def test_pools_and_decisions_say_of_which_service_they_are(operator, seeded, path, count):
    """Two services may have pools of the same class at the same site."""
    Service.objects.create(name="second", model_card=seeded.service.model_card, partition=seeded.service.partition)
    found = tables(operator.get(path).content.decode(), "Service")
    assert len(found) == count
    for heads, rows in found:
        assert {row[heads.index("Service")] for row in rows} == {"llama3-70b"}
        assert {len(row) for row in rows} == {len(heads)}


@pytest.mark.parametrize("services", [1, 2])
def test_rows_that_come_later_go_with_the_heads_of_the_overview(operator, seeded, services):
    """Where there is one service alone its name stands in no row."""
    if services > 1:
        Service.objects.create(name="second", model_card=seeded.service.model_card, partition=seeded.service.partition)
    page = operator.get("/").content.decode()
    assert len(tables(page, "Service")) == (2 if services > 1 else 0)
    for head, url in (("TTFT p99", "overview/pools"), ("Reason", "overview/decisions")):
        ((heads, rows),) = tables(page, head)
        (asked,) = re.findall(rf'hx-get="(/{url}/[^"]*)"', page)
        later = operator.get(html.unescape(asked)).content.decode()
        assert {later.count("<td") / later.count("<tr")} == {len(heads)} == {len(row) for row in rows}


def test_page_of_a_service_does_not_repeat_its_name_in_each_row(operator, seeded):
    page = operator.get("/services/llama3-70b/").content.decode()
    assert tables(page, "Service") == []
    for heads, rows in (*tables(page, "Reason"), *tables(page, "TTFT p99")):
        assert rows
        assert {len(row) for row in rows} == {len(heads)}


def test_line_of_state_says_of_which_service_a_loop_is_not_on_time(operator, seeded):
    Epoch.objects.filter(pk=Epoch.objects.filter(kind="carbon").latest().pk).update(status="infeasible")
    assert "loops: carbon of llama3-70b infeasible" in operator.get("/overview/summary/").content.decode()


def test_every_place_says_that_a_loop_is_paused_and_none_that_it_is_late(operator, seeded):
    service, until = seeded.service, timezone.now() + timedelta(hours=2)
    pauses.pause(Actor(get_user_model().objects.create_superuser("ada")), service, "carbon", "new racks", until)
    words = f"paused by ada until {until.astimezone(UTC):%d %b %H:%M} UTC: new racks"
    assert f"carbon of {service.name} {words}" in operator.get("/overview/summary/").content.decode()
    assert words in operator.get("/health/").content.decode()
    loops = {(loop["kind"], loop["service"]): loop for loop in operator.get("/health.json").json()["loops"]}
    own = loops["carbon", service.name]
    assert (own["state"], own["pause"]["by"], own["pause"]["reason"]) == ("paused", "ada", "new racks")
    assert own["pause"]["until_s"] == pytest.approx(until.timestamp())


def reported(connectors: list[str], pool_id: int) -> wire.AgentState:
    """Returns a report of engines of one pool, with these KV connectors."""
    states = [
        wire.InstanceState(
            *(
                f"uid-{n}",
                pool_id,
                "http://127.0.0.1:1",
                "ready",
                "m",
                "vllm-v1",
                "A100-80GB",
                4,
                1410.0,
                210.0,
                1410.0,
            ),
            kv_connector=connector,
        )
        for n, connector in enumerate(connectors)
    ]
    return wire.AgentState("n1", "boot", time.time(), 1, states)


@pytest.mark.parametrize(
    ("policy", "connectors", "why"),
    [
        ("dynaserve", ["", ""], "no engine can hand its KV cache to another"),
        ("dynaserve", ["blocks", ""], "no two engines have the same KV connector"),
        ("dynaserve", ["blocks", "blocks"], ""),
        ("dynaserve", [""], ""),
        ("freesh", ["", ""], ""),
    ],
)
def test_health_says_why_requests_that_a_policy_splits_are_not(operator, seeded, redis_client, policy, connectors, why):
    seed.well()
    Service.objects.filter(pk=seeded.service.pk).update(policy=policy, knobs={}, acting_policy="")
    redis_client.set(wire.agent_key("n1"), wire.encode(reported(connectors, seeded.pools[0].pk)), ex=30)
    assert operator.get("/health.json").json()["unsplit"] == ({seeded.service.name: why} if why else {})
    page, overview = operator.get("/health/").content.decode(), operator.get("/overview/summary/").content.decode()
    assert (f"its policy splits them: {why}." in page) == bool(why)
    assert (f"its policy splits them: {why}" in overview) == bool(why)
    for text in (page, overview):
        assert ("with one KV store" in text and "--vllm-kv-ports" in text) == bool(why)


def test_decision_page_shows_alternatives_inputs_and_what_came(operator, seeded):
    decision = Decision.objects.filter(realised__isnull=False, reason="optimal").first()
    page = operator.get(reverse("decision", args=[decision.pk])).content.decode()
    for piece in (decision.summary, "capacity of class LL", "chosen", "gCO₂e/kWh", "+1.8", "ScaleTo", "#"):
        assert piece in page


def test_decision_page_survives_odd_rows(operator, seeded):
    decision = Decision.objects.create(
        kind="scale", at=seeded.now, reason="someday", summary="<script>alert(1)</script>",
        inputs={"a": [], "b": {"c": [1, {"d": None}]}, "e": {}}, alternatives=[{}], commands=[{}], predicted={},
    )  # fmt: skip
    page = operator.get(reverse("decision", args=[decision.pk])).content.decode()
    assert "<script>alert" not in page


def test_missing_decision_is_not_found(operator):
    assert operator.get("/decisions/999999/").status_code == 404


def test_decisions_are_filtered_searched_and_paged(operator, seeded):
    page = operator.get("/decisions/?kind=clock")
    assert {d.kind for d in page.context["decisions"]} == {"clock"}
    assert page.context["page"].paginator.count == 12
    found = operator.get("/decisions/?q=becomes&kind=carbon")
    assert {d.reason for d in found.context["decisions"]} == {"optimal"}
    epoch = Epoch.objects.filter(kind="carbon").latest()
    assert [d.epoch_id for d in operator.get(f"/decisions/?epoch={epoch.pk}").context["decisions"]] == [epoch.pk]
    Decision.objects.bulk_create(
        Decision(kind="scale", at=seeded.now, reason="no_change", summary=f"hold {n}") for n in range(120)
    )
    second = operator.get("/decisions/?kind=scale&page=2")
    assert second.context["page"].number == 2
    assert "kind=scale" in second.content.decode()
    assert operator.get("/decisions/?kind=nonsense&page=nonsense&epoch=x").status_code == 200


def test_pools_not_in_use_are_shown_when_asked(operator, seeded):
    assert len(operator.get("/overview/pools/").context["pools"]) == 6
    assert len(operator.get("/overview/pools/?pools=all").context["pools"]) == 12


def test_times_are_shown_in_the_chosen_zone(operator, seeded):
    answer = operator.post("/preferences/time-zone/", {"zone": "America/New_York", "next": "/decisions/"})
    assert (answer.status_code, answer.url) == (302, "/decisions/")
    assert "America/New_York" in operator.get("/decisions/").content.decode()
    axis = operator.get("/overview/figures.json").json()["figures"]["power"]["layout"]["xaxis"]
    assert axis["title"]["text"] == "time (America/New_York)"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd"])
def test_zone_of_no_site_is_refused(operator, zone):
    assert operator.post("/preferences/time-zone/", {"zone": zone}).status_code == 400


def test_foreign_address_to_return_to_is_not_followed(operator):
    answer = operator.post("/preferences/time-zone/", {"zone": "UTC", "next": "https://example.org/"})
    assert answer.url == "/"


def test_demo_says_what_is_not_real(operator, settings):
    settings.DEMO = True
    assert "simulated" in operator.get("/").content.decode()
    settings.DEMO = False
    assert "simulated" not in operator.get("/").content.decode()


def test_sign_in_and_out(client):
    get_user_model().objects.create_user("ada", password="secret")
    assert "Please enter a correct" in client.post("/sign-in/", {"username": "ada", "password": "x"}).content.decode()
    assert client.post("/sign-in/", {"username": "ada", "password": "secret"}).url == "/"
    assert client.post("/sign-out/").url == "/sign-in/"
    assert client.get("/").status_code == 302


def test_plotly_is_served_by_ourselves_and_kept_by_browsers(operator):
    url = re.search(r'src="(\S+plotly\S+)"', operator.get("/").content.decode())[1]
    file = finders.find(url.removeprefix("/static/"))
    answer = operator.get(url)
    assert answer.status_code == 200
    assert "immutable" in answer["Cache-Control"]
    packed = operator.get(url, headers={"accept-encoding": "gzip"})
    assert (packed["Content-Encoding"], packed["Vary"]) == ("gzip", "Accept-Encoding")
    assert "immutable" in packed["Cache-Control"]
    assert int(packed["Content-Length"]) < 0.35 * int(answer["Content-Length"])
    assert gzip.decompress(Path(f"{file}.gz").read_bytes()) == Path(file).read_bytes(), "gzip -9 -n -k it again"
    assert "immutable" not in operator.get("/static/frontend/charts.js").get("Cache-Control", "")


def test_bundle_of_plotly_draws_every_kind_of_trace_that_figures_have():
    (bundle,) = Path(finders.find("plotly")).glob("*.min.js")
    text = bundle.read_text(encoding="utf-8")
    sources = "".join(path.read_text() for path in Path("frontend").rglob("*.py") if "api" not in path.parts)
    traces = set(re.findall('"type": "([a-z]+)"', sources)) - {"category", "data", "date", "line", "log", "rect"}
    assert traces >= {"bar", "heatmap", "scatter"}
    for trace in traces:
        assert f'moduleType:"trace",name:"{trace}"' in text, trace


def test_figures_are_small_enough_to_fetch_every_few_seconds(operator, seeded):
    for key in ("15m", "24h"):
        size = len(operator.get(f"/overview/figures.json?range={key}").content)
        assert size < 300_000, f"{key}: {size} bytes"
    assert connection.vendor == "postgresql"
    assert json.loads(operator.get("/overview/figures.json").content)["refresh_s"] == 2.5
