"""`ports.ServerPower` by the HTTP interface that BMCs have: Redfish (DMTF DSP0266), resource ComputerSystem.

A BMC goes on while its server is off. IPMI is not spoken: BMCs of servers with such GPUs have Redfish, over TLS.
"""

from __future__ import annotations

import base64
import ssl
from typing import Annotated

import msgspec

from core.ports import PermanentError, PowerState, RetryableError
from telemetry.providers.secrets import Secret

from .power_http import Api

ON, GRACEFUL, FORCED = "On", "GracefulShutdown", "ForceOff"  # of ResetType
STATES: dict[str, PowerState] = {"On": "on", "PoweringOn": "on", "PoweringOff": "on", "Off": "off"}


class _Reset(msgspec.Struct):
    target: str = ""
    allowed: Annotated[list[str], msgspec.Meta(max_length=64)] = msgspec.field(
        default_factory=list, name="ResetType@Redfish.AllowableValues"
    )


class _Actions(msgspec.Struct):
    reset: _Reset = msgspec.field(default_factory=_Reset, name="#ComputerSystem.Reset")


class _System(msgspec.Struct):
    state: str | None = msgspec.field(default=None, name="PowerState")
    actions: _Actions = msgspec.field(default_factory=_Actions, name="Actions")


class RedfishPower:
    """`url`: of the system, https://BMC/redfish/v1/Systems/ID. `login`: USER:PASSWORD. Raises PermanentError."""

    def __init__(self, url: str, login: Secret, trust: ssl.SSLContext) -> None:
        user, colon, _ = login.reveal().partition(":")
        if not user or not colon:
            raise PermanentError("the secret of a BMC must be USER:PASSWORD")
        word = base64.b64encode(login.reveal().encode()).decode()
        headers = {"Authorization": f"Basic {word}", "Accept": "application/json", "OData-Version": "4.0"}
        self._api = Api(url, "the BMC", headers, private=True, plain=False, trust=trust)
        self._path = self._api.path.rstrip("/")

    def on(self) -> None:
        self._reset(ON)

    def off(self, force: bool = False) -> None:
        self._reset(FORCED if force else GRACEFUL)

    def state(self) -> PowerState | None:
        return STATES.get(self._system().state or "")

    def _system(self) -> _System:
        try:
            return msgspec.json.decode(self._api.call("GET", self._path), type=_System)
        except msgspec.DecodeError as error:
            raise RetryableError(f"{self._api} gave no ComputerSystem: {error}") from None

    def _reset(self, kind: str) -> None:
        reset = self._system().actions.reset
        if reset.allowed and kind not in reset.allowed:
            raise PermanentError(f"{self._api} offers no {kind}, but {', '.join(reset.allowed)}")
        path = reset.target or f"{self._path}/Actions/ComputerSystem.Reset"
        if not path.startswith("/redfish/"):
            raise PermanentError(f"{self._api} names an address for resets that is not its own")
        self._api.call("POST", path, msgspec.json.encode({"ResetType": kind}))
