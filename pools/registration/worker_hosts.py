"""Decides at which hosts workers may be that register themselves."""

from __future__ import annotations

import argparse
import ipaddress
import re

PRIVATE = "private"

_HERE_ONLY = ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9_-]*[a-z0-9])?)*")


class WorkerHosts:
    """The hosts that workers may be at: nobody's prompts go to places that the operator has not thought of.

    Words, with commas between: `private` (private and loopback addresses, and `localhost`), an address, a network
    (`100.64.0.0/10`), a name, or `*.` and a domain. Names are not looked up: only those that are listed are allowed.
    """

    def __init__(self, words: str = PRIVATE) -> None:
        """Raises ValueError naming the word that is none of these."""
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._names: set[str] = set()
        self._domains: list[str] = []
        for word in filter(None, (part.strip().lower() for part in words.split(","))):
            self._allow(word)

    def _allow(self, word: str) -> None:
        if word == PRIVATE:
            self._networks += [ipaddress.ip_network(network) for network in _HERE_ONLY]
            self._names.add("localhost")
            return
        try:
            self._networks.append(ipaddress.ip_network(word, strict=False))
        except ValueError:
            if not _is_name(word.removeprefix("*.")):
                raise ValueError(f"'{word}' is no address, network or name") from None
            if word.startswith("*."):
                self._domains.append(word[1:])
            else:
                self._names.add(word)

    def allow(self, host: str) -> bool:
        """Says whether a host, as it stands in a URL, is one of these."""
        host = host.lower()
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            listed = host in self._names or any(host.endswith(domain) for domain in self._domains)
            return listed and _is_name(host)
        return "%" not in host and any(address in network for network in self._networks)


def _is_name(word: str) -> bool:
    """Says whether it may be a host's name. What ends in a number is an address in disguise."""
    last = word.rpartition(".")[2]
    return _NAME.fullmatch(word) is not None and not last.isdigit() and not last.startswith("0x")


def from_argument(words: str) -> WorkerHosts:
    """For a command line: what is wrong becomes argparse's own error."""
    try:
        return WorkerHosts(words)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
