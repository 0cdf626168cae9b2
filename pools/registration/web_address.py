"""Finds the dashboard's address for other machines: as is set, else by where it listens and this machine's routes."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pools.agent import own_address


@dataclass(frozen=True, slots=True)
class WebAddress:
    """The address that the web process listens on, and what is set of how others come to it.

    Attributes:
        public_url: GREENSERVE_PUBLIC_URL; None: it is derived.
        host, port: Where the web process listens.
        names: GREENSERVE_WEB_NAMES.
        https: A proxy of the operator's ends TLS.
    """

    public_url: str | None
    host: str
    port: int
    names: tuple[str, ...] = ()
    https: bool = False

    def for_others(self, outward: tuple[str, ...] | None = None) -> tuple[str, str]:
        """Returns the URL that other machines reach, and why it may not be reached, with the remedy; empty: it may.

        `outward`: this machine's addresses; None: they are looked up.
        """
        if self.public_url:
            return self.public_url, ""
        if self.https and self.names:
            return f"https://{self.names[0]}", ""
        if own_address.is_loopback(self.host):
            return self._at(self.host), (
                f"The web process listens on {self.host} alone, so this address works on this machine only. For other "
                "machines start GreenServe with GREENSERVE_WEB_HOST=0.0.0.0, or behind a proxy with TLS, whose address "
                "GREENSERVE_PUBLIC_URL then names."
            )
        if self.names:
            return self._at(self.names[0]), ""
        if not own_address.is_wildcard(self.host):
            return self._at(self.host), ""
        found = own_address.outward() if outward is None else outward
        if self.host == "0.0.0.0":  # noqa: S104 - not listened on
            found = tuple(one for one in found if ":" not in one)
        if found:
            return self._at(found[0]), ""
        return self._at(own_address.LOOPBACK), (
            "No route leads away from this machine, so this address works here only: set GREENSERVE_PUBLIC_URL to the "
            "address at which other machines reach the dashboard."
        )

    def hosts(self) -> list[str]:
        """Returns what requests may name as their host, as Django's ALLOWED_HOSTS has it."""
        public = urlsplit(self.public_url or "").hostname
        found = own_address.outward() if own_address.is_wildcard(self.host) else ()
        others = (self.host, *found, *((public,) if public else ()))
        return ["127.0.0.1", "localhost", "[::1]", *map(own_address.in_url, others), *self.names]

    def _at(self, host: str) -> str:
        return f"http://{own_address.in_url(host)}:{self.port}"
