"""Files and batches with the official client: gateway -> web process -> PostgreSQL -> and lines through the gateway."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Collection, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import openai
import psycopg
import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from greenserve import env
from pools import demo, wire
from pools.gateway.server import Config, GatewayServer
from pools.models import ApiKey, Service, Site, Tenant
from pools.writes import hash_secret, register_key
from scheduler.batches import batch_keys, batch_requests, batch_runner, lifecycle, planning, tenant_files
from scheduler.batches.input_lines import ENDPOINTS
from scheduler.batches.sending import GatewaySender, LineOutcome, Request
from scheduler.control.apply import fleet_messages
from scheduler.models import Batch, BatchLine, Decision, File
from telemetry.models import CarbonFeed, CarbonPoint
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import MODEL, FakeFleet
from tests.fakes.nursery import Nursery, nursery
from tests.fakes.simnode import eventually
from tests.ports import free_port

pytestmark = pytest.mark.django_db(transaction=True)

ACME, BIRCH = "gs-acme-secret", "gs-birch-secret"
CHAT = ENDPOINTS[0]
LINES = 40  # of the batch whose runners are killed


class LoopThread:
    """An event loop of its own, for a gateway and an engine beside tests that are not asynchronous."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def web(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The web process, on the tests' database."""
    port = free_port()
    log = tmp_path_factory.mktemp("web") / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "greenserve.asgi:application", "--port", str(port), "--lifespan", "off"],
            env=child_env(),
            cwd=env.ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: answers(url + "/healthz"), timeout_s=30, what="the web process")
        yield url
    finally:
        process.terminate()
        process.wait(15)


def child_env() -> dict[str, str]:
    """Of a process that works on the tests' database."""
    address = os.environ["DATABASE_URL"]
    base, _, rest = address.rpartition("/")
    _, mark, query = rest.partition("?")
    name = connection.settings_dict["NAME"]
    return {
        **os.environ,
        "DATABASE_URL": f"{base}/{name}{mark}{query}",
        "DJANGO_SETTINGS_MODULE": "greenserve.settings",
        "GREENSERVE_SECRET_KEY": settings.SECRET_KEY,
    }


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


class Bench:
    """A gateway before a fake engine and the web process; clients of two tenants."""

    def __init__(self, web: str, spool: Path) -> None:
        self.thread = LoopThread()
        self.engine: FakeEngine = self.thread.run(FakeEngine().start())
        self.fleet = FakeFleet([self.engine.url])
        self.server: GatewayServer = self.thread.run(self._start(web, spool))
        self.publish()
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.acme, self.birch = (
            openai.OpenAI(base_url=f"{self.url}/v1", api_key=secret, max_retries=0, timeout=30)
            for secret in (ACME, BIRCH)
        )

    async def _start(self, web: str, spool: Path) -> GatewayServer:
        server = GatewayServer(Config("127.0.0.1", 0, spool, learns=False, web_url=web, grace_s=0.5))
        await server.start()
        return server

    def publish(self) -> None:
        """What the gateway would read from Redis: the fake fleet, and the keys as they are published."""
        keys = fleet_messages.fleet_snapshot(timezone.now(), 1).keys
        fleet = msgspec.structs.replace(self.fleet.fleet(), keys=keys)
        apply = self.server.fleet.apply
        self.thread.loop.call_soon_threadsafe(apply, fleet, self.fleet.states(), time.monotonic())

    def upload(self, *lines: Any, **more: Any) -> str:
        return self.acme.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch", **more).id

    def batch(self, *lines: Any, endpoint: str = CHAT, window: str = "24h") -> str:
        file_id = self.upload(*lines)
        made: Any = self.acme.batches.create(
            input_file_id=file_id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window=window,  # type: ignore[arg-type]
        )
        assert made.status == "validating"
        self.publish()
        return str(made.id)

    def work(self) -> bool:
        return batch_runner.work(lambda: GatewaySender(self.url))

    def output(self, file_id: str | None) -> list[dict[str, Any]]:
        assert file_id is not None
        return [json.loads(line) for line in self.acme.files.content(file_id).text.splitlines()]

    def close(self) -> None:
        self.acme.close()
        self.birch.close()
        self.thread.run(self.server.stop())
        self.thread.run(self.engine.stop())
        self.thread.stop()


