"""`ports.ServerPower` by a webhook of the operator's: what a cloud or an own inventory has, behind one address.

`POST URL` brings `{"node": NAME, "action": "on" | "off", "force": false}` and expects 2xx; `GET URL?node=NAME` answers
`{"state": "on" | "off"}`, anything else counting as unknown. Both are signed as all webhooks are: the header
`X-GreenServe-Signature`, for a GET over an empty body.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from urllib.parse import quote

import msgspec

from core.ports import PowerState
from telemetry.alerts import webhook
from telemetry.providers.secrets import Secret

from .power_http import Api


class _State(msgspec.Struct):
    state: PowerState


class WebhookPower:
    """`private`, `hosts`: as webhooks of alerts may go to private addresses. Raises PermanentError."""

    def __init__(self, node: str, url: str, secret: Secret, private: bool, hosts: Collection[str]) -> None:
        self._node, self._secret = node, secret
        self._api = Api(url, "the power webhook", {"User-Agent": "greenserve"}, private=private, hosts=hosts)

    def on(self) -> None:
        self._post({"node": self._node, "action": "on", "force": False})

    def off(self, force: bool = False) -> None:
        self._post({"node": self._node, "action": "off", "force": force})

    def state(self) -> PowerState | None:
        sign = "&" if "?" in self._api.path else "?"
        data = self._api.call(
            "GET", f"{self._api.path}{sign}node={quote(self._node, safe='')}", None, self._signed(b"")
        )
        try:
            return msgspec.json.decode(data, type=_State).state
        except msgspec.DecodeError:
            return None

    def _post(self, order: dict[str, object]) -> None:
        body = msgspec.json.encode(order)
        self._api.call("POST", self._api.path, body, self._signed(body))

    def _signed(self, body: bytes) -> dict[str, str]:
        return {webhook.SIGNATURE_HEADER: webhook.signature(self._secret, body, int(time.time()))}
