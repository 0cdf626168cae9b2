"""Asks engines themselves whether they are well."""

from __future__ import annotations

from typing import NamedTuple

import aiohttp


class Finding(NamedTuple):
    """An engine's answer. `wrong` says why it is not well; empty: it is. `reached`: it took the connection."""

    wrong: str
    reached: bool = True


class EngineProbe:
    """Use it inside a running event loop. A connection for each question: one that is kept says nothing of the next."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, url: str) -> Finding:
        """Asks the engine at `scheme://host:port`. Takes `timeout_s` at most, and does not raise."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=0.9 * self.timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True))
        try:
            async with self._session.get(f"{url}/health", allow_redirects=False) as response:
                return Finding("" if response.status == 200 else f"/health answers {response.status}")
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Finding(f"/health cannot be asked: {error or type(error).__name__}", reached=False)
        except TimeoutError:
            return Finding(f"/health does not answer within {self.timeout_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Finding(f"/health cannot be asked: {error or type(error).__name__}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