def line(n: int, url: str = CHAT, **body: Any) -> dict[str, Any]:
    content = {"messages": [{"role": "user", "content": f"question {n}"}]} if "chat" in url else {"prompt": "hello"}
    return {"custom_id": f"r{n}", "method": "POST", "url": url, "body": {"model": MODEL, **content, **body}}


def jsonl(*lines: Any) -> bytes:
    return b"".join((raw if isinstance(raw, bytes) else json.dumps(raw).encode()) + b"\n" for raw in lines)


@pytest.fixture
def service(settings: Any) -> Service:
    settings.GREENSERVE_BATCHES = {**settings.GREENSERVE_BATCHES, "learn_s": 0.0, "epoch_s": 1.0}
    service = demo.load()
    for name, secret in (("acme", ACME), ("birch", BIRCH)):
        register_key(Tenant.objects.get(name=name), secret)
    return service


@pytest.fixture
def bench(web: str, service: Service, tmp_path: Path, redis_client: object) -> Iterator[Bench]:
    bench = Bench(web, tmp_path / "spool")
    try:
        eventually(lambda: bench.server.fleet.known)
        yield bench
    finally:
        bench.close()


def forecast(*values: float | None) -> None:
    """Of every site, from now, in steps as plans have them."""
    now, step = timezone.now(), timedelta(seconds=settings.GREENSERVE_BATCHES["step_s"])
    for site in Site.objects.all():
        feed, _ = CarbonFeed.objects.get_or_create(site=site, provider="static_csv", signal="average")
        for n, value in enumerate(values):
            CarbonPoint.objects.create(
                feed=feed,
                start_at=now + n * step,
                end_at=now + (n + 1) * step,
                value_g_per_kwh=value,
                raw_value=value,
                raw_unit="gCO2e/kWh",
                factor="direct",
                forecast=True,
                estimated=False,
                issued_at=now,
            )


# -- the official client ---------------------------------------------------------------------------


def test_batch_runs_from_upload_to_output_with_the_official_client(bench: Bench) -> None:
    batch_id = bench.batch(line(1), line(2, service_tier="priority", priority=-5), line(3, max_tokens=-1), line(4))
    assert bench.work()
    done = bench.acme.batches.retrieve(batch_id)
    assert (done.status, done.model) == ("completed", MODEL)
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 4, "completed": 3, "failed": 1}
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (21, 15)
    assert done.created_at <= (done.in_progress_at or 0) <= (done.finalizing_at or 0) <= (done.completed_at or 0)
    assert done.expires_at == done.created_at + 86_400
    rows = bench.output(done.output_file_id)
    assert [row["custom_id"] for row in rows] == ["r1", "r2", "r4"]
    for row in rows:
        assert row["error"] is None
        assert row["response"]["status_code"] == 200
        assert row["response"]["request_id"] == row["id"]
        assert row["response"]["body"]["choices"][0]["message"]["content"]
    (fault,) = bench.output(done.error_file_id)
    assert (fault["custom_id"], fault["response"]["status_code"]) == ("r3", 400)
    assert fault["response"]["body"]["error"]["param"] == "max_tokens"
    assert all("service_tier" not in seen.body and "priority" not in seen.body for seen in bench.engine.received)
    assert not BatchLine.objects.exists()
    key = ApiKey.objects.get(key_hash=hash_secret(ACME))
    rows_of_gateway = [
        wire.decode(raw, wire.RequestRow)
        for path in (bench.server._config.spool).glob("*.jsonl")
        for raw in path.read_bytes().splitlines()
    ]
    assert {(row.tenant_id, row.key_id) for row in rows_of_gateway} == {(key.tenant_id, key.pk)}, "they count as its"


