"""Arguments that may be secret. All on a machine can read a command line: what is secret stands in a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


def add_redis(parser: argparse.ArgumentParser) -> None:
    """Adds the two ways to say where Redis is; one of them must be given, and is in `redis_url`."""
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--redis-url", type=_without_password, help="where snapshots come from and records go")
    ways.add_argument(
        "--redis-url-file", dest="redis_url", type=from_file, help="file with that address, which may have a password"
    )


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
