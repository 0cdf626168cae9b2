"""Says where `observe` reads, and what the servers there ask for."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import click


@dataclass(frozen=True, slots=True)
class Sources:
    """Addresses of metrics, and for how long: pages from now on, or a Prometheus over the last hours.

    `key`: shown to engines' pages and to a Prometheus; empty: none. `trust`: of certificates; None: the system's.
    """

    metrics: tuple[str, ...]
    dcgm: tuple[str, ...]
    prometheus: str | None
    hours: float
    match: str
    minutes: float
    every_s: float
    key: str = field(repr=False)
    trust: ssl.SSLContext | None

    @property
    def length_s(self) -> float:
        return self.hours * 3600.0 if self.prometheus else self.minutes * 60.0

    def fetch(self, url: str, timeout_s: float) -> bytes:
        """Returns a page. An exporter is not shown the engines' key. Raises OSError, HTTPException."""
        from telemetry.observing.recording import fetch

        return fetch(url, timeout_s, "" if url in self.dcgm else self.key, self.trust)

    def check(self) -> None:
        """Raises UsageError for addresses that do not go together, or are none."""
        if bool(self.metrics) == bool(self.prometheus):
            raise click.UsageError("give the engines' pages with --metrics, or a Prometheus with --prometheus")
        if self.prometheus and self.dcgm:
            raise click.UsageError("--dcgm goes with --metrics; a Prometheus has the exporter's metrics itself")
        pages = self.metrics + self.dcgm
        for url in (*pages, *filter(None, [self.prometheus])):
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise click.UsageError(f"'{url}' is no address: write it like http://HOST:8000/metrics")
        if repeated := [url for url in pages if pages.count(url) > 1]:
            raise click.UsageError(f"{repeated[0]} is named twice, and would count twice")


def trust_of(authority: Path | None) -> ssl.SSLContext | None:
    """Returns what accepts certificates by those in the file alone. Raises UsageError."""
    from pools.engine_trust import trust_in

    try:
        return None if authority is None else trust_in(authority)
    except ValueError as error:
        raise click.UsageError(f"--authority {error}") from None