def test_files_are_kept_listed_read_and_deleted(bench: Bench) -> None:
    content = jsonl(line(1), line(2))
    first = bench.acme.files.create(
        file=("in.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (first.bytes, first.filename, first.purpose, first.status) == (
        len(content),
        "in.jsonl",
        "batch",
        "processed",
    )
    assert first.expires_at == first.created_at + 3600
    others = [bench.upload(line(n)) for n in range(3)]
    ids = [first.id, *others]
    assert bench.acme.files.retrieve(first.id) == first
    assert bench.acme.files.content(first.id).content == content
    assert [row.id for row in bench.acme.files.list(order="asc", limit=2)] == ids, "all pages"
    assert [row.id for row in bench.acme.files.list(purpose="batch")] == ids[::-1]
    assert not bench.acme.files.list(purpose="batch_output").data
    assert bench.acme.files.delete(first.id).deleted
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        bench.acme.files.retrieve(first.id)
    File.objects.update(expires_at=timezone.now())
    assert not bench.acme.files.list().data
    bench.work()
    assert not File.objects.exists()


def test_batches_are_listed_page_by_page_and_belong_to_their_tenant(bench: Bench) -> None:
    ids = [bench.batch(line(1), window=window) for window in ("90s", "30m", "2d")]
    assert [row.id for row in bench.acme.batches.list(limit=2)] == ids[::-1]
    page = bench.acme.batches.list(limit=2)
    assert (page.has_more, len(page.data)) == (True, 2)
    assert not bench.birch.batches.list().data
    assert not bench.birch.files.list().data
    file_id = bench.acme.files.list().data[0].id
    for ask in (
        lambda: bench.birch.batches.retrieve(ids[0]),
        lambda: bench.birch.batches.cancel(ids[0]),
        lambda: bench.birch.batches.list(after=ids[0]),
        lambda: bench.birch.files.retrieve(file_id),
        lambda: bench.birch.files.content(file_id),
        lambda: bench.birch.files.delete(file_id),
        lambda: bench.birch.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h"),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()


OTHERS = pytest.mark.slow("refused as others are")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        pytest.param({"completion_window": "soon"}, "completion_window", marks=OTHERS),
        pytest.param({"completion_window": "30s"}, "completion_window", marks=OTHERS),
        pytest.param({"completion_window": "15d"}, "completion_window", marks=OTHERS),
        pytest.param({"input_file_id": ""}, "input_file_id", marks=OTHERS),
        pytest.param({"metadata": {"a": "x" * 513}}, "metadata", marks=OTHERS),
        ({"metadata": {"a": "\0"}}, "metadata"),
        pytest.param(
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after", marks=OTHERS
        ),
    ],
)
def test_what_is_asked_for_is_refused_by_name_when_it_cannot_be(bench: Bench, fields: Any, param: str) -> None:
    usual = {"input_file_id": bench.upload(line(1)), "endpoint": CHAT, "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError) as caught:
        bench.acme.batches.create(**(usual | fields))
    assert caught.value.param == param


def test_batch_fails_with_line_numbers_when_its_lines_are_wrong(bench: Bench) -> None:
    batch_id = bench.batch(
        line(1),
        b"not json",
        line(1),
        {**line(3), "method": "GET"},
        {**line(4), "url": "/v1/completions"},
        line(5, model="gpt-99"),
        line(6, stream=True),
        b"",
        {**line(7), "custom_id": None},
    )
    bench.work()
    failed = bench.acme.batches.retrieve(batch_id)
    assert failed.status == "failed"
    assert failed.failed_at
    assert failed.errors is not None
    assert [(error.line, error.code) for error in failed.errors.data or []] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "invalid_method"),
        (5, "invalid_url"),
        (6, "model_not_found"),
        (7, "invalid_parameter"),
        (9, "missing_required_parameter"),
    ]
    assert not bench.engine.received
    assert not BatchLine.objects.exists()


# -- endings ---------------------------------------------------------------------------------------


