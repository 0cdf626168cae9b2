"""The limits of connections as an operator sets them: on the gateway's command line and in the environment."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from core import bounds

from .connections import ConnectionLimits, Network, networks

_DEFAULTS = ConnectionLimits()
PROXIES = ",".join(str(network.network_address) for network in _DEFAULTS.proxies)


class Option(NamedTuple):
    """`name` is that on the command line, `--max-NAME`; `field` is one of ConnectionLimits."""

    name: str
    field: str
    meaning: str
    unit_bytes: int = 1

    @property
    def default(self) -> int:
        return int(getattr(_DEFAULTS, self.field)) // self.unit_bytes

    @property
    def variable(self) -> str:
        """The environment's name for it."""
        return "GREENSERVE_GATEWAY_" + self.name.upper().replace("-", "_")

    @property
    def range(self) -> str:
        bound = self._bound
        return f"between {bound.least:.0f} and {bound.most:.0f}"

    @property
    def _bound(self) -> bounds.Bound:
        bound = bounds.of("gateway_" + self.name.replace("-", "_"))
        assert bound is not None, self.name
        return bound

    def parse(self, text: str) -> int:
        """Raises ValueError that says what would do."""
        if not text.strip().isdecimal() or self._bound.fault(int(text)):
            raise ValueError(f"give a number {self.range}, not '{text}'")
        return int(text)


OPTIONS = (
    Option("connections", "most", "connections of all clients together"),
    Option("connections-per-key", "of_key", "connections of one key"),
    Option("unkeyed", "unkeyed", "connections over which no key has come; the oldest makes room for a new one"),
    Option("unkeyed-per-address", "unkeyed_of_address", "of these, connections of one address"),
    Option("unkeyed-per-s", "unkeyed_per_s", "new connections a second without a key; an address has a part of them"),
    Option("heads-mib", "head_bytes", "MiB of heads that are not complete", 1 << 20),
    Option("held-mib", "body_bytes", "MiB of requests' bodies held at a time", 1 << 20),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for option in OPTIONS:
        meaning = f"{option.meaning} (default: {option.default})"
        parser.add_argument(
            f"--max-{option.name}", type=_argument(option.parse), default=option.default, help=meaning, metavar="N"
        )
    parser.add_argument(
        "--proxies",
        type=_argument(networks),
        default=_DEFAULTS.proxies,
        help=f"proxies in front, for which no limit by address holds: addresses, networks, 'none' (default: {PROXIES})",
    )


def from_arguments(given: argparse.Namespace) -> ConnectionLimits:
    values = {o.field: getattr(given, f"max_{o.name}".replace("-", "_")) * o.unit_bytes for o in OPTIONS}
    proxies: tuple[Network, ...] = given.proxies
    limits = dataclasses.replace(_DEFAULTS, proxies=proxies, **values)
    return dataclasses.replace(limits, unkeyed=min(limits.unkeyed, limits.most))


def _argument(parse: Callable[[str], object]) -> Callable[[str], object]:
    """For a command line: what is wrong becomes argparse's own error."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed
