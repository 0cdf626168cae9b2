"""What every adapter of ServerPower must do. Add an adapter as a parameter of `bench`."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.ports import AdapterError, PermanentError, RetryableError, ServerPower
from scheduler.power import power_http
from scheduler.power.redfish import RedfishPower
from scheduler.power.sim_power import SimPower, control_of
from scheduler.power.wake_on_lan import WakeOnLanPower, magic_packet
from scheduler.power.webhook_power import WebhookPower
from telemetry.providers.secrets import Secret
from tests.fakes.bmc import SwitchedMachine, bmc, power_hook
from tests.fakes.certificates import Authority
from tests.fakes.simnode import SimnodeProcess, eventually

MAC = "12:34:56:78:9a:bc"
TRUSTED = ssl.create_default_context()
LOGIN, SIGNS = Secret("root:hunter2"), Secret("hunter2-hunter2-hunter2")


@dataclass
class Bench:
    """`is_on`: what the machine itself says. `away`: the same adapter where nobody answers."""

    power: ServerPower
    is_on: Callable[[], bool]
    away: Callable[[], ServerPower]


def webhook(machine: SwitchedMachine) -> WebhookPower:
    return WebhookPower("gpu-1", machine.url, SIGNS, True, ())


@contextmanager
def listens_for_packets(machine: SwitchedMachine) -> Iterator[int]:
    """Returns the port of a network card that switches the machine on by the packet that is meant for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as card:
        card.bind(("127.0.0.1", 0))
        card.settimeout(0.05)
        ending = threading.Event()

        def listen() -> None:
            while not ending.is_set():
                try:
                    machine.on |= card.recv(1024) == magic_packet(MAC)
                except TimeoutError:
                    continue

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield card.getsockname()[1]
        ending.set()
        thread.join(timeout=5)


