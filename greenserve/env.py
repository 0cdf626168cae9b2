"""The only reader of the environment. A bad value stops start-up and says which variable and what would do."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


class EnvironmentError_(SystemExit):
    """A variable that cannot be used; its text is the one line the operator sees."""


@dataclass(frozen=True, slots=True)
class Env:
    var_dir: Path
    database_url: str | None  # None: embedded PostgreSQL
    redis_url: str | None  # None: embedded Redis
    secret_key: str
    debug: bool
    web_host: str
    web_port: int
    gateway_host: str
    gateway_port: int
    demo: bool
    demo_speedup: float
    log_level: str


def read(source: Mapping[str, str] | None = None) -> Env:
    """Reads and checks every variable. Raises SystemExit with one line that names the variable and the remedy."""
    values = os.environ if source is None else source

    def get(name: str, default: T, parse: Callable[[str], T], remedy: str) -> T:
        raw = values.get(name, "").strip()
        if not raw:
            return default
        try:
            return parse(raw)
        except ValueError:
            raise EnvironmentError_(f"greenserve: {name}={raw!r} cannot be used: {remedy}") from None

    def port(raw: str) -> int:
        number = int(raw)
        if not 1 <= number <= 65535:
            raise ValueError
        return number

    def flag(raw: str) -> bool:
        return {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }[raw.lower()]

    def boolean(raw: str) -> bool:
        try:
            return flag(raw)
        except KeyError:
            raise ValueError from None

    def speedup(raw: str) -> float:
        number = float(raw)
        if not 1 <= number <= 1000:
            raise ValueError
        return number

    def url(*schemes: str) -> Callable[[str], str]:
        def parse(raw: str) -> str:
            if not raw.startswith(schemes):
                raise ValueError
            return raw

        return parse

    var_dir = Path(get("GREENSERVE_VAR", str(ROOT / "var"), str, "give a folder")).absolute()
    return Env(
        var_dir=var_dir,
        database_url=get(
            "DATABASE_URL", None, url("postgres://", "postgresql://"), "write postgresql://user:password@host:port/name"
        ),
        redis_url=get(
            "REDIS_URL", None, url("redis://", "rediss://", "unix://"), "write redis://host:port/0 or unix:///path"
        ),
        secret_key=get("GREENSERVE_SECRET_KEY", "", str, "give a long random text") or _secret_key(var_dir),
        debug=get("GREENSERVE_DEBUG", False, boolean, "write 1 or 0"),
        web_host=get("GREENSERVE_WEB_HOST", "127.0.0.1", str, "give an address to listen on"),
        web_port=get("GREENSERVE_WEB_PORT", 8000, port, "give a port between 1 and 65535"),
        gateway_host=get("GREENSERVE_GATEWAY_HOST", "127.0.0.1", str, "give an address to listen on"),
        gateway_port=get("GREENSERVE_GATEWAY_PORT", 8080, port, "give a port between 1 and 65535"),
        demo=get("GREENSERVE_DEMO", True, boolean, "write 1 or 0"),
        demo_speedup=get("GREENSERVE_DEMO_SPEEDUP", 30.0, speedup, "give a number between 1 and 1000"),
        log_level=get("GREENSERVE_LOG_LEVEL", "INFO", str.upper, "write DEBUG, INFO, WARNING or ERROR"),
    )


def _secret_key(var_dir: Path) -> str:
    """A key of this installation's own, made once and kept readable by its owner alone."""
    path = var_dir / "secret-key"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        var_dir.mkdir(parents=True, exist_ok=True)
        key = secrets.token_urlsafe(48)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(key)
        except FileExistsError:
            return path.read_text().strip()
        return key
