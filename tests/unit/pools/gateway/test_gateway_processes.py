"""Gateways that share a port: one page of metrics for all, one folder of rows, and requests that do not herd."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from core.controllers.request.routing import RouteRequest
from core.types import Limits
from pools import wire
from pools.gateway.__main__ import _config
from pools.gateway.accounts.gateway_metrics import ROUTING_BOUNDS_S, Histogram
from pools.gateway.gateway_processes import GatewayProcesses, PortShare, joined
from pools.gateway.placing.instance_choice import Router
from pools.gateway.server import Config, GatewayServer
from tests.fakes.fleet import MODEL, FakeFleet
from tests.ports import free_port
from tests.unit.pools.gateway.fleet.test_fleet_view import view_of

SAMPLE = re.compile(r"greenserve_gateway_\w+\{gateway=\"gw\.(\d)\".*\} \S+")


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[list[GatewayServer]]:
    """Two gateways of one port; here in one process, as far as the kernel cares."""
    port, servers = free_port(), []
    for number in (1, 2):
        config = Config("127.0.0.1", port, tmp_path / "spool", "gw", PortShare(number, 2), grace_s=0.2)
        servers.append(GatewayServer(config))
        await servers[-1].start()
    yield servers
    for server in servers:
        await server.stop()


async def metrics(port: int) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
        assert response.status == 200
        return await response.text()


async def test_any_of_them_shows_all_when_metrics_are_asked_for(pair: list[GatewayServer]) -> None:
    for n, server in enumerate(pair, start=1):
        server.runtime.metrics.retries = n
    for _ in range(6):
        page = await metrics(pair[0].port)
        for n in (1, 2):
            assert f'greenserve_gateway_retries_total{{gateway="gw.{n}"}} {n}\n' in page
            assert f'greenserve_gateway_up{{gateway="gw.{n}"}} 1\n' in page
        lines = page.splitlines()
        assert all(SAMPLE.fullmatch(line) for line in lines if not line.startswith("#"))
        families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(families) == len(set(families)), "each family once, its samples together"


async def test_gateway_that_is_gone_is_said_to_be_down(pair: list[GatewayServer]) -> None:
    await pair[1].stop()
    page = await metrics(pair[0].port)
    assert 'greenserve_gateway_up{gateway="gw.1"} 1\n' in page
    assert 'greenserve_gateway_up{gateway="gw.2"} 0\n' in page
    assert 'retries_total{gateway="gw.2"}' not in page


async def test_page_comes_when_another_gateway_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pools.gateway.gateway_processes.TIMEOUT_S", 0.1)
    port = free_port()
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(f"\0greenserve-gateway-127.0.0.1-{port}-2")
        stuck.listen()
        page = (await GatewayProcesses(PortShare(1, 2), "gw", "127.0.0.1", port, lambda: b"").page()).decode()
    assert 'up{gateway="gw.2"} 0' in page


async def test_second_of_a_number_is_refused(pair: list[GatewayServer], tmp_path: Path) -> None:
    config = Config("127.0.0.1", pair[0].port, tmp_path / "other", "gw", PortShare(2, 2))
    with pytest.raises(OSError, match=r"gw\.2 of this port runs already"):
        await GatewayServer(config).start()


def test_samples_of_a_family_stand_together_when_pages_are_joined() -> None:
    first = b'# HELP a_total A.\n# TYPE a_total counter\na_total{g="1"} 1\n# HELP b B.\n# TYPE b gauge\nb{g="1"} 2\n'
    second = first.replace(b'"1"', b'"2"')
    assert joined([first, b"", second]).decode().splitlines() == [
        *("# HELP a_total A.", "# TYPE a_total counter", 'a_total{g="1"} 1', 'a_total{g="2"} 1'),
        *("# HELP b B.", "# TYPE b gauge", 'b{g="1"} 2', 'b{g="2"} 2'),
    ]


@pytest.mark.parametrize("given", ["0/2", "3/2", "2", "one/2", "1/2/3"])
def test_share_is_refused_with_a_word_when_it_makes_no_sense(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _config(["--redis-url", "unix:///x", "--spool", str(tmp_path), "--port", "1", "--share", given])
    assert "like 1/4" in capsys.readouterr().err


def test_shared_port_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _config(["--redis-url", "unix:///x", "--spool", str(tmp_path), "--port", "0", "--share", "1/2"])
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize("gateways", [2, 4])
def test_requests_spread_when_several_gateways_see_the_same_report(gateways: int) -> None:
    """Between two reports of the agents; four engines, one a little busier: they must not all choose the same."""
    engines = 4
    fake = FakeFleet([f"http://127.0.0.1:{n + 1}" for n in range(engines)])
    sent: Counter[str] = Counter()
    views, routers = [], []
    for n in range(gateways):
        view = view_of(fake)
        for instance in view.instances():
            state = msgspec.structs.replace(instance.state, running=8 + (instance.uid.endswith("0")))
            instance.update(state, instance.pool, instance.rank, 2.0, gateways)
        views.append(view)
        routers.append(Router(Histogram(ROUTING_BOUNDS_S), random.Random(n)))
    request = RouteRequest(300, 100, 3, Limits(2.0, 0.15, 60.0))
    for turn in range(40 * gateways):
        service = views[turn % gateways].services[MODEL]
        routed = routers[turn % gateways].route(service, service.ready, request)
        assert routed is not None
        routed[0].dispatched(300, True)
        sent[routed[0].uid] += 1
    mean = 40 * gateways / engines
    assert max(sent.values()) <= 1.6 * mean
    assert min(sent.values()) >= 0.4 * mean


async def test_loop_is_left_clean_when_they_stop(pair: list[GatewayServer]) -> None:
    await metrics(pair[0].port)
    for server in pair:
        await server.stop()
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "GatewayProcesses" in repr(task)]


def test_room_in_an_engines_queue_is_shared_out_when_there_are_several_gateways() -> None:
    fake = FakeFleet(["http://127.0.0.1:1"], policy=wire.RequestPolicy(engine_queue=32))
    view = view_of(fake)
    found = []
    for gateways in (1, 4, 40):
        view.gateways = gateways
        view.apply(fake.fleet(), fake.states(), time.monotonic())
        found.append(view.services[MODEL].engine_queue)
    assert found == [32, 8, 1]