@pytest.fixture(params=["redfish", "wake_on_lan", "webhook", "simulated"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    gone = SwitchedMachine("http://127.0.0.1:9/power")
    with ExitStack() as stack:
        if request.param == "redfish":
            machine = stack.enter_context(bmc())
            away = RedfishPower("http://127.0.0.1:9/redfish/v1/Systems/1", LOGIN, TRUSTED)
            yield Bench(RedfishPower(machine.url, LOGIN, TRUSTED), lambda: machine.on, lambda: away)
        elif request.param == "simulated":
            node: SimnodeProcess = request.getfixturevalue("simnode")
            yield Bench(
                SimPower(node.url), lambda: node.get("/power")["state"] == "on", lambda: SimPower("http://127.0.0.1:9")
            )
            SimPower(node.url).on()
            eventually(lambda: node.get("/power")["runs"], 5.0, "machine that runs")
        else:
            machine = stack.enter_context(power_hook())
            power: ServerPower = webhook(machine)
            if request.param == "wake_on_lan":
                port = stack.enter_context(listens_for_packets(machine))
                power = WakeOnLanPower(MAC, "127.0.0.1", webhook(machine), port)
            yield Bench(power, lambda: machine.on, lambda: webhook(gone))


def test_server_goes_off_and_on_and_says_so(bench: Bench) -> None:
    assert bench.power.state() == "on"
    bench.power.off()
    eventually(lambda: bench.power.state() == "off", 5.0, "server that is off")
    assert not bench.is_on()
    bench.power.on()
    eventually(bench.is_on, 5.0, "server that is on")
    assert bench.power.state() == "on"


def test_orders_may_be_given_twice(bench: Bench) -> None:
    bench.power.off()
    bench.power.off()
    eventually(lambda: bench.power.state() == "off", 5.0, "server that is off")
    bench.power.on()
    bench.power.on()
    eventually(lambda: bench.power.state() == "on", 5.0, "server that is on")
    bench.power.off(force=True)
    eventually(lambda: not bench.is_on(), 5.0, "server that is off")


def test_fault_is_raised_soon_and_without_the_secret_when_nobody_answers(bench: Bench) -> None:
    began_s = time.monotonic()
    for call in (bench.away().state, bench.away().off):
        with pytest.raises(RetryableError) as found:
            call()
        assert "127.0.0.1" in str(found.value)
        assert "hunter2" not in str(found.value)
    assert time.monotonic() - began_s < 2.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_http, "TIMEOUT_S", 0.1)


@pytest.mark.parametrize("kind", ["redfish", "webhook"])
def test_call_ends_when_the_other_side_is_silent_and_says_nothing_of_its_answer(kind: str, quick: None) -> None:
    with bmc() if kind == "redfish" else power_hook() as machine:
        power: ServerPower = RedfishPower(machine.url, LOGIN, TRUSTED) if kind == "redfish" else webhook(machine)
        for status, error in ((500, RetryableError), (403, PermanentError), (302, PermanentError)):
            machine.status = status
            with pytest.raises(error, match=str(status)) as found:
                power.state()
            assert "hunter2" not in str(found.value)
        machine.hold = threading.Event()
        with pytest.raises(RetryableError, match="did not answer in time"):
            power.off()
        machine.hold.set()


# -- Redfish -----------------------------------------------------------------------------------------


def test_bmc_is_believed_by_the_authority_that_is_given(tmp_path: Path) -> None:
    files = Authority(tmp_path).node("127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.certificate, files.key)
    with bmc(tls) as machine:
        assert RedfishPower(machine.url, LOGIN, ssl.create_default_context(cafile=files.authority)).state() == "on"
        with pytest.raises(RetryableError, match="certificate"):
            RedfishPower(machine.url, LOGIN, TRUSTED).state()


@pytest.mark.parametrize(
    ("url", "login", "words"),
    [
        ("http://10.0.0.7/redfish/v1/Systems/1", "root:hunter2", "https"),
        ("https://169.254.169.254/redfish/v1/Systems/1", "root:hunter2", "no address that anybody may be at"),
        ("https://root:hunter2@10.0.0.7/", "root:hunter2", "without user"),
        ("https://10.0.0.7/redfish/v1/Systems/1", "hunter2", "USER:PASSWORD"),
    ],
)
def test_bmc_is_refused_when_its_password_would_go_astray(url: str, login: str, words: str) -> None:
    with pytest.raises(PermanentError, match=words) as found:
        RedfishPower(url, Secret(login), TRUSTED)
    assert "hunter2" not in str(found.value)


def test_wrong_password_is_a_permanent_fault_that_does_not_repeat_it() -> None:
    with bmc() as machine, pytest.raises(PermanentError, match="401") as found:
        RedfishPower(machine.url, Secret("root:other-hunter2"), TRUSTED).state()
    assert "hunter2" not in str(found.value)


def test_reset_that_a_bmc_does_not_offer_is_a_permanent_fault() -> None:
    with bmc() as machine:
        machine.resets = ["On", "ForceOff"]
        with pytest.raises(PermanentError, match="offers no GracefulShutdown, but On, ForceOff"):
            RedfishPower(machine.url, LOGIN, TRUSTED).off()
        assert machine.on


def test_power_is_cut_only_when_it_is_forced() -> None:
    with bmc() as machine:
        machine.stays_up = True
        power = RedfishPower(machine.url, LOGIN, TRUSTED)
        power.off()
        assert power.state() == "on"
        power.off(force=True)
        assert power.state() == "off"
        assert [order["ResetType"] for order in machine.asked] == ["GracefulShutdown", "ForceOff"]


# -- webhooks ----------------------------------------------------------------------------------------


def test_webhook_requests_are_signed_and_name_the_node() -> None:
    with power_hook() as machine:
        webhook(machine).off(force=True)
    assert machine.asked == [{"node": "gpu-1", "action": "off", "force": True}]
    stamp, _, digest = machine.headers[0]["X-GreenServe-Signature"].partition(",v1=")
    body = b'{"node":"gpu-1","action":"off","force":true}'
    signed = hmac.new(SIGNS.reveal().encode(), stamp.removeprefix("t=").encode() + b"." + body, hashlib.sha256)
    assert digest == signed.hexdigest()


def test_webhook_goes_to_no_private_address_unless_that_is_allowed() -> None:
    with pytest.raises(PermanentError, match="GREENSERVE_WEBHOOK_HOSTS"):
        WebhookPower("gpu-1", "https://10.0.0.7/power", SIGNS, False, ())
    WebhookPower("gpu-1", "https://10.0.0.7/power", SIGNS, False, ("10.0.0.7",))


@pytest.mark.parametrize("mac", ["12:34:56:78:9a", "no address", ""])
def test_packet_is_refused_when_there_is_no_mac_address(mac: str) -> None:
    with pytest.raises(ValueError, match=r"hex|MAC"):
        magic_packet(mac)


# -- simulated nodes ---------------------------------------------------------------------------------


def test_simulated_machine_ends_its_engines_and_draws_nothing_while_it_is_off(simnode: SimnodeProcess) -> None:
    url, power = simnode.run_instance("engine", [0, 1]), SimPower(simnode.url)
    power.off()
    with pytest.raises(ConnectionRefusedError):
        connect_to(url)
    status, answer = simnode.send("GET", "/gpus")
    assert (status, answer) == (503, {"error": "the machine is off"})
    power.on()
    begun_s, starts = time.monotonic(), simnode.send("GET", "/instances")
    assert starts == (503, {"error": "the machine starts"})
    eventually(lambda: simnode.get("/power")["runs"], 5.0, "machine that runs")
    booted_s = time.monotonic() - begun_s
    assert simnode.get("/instances") == []
    before_j = {gpu["uuid"]: gpu["energy_j"] for gpu in simnode.get("/gpus")}
    power.off()
    time.sleep(0.3)
    power.on()
    eventually(lambda: simnode.get("/power")["runs"], 5.0, "machine that runs again")
    for gpu in simnode.get("/gpus"):
        grown_j = gpu["energy_j"] - before_j[gpu["uuid"]]
        assert 0.0 < grown_j < gpu["power_w"] * (booted_s + 0.25), "only while it started"


def connect_to(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    socket.create_connection((host, int(port)), 1.0).close()


def test_simulated_node_is_found_where_its_supervisor_keeps_its_port(tmp_path: Path) -> None:
    ports = tmp_path / "simnodes.json"
    with pytest.raises(RetryableError, match="gpu-1 is not started"):
        control_of(ports, "gpu-1")
    ports.write_text('{"gpu-1": 1234}')
    assert control_of(ports, "gpu-1") == "http://127.0.0.1:1234"
    with pytest.raises(AdapterError):
        control_of(ports, "gpu-2")
