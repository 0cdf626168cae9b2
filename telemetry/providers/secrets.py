"""Keys of providers: from the environment or a file that its owner alone can read, never from the database.

A `Secret` shows itself only to whoever asks by `reveal`; printed, logged or put into an error it is three stars.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

PREFIX = "GREENSERVE_"
# By provider, what its adapter asks for; the variable is GREENSERVE_<PROVIDER>_<WHAT>.
WANTED: Mapping[str, tuple[str, ...]] = {
    "electricity_maps": ("token",),
    "watttime": ("user", "password"),
    "pjm": ("key",),
    "entsoe": ("token",),
    "eia": ("key",),
    "open_meteo": ("key",),  # for its paid plan alone
}
LARGEST_FILE = 64 << 10


class Secret:
    """A text that must not be seen."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__


class SecretsError(ValueError):
    """A key or a file of keys that cannot be used; the text names neither key nor value, only where and why."""


def variable(provider: str, what: str) -> str:
    return f"{PREFIX}{provider}_{what}".upper()


VARIABLES = tuple(variable(provider, what) for provider, needs in WANTED.items() for what in needs)


def gather(environment: Mapping[str, str], file: Path | None) -> dict[str, Secret]:
    """Returns all keys that are set, by variable; the environment goes before the file. Raises SecretsError."""
    found = {} if file is None else _read(file)
    found.update({name: environment[name].strip() for name in VARIABLES if environment.get(name, "").strip()})
    for name, text in found.items():
        if not text.isascii() or not text.isprintable():
            raise SecretsError(f"{name} has letters that no key has: copy it again")
    return {name: Secret(text) for name, text in found.items()}


def private_text(file: Path) -> str:
    """Returns the text of a file that its owner alone can read. Raises SecretsError."""
    try:
        # Opened first and looked at then: another file cannot be put in its place in between.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SecretsError(f"{file} is no ordinary file")
            if status.st_mode & 0o077:
                raise SecretsError(f"{file} can be read by others: chmod 600 {file}")
            if status.st_uid not in (os.geteuid(), 0):
                raise SecretsError(f"{file} belongs to somebody else: chown it to the account that runs GreenServe")
            return opened.read(LARGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise SecretsError(f"{file}: {reason}") from None


def _read(file: Path) -> dict[str, str]:
    """Reads lines `GREENSERVE_..=key`; empty ones and those that begin with # are passed over."""
    text = private_text(file)
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, sign, value = line.partition("=")
        if not sign or name.strip() not in VARIABLES:
            raise SecretsError(f"{file} line {number}: write NAME=key; names are {', '.join(VARIABLES)}")
        found[name.strip()] = value.strip().strip("'\"")
    return {name: value for name, value in found.items() if value}


def scrub(text: str, secrets: Iterable[Secret]) -> str:
    """`text` without the secrets, should another side have sent one back."""
    for secret in secrets:
        if secret.reveal():
            text = text.replace(secret.reveal(), "***")
    return text
