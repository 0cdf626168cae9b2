"""`ports.ServerPower` of a simulated node: its control API is its BMC, and goes on while it is off."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from core.ports import PowerState, RetryableError
from pools.agent.http_client import HttpClient

TIMEOUT_S = 2.0


class _Power(msgspec.Struct):
    state: PowerState


class SimPower:
    """`control`: http://127.0.0.1:PORT."""

    def __init__(self, control: str) -> None:
        self._control = control

    def on(self) -> None:
        self._call("POST", {"on": True})

    def off(self, force: bool = False) -> None:
        self._call("POST", {"on": False})

    def state(self) -> PowerState | None:
        return self._call("GET").state

    def _call(self, method: str, order: dict[str, bool] | None = None) -> _Power:
        client = HttpClient(self._control, TIMEOUT_S)
        try:
            data = client.call(method, "/power", None if order is None else msgspec.json.encode(order))
            return msgspec.json.decode(data, type=_Power)
        except msgspec.DecodeError as error:
            raise RetryableError(f"the simulated node gave an answer that cannot be read: {error}") from None
        finally:
            client.close()


def control_of(ports: Path, node: str) -> str:
    """Returns a simulated node's control API. `ports`: where the supervisor keeps them. Raises RetryableError."""
    try:
        return f"http://127.0.0.1:{int(json.loads(ports.read_bytes())[node])}"
    except (OSError, ValueError, KeyError, TypeError):
        raise RetryableError(f"the simulated node {node} is not started on this machine") from None