def test_cancelled_batch_keeps_what_was_done(bench: Bench) -> None:
    bench.engine.tokens, bench.engine.pace_s = 1, 0.3
    batch_id = bench.batch(*[line(n) for n in range(40)])

    def cancel() -> None:
        eventually(lambda: (bench.acme.batches.retrieve(batch_id).request_counts or object).completed >= 3)  # type: ignore
        assert bench.acme.batches.cancel(batch_id).status == "cancelling"

    canceller = threading.Thread(target=cancel)
    canceller.start()
    bench.work()
    canceller.join()
    done = bench.acme.batches.retrieve(batch_id)
    assert done.status == "cancelled"
    assert done.cancelled_at
    kept, faults = bench.output(done.output_file_id), bench.output(done.error_file_id)
    assert len(kept) >= 3
    assert {row["custom_id"] for row in kept} | {row["custom_id"] for row in faults} == {f"r{n}" for n in range(40)}
    assert len(kept) + len(faults) == 40
    assert {row["error"]["code"] for row in faults} == {"batch_cancelled"}
    assert bench.acme.batches.cancel(batch_id).status == "cancelled", "once more does no harm"
    ended_id = bench.batch(line(1))
    bench.work()
    with pytest.raises(openai.ConflictError):
        bench.acme.batches.cancel(ended_id)


@pytest.mark.slow("it waits for an end")
def test_batch_expires_with_what_was_done(bench: Bench) -> None:
    bench.engine.status = 503
    batch_id = bench.batch(line(1), line(2))
    Batch.objects.update(expires_at=timezone.now() + timedelta(seconds=1.2))
    eventually(lambda: bench.work() and Batch.objects.get().status == "expired")
    done = bench.acme.batches.retrieve(batch_id)
    assert done.output_file_id is None
    assert {row["error"]["code"] for row in bench.output(done.error_file_id)} == {"batch_expired"}
    assert done.request_counts is not None
    assert done.request_counts.failed == 2


def test_lines_of_a_revoked_key_do_not_run(bench: Bench) -> None:
    bench.batch(line(1))
    ApiKey.objects.filter(key_hash=hash_secret(ACME)).update(revoked_at=timezone.now())
    bench.work()
    assert Batch.objects.get().status == "cancelled"
    assert not bench.engine.received
    assert not batch_keys.fleet_keys(timezone.now())


@pytest.mark.slow("it waits between attempts")
def test_line_is_given_up_after_some_attempts_when_the_engine_breaks_on_it(bench: Bench, settings: Any) -> None:
    settings.GREENSERVE_BATCHES = {**settings.GREENSERVE_BATCHES, "attempts": 2}
    bench.engine.status = 500
    batch_id = bench.batch(line(1))
    eventually(lambda: bench.work() and Batch.objects.get().status == "completed")
    done = bench.acme.batches.retrieve(batch_id)
    (fault,) = bench.output(done.error_file_id)
    assert fault["response"]["status_code"] in (500, 502)
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (0, 1)


@pytest.fixture(scope="module")
def runners(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nursery, Path]]:
    """Batches' processes, as often as one is started; the file names the gateway that they send to."""
    url = tmp_path_factory.mktemp("runners") / "url"
    code = (
        "import pathlib\n"
        "from scheduler.batches import batch_runner, sending\n"
        f"batch_runner.work(lambda: sending.GatewaySender(pathlib.Path({str(url)!r}).read_text()))\n"
    )
    with nursery(code, child_env()) as opened:
        yield opened, url


