"""Arguments that may be secret. All on a machine can read a command line: what is secret stands in a file."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from pools import redis_safety
from pools.engine_trust import trust_in
from pools.wire.snapshot_signature import SnapshotVerifier


def add_redis(parser: argparse.ArgumentParser) -> None:
    """Adds the two ways to say where Redis is; one of them must be given, and is in `redis_url`."""
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--redis-url", type=_without_password, help="where snapshots come from and records go")
    ways.add_argument(
        "--redis-url-file", dest="redis_url", type=from_file, help="file with that address, which may have a password"
    )

    parser.add_argument(
        redis_safety.OPTION, action="store_true", help="take a Redis over TCP without a password or TLS, too"
    )


def check_redis(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Ends the program with one line where the Redis that is given may not be used."""
    if fault := redis_safety.fault(given.redis_url, given.redis_insecure):
        parser.error(fault)


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Adds what gateways show engines and ask them for: `worker_key` and `engine_trust`."""
    parser.add_argument(
        "--worker-key-file",
        dest="worker_key",
        type=from_file,
        help="file with the API key that workers ask for which register themselves; without it they ask for none",
    )
    parser.add_argument(
        "--engine-authority",
        dest="engine_trust",
        type=_trust,
        metavar="FILE",
        help="PEM file with certificates of who may sign those of engines; without it: whom the system trusts",
    )


def _trust(path: str) -> ssl.SSLContext:
    try:
        return trust_in(Path(path))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_snapshot_key(parser: argparse.ArgumentParser) -> None:
    """Adds who signs snapshots, which is no secret and still stands in a file: in `snapshot_key_file`, None if not."""
    parser.add_argument(
        "--snapshot-key-file",
        type=_verifier,
        help="file with the control plane's public key (PEM): no other snapshot than its own is put in force",
    )


def _verifier(path: str) -> SnapshotVerifier:
    try:
        return SnapshotVerifier(from_file(path).encode())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{path} has no public key of snapshots: {error}") from None


def from_file(path: str) -> str:
    """Returns what stands in the file."""
    try:
        found = Path(path).read_text().strip()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error.strerror}") from None
    if not found:
        raise argparse.ArgumentTypeError(f"{path} is empty: write into it what is secret")
    return found


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password or "password" in parse_qs(parts.query):
        raise argparse.ArgumentTypeError(
            "it has a password, and all on this machine can read a command line: write it into a file that its owner "
            "alone can read, and give --redis-url-file"
        )
    return url
