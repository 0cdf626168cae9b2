"""Finds the dashboard's address for other machines: as is set, else by where it listens and this machine's routes."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from pools import own_address


@dataclass(frozen=True, slots=True)
class WebAddress:
    """The address that the web process listens on, and what is set of how others come to it.

    Attributes:
        public_url: GREENSERVE_PUBLIC_URL; None: it is derived.
        host, port: Where the web process listens.
        names: GREENSERVE_WEB_NAMES.
        https: A proxy of the operator's ends TLS.
        join_port: Where machines join by TLS, at `nodes_host`; None: by the dashboard's own address.
    """

    public_url: str | None
    host: str
    port: int
    names: tuple[str, ...] = ()
    https: bool = False
    join_port: int | None = None
    nodes_host: str = own_address.LOOPBACK

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
        if (found := self._name_of(self.host, self.names, outward)) is not None:
            return self._at(found), ""
        return self._at(own_address.LOOPBACK), (
            "No route leads away from this machine, so this address works here only: set GREENSERVE_PUBLIC_URL to the "
            "address at which other machines reach the dashboard."
        )

    def for_joining(self, outward: tuple[str, ...] | None = None) -> tuple[str, str]:
        """Returns the same of the URL by which machines join."""
        if self.join_port is None:
            return self.for_others(outward)
        if own_address.is_loopback(self.nodes_host):
            return self._joining(self.nodes_host), (
                f"Nodes are listened for at {self.nodes_host} alone, so this address works on this machine only. For "
                "other machines start GreenServe with GREENSERVE_NODES_HOST=0.0.0.0."
            )
        if (found := self._name_of(self.nodes_host, (*self.names, *self._public_host()), outward)) is not None:
            return self._joining(found), ""
        return self._joining(own_address.LOOPBACK), (
            "No route leads away from this machine, so this address works here only: set GREENSERVE_WEB_NAMES to the "
            "name at which other machines reach it."
        )

    def hosts(self) -> list[str]:
        """Returns what requests may name as their host, as Django's ALLOWED_HOSTS has it."""
        listens = (self.host, *((self.nodes_host,) if self.join_port is not None else ()))
        found = own_address.outward() if any(map(own_address.is_wildcard, listens)) else ()
        others = (*listens, *found, *self._public_host())
        return ["127.0.0.1", "localhost", "[::1]", *map(own_address.in_url, others), *self.names]

    def _at(self, host: str) -> str:
        return f"http://{own_address.in_url(host)}:{self.port}"

    def _joining(self, host: str) -> str:
        return f"https://{own_address.in_url(host)}:{self.join_port}"

    def _public_host(self) -> tuple[str, ...]:
        host = urlsplit(self.public_url or "").hostname
        return (host,) if host else ()

    @staticmethod
    def _name_of(listens: str, names: tuple[str, ...], outward: tuple[str, ...] | None) -> str | None:
        """Returns how other machines name this one, which listens there for them; None: they have no way to it."""
        if names:
            return names[0]
        if not own_address.is_wildcard(listens):
            return listens
        found = own_address.outward() if outward is None else outward
        if listens == "0.0.0.0":  # noqa: S104 - not listened on
            found = tuple(one for one in found if ":" not in one)
        return found[0] if found else None