@pytest.mark.slow("processes that are killed")
def test_no_line_is_lost_or_doubled_when_runners_are_killed(bench: Bench, runners: tuple[Nursery, Path]) -> None:
    forks, url = runners
    url.write_text(bench.url)
    bench.engine.tokens, bench.engine.pace_s = 1, 0.05
    batch_id = bench.batch(*[line(n) for n in range(LINES)])
    for done in (3, 10, 18):
        forks.start()
        eventually(lambda done=done: Batch.objects.get().completed >= done, timeout_s=30, what=f"{done} lines")
        assert forks.end(signal.SIGKILL) == -signal.SIGKILL
        eventually(lambda: not locked(), what="the lock's end")
    eventually(lambda: bench.work() and Batch.objects.get().status == "completed", timeout_s=30)
    found = bench.acme.batches.retrieve(batch_id)
    assert [row["custom_id"] for row in bench.output(found.output_file_id)] == [f"r{n}" for n in range(LINES)]
    assert found.error_file_id is None
    assert found.request_counts is not None
    assert found.request_counts.completed == LINES


def locked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("select 1 from pg_locks where locktype = 'advisory' and pid <> pg_backend_pid()")
        return cursor.fetchone() is not None


def test_second_runner_leaves_at_once_when_one_is_at_work(bench: Bench) -> None:
    with psycopg.connect(child_env()["DATABASE_URL"]) as other:
        other.execute("select pg_advisory_lock(hashtext('scheduler.batches'))")
        assert not bench.work()
    eventually(bench.work)


# -- when, and how many at a time ------------------------------------------------------------------


class FakeSender:
    """Answers nothing by itself; `others` wait in the gateway's lines."""

    def __init__(self, answer: Callable[[Request], LineOutcome] | None = None) -> None:
        self.others: int | None = 0
        self.flying: dict[int, Request] = {}
        self.most = 0
        self.sent = 0
        self._answer = answer

    def send(self, request: Request) -> None:
        self.sent += 1
        self.flying[request.line] = request
        self.most = max(self.most, len(self.flying))

    def collect(self, timeout_s: float) -> list[LineOutcome]:
        time.sleep(0.01)
        if self._answer is None:
            return []
        found = [self._answer(request) for request in self.flying.values()]
        self.flying.clear()
        return found

    def drop(self, lines: Collection[int]) -> None:
        for row in lines:
            self.flying.pop(row, None)

    def waiting(self) -> int | None:
        return self.others

    def close(self) -> None: ...


def ok(request: Request) -> LineOutcome:
    return LineOutcome(request.line, 200, b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}', "rid")


def made_batch(service: Service, count: int, window_s: float = 3_600.0) -> Batch:
    """A batch that is under way, without the way there."""
    now, tenant = timezone.now(), Tenant.objects.get(name="acme")
    key = ApiKey.objects.get(tenant=tenant)
    file = tenant_files.create(tenant, "in", [jsonl(*[line(n) for n in range(count)])], None, now)
    batch = Batch.objects.create(
        tenant=tenant,
        key=key,
        endpoint=CHAT,
        completion_window="1h",
        input_file_uid=file.uid,
        created_at=now,
        expires_at=now + timedelta(seconds=window_s),
    )
    lifecycle.validate(batch, now)
    assert (batch.status, batch.total) == ("in_progress", count)
    return batch


def test_lines_wait_for_cleaner_time_and_a_decision_says_so(service: Service) -> None:
    made_batch(service, 20)
    forecast(500, 500, 100, 500)
    planning.save_rate(service, planning.RateMeter(10.0))
    sender = FakeSender(ok)
    for _ in range(3):
        assert batch_runner.work(lambda: sender)
    assert not sender.sent
    decision = Decision.objects.get(kind="deferral")
    assert decision.service == service
    assert (decision.reason, decision.held, decision.commands) == ("optimal", 2, [])
    assert "20 lines of llama3-70b wait" in decision.summary
    assert decision.inputs["g_per_kwh_now"] == pytest.approx(500)
    CarbonPoint.objects.all().delete()
    forecast(100, 500, 500)
    assert batch_runner.work(lambda: sender)
    assert sender.sent == 20
    assert Batch.objects.get().status == "completed"
    newest = Decision.objects.filter(kind="deferral").latest("pk")
    assert newest.commands[0]["type"] == "RunDeferred"
    assert "no known time before the deadline is cleaner" in newest.summary


