"""Workers that register themselves: who may, what they say, when they get requests and when no more."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pools import wire
from pools.gateway.errors import ApiError
from pools.gateway.fleet import workers
from pools.gateway.fleet.worker_api import WorkerApi
from pools.gateway.fleet.workers import Workers
from pools.gateway.redis_tasks import Refresher, Repeated, keep_refreshing
from pools.gateway.server import Config, GatewayServer
from pools.registration.registered_engines import instance_of, pools_of
from pools.registration.worker_hosts import WorkerHosts
from tests.fakes.engine import FakeEngine
from tests.fakes.fleet import MODEL, FakeFleet
from tests.unit.laws import examples
from tests.unit.pools.gateway.conftest import Bench, FirstOfEquals, completion, until

TOKEN = "a-token-for-workers"


@dataclass
class FakeStore:
    """Registrations under leases, in memory (WorkerStore)."""

    kept: dict[str, wire.WorkerRegistration] = field(default_factory=dict)
    until_s: dict[str, float] = field(default_factory=dict)
    fails: bool = False
    measured: wire.AgentState | None = None

    async def workers(self) -> tuple[list[wire.WorkerRegistration], set[str]]:
        self._answer()
        now_s = time.monotonic()
        found = [worker for uid, worker in self.kept.items() if self.until_s[uid] > now_s]
        return found, set(self.until_s) - {worker.uid for worker in found}

    async def put_worker(self, worker: wire.WorkerRegistration) -> None:
        self._answer()
        self.kept[worker.uid] = worker
        self.until_s[worker.uid] = time.monotonic() + worker.lease_s

    async def put_worker_back(self, worker: wire.WorkerRegistration, left_s: float) -> None:
        self._answer()
        if worker.uid not in self.kept:
            self.kept[worker.uid] = worker
            self.until_s[worker.uid] = time.monotonic() + left_s

    def lose_all(self) -> None:
        self.kept.clear()
        self.until_s.clear()

    async def drop_worker(self, uid: str) -> bool:
        self._answer()
        return self.kept.pop(uid, None) is not None

    async def measured_workers(self) -> wire.AgentState | None:
        self._answer()
        return self.measured

    def _answer(self) -> None:
        if self.fails:
            raise ConnectionError("no store today")


@dataclass
class WorkerBench:
    bench: Bench
    store: FakeStore

    @property
    def workers(self) -> Workers:
        return self.bench.server.runtime.workers

    async def ask(self, method: str, path: str = "", token: str | None = TOKEN, **kwargs: Any) -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"{self.bench.url}/v1/workers{path}"
        async with self.bench.http.request(method, url, headers=headers, **kwargs) as response:
            return response.status, await response.json()

    async def register(self, url: str, **fields: Any) -> tuple[int, Any]:
        body = {"url": url, "service": MODEL, "gpu_type": "A100-80GB", "tp": 4, "lease_s": 60} | fields
        return await self.ask("POST", json=body)

    def ready(self) -> int:
        return self.bench.server.fleet.ready_instances


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[WorkerBench]:
    """A gateway without instances, one engine that nobody knows of, and a source that is read every 20 ms."""
    engine = await FakeEngine().start()
    spool = tmp_path / "spool"
    server = GatewayServer(
        Config("127.0.0.1", 0, spool, rng=FirstOfEquals(), worker_token=TOKEN, learns=False, grace_s=0.2)
    )
    await server.start()
    store, source = FakeStore(), FakeFleet([])
    server.runtime.workers.store, server.runtime.workers.probe_period_s = store, 0.05
    beat = Repeated("reading", 0.02)
    server.runtime.workers.changed = beat.wake.set
    server.runtime.begin(keep_refreshing(Refresher(server.fleet, source, server.runtime.workers), beat), "snapshot")
    bench = Bench(server, [engine], source, aiohttp.ClientSession(), spool)
    await until(lambda: server.fleet.known)
    yield WorkerBench(bench, store)
    await bench.http.close()
    await server.stop()
    await engine.stop()


async def test_worker_gets_requests_when_it_has_registered_and_answers(api: WorkerBench) -> None:
    bench = api.bench
    status, worker = await api.register(bench.engine.url + "/", request_class="LS")
    assert (status, worker["status"], worker["url"]) == (201, "probing", bench.engine.url)
    await until(lambda: api.ready() == 1)
    async with bench.post(completion()) as response:
        assert response.status == 200
    row = await bench.row()
    assert (row.instance_uid, row.pool_id, row.route_reason) == (worker["id"], 3, "least energy within the limits")
    status, listed = await api.ask("GET")
    assert [(w["id"], w["status"]) for w in listed["data"]] == [(worker["id"], "ready")]


async def test_workers_get_the_key_that_they_ask_for_which_no_list_shows(api: WorkerBench) -> None:
    api.workers._key = "sk-of-our-workers"
    await api.register(api.bench.engine.url)
    await until(lambda: api.ready() == 1)
    async with api.bench.post(completion()) as response:
        assert response.status == 200
    assert api.bench.engine.received[-1].headers["authorization"] == "Bearer sk-of-our-workers"
    _, listed = await api.ask("GET")
    assert "sk-of-our-workers" not in json.dumps(listed)


async def test_worker_is_of_the_largest_class_when_it_names_none(api: WorkerBench) -> None:
    await api.register(api.bench.engine.url)
    await until(lambda: api.ready() == 1)
    (instance,) = api.bench.server.fleet.instances()
    assert (instance.request_class, instance.state.model, instance.state.max_mhz) == ("LL", "Llama3-70B", 1410.0)


async def test_worker_is_as_busy_as_its_engine_says_while_that_is_news(
    api: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> tuple[int | None, int | None, float | None]:
        (instance,) = api.bench.server.fleet.instances()
        return instance.state.running, instance.state.waiting, instance.state.kv_usage

    await api.register(api.bench.engine.url)
    await until(lambda: api.ready() == 1)
    assert load() == (None, None, None)
    (instance,) = api.bench.server.fleet.instances()
    seen = replace(instance.state, state="failed", running=9, waiting=4, kv_usage=0.5)
    api.store.measured = wire.AgentState("registered", "b", time.time(), None, [seen])
    await until(lambda: load() == (9, 4, 0.5))
    assert api.ready() == 1, "whether it gets requests is for its health check to say"
    assert instance.candidate().running == 9
    monkeypatch.setattr(workers, "MEASURED_S", 0.02)
    await until(lambda: load() == (None, None, None))
    assert api.ready() == 1


async def test_worker_is_left_out_until_its_health_check_succeeds(api: WorkerBench) -> None:
    engine = api.bench.engine
    engine.status = 503
    await api.register(engine.url)
    await until(lambda: engine.looks >= 2)
    assert api.ready() == 0
    _, listed = await api.ask("GET")
    assert (listed["data"][0]["status"], listed["data"][0]["detail"]) == ("failing", "/health answers 503")
    engine.status = 200
    await until(lambda: api.ready() == 1)
    engine.status = 500
    await until(lambda: api.ready() == 0)
    engine.status = 200
    await until(lambda: api.ready() == 1)
    assert not engine.received


async def test_worker_is_left_out_when_nobody_listens(api: WorkerBench) -> None:
    await api.bench.engine.stop()
    await api.register(api.bench.engine.url)
    await until(lambda: any(worker.answers is False for worker in api.workers.known()))
    assert api.ready() == 0


async def test_worker_goes_when_its_lease_is_over_and_stays_when_it_is_renewed(api: WorkerBench) -> None:
    _, worker = await api.register(api.bench.engine.url, lease_s=5)
    await until(lambda: api.ready() == 1)
    api.store.until_s[worker["id"]] = time.monotonic() + 0.3
    status, again = await api.register(api.bench.engine.url, lease_s=5)
    assert (status, again["id"], again["status"]) == (200, worker["id"], "ready")
    await asyncio.sleep(0.4)
    assert api.ready() == 1
    api.store.until_s[worker["id"]] = 0.0
    await until(lambda: api.ready() == 0)


async def test_worker_goes_when_it_leaves_and_what_runs_there_ends(api: WorkerBench) -> None:
    bench = api.bench
    bench.engine.pace_s = 0.1
    _, worker = await api.register(bench.engine.url)
    await until(lambda: api.ready() == 1)
    running = asyncio.create_task(bench.events(completion()))
    await until(lambda: len(bench.engine.received) > 0)
    assert await api.ask("DELETE", f"/{worker['id']}") == (
        200,
        {"id": worker["id"], "object": "worker", "deleted": True},
    )
    await until(lambda: api.ready() == 0)
    assert (await running)[-1] == "[DONE]"
    status, answer = await api.ask("DELETE", f"/{worker['id']}")
    assert (status, answer["error"]["code"]) == (404, "not_found")


async def test_worker_stays_and_is_registered_anew_when_the_store_was_emptied(api: WorkerBench) -> None:
    _, worker = await api.register(api.bench.engine.url)
    await until(lambda: api.ready() == 1)
    watch = next(iter(api.workers.known())).watch
    lost_at_s = time.monotonic()
    api.store.lose_all()
    await until(lambda: worker["id"] in api.store.kept)
    assert api.store.until_s[worker["id"]] <= lost_at_s + 60, "the rest of its lease, and no new one"
    assert api.ready() == 1
    assert next(iter(api.workers.known())).watch is watch, "it has been out in between"
    await api.ask("DELETE", f"/{worker['id']}")
    await until(lambda: api.ready() == 0)


async def test_worker_goes_when_the_store_was_emptied_and_its_lease_is_over(api: WorkerBench) -> None:
    await api.register(api.bench.engine.url)
    await until(lambda: api.ready() == 1)
    next(iter(api.workers.known())).until_s = time.monotonic()
    api.store.lose_all()
    await until(lambda: api.ready() == 0)
    assert not api.store.kept


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"url": "ftp://10.0.0.1"}, "url", "http://10.0.0.7:8000"),
        ({"url": "http://"}, "url", "http://10.0.0.7:8000"),
        ({"url": "http://10.0.0.1:99999"}, "url", "http://10.0.0.7:8000"),
        ({"url": "http://user:word@10.0.0.1"}, "url", "http://10.0.0.7:8000"),
        ({"url": "http://10.0.0.1/v1"}, "url", "without a path"),
        ({"url": "http://8.8.8.8:8000"}, "url", "--worker-hosts"),
        ({"url": "http://example.org"}, "url", "--worker-hosts"),
        ({"url": "http://169.254.169.254"}, "url", "--worker-hosts"),
        ({"url": "http://2130706433"}, "url", "--worker-hosts"),
        ({"url": 7}, "url", "url"),
        ({"service": "nobody"}, "service", MODEL),
        ({"request_class": "XXL"}, "request_class", "SS, SL, LS, LL"),
        ({"site": "moon"}, "site", "location-1"),
        ({"gpu_type": "Z80"}, "gpu_type", "A100-80GB"),
        ({"gpu_type": "A100-80GB", "tp": 0}, "tp", "tp"),
        ({"tp": 1}, "tp", "do not hold the model"),
        ({"tp": 6}, "tp", "choose one of 1, 2, 4, 8"),
        ({"tp": 10**30}, "tp", "64"),
        ({"url": "http://10.0.0.1/" + "x" * 500}, "url", "200"),
        ({"model": "Nobody-7B"}, "model", "known"),
        ({"engine": "steam"}, "engine", "known"),
        ({"lease_s": 1}, "lease_s", "between 5 and 3600"),
        ({"lease_s": 1e9}, "lease_s", "between 5 and 3600"),
        ({"colour": "red"}, "colour", "colour"),
    ],
)
async def test_registration_is_refused_with_the_field_and_the_remedy(
    api: WorkerBench, fields: dict[str, Any], param: str, said: str
) -> None:
    status, answer = await api.register(**({"url": "http://127.0.0.1:1"} | fields))
    assert (status, answer["error"]["param"]) == (400, param), answer
    assert said in answer["error"]["message"]
    assert not api.store.kept


async def test_registration_is_refused_when_fields_are_missing_or_no_json(api: WorkerBench) -> None:
    for raw, param in ((b"{}", "url"), (b"{", None), (b"\xff", None), (b"[" * 10_000, None)):
        status, answer = await api.ask("POST", data=raw)
        assert (status, answer["error"]["param"]) == (400, param)


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
FIELDS = ("url", "service", "gpu_type", "tp", "lease_s", "request_class", "site", "model", "engine")
GOOD = {"url": "http://127.0.0.1:1", "service": MODEL, "gpu_type": "A100-80GB", "tp": 4, "lease_s": 60}


@given(fields=st.dictionaries(st.sampled_from(FIELDS), VALUES))
@settings(max_examples=examples(50), deadline=None)
def test_registration_is_taken_or_refused_with_400_when_fuzzed(fields: dict[str, Any]) -> None:
    workers = Workers()
    workers.fleet = FakeFleet([]).fleet()
    api = WorkerApi(TOKEN, workers)
    refusal: ApiError | None = None
    try:
        worker = api._checked(json.dumps(GOOD | fields).encode())
    except ApiError as error:
        refusal = error
    if refusal is None:
        assert workers.hosts.allow(urlsplit(worker.url).hostname or "")
    else:
        assert (refusal.status, refusal.param in FIELDS) == (400, True)


async def test_only_holders_of_the_token_get_in(api: WorkerBench) -> None:
    for method, path in (("POST", ""), ("GET", ""), ("DELETE", "/x"), ("PUT", "")):
        for token in (None, "", "wrong", TOKEN + "x", "gs-secret-of-acme"):
            status, answer = await api.ask(method, path, token)
            assert (status, answer["error"]["code"]) == (401, "invalid_token")
    assert (await api.ask("PUT"))[0] == 405


async def test_path_is_not_there_without_a_token(bench: Bench) -> None:
    async with bench.http.post(bench.url + "/v1/workers", headers=bench.auth, json={}) as response:
        assert response.status == 404


async def test_registration_is_refused_for_now_when_the_store_is_away(api: WorkerBench) -> None:
    api.store.fails = True
    status, answer = await api.register("http://127.0.0.1:1")
    assert (status, answer["error"]["code"]) == (503, "no_store")
    api.store.fails = False
    assert (await api.register("http://127.0.0.1:1"))[0] == 201


async def test_last_workers_stay_when_the_store_goes_away(api: WorkerBench) -> None:
    await api.register(api.bench.engine.url)
    await until(lambda: api.ready() == 1)
    api.store.fails = True
    await asyncio.sleep(0.1)
    assert api.ready() == 1


async def test_worker_that_another_gateway_let_in_is_left_out_when_it_may_not_be_here(
    api: WorkerBench, caplog: pytest.LogCaptureFixture
) -> None:
    await api.store.put_worker(wire.WorkerRegistration("u", "http://8.8.8.8:1", MODEL, "A100-80GB", 4, 60.0, 0.0))
    await until(lambda: bool(caplog.records))
    await asyncio.sleep(0.1)
    assert len(caplog.records) == 1
    assert not list(api.workers.known())


def test_pool_is_that_of_the_largest_class_when_the_workers_own_is_no_more() -> None:
    service = FakeFleet([]).fleet().services[0]
    assert [pool.request_class for pool in pools_of(service, "gone", None)] == ["LL"]
    assert pools_of(service, "SS", "elsewhere") == []


@pytest.mark.parametrize(
    ("words", "allowed", "refused"),
    [
        (
            "private",
            ["10.1.2.3", "172.31.0.1", "192.168.1.1", "127.0.0.1", "::1", "fd00::1", "localhost", "LOCALHOST"],
            [],
        ),
        ("private", [], ["8.8.8.8", "172.32.0.1", "169.254.1.1", "0.0.0.0", "::ffff:8.8.8.8", "2001:db8::1"]),  # noqa: S104
        ("private", [], ["example.org", "localhost.example.org", "0x7f.1", "127.1", "", "fd00::1%1"]),
        ("100.64.0.0/10, gpu-1,*.gpu.example.org", ["100.64.0.9", "gpu-1", "a.gpu.example.org"], ["10.0.0.1"]),
        ("*.gpu.example.org", ["a.b.gpu.example.org"], ["gpu.example.org", "xgpu.example.org", "a b.gpu.example.org"]),
        ("", [], ["127.0.0.1", "localhost"]),
    ],
)
def test_hosts_are_those_that_are_listed(words: str, allowed: list[str], refused: list[str]) -> None:
    hosts = WorkerHosts(words)
    assert [host for host in allowed if not hosts.allow(host)] == []
    assert [host for host in refused if hosts.allow(host)] == []


@pytest.mark.parametrize("word", ["10.0.0.0/99", "a b", "*.*.org", "http://x", "1.2.3", "*"])
def test_word_is_named_when_it_is_no_host(word: str) -> None:
    with pytest.raises(ValueError, match="is no address, network or name"):
        WorkerHosts(f"private,{word}")


def test_worker_has_the_shape_of_its_services_model_and_of_no_other() -> None:
    (service, *_) = FakeFleet([]).fleet().services
    service = replace(service, model="acme-tuned", shape="32x4096.q32x128.kv8.v128256.p8030261248")

    def registered(model: str | None) -> tuple[str, str, str]:
        worker = wire.WorkerRegistration("w", "http://w", service.name, "A100-80GB", 1, 60.0, 0.0, model=model)
        found = instance_of(worker, [service])
        assert found is not None
        return found.model, found.shape, found.engine_model_name

    assert registered(None) == registered("acme-tuned") == ("acme-tuned", service.shape, service.shape)
    assert registered("Llama3-70B") == ("Llama3-70B", "", "Llama3-70B")
