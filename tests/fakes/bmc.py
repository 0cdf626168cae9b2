"""Machines that can be switched: behind a BMC with Redfish, and behind a webhook of an operator's."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from .loopback import QuietHandler, listening

SYSTEM = "/redfish/v1/Systems/1"


@dataclass
class SwitchedMachine:
    """`url`: of what switches it. `asked`: the orders that came. `status`: answered instead of an answer; 0: none."""

    url: str = ""
    on: bool = True
    asked: list[dict[str, object]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status: int = 0
    resets: list[str] = field(default_factory=lambda: ["On", "ForceOff", "GracefulShutdown"])
    stays_up: bool = False  # its operating system does not end
    hold: threading.Event | None = None  # answers wait for it


class _Handler(QuietHandler):
    machine: SwitchedMachine

    def _begins(self) -> bool:
        """Says whether the request is to be answered as usual."""
        machine = self.machine
        machine.headers.append(dict(self.headers))
        if machine.hold is not None:
            machine.hold.wait(20)
        if machine.status:
            self._answer(machine.status, {"error": "all of the secrets: hunter2"})
        return not machine.status

    def _answer(self, status: int, value: object = None) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        with suppress(OSError):  # who asked may not have waited
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _body(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.machine.asked.append(found)
        return found


class _Bmc(_Handler):
    login = "root:hunter2"

    def _may(self) -> bool:
        word = base64.b64encode(self.login.encode()).decode()
        if self.headers.get("Authorization") != f"Basic {word}":
            self._answer(401, {"error": self.headers.get("Authorization")})
            return False
        return self._begins()

    def do_GET(self) -> None:
        if not self._may():
            return
        if self.path != SYSTEM:
            self._answer(404)
            return
        reset = {
            "target": f"{SYSTEM}/Actions/ComputerSystem.Reset",
            "ResetType@Redfish.AllowableValues": self.machine.resets,
        }
        state = "On" if self.machine.on else "Off"
        self._answer(200, {"Id": "1", "PowerState": state, "Actions": {"#ComputerSystem.Reset": reset}})

    def do_POST(self) -> None:
        if not self._may():
            return
        kind = self._body().get("ResetType")
        if self.path != f"{SYSTEM}/Actions/ComputerSystem.Reset" or kind not in self.machine.resets:
            self._answer(400)
            return
        if not (kind == "GracefulShutdown" and self.machine.stays_up):
            self.machine.on = kind == "On"
        self._answer(204)


class _Hook(_Handler):
    def do_GET(self) -> None:
        if self._begins():
            node = parse_qs(urlsplit(self.path).query).get("node")
            known = node == ["gpu-1"]
            self._answer(200 if known else 404, {"state": "on" if self.machine.on else "off"} if known else None)

    def do_POST(self) -> None:
        if self._begins():
            self.machine.on = self._body()["action"] == "on"
            self._answer(202)


@contextmanager
def bmc(tls: ssl.SSLContext | None = None) -> Iterator[SwitchedMachine]:
    """A machine behind a BMC; `url` is that of its system. Its login is root:hunter2."""
    machine = SwitchedMachine()
    with listening(type("Bmc", (_Bmc,), {"machine": machine}), tls) as url:
        machine.url = f"{url}{SYSTEM}"
        yield machine


@contextmanager
def power_hook() -> Iterator[SwitchedMachine]:
    """The machine gpu-1 behind a webhook."""
    machine = SwitchedMachine()
    with listening(type("Hook", (_Hook,), {"machine": machine})) as url:
        machine.url = f"{url}/power"
        yield machine