@pytest.mark.slow("the rule is a unit's")
def test_lines_run_in_dirty_time_when_the_deadline_is_near(service: Service) -> None:
    made_batch(service, 20, window_s=12.0)
    forecast(*[500] * 3, 100)
    planning.save_rate(service, planning.RateMeter(2.0))
    sender = FakeSender(ok)
    assert batch_runner.work(lambda: sender)
    assert sender.sent == 20


def test_fewer_lines_are_under_way_when_others_wait(service: Service) -> None:
    made_batch(service, 60)
    planning.save_rate(service, planning.RateMeter(1.0))
    sender = FakeSender(ok)
    now = [1e9 + time.time()]
    turn = batch_runner.Runner(sender, waiting=lambda _: 0, clock=lambda: now[0] - 1e9)
    turn._look(now[0] - 1e9)
    (lane,) = turn._lanes.values()
    lane.most_in_flight = 16.0
    sender.others = 3
    for expected in (8.0, 4.0, 2.0, 1.0, 1.0):
        turn._adjust(lane, now[0])
        assert lane.most_in_flight == expected
    sender.others, lane.refused = 0, True
    turn._adjust(lane, now[0])
    assert lane.most_in_flight == 1.0, "a 429 is a sign as well"
    for _ in range(3):
        turn._fill(lane)
        turn._fill(lane)
        turn._adjust(lane, now[0])
    assert lane.most_in_flight == 4.0
    sender.others = None
    lane.was_full = True
    turn._adjust(lane, now[0])
    assert lane.most_in_flight == 4.0, "not known: it stays"


@pytest.mark.slow("it waits for its gateway")
def test_refused_lines_come_again_when_the_gateway_says_so(service: Service) -> None:
    made_batch(service, 3)
    answers = iter([429, 503, 401, 200, 200, 200])

    def busy(request: Request) -> LineOutcome:
        status = next(answers)
        return ok(request) if status == 200 else LineOutcome(request.line, status, retry_after_s=0.05)

    sender = FakeSender(busy)
    assert batch_runner.work(lambda: sender)
    assert sender.sent == 6
    assert Batch.objects.get().completed == 3


def test_rest_of_a_batch_fails_at_once_when_its_tenants_budget_is_spent(service: Service) -> None:
    batch = made_batch(service, 20)
    spent = b'{"error":{"message":"It is spent.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}'
    answers = itertools.chain([200, 200, 429], itertools.repeat(200))

    def until_it_is_spent(request: Request) -> LineOutcome:
        status = next(answers)
        return ok(request) if status == 200 else LineOutcome(request.line, status, spent, "rid", 86_400, final=True)

    sender = FakeSender(until_it_is_spent)
    assert batch_runner.work(lambda: sender)
    assert sender.sent == sender.most == 4, "those under way are awaited, and no more are sent"
    batch.refresh_from_db()
    assert (batch.status, batch.completed, batch.failed) == ("completed", 3, 17)
    assert [fault["code"] for fault in batch_requests.shape(batch)["errors"]["data"]] == ["insufficient_quota"]
    failed = File.objects.get(uid=batch.error_file_uid)
    lines = [json.loads(line) for line in b"".join(tenant_files.read(failed)).splitlines()]
    assert [line["response"]["status_code"] for line in lines if line["response"]] == [429]
    assert {line["error"]["code"] for line in lines if line["error"]} == {"insufficient_quota"}
    assert {line["error"]["message"] for line in lines if line["error"]} == {"It is spent."}
    assert len(lines) == 17


def test_result_is_written_once_when_a_line_was_sent_twice(service: Service) -> None:
    batch = made_batch(service, 1)
    row = batch.lines.get()
    outcome = LineOutcome(row.pk, 200, b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}')
    assert batch_runner.store(row, outcome)
    assert not batch_runner.store(row, dataclasses.replace(outcome, status=500))
    batch.refresh_from_db()
    assert (batch.completed, batch.failed, batch.output_tokens) == (1, 0, 2)
