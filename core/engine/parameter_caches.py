"""Caches of what rests on the engine model's parameters, emptied together when those change."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, TypeVar, cast


class _Cache(Protocol):
    def cache_clear(self) -> None: ...


F = TypeVar("F", bound=Callable[..., object])
_caches: list[_Cache] = []
_revision = 0


def cached(maxsize: int) -> Callable[[F], F]:
    """Returns a decorator like `functools.lru_cache`, whose cache `clear` empties with the others."""

    def decorate(function: F) -> F:
        kept = lru_cache(maxsize)(function)
        _caches.append(kept)
        return cast(F, kept)

    return decorate


def clear() -> None:
    """Forgets what these caches hold: the next answers rest on the parameters of now."""
    global _revision
    _revision += 1
    for one in _caches:
        one.cache_clear()


def revision() -> int:
    """Returns a number that grows whenever parameters change, for what keeps tables of its own."""
    return _revision
