"""Calls what switches a server: at an address that was looked at, with a time limit, and no secret in its errors."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping

from core.ports import AdapterError, PermanentError, RetryableError
from pools.agent.http_client import HttpClient
from telemetry.alerts import webhook

TIMEOUT_S = 5.0


class Api:
    """One HTTP interface. `what` names it in errors, with its host.

    Args:
        private: It may lie at a private address; `hosts` may, too.
        plain: It may be asked without TLS there; else on this machine alone.

    Raises:
        PermanentError: The URL leads nowhere that the server goes to.
    """

    def __init__(
        self,
        url: str,
        what: str,
        headers: Mapping[str, str],
        *,
        private: bool = False,
        plain: bool = True,
        hosts: Collection[str] = (),
        trust: ssl.SSLContext | None = None,
    ) -> None:
        try:
            self.target = webhook.target(url, private, hosts)
        except ValueError as error:
            raise PermanentError(f"the address of {what}: {error}") from None
        if not (plain or self.target.tls or self.target.host in ("127.0.0.1", "::1", "localhost")):
            raise PermanentError(f"the address of {what}: it must begin with https://, as a password goes there")
        self.path = self.target.path
        self._name = f"{what} {self.target.host}"
        host = f"[{self.target.host}]" if ":" in self.target.host else self.target.host
        scheme = "https" if self.target.tls else "http"
        self._base, self._headers, self._trust = f"{scheme}://{host}:{self.target.port}", dict(headers), trust

    def __str__(self) -> str:
        return self._name

    def call(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}) -> bytes:
        """Returns the body of a 2xx answer. Raises AdapterError, whose words have nothing that the other side said."""
        webhook.check_addresses(self.target, TIMEOUT_S)
        client = HttpClient(self._base, TIMEOUT_S, {**self._headers, **headers}, self._trust)
        try:
            return client.call(method, path, body)
        except AdapterError as error:
            words = f"{self._name}: {_without_answer(str(error))}"
            raise (PermanentError if isinstance(error, PermanentError) else RetryableError)(words) from None
        finally:
            client.close()


def _without_answer(words: str) -> str:
    """Cuts off the text of an answer, which may be anything."""
    before, said, after = words.partition(" answered ")
    return f"it answered {after.partition(':')[0]}" if said else before.partition(": ")[2] or before
