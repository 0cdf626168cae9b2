"""Reads metrics pages again and again for some minutes. It reads only, and a page that fails leaves a gap."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from typing import Protocol

from .scrapes import Scrape, Target, TargetKind, samples_of

TIMEOUT_S = 5.0
LONGEST_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
_MOST_AT_ONCE = 16
_REMEDIES = {
    TargetKind.ENGINE: "vLLM serves /metrics, SGLang too with --enable-metrics, trtllm-serve /prometheus/metrics",
    TargetKind.GPUS: "the DCGM exporter serves /metrics, on port 9400 unless it was set otherwise",
}
Fetch = Callable[[str, float], bytes]


class Clock(Protocol):
    """Tells the time, and waits."""

    def now_s(self) -> float:
        """Returns Unix seconds."""

    def wait(self, seconds: float) -> None:
        """Blocks for so many seconds."""


class SystemClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        return time.time()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Page:
    """A page to read, by its URL."""

    url: str
    kind: TargetKind


@dataclass(frozen=True, slots=True)
class Recording:
    """Scrapes of all targets. `every_s`: between two. `source`: scrapes, or a Prometheus by its address."""

    targets: tuple[Target, ...]
    every_s: float
    asked_s: float
    source: str
    ended_early: bool = False

    @property
    def engines(self) -> tuple[Target, ...]:
        return tuple(target for target in self.targets if target.kind is TargetKind.ENGINE)

    @property
    def gpus(self) -> tuple[Target, ...]:
        return tuple(target for target in self.targets if target.kind is TargetKind.GPUS)

    @property
    def max_gap_s(self) -> float:
        """The longest time between two scrapes in which a target counts as seen: one of them may come late."""
        return 2.5 * self.every_s


def fetch(url: str, timeout_s: float = TIMEOUT_S, key: str = "", trust: ssl.SSLContext | None = None) -> bytes:
    """Returns the body of a GET. Blocks for at most about two time-outs. Raises OSError, HTTPException.

    Args:
        key: It is shown as a bearer token, but not to an address that the page sends on to; empty: there is none.
        trust: Says whose certificates are accepted; None: as the system trusts.
    """
    request = urllib.request.Request(url)
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    ends_s = time.monotonic() + timeout_s
    chunks, size = [], 0
    with urllib.request.urlopen(request, timeout=timeout_s, context=trust) as answer:
        while chunk := answer.read(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            if size > LONGEST_BYTES:
                raise OSError(f"an answer of more than {LONGEST_BYTES >> 20} MiB")
            if time.monotonic() > ends_s:
                raise TimeoutError("timed out")
    return b"".join(chunks)


def why_not(error: Exception) -> str:
    """Says in a few words why a page could not be read."""
    if isinstance(error, urllib.error.HTTPError):
        return f"answered {error.code}{', give its key with --key-file' if error.code in (401, 403) else ''}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({reason.verify_message}), --authority names who may sign it"
    if isinstance(reason, TimeoutError):
        return "did not answer in time"
    said = reason.strerror if isinstance(reason, OSError) else None
    return (said or str(reason) or type(reason).__name__).lower()


def record(
    pages: Sequence[Page],
    length_s: float,
    every_s: float,
    clock: Clock,
    after_round: Callable[[Sequence[Target], float], None] = lambda targets, share: None,
    fetch: Fetch = fetch,
) -> Recording:
    """Reads the pages now, then again each `every_s` until `length_s` have passed. Ctrl-C ends it early.

    Args:
        after_round: Called after each round with what there is so far, and the share of the time that has passed.
    """
    scrapes: dict[Page, list[Scrape]] = {page: [] for page in pages}

    def targets() -> tuple[Target, ...]:
        return tuple(Target(page.url, page.kind, tuple(own)) for page, own in scrapes.items())

    def scrape(page: Page) -> Scrape:
        return _scrape(page, clock, fetch)

    begin_s, ended_early, rounds = clock.now_s(), False, 0
    with ThreadPoolExecutor(max_workers=min(_MOST_AT_ONCE, max(1, len(pages)))) as pool:
        try:
            while True:
                for page, found in zip(pages, pool.map(scrape, pages), strict=True):
                    scrapes[page].append(found)
                passed_s = clock.now_s() - begin_s
                after_round(targets(), min(1.0, passed_s / length_s))
                if passed_s >= length_s:
                    break
                rounds = max(rounds + 1, int(passed_s // every_s))
                clock.wait(max(0.0, min(rounds * every_s, length_s) - passed_s))
        except KeyboardInterrupt:
            ended_early = True
    return Recording(targets(), every_s, length_s, "scrapes", ended_early)


def _scrape(page: Page, clock: Clock, fetch: Fetch) -> Scrape:
    try:
        body = fetch(page.url, TIMEOUT_S)
        return Scrape(clock.now_s(), samples_of(body.decode(errors="replace")))
    except (OSError, HTTPException) as error:
        return Scrape(clock.now_s(), None, f"{why_not(error)}; {_REMEDIES[page.kind]}")
    except ValueError as error:
        return Scrape(clock.now_s(), None, f"no Prometheus text ({error}); {_REMEDIES[page.kind]}")
