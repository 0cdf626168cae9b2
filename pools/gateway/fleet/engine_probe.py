"""Asks engines themselves whether they are well."""

from __future__ import annotations

import errno
import os
import ssl
from typing import NamedTuple

import aiohttp


class Finding(NamedTuple):
    """An engine's answer. `wrong` says why it is not well; empty: it is. `reached`: it took the connection."""

    wrong: str
    reached: bool = True


class EngineProbe:
    """Use it inside a running event loop. A connection for each question: one that is kept says nothing of the next."""

    def __init__(self, timeout_s: float, trust: ssl.SSLContext | None = None) -> None:
        """Takes certificates that `trust` accepts; None: those that the system trusts."""
        self.timeout_s = timeout_s
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, url: str) -> Finding:
        """Asks the engine at `scheme://host:port`. Takes `timeout_s` at most, and does not raise."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=0.9 * self.timeout_s)
            connector = aiohttp.TCPConnector(force_close=True, ssl=self._trust or True)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        try:
            async with self._session.get(f"{url}/health", allow_redirects=False) as response:
                return Finding("" if response.status == 200 else f"/health answers {response.status}")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Finding(f"/health cannot be asked: {self._no_connection(error)}", reached=False)
        except TimeoutError:
            return Finding(f"/health does not answer within {self.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Finding(f"/health cannot be asked: {error or type(error).__name__}")

    def _no_connection(self, error: aiohttp.ClientError | TimeoutError) -> str:
        """Returns why no connection came about."""
        cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)
        match error, cause:
            case aiohttp.ConnectionTimeoutError(), _:
                return f"the connection timed out after {0.9 * self.timeout_s:g} s"
            case aiohttp.ClientConnectorDNSError(), _:
                return "its name is not known here"
            case aiohttp.ClientConnectorCertificateError(), _:
                return f"TLS: its certificate is not trusted here ({cause})"
            case aiohttp.ClientSSLError(), _:
                return f"TLS fails ({cause})"
            case _, ConnectionRefusedError():
                return "the connection is refused: nothing listens there, or not for this machine"
            case _, OSError() if cause.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
                return f"no route leads there ({os.strerror(cause.errno)})"
        return str(cause or error) or type(error).__name__

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
