"""Has engines load and unload LoRA adapters, by vLLM's API."""

from __future__ import annotations

import ssl

import aiohttp

from .instance import Instance

LOAD_S = 60.0  # weights may have to be fetched
NO_LORA = "it was started without LoRA adapters: start it anew"


class EngineAdapters:
    """Use it inside a running event loop. Calls return why it did not come about; empty: it did."""

    def __init__(self, trust: ssl.SSLContext | None = None) -> None:
        """Takes certificates that `trust` accepts; None: those that the system trusts."""
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def load(self, instance: Instance, name: str, source: str) -> str:
        status, said = await self._order(instance, "load", {"lora_name": name, "lora_path": source})
        if status == 400 and "already been loaded" in said:  # by another gateway
            return ""
        return said

    async def unload(self, instance: Instance, name: str) -> str:
        status, said = await self._order(instance, "unload", {"lora_name": name})
        return "" if status == 404 and name in said else said  # by another gateway

    async def _order(self, instance: Instance, verb: str, order: dict[str, str]) -> tuple[int, str]:
        """Returns the status, 0 where no answer came, and what is wrong."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=LOAD_S, sock_connect=2.0)
            self._session = aiohttp.ClientSession(
                timeout=timeout, connector=aiohttp.TCPConnector(ssl=self._trust or True)
            )
        headers = {"Authorization": instance.authorization.decode()} if instance.authorization else {}
        url = f"{instance.url}/v1/{verb}_lora_adapter"
        try:
            async with self._session.post(url, json=order, headers=headers, allow_redirects=False) as response:
                if response.status == 200:
                    return 200, ""
                said = (await response.text(errors="replace"))[:300]
                if response.status in (404, 405) and order["lora_name"] not in said:
                    said = NO_LORA
                return response.status, f"{verb}ing answers {response.status}: {said}"
        except TimeoutError:
            return 0, f"{verb}ing has no answer within {LOAD_S:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return 0, f"{verb}ing cannot be asked for: {error or type(error).__name__}"

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
