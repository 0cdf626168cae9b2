"""PostgreSQL and Redis from wheels, for a machine that has neither (stub until the runtime part lands)."""

from pathlib import Path


def database_url(var_dir: Path) -> str:
    raise NotImplementedError


def redis_url(var_dir: Path) -> str:
    raise NotImplementedError
