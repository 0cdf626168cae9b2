"""The files that feeds may read: those of one folder that the operator of the server fills, and those that are shipped.

A feed is written by whoever runs one site, and its file is opened by the server with the server's rights. So a name
reaches nothing else: no other folder, no device or pipe, no Python package; and what is said of a file that cannot be
had does not tell whether it is there.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from core.ports import PermanentError
from pools.demo import carbon_curve

MOST_BYTES = 32 << 20  # a year of minutes has 35 MB; one of five minutes 7 MB
MOST_LETTERS = 200
SHIPPED: Mapping[str, Path] = {"pools.demo:carbon_day.csv": carbon_curve.FILE}
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_REMEDY = (
    f"put a CSV file of at most {MOST_BYTES >> 20} MB into the server's folder for feeds' files "
    f"(GREENSERVE_FEEDS_DIR), and write its name there, such as intensity.csv; shipped is {', '.join(SHIPPED)}"
)


def fault(name: object) -> str:
    """Says what is wrong with the name of a feed's file, and what would do; empty: nothing is. Looks at no file."""
    if isinstance(name, str) and (name in SHIPPED or _is_plain(name)):
        return ""
    return f"{str(name)[:60]!r} is no name of a feed's file: {_REMEDY}"


def read(folder: Path | None, name: str) -> str:
    """Returns the text of a feed's file. Blocks on the disk alone.

    Args:
        folder: Where the operator puts such files. None: there are only those that are shipped.

    Raises:
        PermanentError: There is no such file for feeds, whether or not there is one of this name elsewhere.
    """
    if name in SHIPPED:
        return SHIPPED[name].read_text(encoding="utf-8")
    if words := fault(name):
        raise PermanentError(words)
    absent = PermanentError(f"{name}: there is no such file for feeds: {_REMEDY}")
    if folder is None:
        raise absent
    try:
        root = folder.resolve(strict=True)
        path = (root / name).resolve(strict=True)  # a link may lead on within the folder, as Kubernetes' do
        if not path.is_relative_to(root):
            raise absent
        body = _bytes_of(path)
    except (OSError, RuntimeError):  # of a circle of links
        raise absent from None
    if body is None:
        raise absent
    return decoded(body, name)


def decoded(body: bytes, name: str) -> str:
    """Raises PermanentError."""
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PermanentError(f"{name}: is no UTF-8 text") from None


def _is_plain(name: str) -> bool:
    return len(name) <= MOST_LETTERS and all(_PART.fullmatch(part) for part in name.split("/"))


def _bytes_of(path: Path) -> bytes | None:
    """Returns the content of a regular file that is not too large; None for all else, without having read it.

    It is opened first and looked at then, so that nothing can be put in its place in between; a pipe does not block.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        body = file.read(MOST_BYTES + 1)
        return body if len(body) <= MOST_BYTES else None
